"""One message a client: contributions under lattice encryption, whose sum a committee opens (experimental).

In reading order:

    one_message    the public class: what it guarantees, its plan, and the methods that the runtime calls
    parameters     the lattice's parameters, and the argument that they are safe
    ring           arithmetic modulo q, and products of polynomials
    plaintexts     where the integers of a contribution stand in ciphertexts
    encryption     an upload, and the decryption of a sum of uploads
    committee      numbers of members, and what follows from them
    session        stages, digests, what is signed, and states between messages
    client         the one message of a client
    sharing        a client's key in shares, which the members can check
    member         the steps of a member of the committee
    decoding       opening a sum although some members' shares are wrong
    server         the server's steps
    planning       bytes, assumptions and the comparison with secure aggregation, as sentences
    recount        adding up signed uploads again, by a third party
"""

from __future__ import annotations

from securefed.defenses._one_message.one_message import OneMessage, one_message

__all__ = ["OneMessage", "one_message"]
