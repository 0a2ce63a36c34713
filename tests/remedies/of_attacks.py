"""Remedies of attacks."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from securefed.algorithms import FedAvg
from securefed.attacks import DistanceFit, FitRows, LocalSteps, TrapWeights
from securefed.attacks._generic import RegressRows, Replay, StepClock, TimeBudget, clock, on_clock
from securefed.attacks._membership.likelihood_ratio import ShadowMembership
from tests.attacks.test_active import MLP, clients, deceive
from tests.attacks.test_generic_regression import bits, drawn, replay
from tests.remedies.followed import Followed, arguments, found
from tests.remedies.of_audits import audited, draws

RNG = np.random.default_rng(0)
REGRESSION, FIT = "attacks/_generic/row_regression.py", "attacks/_generic/row_fit.py"


def fitted(memory: float, rounds: int = 50) -> None:
    """Check the memory of a fit of three clients over fifty rounds."""
    observed = [SimpleNamespace(total=np.zeros(21)) for _ in range(50)]
    system: Any = SimpleNamespace(members=(0, 1, 2), edges=21, rounds=observed)
    DistanceFit(memory=memory, rounds=rounds)._check_memory(system)


def roomier(message: str) -> None:
    """Raise the memory to that which the message says, or take fewer rounds."""
    need = float(found(r"takes (\S+) GB", message))
    fitted(**{found(r"raise `(\w+)`", message): (need + 0.1) * 1e9})
    fitted(1.5e6, rounds=1)


class Stepped:
    """A replay as far as the check of an attack's effort reads it."""

    differentiable, calls = False, 500


def own_draws() -> Any:
    made = object.__new__(Replay)  # the audit itself refuses such steps before it makes a replay
    made.__dict__.update(target=None, repeatable=False)
    return made


def simulated() -> Any:
    return replay(bits, drawn(0), rounds=4)


def run(attack: Any, observed: Any) -> Any:
    return attack.run(observed, observed.target, RNG)


def allowed(message: str, kind: type) -> Any:
    """Make the attack with the calls that the message writes."""
    return kind(**arguments(r"FitRows\((calls=\d+)\)", message))


def spent(seconds: float, steps: int) -> None:
    with on_clock(StepClock(step=1.0)):
        budget = TimeBudget.of(seconds)
        for _ in range(steps):
            clock().count(rows=1)
        budget.check()


def longer(message: str) -> None:
    """Allow more seconds, or run fewer steps, as fewer clients need."""
    assert found("allow more `(.*?)`", message) == "seconds" and "fewer or smaller clients" in message
    spent(60.0, 6)
    spent(3.0, 1)


def batches(**given: Any) -> object:
    return LocalSteps(0.1, 2, **{"batch_size": 8, "drop_last": True} | given)._batches(4)


def smaller(message: str) -> None:
    rows = int(found(r"over (\d+) rows", message))
    assert found(r"lower (\w+),", message) == "batch_size"
    batches(batch_size=rows)
    batches(drop_last=False)


class Counted:
    """A replay that only says how many rows the members have."""

    rows, messages = 4, np.zeros(2)

    def __call__(self, rows: Any, seed: int) -> Any:
        return np.full(2, rows.sum()) + np.random.default_rng(seed).normal(size=2)


def shadowed(known: int) -> object:
    return ShadowMembership(4).score(Counted(), [], np.ones((known, 2)), np.random.default_rng(0))  # type: ignore[arg-type]


def trap(slope: float) -> Any:
    """Read four clients' rows, each of which makes one step, by trap weights."""
    return deceive(MLP, TrapWeights(slope=slope), clients(4), method=partial(FedAvg, local_steps=1))


TABLE: dict[str, Followed] = {
    "fewer than the fewest": Followed(
        REGRESSION, "at most `most`", lambda _: RegressRows(fewest=900), lambda *_: RegressRows(fewest=800)
    ),
    "a fit beyond the memory": Followed(
        "attacks/_distances/distance_fit.py",
        "raise `memory`, or take fewer rounds",
        lambda _: fitted(1.5e6),
        lambda message, _: roomier(message),
    ),
    "a fit of too many calls": Followed(
        FIT,
        "client steps, more than ",
        lambda _: FitRows(calls=10)._effort(Stepped()),
        lambda message, _: allowed(message, FitRows)._effort(Stepped()),
    ),
    "a step with its own generator": Followed(
        FIT,
        "it draws from a generator of its own",
        lambda _: run(FitRows(), own_draws()),
        lambda message, _: audited(draws) and found("let it draw from `(rng)`", message),
    ),
    "simulated clients of too many calls": Followed(
        REGRESSION,
        "simulated federations take ",
        lambda _: run(RegressRows(calls=100), simulated()),
        lambda message, _: run(allowed(message, RegressRows), simulated()),
    ),
    "a time budget that is spent": Followed(
        "attacks/_generic/time_budget.py",
        "were not enough for its client steps",
        lambda _: spent(3.0, 6),
        lambda message, _: longer(message),
    ),
    "too few rows for shadow clients": Followed(
        "attacks/_membership/likelihood_ratio.py",
        "Give more rows as ",
        lambda _: shadowed(3),
        lambda message, _: shadowed(int(found(r"at least (\d+) population rows", message))),
    ),
    "a batch larger than the rows": Followed(
        "attacks/_networks/client_simulations.py",
        "lower batch_size, or let the last batch be smaller",
        lambda _: batches(),
        lambda message, _: smaller(message),
    ),
    "rows that a trap does not show": Followed(
        "attacks/_active/trap_weights.py",
        "does not show in a client's message: raise `slope`",
        lambda _: trap(slope=1e-30),
        lambda message, _: trap(**{found("raise `(.*?)`", message): 0.25}),
    ),
}
"""By name, the remedies that are followed."""
