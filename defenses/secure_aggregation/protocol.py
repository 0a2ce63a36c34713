"""Secure aggregation by double masking (Bonawitz et al. 2017, CCS, fig. 4), or on a sparse graph (Bell et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from securefed.defenses.base import Aggregation, Outgoing, Plan, Session, UploadContext
from securefed.defenses.fixed_point import is_ring
from securefed.defenses.plan import MaskingPlan
from securefed.defenses.secure_aggregation import channel, consistency, pipeline, server, verification
from securefed.defenses.secure_aggregation.assumptions import CURIOUS, deviating
from securefed.defenses.secure_aggregation.channel import TAG_BYTES
from securefed.defenses.secure_aggregation.client import (
    MaskingClient,
    client_accept,
    client_step,
    client_upload,
    make_masks,
)
from securefed.defenses.secure_aggregation.graph import SECURITY, SMALL, Design, find, shares_of
from securefed.defenses.secure_aggregation.identities import Identities
from securefed.defenses.secure_aggregation.pipeline import PipelinedClient, PipelinedServer
from securefed.defenses.secure_aggregation.server import MaskingServer
from securefed.defenses.secure_aggregation.session import ACTIVE_STAGES, CONTRIBUTE, STAGES, UPLOAD, upload_bytes
from securefed.errors import ConfigError, PlanError
from securefed.messages import REFUSAL, Aggregate, ClientId, Message, PartyId
from securefed.tensors import Array, Tensors

_SMALLEST_COHORT = 3

Graph = Literal["complete", "sparse", "auto"]


@dataclass(frozen=True)
class SecureAggregation(Aggregation):
    """The server learns the sum of the uploads, and who took part; nothing else of any contribution.

    An exchange has four stages, with fresh keys each time. `keys`: each client advertises two X25519 keys.
    `shares`: it deals Shamir shares of its self-mask seed and of its mask key, encrypted for each peer. `upload`: it
    sends its contribution plus its self mask plus one signed mask for each peer. `unmask`: the survivors
    give shares of the seeds of those that uploaded and of the keys of those that did not, never both.
    A client may drop out at any stage; the sum is that of all that uploaded, while `threshold` clients are left.
    On a sparse graph a client's peers are its neighbours; degree and shares are found for the stated number of
    corrupt and of lost clients (`graph.find`, `design`). The graph is drawn from the keys of all that advertised.
    With `identities` the server may deviate: every advertised key is signed, and before `unmask` comes `confirm`, where
    each survivor signs who survived; it lets shares out for the one set that it signed and `threshold` others did.

    Attributes:
        threshold: survivors a round needs, above half of the planned clients; `None` takes floor(N / 2) + 1. Only
            on the complete graph: a sparse one needs the clients that its plan does not expect to lose.
        graph: "complete", "sparse", or "auto": sparse above 32 clients where a sparse graph exists.
        adversarial: share of the clients that may collude with the server; a sparse graph needs it.
        dropouts: share of the clients that may be lost in a round; a sparse graph needs it.
        security: a sparse graph exposes an honest client with probability 2^-security at most.
        identities: the clients' Ed25519 keys, given to every party before the run (`Identities`), against a server that
            deviates in any way. The threshold then also keeps 2 t > k + c, where k clients hold shares of one secret
            (all, or the neighbourhood) and c bounds the corrupt among them, by `adversarial`. `None`: the server is
            honest but curious, at a stage and two signatures less.
        pipelined: whether each exchange prepares the next, which then begins with `upload` where it invites those that
            completed the last one (`pipeline`).
        verify: whether the server announces each training sum to the clients that it counted, and they check it before
            they send anything more (`verification`, which says what that promises).
        survivor_change: b: a client lets a sum out only over the survivors of the last sum that it let out, or over
            survivors that differ from them by b clients at least. Two sums over survivors that differ by one client
            subtract to that client's contribution, up to how much the others' moved. With b > 1 a round in which fewer
            clients are lost or return is repeated without b - 1 others.

    Guarantees:
        A server that follows the protocol learns, with up to `threshold - 1` clients that share all they know with it,
        no more than the sum of the other survivors' contributions.
        An honest client gives one kind of share of each client, once, for `threshold` survivors or more. So without
        identities a server that lies about who is dead collects both secrets of one client only with
        2 * threshold - N colluding clients or more. (It may obtain sums over fewer clients than the threshold.)
        With identities, against a server that deviates in any way together with the stated share of the clients: of
        one exchange it opens a single sum, over `threshold` clients or more, or none. It cannot put keys of its own in
        place of a client's, nor tell clients different rosters or survivors. What a client computes from one broadcast
        and one counted round enters sums over one set of survivors only: a round that is repeated after its sum was
        opened, without a client, is refused. (A client remembers 64 bytes for each sum that it let out.)
        All but the first hold on the complete graph. On a sparse one: with up to the stated share of colluding clients,
        chosen before the graph is drawn, but for the stated probability.
        With an honest server, a message altered, replayed, re-ordered or swapped by anyone between (or a share
        that its holder or dealer falsified) ends in a named refusal; the sum is exact for those in `survivors`. How:
        from `keys` on both directions carry a MAC under keys agreed between client and server (`channel`), bundles are
        encrypted end to end and bound to the roster, and what is reconstructed is compared with what was advertised.
        What a federation sends beside the protocol's own fields (the broadcast, who was counted last) enters the masks
        as the exchange's context: clients that were told different things are not summed.
    Not promised:
        Who a client is, without identities: a server that impersonates clients at first contact (each exchange is
        one), or anyone who can where the transport does not authenticate, opens uploads.
        That the server computes what it says: it chooses broadcasts and may announce any result. Contributions that
        differ a little subtract as well as equal ones; noise bounds that (`differential_privacy`), masks do not.
        That a client's contribution is honest, or masked as it says: it may send any residues under its own name,
        and the sum is wrong by what it made up. That no client can end a round: each one can, by name.
        Hidden sizes, timing and participation. That sums stay apart: those over different survivors subtract.
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
    name: ClassVar[str] = "secure_aggregation"
    exact: ClassVar[bool] = True
    hides: ClassVar[bool] = True
    upload: ClassVar[str] = UPLOAD

    def __post_init__(self) -> None:
        if self.threshold is not None and type(self.threshold) is not int:
            raise ConfigError(f"the threshold is a whole number of clients, not {self.threshold!r}")
        if type(self.survivor_change) is not int or self.survivor_change < 1:
            raise ConfigError(f"survivor_change is a number of clients from 1, not {self.survivor_change!r}")
        if self.graph not in ("complete", "sparse", "auto"):
            raise ConfigError(f'the graph is "complete", "sparse" or "auto", not {self.graph!r}')
        shares_of(1, self.adversarial, self.dropouts)
        if self.graph != "complete" and not (self.adversarial and self.dropouts):
            raise ConfigError("a sparse graph is found for a share of adversarial clients and of dropouts; give both")
        if self.graph != "complete" and self.threshold is not None:
            raise ConfigError("the finder sets the threshold of a sparse graph; give it only for the complete graph")

    @property
    def active(self) -> bool:
        """Whether it is run against a server that deviates: with identities, whose worth stands in the plan."""
        return self.identities is not None

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
        return f"{self.name}({', '.join(words)})" if words else self.name

    def design(self, clients: int) -> Design | None:
        """The sparse graph for so many clients, `None` where the graph is complete.

        Raises:
            PlanError: a sparse graph is asked for and none does what is asked.
        """
        if self.graph == "complete" or (self.graph == "auto" and clients <= SMALL):
            return None
        try:
            return find(clients, self.adversarial, self.dropouts, security=self.security, active=self.active)
        except PlanError:
            if self.graph == "sparse":
                raise
            return None

    def plan(self, plan: Plan) -> Plan:
        """The plan with stages, bytes, threshold, what collusion opens, and assumptions.

        Raises:
            PlanError: a tensor is not quantised, fewer than 3 clients, a threshold outside (N/2, N] or not above the
                adversarial clients, with identities one not above (N + corrupt) / 2, more dropouts than it leaves room
                for, or no sparse graph that does what is asked.
        """
        for tensor in plan.tensors:
            if not tensor.step or not is_ring(tensor.ring):
                raise PlanError(f"tensor {tensor.name!r} is not quantised; put quantise() before secure_aggregation()")
        if plan.clients < _SMALLEST_COHORT:
            raise PlanError(
                f"secure aggregation of {plan.clients} clients hides nothing from the server and one client; "
                f"plan for at least {_SMALLEST_COHORT}"
            )
        design = self.design(plan.clients)
        plan = self._complete(plan) if design is None else self._sparse(plan, design)
        stages = STAGES if self.identities is None else ACTIVE_STAGES
        plan = replace(plan, stages=stages)
        plan = self._verified(plan) if self.verify else plan
        plan = replace(plan, upload_bytes=upload_bytes(plan, TAG_BYTES) + verification.upload_bytes(plan))
        if self.pipelined:
            short, full = ("three", "five") if self.active else ("two", "four")
            plan = plan.assume(
                f"An exchange with just the clients that completed the last one has {short} stages, from upload to "
                f"unmask; the first and any other has {full}."
            )
        trust = CURIOUS if self.identities is None else deviating(self.identities, plan)
        return plan.assume(
            *trust,
            "Who took part, sizes and timing are visible.",
            "Sums over different survivors of the same values subtract"
            + (
                "."
                if self.survivor_change == 1
                else f"; clients let out none that differ by 1 to {self.survivor_change - 1} clients from the last one."
            ),
            "A client's contribution is not checked: a lying client shifts the sum.",
            "No client's state is rolled back to before an upload and used again.",
        )

    def _verified(self, plan: Plan) -> Plan:
        if plan.noised and plan.privacy is not None and not plan.privacy.noise_survivors:
            raise PlanError(
                "verify=True shows the clients the sum before the server's noise; "
                "verify without it, or let the clients add the noise (skellam)"
            )
        return replace(plan, verified=True).assume(
            "Clients that are counted see the round's sum. An altered one passes with a client with probability 2^-60 "
            "at most, against the server alone: nothing is promised against the server and one client together"
            + self._players(),
            "What follows from a verified sum is computed by the server, and is not checked.",
        )

    def _players(self) -> str:
        """Against what server that plays a client a verified sum says nothing."""
        if self.identities is None:
            return ", nor against a server that plays a client, which needs no identity here."
        return ", nor against a server that wrote a client's identity." if self.identities.first_use else "."

    def _complete(self, plan: Plan) -> Plan:
        clients = plan.clients
        corrupt, lost = shares_of(clients, self.adversarial, self.dropouts)
        twice = corrupt if self.active else 0  # they answer twice, and sign twice, for a server that lies
        threshold = (clients + twice) // 2 + 1 if self.threshold is None else self.threshold
        if not clients < 2 * threshold <= 2 * clients:
            raise PlanError(f"threshold {threshold} is not above half of {clients} clients and at most {clients}")
        if 2 * threshold <= clients + twice:
            raise PlanError(
                f"threshold {threshold}: {clients} holders of which {corrupt} answer and sign twice open two sums, or "
                f"both secrets of a client, to a server that lies; it must exceed {(clients + twice) / 2:g}"
            )
        if corrupt >= threshold:
            raise PlanError(
                f"{corrupt} adversarial clients of {clients} open uploads at threshold {threshold}; raise it"
            )
        if clients - lost < threshold:
            raise PlanError(f"{lost} of {clients} clients lost leave fewer than the threshold {threshold}; lower it")
        opens = f"the server and any {threshold} of {clients} clients together; the server and all other survivors"
        masking = MaskingPlan(shares=threshold, survivor_change=self.survivor_change)
        return replace(plan, threshold=threshold, open_to=opens, masking=masking).assume(
            f"{threshold} colluding clients and the server open uploads; so do all survivors but one, from the sum."
        )

    def _sparse(self, plan: Plan, design: Design) -> Plan:
        threshold = plan.clients - design.lost
        if design.active and 2 * threshold <= plan.clients + design.corrupt:
            raise PlanError(
                f"{design.lost} of {plan.clients} clients lost and {design.corrupt} that sign twice leave no majority "
                "that agrees on the survivors; lower `dropouts` or `adversarial`"
            )
        if not plan.clients < 2 * threshold:
            raise PlanError(f"{design.lost} of {plan.clients} clients lost leave no more than half; lower `dropouts`")
        opens = (
            f"the server and any {design.threshold} of a client's {design.degree} neighbours together; "
            "the server and all other survivors"
        )
        masking = MaskingPlan(design.degree, design.threshold, self.survivor_change)
        return replace(plan, threshold=threshold, open_to=opens, masking=masking).assume(
            design.explain(),
            f"At most {design.corrupt} clients collude with the server, the same whatever the graph turns out to be.",
            f"A round that more than {design.lost} clients leave is void.",
        )

    def client_open(self, session: Session, client: ClientId) -> MaskingClient:
        """A client's state with fresh secrets. Raises `PlanError` where the plan is not one of this protocol."""
        kind = PipelinedClient if self.pipelined else MaskingClient
        return kind.open(session, client, self.identities)

    def client_resume(self, session: Session, client: ClientId, last: Any) -> MaskingClient:
        """As `client_open`, with what the client's last exchange prepared."""
        if isinstance(last, PipelinedClient):
            return PipelinedClient.resume(session, client, last)
        return MaskingClient.open(session, client, self.identities, last)

    def client_step(
        self, state: MaskingClient, request: Message, encoded: Tensors | None
    ) -> tuple[MaskingClient, Tensors]:
        if isinstance(state, PipelinedClient):
            return pipeline.client_step(state, request, encoded)
        return client_step(state, request, encoded)

    def client_accept(self, state: MaskingClient, request: Message, context: UploadContext) -> MaskingClient:
        if isinstance(state, PipelinedClient):
            return pipeline.client_accept(state, request, context)
        return client_accept(state, request, context)

    def client_upload(self, state: MaskingClient, encoded: Tensors | None) -> tuple[MaskingClient, Tensors]:
        if isinstance(state, PipelinedClient):
            return pipeline.client_upload(state, encoded)
        return client_upload(state, encoded)

    def server_open(self, session: Session) -> tuple[MaskingServer, str, Outgoing]:
        if self.pipelined:
            return pipeline.server_open(session, self.identities)
        return server.server_open(session, self.identities)

    def server_resume(self, session: Session, last: Any) -> tuple[MaskingServer, str, Outgoing]:
        """As `server_open`, with what the last exchange prepared (`server_carry`)."""
        if self.pipelined:
            return pipeline.server_resume(session, last, self.identities)
        return server.server_open(session, self.identities)

    def server_carry(self, state: MaskingServer, replies: Mapping[PartyId, Message]) -> Any:
        """What the last replies of a completed exchange prepared for the next; `None` for nothing."""
        return pipeline.server_carry(state, replies) if isinstance(state, PipelinedServer) else None

    def server_step(
        self, state: MaskingServer, replies: Mapping[PartyId, Message]
    ) -> tuple[MaskingServer, str, Outgoing] | Aggregate:
        if isinstance(state, PipelinedServer):
            return pipeline.server_step(state, replies)
        return server.server_step(state, replies)

    def client_memory(self, state: MaskingClient) -> Array:
        """What was let out, and over whom (`consistency.memory_of`); nothing where no rule looks at it."""
        return consistency.memory_of(state.released, state.previous)

    def client_remind(self, state: MaskingClient, memory: Array) -> MaskingClient:
        """The state that refuses to let one of those out into another sum."""
        released, previous = consistency.from_memory(memory)
        return replace(state, released=released, previous=previous)

    def client_prepare(self, state: MaskingClient) -> MaskingClient:
        """The state with the masks of its upload, where it waits for its contribution."""
        return make_masks(state) if state.stage == CONTRIBUTE else state

    def server_absorb(self, state: MaskingServer, reply: Message) -> MaskingServer:
        """The state with one more upload added, so that no upload needs to be kept."""
        if isinstance(state, PipelinedServer):
            return pipeline.absorb(state, reply.sender, reply)
        return server.absorb(state, reply.sender, reply)

    def client_keeps(self, state: MaskingClient) -> bytes:
        """What the announced sum will be checked with; a secret. Empty before the upload and without `verify`."""
        return state.sum_key

    def announce(self, aggregate: Aggregate) -> dict[str, Array]:
        """What the server tells those that it counted; empty without `verify`."""
        return verification.announce(aggregate.total, aggregate.survivors, aggregate.proof) if aggregate.proof else {}

    def client_check(self, kept: bytes, client: ClientId, plan: Plan, announced: Tensors) -> None:
        """Raise `SumRefused` or `MalformedError` unless `announced` is the sum of what those that it names uploaded."""
        verification.check_sum(kept, client, plan, announced)

    def client_refusal(self, state: MaskingClient, body: Tensors, number: int) -> Tensors:
        return state.seal(REFUSAL, body) if state.channel and state.session.round == number else body

    def server_refusal(self, state: MaskingServer, refusal: Message) -> None:
        if (secret := state.channels.get(refusal.sender)) is not None:
            channel.verify(secret, refusal)


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
) -> SecureAggregation:
    """Secure aggregation by double masking; see `SecureAggregation`."""
    return SecureAggregation(
        threshold, graph, adversarial, dropouts, security, identities, pipelined, verify, survivor_change
    )
