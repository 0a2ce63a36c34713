"""Sum contributions group by group under masks, and take a robust mean of the group means.

    grouped(secure_aggregation(), groups=5, aggregator="median")

A lying client shifts a secure sum by as much as it likes, and robust aggregation compares single updates, which secure
sums hide. Between the two: the clients are dealt into G public groups (`drawing`), each group has a secure sum of its
own, and the server takes the median, say, of the G means (`robust`). It sees sums of N / G clients instead of one sum
of N, and a liar spoils the mean of its own group only. The design in short:

    - A client runs secure aggregation with the clients of its group, and nothing else: its steps, state and messages
      are those of `SecureAggregation` in a session of its group. So all that protects a sum (threshold, survivors,
      dropouts, signatures, the client's ledger with its rules) holds for each group by itself.
    - The server runs the G exchanges side by side (`sums`) and returns N times the robust mean as the sum, so that an
      algorithm's `combine` and the decoding of fixed point stay as they are.
    - The plan holds G, the estimator, and the plans of the groups (`GroupingPlan`); all of it enters the plan's digest,
      to which masks are bound.
    - Another protocol for the groups' sums needs its own plan, client and server steps; groups and estimators do not
      depend on masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from securefed._hyperparameters import check_choice, check_integer
from securefed._messages import Aggregate, ClientId, Message, PartyId
from securefed._tensors import Tensors
from securefed.defenses._aggregation import Aggregation, Outgoing, Release
from securefed.defenses._base import INDICATOR, Defense
from securefed.defenses._grouped_sums import sums
from securefed.defenses._grouped_sums.drawing import Groups, exposed, groups_of, sizes
from securefed.defenses._grouped_sums.robust import ESTIMATORS, Aggregator
from securefed.defenses._grouped_sums.sums import GroupedServer
from securefed.defenses._plan import GroupingPlan, Plan, Session, TensorPlan, UploadContext
from securefed.defenses._secure_aggregation.double_masking import SecureAggregation
from securefed.defenses._secure_aggregation.session import MaskingClient
from securefed.errors import ConfigError, PlanError

_SMALLEST_GROUP = 3
_MEAN = "mean"
_FLOAT64_EPS = 2.0**-52
_DRAWN_BY_KEYS = (
    "Groups are drawn from all identity keys, the same in all runs of these clients, and a client's ledger keeps its "
    "group; a client that makes its identity last can try many."
)
_DRAWN_BY_RUN = (
    "Groups are drawn from the run's identifier, the same in all exchanges of the run; a server that draws many "
    "identifiers chooses the groups."
)


@dataclass(frozen=True)
class Grouped(Aggregation):
    """Sums each group of clients under masks, and gives N times a robust mean of the group means as the sum.

    Attributes:
        masking: the secure aggregation of each group.
        groups: G, the number of groups; every one has 3 clients or more, and their sizes differ by one at most.
        aggregator: "median", "trimmed_mean", "geometric_median", "krum", "multi_krum", or "mean", the plain sum.
        liars: f, the number of groups with a lying client that the estimator is to stand. The median, the trimmed mean
            and the geometric median need 2 f + 1 groups, Krum and multi-Krum 2 f + 3. 0 for the mean.

    Guarantees:
        - In each group those of `SecureAggregation` with the group's clients as all clients: the server learns the sum
          of each group and its survivors, and nothing else of a contribution.
        - Where at most f of the groups in the estimate hold a liar, whatever these send: each entry of the median and
          of the trimmed mean lies between the smallest and the largest mean of the other groups. Krum returns the mean
          of a group whose neighbours are close to it; the geometric median is at most a multiple of the honest means'
          spread away from them (the multiple grows towards f = G / 2).
        - A group that is void, in which a client sat out, or whose sum is larger than its clients may send, is left out
          and named, while as many groups count as f asks for, or all but f (a liar may do that to its group). Noise in
          more than f groups, or too few groups that count, make the exchange void.
        - The groups are the same in all exchanges of a run and, with identities, in all runs of the same clients; a
          client's ledger refuses another group for the same data.
    Not guaranteed:
        - Anything for the honest clients in a liar's group: their contributions do not count, or count wrongly. With
          one liar in each of more than f groups nothing is promised; liars that choose their groups need f + 1 clients.
        - That the estimate is the honest clients' mean: it is biased where their data differ (skewed labels, unequal
          numbers of rows). A liar within the bounds still moves it within the honest groups' spread, in every round.
        - Privacy as of one sum of N: the server sees sums of N / G clients; as many colluding clients as are in a
          client's group but it see its contribution; one bit a group shows whether a client of it sat out.
        - Groups against a party that draws many (`drawing`).

    Raises:
        ConfigError: an aggregation that is not secure aggregation, or with a setting that groups do not have; G or f
            that do not fit the estimator.
    """

    masking: SecureAggregation
    groups: int
    aggregator: Aggregator = "median"
    liars: int = 1
    name: ClassVar[str] = "grouped"
    exact: ClassVar[bool] = True
    hides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.masking, SecureAggregation):
            raise ConfigError(
                f"the sums of groups are masked, and this is {self.masking!r}; give transforms before the groups, as "
                "in chain(clip(1.0), grouped(secure_aggregation(), groups=5))"
            )
        check_integer("groups", self.groups, 1)
        check_choice("aggregator", self.aggregator, (_MEAN, *ESTIMATORS))
        check_integer("liars", self.liars, 0)
        self._check_masking()
        self._check_liars()

    def _check_masking(self) -> None:
        """Raise `ConfigError` for a setting of the masks that groups do not have."""
        for name in ("pipelined", "verify"):
            if getattr(self.masking, name):
                raise ConfigError(
                    f"{name}=True is for one sum of all clients, and groups make several; give "
                    "pipelined=False and verify=False to secure_aggregation"
                )
        if self.masking.graph != "complete":
            raise ConfigError(
                f"groups are small, and graph={self.masking.graph!r} is for many clients; give graph='complete' to "
                "secure_aggregation"
            )

    def _check_liars(self) -> None:
        """Raise `ConfigError` where the estimator does not stand so many liars."""
        if self.aggregator == _MEAN:
            if self.liars:
                raise ConfigError("the mean stands no liar; give liars=0, or aggregator='median'")
            return
        if not self.liars:
            raise ConfigError(f"{self.aggregator} is set for liars=1 or more; for none take aggregator='mean', liars=0")
        if (needed := ESTIMATORS[self.aggregator].needs(self.liars)) > self.groups:
            raise ConfigError(
                f"{self.aggregator} needs {needed} groups for liars={self.liars}, and groups={self.groups}; give "
                f"groups={needed} or more"
            )

    def __str__(self) -> str:
        words = [str(self.masking), f"groups={self.groups}", self.aggregator]
        return f"{self.name}({', '.join(words + [f'liars={self.liars}'] * (self.aggregator != _MEAN))})"

    @property
    def needed(self) -> int:
        """Fewest groups that must count: as many as f asks for, or all but f; the mean needs all."""
        if self.aggregator == _MEAN:
            return self.groups
        return min(ESTIMATORS[self.aggregator].needs(self.liars), self.groups - self.liars)

    def _liars_of(self, groups: int) -> int:
        """Return the number of groups with a liar that the estimator stands where so many groups count."""
        return max(f for f in range(self.liars + 1) if ESTIMATORS[self.aggregator].needs(f) <= groups)

    @property
    def robust(self) -> bool:
        """Whether it changes the sum: the mean does not."""
        return self.aggregator != _MEAN

    def plan(self, plan: Plan) -> Plan:
        """Add the groups, with the plan of secure aggregation for each size of a group.

        Raises:
            PlanError: a group of fewer than 3 clients, identities of other clients than planned, noise, which is sized
                for one sum, or what secure aggregation refuses of a group.
        """
        self._check_plan(plan)
        bare = GroupingPlan(self.groups, self.aggregator, self.liars, self.needed)
        group = replace(plan, grouping=bare, assumptions=())
        own = {n: self.masking.plan(replace(group, clients=n)) for n in sizes(plan.clients, self.groups)}
        small, large = own[min(own)], own[max(own)]
        tensors = tuple(self._with_error(t, plan.clients) for t in plan.tensors) if self.robust else plan.tensors
        return replace(
            plan,
            tensors=tensors,
            stages=small.stages,
            upload_bytes=large.upload_bytes,
            threshold=min(group.threshold for group in own.values()),
            open_to=f"in its group, {small.open_to}",
            masking=small.masking,
            grouping=replace(bare, plans=own),
        ).assume(*self._sentences(plan.clients, small), *(f"In a group: {text}" for text in small.assumptions))

    def _check_plan(self, plan: Plan) -> None:
        """Raise `PlanError` for a plan that cannot be grouped."""
        if plan.clients < _SMALLEST_GROUP * self.groups:
            raise PlanError(
                f"{plan.clients} clients in {self.groups} groups leave a group of fewer than {_SMALLEST_GROUP}, whose "
                f"sum hides too little; plan for at least {_SMALLEST_GROUP * self.groups} clients, or give "
                f"groups={max(plan.clients // _SMALLEST_GROUP, 1)} or fewer"
            )
        if plan.noised or plan.sampling_rate != 1.0:
            raise PlanError(
                f"{plan.defense} adds noise that is sized for one sum of all clients, and groups make several; under "
                "noise take `secure_aggregation()` without groups"
            )
        known = self.masking.identities
        if known is not None and set(known.public) != set(range(plan.clients)):
            raise PlanError(
                f"groups are drawn from the identities of all {plan.clients} planned clients, and there are "
                f"{len(known.public)}; give identities=Identities(...) of the clients 0 to {plan.clients - 1}, all of "
                "which every sum is planned for"
            )

    @staticmethod
    def _with_error(tensor: TensorPlan, clients: int) -> TensorPlan:
        """Add the rounding of the estimate to an integer, and that of its arithmetic in float64."""
        if tensor.name == INDICATOR:
            return tensor
        return replace(
            tensor, error=tensor.error + tensor.step / 2 + 8 * clients * (tensor.bound or 0.0) * _FLOAT64_EPS
        )

    def _sentences(self, clients: int, small: Plan) -> tuple[str, ...]:
        """Say what groups cost in privacy, and what the estimator promises."""
        own, least = sizes(clients, self.groups), small.threshold
        few = min(own[0], clients - 1)
        chance = exposed(clients, own[0], least, few)
        cost = (
            f"{clients} clients are in {self.groups} groups of {' or '.join(map(str, own))}, and the server sees the "
            f"sum of each, over {least} clients or more; one sum of all would be over {clients // 2 + 1} or more.",
            f"Clients that collude subtract their own from their group's sum: {least - 1} others in a sum of {least} "
            f"leave one contribution. {few} colluders, chosen before the groups are drawn, are so many in a given "
            f"client's group of {own[0]} with probability {chance:.2g}.",
            _DRAWN_BY_KEYS if self.masking.active else _DRAWN_BY_RUN,
            "One bit a group shows the server whether a client of it sat out.",
        )
        if not self.robust:
            return (*cost, "The groups' sums are added, so that a lying client shifts the sum; all groups are needed.")
        return (
            *cost,
            f"The sum is the number of clients times {ESTIMATORS[self.aggregator].words} of the group means. It stands "
            f"{self.liars} group{'s' * (self.liars > 1)} with a liar, and one liar spoils its whole group. The stated "
            "error is that of the group means; the estimate is biased where honest clients differ.",
            f"Groups that are void, noise (of {self.liars} at most) or out of range are left out and named; where only "
            f"the {self.needed} groups that must count are left, they stand "
            f"{self._liars_of(self.needed)} with a liar. With fewer the round is void.",
        )

    def session_of(self, session: Session, group: int) -> Session | None:
        """Return the session of one group; `None` where none of its clients is invited."""
        grouping = sums.grouping_of(session.plan)
        members = self._everyone(session)[group]
        cohort = tuple(client for client in session.cohort if client in members)
        return replace(session, cohort=cohort, plan=grouping.plans[len(members)]) if cohort else None

    def _everyone(self, session: Session) -> Groups:
        """Return the clients of each group, invited or not.

        Raises:
            ConfigError: a client is invited that is in no group, as groups are drawn over the planned clients.
        """
        if session.cohort[-1] >= (clients := session.plan.clients):
            raise ConfigError(
                f"client {session.cohort[-1]} is in no group: groups are drawn over the {clients} clients that are "
                "planned for a sum; plan for all clients of the run"
            )
        return groups_of(self.masking.identities, session.run, clients, self.groups)

    def client_open(self, session: Session, client: ClientId) -> MaskingClient:
        """Start an exchange at a client: that of its group."""
        if client not in session.cohort:
            raise ConfigError(f"client {client} is not in the cohort {session.cohort}")
        group = next(g for g, members in enumerate(self._everyone(session)) if client in members)
        own = self.session_of(session, group)
        assert own is not None
        return self.masking.client_open(own, client)

    def client_step(
        self, state: MaskingClient, request: Message, encoded: Tensors | None
    ) -> tuple[MaskingClient, Tensors]:
        """Answer one request at a client, as `SecureAggregation` does in its group."""
        return self.masking.client_step(state, request, encoded)

    def client_accept(self, state: MaskingClient, request: Message, context: UploadContext) -> MaskingClient:
        """Check the request for an upload; the context is that of the whole exchange, so that all groups share it."""
        return self.masking.client_accept(state, request, context)

    def client_upload(self, state: MaskingClient, encoded: Tensors | None) -> tuple[MaskingClient, Tensors]:
        """Mask and send the contribution; uniform integers for a client that sits out."""
        return self.masking.client_upload(state, encoded)

    def client_prepare(self, state: MaskingClient) -> MaskingClient:
        """Compute the masks of the upload ahead."""
        return self.masking.client_prepare(state)

    def client_releases(self, before: MaskingClient, after: MaskingClient) -> Release | None:
        """Return the sum of its group that a client consents to in a step, with the group that its ledger keeps."""
        release = self.masking.client_releases(before, after)
        known = self.masking.identities
        if release is None or known is None:
            return release
        everyone = groups_of(known, after.session.run, len(known.public), self.groups)
        members = next(group for group in everyone if after.client in group)
        return replace(release, group=tuple(known.public[client] for client in members))

    def client_refusal(self, state: MaskingClient, body: Tensors, number: int) -> Tensors:
        """Return the body of a client's refusal, with a tag where it shares a secret with the server."""
        return self.masking.client_refusal(state, body, number)

    def server_open(self, session: Session) -> tuple[GroupedServer, str, Outgoing]:
        """Start the exchanges of all groups."""
        sessions = [self.session_of(session, group) for group in range(self.groups)]
        return sums.open_sums(session.plan, sessions, self.masking.server_open)

    def server_step(
        self, state: GroupedServer, replies: Mapping[PartyId, Message]
    ) -> tuple[GroupedServer, str, Outgoing] | Aggregate:
        """Take the replies of one stage in all groups, and return the next requests or the sum.

        Raises:
            MessageRefused: as `SecureAggregation.server_step`.
            TooFewSurvivors: too few groups are left.
        """
        return sums.step(state, replies, self.masking.server_step)

    def server_absorb(self, state: GroupedServer, reply: Message) -> GroupedServer:
        """Add one upload to the running sum of its group."""
        return sums.absorb(state, reply)

    def server_names(self, state: GroupedServer) -> tuple[tuple[ClientId, ...], ...]:
        """Return, by group, the survivors that the server asks to open a sum over; empty before it does."""
        return tuple(name for own in state.states if own is not None for name in self.masking.server_names(own))

    def server_refusal(self, state: GroupedServer, refusal: Message) -> None:
        """Check the tag of a client's refusal; `MessageRefused` if it is not the client's."""
        own = state.states[state.group_of(refusal.sender)]
        assert own is not None
        self.masking.server_refusal(own, refusal)


