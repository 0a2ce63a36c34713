"""Secure aggregation by double masking: the server learns the sum of the uploads and who took part.

The way of an upload, in reading order; the files that it does not pass stand below the line:

    double_masking   the public class: guarantees, plan, and the methods that the runtime calls
    session          what client and server know of an exchange: stages, digests, and the states between two messages
    masking_client   a client's steps: advertise keys, deal shares, upload, reveal shares
    masking_server   the server's steps: relay keys and shares, add uploads, open the sum
    shares           shares of a client's secrets: dealt, encrypted, revealed, and what the server rebuilds from them
    masks            the graph of neighbours; residues of a contribution, and its masks
    mask_streams     the words of a mask's stream, AES in counter mode
    chacha_stream    the words of the other stream that a plan may name, ChaCha20
    primitives       X25519, HKDF, AES, tags of messages, Shamir's scheme
    --------------
    planning, graph                            the plan: thresholds, sparse graphs, bytes, assumptions as sentences
    pipeline                                   keys and shares of the next exchange, carried by this one
    identities, pinned_identities, consistency signatures against a server that deviates
    verification, mersenne                     the announced sum, checked by the clients
"""

from __future__ import annotations

from securefed.defenses._secure_aggregation.double_masking import SecureAggregation, secure_aggregation
from securefed.defenses._secure_aggregation.identities import Identities, new_identity, public_identity
from securefed.defenses._secure_aggregation.pinned_identities import PinnedIdentities

__all__ = [
    "Identities",
    "PinnedIdentities",
    "SecureAggregation",
    "new_identity",
    "public_identity",
    "secure_aggregation",
]
