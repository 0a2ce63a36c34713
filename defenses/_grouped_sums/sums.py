"""The server of a grouped sum: one exchange of secure aggregation for each group, side by side, and their estimate.

All groups are at the same stage. A group whose exchange fails (too few clients, a share that was falsified) is void:
its clients are asked nothing more, and the other groups go on. At the end the server holds the sums of the groups that
are left, and estimates from those that count. With G groups, of which the estimator is to stand f with a liar:

    a sum counts unless   it is noise, because a client of the group sat out (the plan's indicator shows it), or an
                          entry is larger than the group's clients may send together, so that one of them lies
    enough count          as many as the estimator needs for f, or all but f: a liar may make its own group void, noise
                          or out of range, which is no worse than an unknown lie. The estimator is then set for as many
                          liars as the groups that count allow, f at most
    noise                 in more than f groups, the exchange is void: bounds are too small, and are doubled
    estimate              n_g clients of group g are in the sum S_g; m_g = S_g / n_g; with N = sum_g n_g over the groups
                          that count, the total is round(N estimate(m_1, ..., m_G')), integers as S_g are

The plain mean needs every group, and its total is sum_g S_g, exactly. Which sums counted, and why others did not,
stands beside the total (`Aggregate.groups`, `Aggregate.left_out`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from securefed._messages import Aggregate, ClientId, GroupSum, Message, PartyId
from securefed._persistence.packing import local
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Outgoing
from securefed.defenses._base import some_client_out, without_indicator, without_indicator_tensor
from securefed.defenses._grouped_sums.robust import ESTIMATORS, robust_mean
from securefed.defenses._plan import GroupingPlan, Plan, Session
from securefed.defenses._secure_aggregation import masking_server
from securefed.defenses._secure_aggregation.session import MaskingServer, ServerStep
from securefed.errors import ContradictionError, MessageRefused, TooFewSurvivors

Replies = Mapping[PartyId, Message]
InnerStep = Callable[[MaskingServer, Replies], ServerStep | Aggregate]


@dataclass(frozen=True, eq=False)
class GroupedServer:
    """The server's state of a grouped sum between two stages.

    Attributes:
        states: by group, the state of its exchange; of a void group its last one.
        plan: the plan of the whole exchange.
        cohorts: by group, its invited clients.
        void: by number of a void group, the reason.
    """

    states: tuple[MaskingServer | None, ...] = field(repr=False)
    plan: Plan = local()
    cohorts: tuple[tuple[ClientId, ...], ...] = local()
    void: Mapping[int, str] = field(default_factory=dict)

    @property
    def open(self) -> dict[int, MaskingServer]:
        """By number, the states of the groups that are not void."""
        return {g: state for g, state in enumerate(self.states) if state is not None and g not in self.void}

    def group_of(self, client: PartyId) -> int:
        """Return the number of a client's group; `ContradictionError` for one of a void group or of none."""
        for group in self.open:
            if client in self.cohorts[group]:
                return group
        raise ContradictionError(client, "it is in no group whose sum is being made")


def grouping_of(plan: Plan) -> GroupingPlan:
    """Return the plan's part of grouped sums."""
    assert plan.grouping is not None
    return plan.grouping


def open_sums(
    plan: Plan, sessions: Sequence[Session | None], start: Callable[[Session], ServerStep]
) -> tuple[GroupedServer, str, Outgoing]:
    """Open the exchanges of all groups that have enough invited clients.

    Args:
        plan: of the whole exchange.
        sessions: by group, its session; `None` where no client of it is invited.
        start: opens the exchange of one group.

    Raises:
        TooFewSurvivors: too few groups have enough invited clients.
    """
    states: list[MaskingServer | None] = []
    void, stage, outgoing = {}, "", dict[PartyId, Tensors]()
    for number, session in enumerate(sessions):
        invited = 0 if session is None else len(session.cohort)
        if session is None or invited < session.plan.threshold:
            void[number] = f"{invited} of its clients are invited"
            states.append(None)
            continue
        own, stage, requests = start(session)
        states.append(own)
        outgoing |= requests
    cohorts = tuple(() if session is None else session.cohort for session in sessions)
    state = GroupedServer(tuple(states), plan, cohorts, void)
    _enough(state, len(state.open))
    return state, stage, outgoing


def absorb(state: GroupedServer, reply: Message) -> GroupedServer:
    """Add one upload to the sum of its group; `MessageRefused` for a bad one."""
    group = state.group_of(reply.sender)
    return _with(state, {group: masking_server.absorb(state.open[group], reply.sender, reply)})


