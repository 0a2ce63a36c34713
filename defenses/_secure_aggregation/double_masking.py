"""Sum contributions under double masks (Bonawitz et al. 2017, CCS, fig. 4), or on sparse graphs (Bell et al. 2020).

Client i uploads x_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij) modulo 2^ring, over its neighbours j:
x_i is its contribution in fixed point, b_i the seed of its self mask, s_ij the key that it agreed on with j. In the sum
over the survivors (clients that uploaded) the pair masks cancel. What is left, the self masks of survivors and the pair
masks with lost clients, the server removes by seeds and keys that t Shamir shares reconstruct. This module holds the
public class: its parameters, what it guarantees, and its plan, stated before a run (threshold, bytes, assumptions). Of
an exchange (one sum) the runtime calls the `client_` and `server_` methods, as `Aggregation` defines them. They pass on
to `masking_client` and `masking_server` or, where one exchange precomputes keys of the next, to `pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from securefed._hyperparameters import check_integer
from securefed._messages import REFUSAL, Aggregate, ClientId, Message, PartyId
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Aggregation, Outgoing, Release
from securefed.defenses._plan import Plan, Session, UploadContext
from securefed.defenses._secure_aggregation import (
    masking_client,
    masking_server,
    pipeline,
    planning,
    verification,
)
from securefed.defenses._secure_aggregation.chacha_stream import AES, StreamName, check_stream
from securefed.defenses._secure_aggregation.graph import (
    SECURITY,
    SMALL,
    SparseGraphDesign,
    design_sparse_graph,
    plan_sparse_graph,
)
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.pipeline import PipelinedClient, PipelinedServer
from securefed.defenses._secure_aggregation.primitives import verify_refusal
from securefed.defenses._secure_aggregation.session import (
    ACTIVE_STAGES,
    CONFIRM,
    CONTRIBUTE,
    STAGES,
    UNMASK,
    MaskingClient,
    MaskingServer,
    masking_of,
)
from securefed.errors import ConfigError, PlanError

SMALLEST_COHORT = 3  # fewer hide nothing from the server and one client

Graph = Literal["complete", "sparse", "auto"]


@dataclass(frozen=True)
class SecureAggregation(Aggregation):
    """Sums contributions so that the server learns the sum and the survivors, and nothing else of any contribution.

    An exchange has four stages, with fresh keys each time. `keys`: each client advertises two X25519 keys, one for its
    pair masks and one to encrypt. `shares`: it deals Shamir shares of its self-mask seed and of its mask key,
    encrypted for each neighbour. `upload`: it sends its contribution plus its self mask, plus or minus one mask for
    each neighbour. `unmask`: the survivors reveal shares of the seeds of clients that uploaded, and of the mask keys of
    those that did not, never both. A client may drop out at any stage; the sum is that of all clients that uploaded,
    provided that `threshold` clients remain.
    On the complete graph all clients are neighbours. On a sparse graph, degree and shares are found for the stated
    numbers of corrupt and of lost clients (`design_sparse_graph`); the graph is drawn from all advertised keys.
    With `identities` the server may deviate: every advertised key is signed, and before `unmask` comes `confirm`, where
    each survivor signs the set of survivors; it reveals shares only for the set that it and `threshold` clients signed.

    Attributes:
        threshold: survivors a round needs, above half of the planned clients; `None` takes floor(N / 2) + 1, or with
            identities floor((N + C) / 2) + 1, N being the planned clients and C the colluding ones. Only on the
            complete graph: a sparse one needs all clients except those that its plan expects to lose.
        graph: "complete", "sparse", or "auto": sparse above 32 clients where a sparse graph exists.
        adversarial: share of the clients that may collude with the server; a sparse graph needs it.
        dropouts: share of the clients that may be lost in a round; a sparse graph needs it.
        security: a sparse graph lets the attacker open some honest client's upload with probability 2^-security at
            most, or three times that with `identities`, each time that a graph is drawn (the module `graph` says how
            often a server can have it drawn).
        identities: the clients' Ed25519 keys, given to every party before the run (`Identities`), against a server that
            deviates in any way. The threshold t then also satisfies 2 t > N + C; on a sparse graph, with k + 1 holders
            of each secret of whom c may be corrupt, the shares t also satisfy 2 t > k + 1 + c. With `None`
            the server must be honest but curious; this saves one stage and two signatures per client.
        pipelined: whether each exchange precomputes keys and shares of the next, which then begins with `upload` where
            it invites the clients that completed the last one (`pipeline`).
        verify: whether the server announces each training sum to the clients that it counted, and they check it before
            they send anything more (`verification` states the guarantee).
        survivor_change: b: a client releases a sum only if all sums that it knows of its data tell no group of fewer
            than b clients apart (`SumsSoFar`). If two sets of survivors differ by one client, the difference of
            their sums is that client's contribution plus the change in the others'. With b > 1, a round that loses few
            clients is void, and repeated without some others. Cohorts that are drawn anew soon leave no such groups.
        stream: name of the masks' stream: "aes-128-ctr", or "chacha20" for graphics cards (`chacha_stream`). It enters
            the plan's digest: a client with another one is in no sum, and none is negotiated.

    Guarantees on the complete graph:
        - Against a server that follows the protocol, and up to `threshold - 1` clients that tell it all they know: they
          learn the sum of the other survivors' contributions, and nothing more. (If only one other client survives,
          that sum is its contribution.)
        - Without identities, against a server that lies about dropouts only: an honest client reveals one kind of share
          of each client, once, and only if it is told of `threshold` survivors or more. So both secrets of a client are
          collected only with 2 * threshold - N colluding clients or more. But clients do not compare survivors: a
          server that names different ones to different clients may open a sum over fewer than `threshold`.
        - With identities, against a server that deviates in any way, with up to C colluding clients: it obtains at most
          one sum of an exchange, over `threshold` clients or more, from which it can subtract what the colluding ones
          sent. It cannot replace a client's keys by its own. Clients that were told of different advertised clients,
          share dealers or survivors do not end up in one sum.
          A contribution to one broadcast enters sums over one set of survivors only, in all runs: the client's ledger
          remembers each sum that it was asked to open, and refuses that broadcast with other survivors.
        - Against other parties, with a server that follows the protocol and authentic keys at the stage `keys`: a
          message altered, replayed, re-ordered or swapped on its way, or a share that its holder or dealer falsified,
          ends in a specific error; the sum is exact for those in `survivors`. For this, all messages from the reply at
          `keys` on carry a MAC under keys agreed between client and server (`seal`), shares are encrypted end to end
          and bound to all advertised keys, and reconstructed secrets are compared with what was advertised.
        - What a federation sends beside the protocol's own fields (the broadcast, which clients the last sum counted)
          enters the masks as the exchange's context: clients that received different contexts are not summed.
    Guarantees on a sparse graph: the same, where at most C clients collude, chosen before the graph is drawn, except
        with the probability under `security` (that as many of a client's neighbours collude as open its secrets).
    Not promised:
        - Without identities nothing proves who advertised a key. A server that does so in the clients' names opens
          their uploads, and so does any other party where the transport does not authenticate.
        - The server may compute anything. It chooses broadcasts and, without `verify`, announces any result. It can
          subtract sums of similar contributions as well as of equal ones; only noise bounds what that reveals.
        - A client may contribute any residues, which shift the sum or make it useless, and is not found out. It can
          also make a round void. The error names a client; but where one reports that a share from another does not
          open, the server cannot tell which of the two is at fault.
        - Sizes, timing and participation are visible. An attacker may subtract sums over different survivors, except
          for equal broadcasts with identities, as above.
    """

    threshold: int | None = None
    graph: Graph = "complete"
    adversarial: float = 0.0
    dropouts: float = 0.0
    security: int = SECURITY
    identities: Identities | None = None
    pipelined: bool = False
    verify: bool = False
    survivor_change: int = 1
    stream: StreamName = AES
    name: ClassVar[str] = "secure_aggregation"
    exact: ClassVar[bool] = True
    hides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_integer("threshold", self.threshold, 1, note="(a number of clients)")
        check_integer("survivor_change", self.survivor_change, 1, note="(a number of clients)")
        check_integer("security", self.security, 1, note="(bits)")
        for name in ("pipelined", "verify"):
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name} must be True or False; got {getattr(self, name)!r}")
        check_stream(self.stream)
        if self.graph not in ("complete", "sparse", "auto"):
            raise ConfigError(f'graph must be "complete", "sparse" or "auto"; got {self.graph!r}')
        planning.shares_of(1, self.adversarial, self.dropouts)  # checks that both are in [0, 1)
        if self.graph != "complete" and not (self.adversarial and self.dropouts):
            raise ConfigError(
                "a sparse graph is designed for a share of adversarial clients and of dropouts; give "
                "adversarial= and dropouts="
            )
        if self.graph != "complete" and self.threshold is not None:
            raise ConfigError(
                "the design of a sparse graph sets the threshold; give threshold= only with graph='complete'"
            )

    @property
    def active(self) -> bool:
        """True if it protects against a server that deviates from the protocol, which needs identities."""
        return self.identities is not None

    def __repr__(self) -> str:  # terms are digested by it: it is as it was before there was `stream`, where that is AES
        own = [one.name for one in fields(self) if one.name != "stream" or self.stream != AES]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in own)})"

    def __str__(self) -> str:
        words = [] if self.threshold is None else [f"threshold={self.threshold}"]
        if self.graph != "complete":
            words.append(f"graph={self.graph}")
        words += [f"adversarial={self.adversarial:g}"] if self.adversarial else []
        words += [f"dropouts={self.dropouts:g}"] if self.dropouts else []
        words += [f"security={self.security}"] if self.security != SECURITY else []
        words += ["active"] if self.active else []
        words += ["identities on first use"] if self.identities and self.identities.first_use else []
        words += ["pipelined"] if self.pipelined else []
        words += ["verify"] if self.verify else []
        words += [f"survivor_change={self.survivor_change}"] if self.survivor_change > 1 else []
        words += [f"stream={self.stream}"] if self.stream != AES else []
        return f"{self.name}({', '.join(words)})" if words else self.name

    def design(self, clients: int) -> SparseGraphDesign | None:
        """Design the sparse graph for as many clients; `None` where the graph is complete.

        Raises:
            PlanError: a sparse graph is required and none meets the stated numbers.
        """
        if self.graph == "complete" or (self.graph == "auto" and clients <= SMALL):
            return None
        try:
            return design_sparse_graph(
                clients, self.adversarial, self.dropouts, security=self.security, active=self.active
            )
        except PlanError:
            if self.graph == "sparse":
                raise
            return None

    def plan(self, plan: Plan) -> Plan:
        """Add stages, bytes, threshold, what collusion opens, and assumptions to the plan.

        Raises:
            PlanError: a tensor is not quantised, fewer than 3 clients, a threshold outside (N/2, N] or not above the
                adversarial clients, with identities one not above (N + corrupt) / 2, more dropouts than it leaves room
                for, or no sparse graph that meets the stated numbers.
        """
        planning.check_summed(plan, SMALLEST_COHORT, self.stream)
        design = self.design(plan.clients)
        if design is None:
            plan = planning.plan_complete_graph(
                plan, threshold=self.threshold, adversarial=self.adversarial, dropouts=self.dropouts,
                active=self.active, survivor_change=self.survivor_change,
            )  # fmt: skip
        else:
            plan = plan_sparse_graph(plan, design, survivor_change=self.survivor_change)
        stages = ACTIVE_STAGES if self.active else STAGES
        plan = replace(plan, stages=stages, masking=replace(masking_of(plan), stream=self.stream))
        plan = self._verified(plan) if self.verify else plan
        plan = replace(plan, upload_bytes=planning.upload_bytes(plan))
        if self.pipelined:
            short, full = ("three", "five") if self.active else ("two", "four")
            plan = plan.assume(
                f"An exchange with just the clients that completed the last one has {short} stages, from upload to "
                f"unmask; the first and any other has {full}."
            )
        return plan.assume(
            *(planning.CURIOUS if self.identities is None else planning.deviating(self.identities, plan)),
            "Who took part, sizes and timing are visible.",
            *planning.subtracting(self.identities, self.survivor_change),
            "A client's contribution is not checked: a lying client shifts the sum.",
            "No client's state is rolled back to before an upload and used again.",
        )

    def _verified(self, plan: Plan) -> Plan:
        """Plan that clients check the announced sum; `PlanError` where that sum is one before the server's noise."""
        if plan.noised and plan.privacy is not None and not plan.privacy.noise_survivors:
            raise PlanError(
                "verify=True shows the clients the sum before the server's noise; "
                "verify without it, or let the clients add the noise (skellam)"
            )
        return replace(plan, verified=True).assume(*planning.verifying(self.identities))

    def client_open(self, session: Session, client: ClientId) -> MaskingClient:
        """Start an exchange at a client with fresh secrets; `PlanError` where the plan is not one of this protocol."""
        kind = PipelinedClient if self.pipelined else MaskingClient
        return kind.open(session, client, self.identities)

    def client_resume(self, session: Session, client: ClientId, last: Any) -> MaskingClient:
        """Start an exchange at a client with what its last exchange precomputed.

        Args:
            session: run, exchange number, cohort and plan.
            client: its id.
            last: its state after its last exchange.
        """
        if isinstance(last, PipelinedClient):
            return PipelinedClient.resume(session, client, last)
        return MaskingClient.open(session, client, self.identities)

    def client_step(
        self, state: MaskingClient, request: Message, encoded: Tensors | None
    ) -> tuple[MaskingClient, Tensors]:
        """Answer one request at a client; return the next state and the reply's body.

        Raises:
            MessageRefused: the request is not the server's next one, does not verify, or asks for shares that together
                would unmask one upload.
            RangeRefused: an encoded entry does not fit its ring.
        """
        if isinstance(state, PipelinedClient):
            return pipeline.client_step(state, request, encoded)
        return masking_client.client_step(state, request, encoded)

    def client_accept(self, state: MaskingClient, request: Message, context: UploadContext) -> MaskingClient:
        """Check the request for an upload; the client may then compute its contribution.

        Args:
            state: the client's state.
            request: the server's message.
            context: hashes of what the server sent this client; they enter masks and signatures.

        Raises:
            MessageRefused: as `client_step`. No refusal depends on the contribution.
        """
        if isinstance(state, PipelinedClient):
            return pipeline.client_accept(state, request, context)
        return masking_client.client_accept(state, request, context)

    def client_upload(self, state: MaskingClient, encoded: Tensors | None) -> tuple[MaskingClient, Tensors]:
        """Mask and send the contribution; for a client that sits out (`None`) uniform integers: the sum is then noise.

        `RangeRefused` where an encoded entry does not fit its ring.
        """
        if isinstance(state, PipelinedClient):
            return pipeline.client_upload(state, encoded)
        return masking_client.client_upload(state, encoded)

    def server_open(self, session: Session) -> tuple[MaskingServer, str, Outgoing]:
        """Start an exchange at the server."""
        return self.server_resume(session, None)

    def server_resume(self, session: Session, last: Any) -> tuple[MaskingServer, str, Outgoing]:
        """Start an exchange at the server with what the last exchange precomputed (`server_carry`)."""
        if self.pipelined:
            return pipeline.server_resume(session, last, self.identities)
        return masking_server.server_open(session, self.identities)

    def server_carry(self, state: MaskingServer, replies: Mapping[PartyId, Message]) -> Any:
        """Return what the last replies of a completed exchange precomputed for the next one, or `None`."""
        return pipeline.server_carry(state, replies) if isinstance(state, PipelinedServer) else None

    def server_step(
        self, state: MaskingServer, replies: Mapping[PartyId, Message]
    ) -> tuple[MaskingServer, str, Outgoing] | Aggregate:
        """Take the replies of one stage, and return the next requests or the sum.

        Raises:
            MessageRefused: a reply is malformed, does not verify, or contradicts what its sender advertised.
            TooFewSurvivors: fewer replies than the threshold; the exchange is void.
            SurvivorsTooClose: the run's sums, with this one, would tell too few clients apart.
        """
        if isinstance(state, PipelinedServer):
            return pipeline.server_step(state, replies)
        return masking_server.server_step(state, replies)

    def client_releases(self, before: MaskingClient, after: MaskingClient) -> Release | None:
        """Return the sum that a client consents to in a step: it signs the survivors, or without identities unmasks."""
        if before.survivors or not after.survivors:
            return None
        known = None if after.identities is None else after.identities.public
        members = () if known is None else tuple(known[client] for client in after.survivors)
        return Release(after.survivors, after.contribution, members)

    def server_names(self, state: MaskingServer) -> tuple[tuple[ClientId, ...], ...]:
        """Return the one set of survivors that the clients are asked to sign or to unmask; empty before they are."""
        return (state.survivors,) if state.stage in (CONFIRM, UNMASK) else ()

    def client_prepare(self, state: MaskingClient) -> MaskingClient:
        """Compute the masks of the upload while the contribution is computed; call it after `client_accept`."""
        return masking_client.make_masks(state) if state.stage == CONTRIBUTE else state

    def server_absorb(self, state: MaskingServer, reply: Message) -> MaskingServer:
        """Add one upload to the running sum, so that no upload needs to be kept; `MessageRefused` for a bad one."""
        if isinstance(state, PipelinedServer):
            return pipeline.absorb(state, reply.sender, reply)
        return masking_server.absorb(state, reply.sender, reply)

    def client_keeps(self, state: MaskingClient) -> bytes:
        """Return the secret key that checks the announced sum; empty before the upload and without `verify`."""
        return state.sum_key

    def announce(self, aggregate: Aggregate) -> dict[str, Array]:
        """Return the announcement to the clients that were counted; empty without `verify`."""
        return verification.announce(aggregate.total, aggregate.survivors, aggregate.proof) if aggregate.proof else {}

    def client_check(self, kept: bytes, client: ClientId, plan: Plan, announced: Tensors) -> None:
        """Raise `SumRefused` or `MalformedError` unless `announced` is the sum of the named clients' contributions."""
        verification.check_sum(kept, client, plan, announced)

    def client_refusal(self, state: MaskingClient, body: Tensors, number: int) -> Tensors:
        """Return a refusal's body, with a tag where the client has a channel with the server in exchange `number`."""
        return state.seal(REFUSAL, body) if state.channel and state.session.round == number else body

    def server_refusal(self, state: MaskingServer, refusal: Message) -> None:
        """Check the tag of a client's refusal, where there is a channel; `MessageRefused` if it is not the client's."""
        if (secret := state.channels.get(refusal.sender)) is not None:
            verify_refusal(secret, refusal)


def secure_aggregation(
    threshold: int | None = None,
    *,
    graph: Graph = "complete",
    adversarial: float = 0.0,
    dropouts: float = 0.0,
    security: int = SECURITY,
    identities: Identities | None = None,
    pipelined: bool = False,
    verify: bool = False,
    survivor_change: int = 1,
    stream: StreamName = AES,
) -> SecureAggregation:
    """Sum contributions under double masks, so that the server sees only the sum.

    Arguments, guarantees and errors are those of `SecureAggregation`.
    """
    return SecureAggregation(
        threshold, graph, adversarial, dropouts, security, identities, pipelined, verify, survivor_change, stream
    )