def grouped(
    masking: SecureAggregation, *, groups: int, aggregator: Aggregator = "median", liars: int | None = None
) -> Grouped:
    """Sum group by group under masks, and take a robust mean of the group means; see `Grouped`.

    Args:
        masking: the secure aggregation of each group, `secure_aggregation(...)`.
        groups: number of groups, of 3 clients or more.
        aggregator: the robust mean.
        liars: number of groups with a lying client that it is to stand; 1 by default, and 0 for the mean.

    Raises:
        ConfigError: as `Grouped`.
    """
    return Grouped(masking, groups, aggregator, int(aggregator != _MEAN) if liars is None else liars)


def masking_in(aggregation: Aggregation) -> SecureAggregation | None:
    """Return the secure aggregation of a sum, or of its groups; `None` where contributions are not masked."""
    if isinstance(aggregation, Grouped):
        return aggregation.masking
    return aggregation if isinstance(aggregation, SecureAggregation) else None


def with_masking(defense: Defense, change: Callable[[SecureAggregation], SecureAggregation]) -> Defense:
    """Return a defence whose secure aggregation, of the sum or of its groups, is changed; others as they are."""
    aggregation = defense.aggregation
    if isinstance(aggregation, Grouped):
        return replace(defense, aggregation=replace(aggregation, masking=change(aggregation.masking)))
    if isinstance(aggregation, SecureAggregation):
        return replace(defense, aggregation=change(aggregation))
    return defense


def check_cohort(defense: Defense, cohort: int, clients: int) -> None:
    """Raise `ConfigError` where groups are to be drawn over fewer clients than the run has."""
    if isinstance(defense.aggregation, Grouped) and cohort != clients:
        raise ConfigError(
            f"groups are drawn over all {clients} clients of a run, and cohort={cohort} are planned for a sum; give "
            f"cohort={clients}"
        )