def step(state: GroupedServer, replies: Replies, inner: InnerStep) -> tuple[GroupedServer, str, Outgoing] | Aggregate:
    """Take the replies of one stage in all groups.

    Args:
        state: the state.
        replies: by client; at the stage `upload` those that were not given to `absorb`.
        inner: makes the step of one group.

    Raises:
        MessageRefused: a reply is to be dropped, and the step repeated.
        TooFewSurvivors: too few groups are left for the estimator.
    """
    for client in replies:
        state.group_of(client)
    void, steps, sums = dict(state.void), dict[int, ServerStep](), dict[int, Aggregate]()
    for number, own in state.open.items():
        mine = {client: reply for client, reply in replies.items() if client in state.cohorts[number]}
        try:
            made = inner(own, mine)
        except MessageRefused as error:
            if error.sender in mine:
                raise  # the caller drops this reply and repeats the step
            void[number] = str(error)
        except TooFewSurvivors as error:
            void[number] = str(error)
        else:
            if isinstance(made, Aggregate):
                sums[number] = made
            else:
                steps[number] = made
    after = replace(_with(state, {number: made[0] for number, made in steps.items()}), void=void)
    _enough(after, len(after.open))
    if sums:
        return combined(after, sums)
    outgoing: dict[PartyId, Tensors] = {}
    for _, _, requests in steps.values():
        outgoing |= requests
    stage = next(iter(steps.values()))[1]
    return after, stage, outgoing


def combined(state: GroupedServer, sums: Mapping[int, Aggregate]) -> Aggregate:
    """Estimate the total of all clients from the sums of the groups.

    Where clients of more groups sat out than may be left out, the total is the sum of all, whose indicator shows that.

    Raises:
        TooFewSurvivors: as `step`.
    """
    plan = state.plan
    reasons = {number: _why_not(summed, plan) for number, summed in sums.items()}
    counted = {number: summed for number, summed in sums.items() if not reasons[number]}
    noise = sum(some_client_out(summed.total, plan) for summed in sums.values())
    if noise > grouping_of(plan).liars:
        return Aggregate(_plain_sum(plan, list(sums.values())), _survivors(sums), {}, _shown(sums, counted))
    left_out = {**state.void, **{number: why for number, why in reasons.items() if why}}
    _enough(replace(state, void=left_out), len(counted))
    named = {
        client: f"its group of clients {', '.join(map(str, state.cohorts[number]))} is left out: {why}"
        for number, why in left_out.items()
        for client in state.cohorts[number]
    }
    return Aggregate(_total(plan, list(counted.values())), _survivors(counted), {}, _shown(sums, counted), named)


def _with(state: GroupedServer, changed: Mapping[int, MaskingServer]) -> GroupedServer:
    states = tuple(changed.get(number, own) for number, own in enumerate(state.states))
    return replace(state, states=states)


def _enough(state: GroupedServer, groups: int) -> None:
    """Raise `TooFewSurvivors` where the estimator needs more groups."""
    if groups < (needed := grouping_of(state.plan).needed):
        number, why = next(iter(state.void.items()))
        raise TooFewSurvivors(
            f"{groups} of {len(state.states)} groups are left, and {grouping_of(state.plan).aggregator} needs "
            f"{needed}; the round is void. Group {number}: {why}"
        )


def _why_not(summed: Aggregate, plan: Plan) -> str:
    """Return why the sum of a group does not count; empty where it does."""
    if some_client_out(summed.total, plan):
        return "a client of it sat out, or uploaded noise"
    if grouping_of(plan).aggregator not in ESTIMATORS:
        return ""
    for tensor in without_indicator(plan).tensors:
        if tensor.bound is None or not tensor.size:
            continue
        most = summed.count * math.ceil(tensor.bound / tensor.step)
        entries = summed.total[tensor.name]
        if max(int(entries.max()), -int(entries.min())) > most:
            return f"its sum of {tensor.name!r} is larger than its clients may send together, so one of them lies"
    return ""


def _survivors(sums: Mapping[int, Aggregate]) -> tuple[ClientId, ...]:
    return tuple(sorted(client for summed in sums.values() for client in summed.survivors))


def _shown(sums: Mapping[int, Aggregate], counted: Mapping[int, Aggregate]) -> tuple[GroupSum, ...]:
    """Return the sums for the server's record, without the indicator."""
    return tuple(GroupSum(s.survivors, without_indicator_tensor(s.total), g in counted) for g, s in sums.items())


def _plain_sum(plan: Plan, sums: Sequence[Aggregate]) -> dict[str, Array]:
    """Add the sums, exact in the ring."""
    return {t.name: sum((s.total[t.name] for s in sums), np.zeros(t.shape, np.int64)) for t in plan.tensors}


def _total(plan: Plan, sums: Sequence[Aggregate]) -> dict[str, Array]:
    """Return N times the estimate as integers, and an indicator of zeros."""
    grouping, count = grouping_of(plan), sum(summed.count for summed in sums)
    if grouping.aggregator not in ESTIMATORS:
        return _plain_sum(plan, sums)
    tensors = without_indicator(plan).tensors
    units = [np.concatenate([s.total[t.name].reshape(-1) * (t.step / s.count) for t in tensors]) for s in sums]
    liars = max(f for f in range(grouping.liars + 1) if ESTIMATORS[grouping.aggregator].needs(f) <= len(sums))
    estimate = robust_mean(np.stack(units), grouping.aggregator, liars)
    total, at = {t.name: np.zeros(t.shape, np.int64) for t in plan.tensors}, 0
    for tensor in tensors:
        part = estimate[at : at + tensor.size].reshape(tensor.shape)
        total[tensor.name] = np.rint(part * (count / tensor.step)).astype(np.int64)
        at += tensor.size
    return total
