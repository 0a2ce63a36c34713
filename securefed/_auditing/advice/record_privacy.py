"""Price noise that hides single rows, for cohorts that are too small for noise that hides a whole client.

Every local step is DP-SGD over all rows of the client (`private/fedavg`): each row's gradient is clipped, and noise in
proportion to the clip is added to their sum. Epsilon then holds for one row, there or not, and grows with the number
of steps, not with the number of clients. So five hospitals with hundreds of patients each can afford it where noise
that hides one of five hospitals ruins their mean.

Attacks are not run on these messages: no attack of this package reads rows out of noised sums of clipped gradients.
The promise is epsilon's; what it means for one row is the bound on an attacker's guess (`RecordSetting.guess`).

`search` calls `record_settings` after all other settings. A `Candidate` is one setting of the search (defence, numbers
of clients and rounds); `Trials` runs candidates of one algorithm on the user's data and measures utility and cost. Here
they run the user's algorithm for the comparison, and the private method in its place, under secure aggregation over all
clients. A `Case` is an algorithm with the hyper-parameters, rounds and data with which it is run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np
from scipy.special import ndtr

from securefed._auditing.advice.advice_values import RecordSetting
from securefed._auditing.advice.candidates import Candidate, command
from securefed._auditing.advice.cohorts import keeps
from securefed._auditing.advice.trials import Trials
from securefed._auditing.cases import Case
from securefed._auditing.cases.utilities import utility
from securefed._auditing.engine.kept_utility import kept
from securefed._catalogue import algorithms
from securefed._public import Public
from securefed.errors import ConfigError, MissingExtraError, SecureFedError
from securefed.problems import LogisticRegression, SoftmaxRegression

METHOD: Final = "private/fedavg"
EPSILONS: Final = (1.0, 4.0, 8.0)
"""Promises for one row that are tried: strong, customary, weak."""
STEPS: Final = (1.0, 5.0, 20.0)
"""Learning rates that are tried, in units of the user's: clipped gradients are shorter, so that larger steps may do."""
CLIPS: Final = (1.0, 0.3)
"""Norms of a row's gradient that are tried; with scaled features most gradients are about as long."""
CHOSEN_AT: Final = 1
"""Index of the epsilon at which learning rate and clip are chosen."""
CHOICE_SEEDS: Final = 2
"""Runs of each learning rate and clip; the best ones differ by less than the runs of one scatter."""
NOT_COVERED: Final = "learning rate and clip were chosen on these data; epsilon does not cover that choice"
_DENSE: Final = "dense"
"""Name of networks of dense layers; their class is not imported here, since it loads torch."""
_RECORD_LEVEL: Final = ("pca/ssi", "pca/localpower", "graph/fedavg", "graph/fedprox")
"""Algorithms for which `record_level` bounds what one row changes, with one local step where they have several."""
_PRECISION: Final = 1e-4
"""Relative precision to which the least noise is sought."""
SCALED: Final = "nor the means and deviations by which columns are scaled; agree on them beforehand"
"""Follows `NOT_COVERED` in the note of a setting where columns are scaled over all clients' rows."""


def record_settings(
    trials: Trials, clients: int, keep: float, seeds: Sequence[int], options: str
) -> tuple[tuple[RecordSetting, ...], str]:
    """Measure what noise that hides single rows costs, at the user's own number of clients and rounds.

    Args:
        trials: the algorithm on the user's data, whose utility in the clear is the comparison.
        clients: number of clients in a round.
        keep: share of the utility in the clear that a usable setting keeps.
        seeds: the seeds of the runs.
        options: what names the data in the command to paste.

    Returns:
        One setting for each of `EPSILONS`; or none, and the reason in a sentence.
    """
    candidate = Candidate("secure_aggregation", clients, None, trials.case.rounds, threshold=clients)
    try:
        public = trials.prepare(candidate, 0).public
        priced = _Priced(trials, candidate, _settings(trials.case, public))
        clear = trials.clear_utilities(candidate, candidate.rounds, seeds)
        beside = trials.floors(candidate, seeds)
        rate, clip = priced.choose(range(CHOICE_SEEDS))
        compared = _Compared(clear, beside, keep)
        found = [priced.setting(epsilon, rate, clip, compared, seeds, options) for epsilon in EPSILONS]
    except MissingExtraError as error:
        return (), f"Noise that hides single rows was not tried: {error}"
    except SecureFedError as error:
        return (), f"Noise that hides single rows was not tried: {error}."
    return tuple(found), ""


@dataclass(frozen=True)
class _Compared:
    """Utilities that the private ones are compared with, one a seed, and the share of them that is enough."""

    clear: list[float]
    floors: list[Mapping[str, float]]
    keep: float


class _Priced:
    """Runs the private method with the hyper-parameters of the user's.

    Args:
        trials: the user's algorithm on the data.
        candidate: the setting: secure aggregation over all clients.
        settings: the settings of the private method, without learning rate, clip and noise.
    """

    def __init__(self, trials: Trials, candidate: Candidate, settings: dict[str, Any]) -> None:
        self._trials, self._candidate, self._fixed = trials, candidate, settings
        self._rate = float(getattr(trials.case.build(), "learning_rate", 0.1))

    @property
    def _steps(self) -> int:
        """Local steps of one client in the whole run."""
        return self._candidate.rounds * int(self._fixed["local_steps"])

    def choose(self, seeds: Sequence[int]) -> tuple[float, float]:
        """Choose learning rate and clip: the best mean utility at one epsilon."""

        def score(pair: tuple[float, float]) -> float:
            case = self._case(EPSILONS[CHOSEN_AT], self._rate * pair[0], pair[1])
            return float(np.mean(self._utilities(self._trials.of(case), seeds)))

        factor, clip = max(product(STEPS, CLIPS), key=score)
        return self._rate * factor, clip

    def setting(
        self, epsilon: float, rate: float, clip: float, compared: _Compared, seeds: Sequence[int], options: str
    ) -> RecordSetting:
        """Measure one epsilon.

        Args:
            epsilon: the epsilon for one row, over the whole run.
            rate: learning rate.
            clip: norm to which a row's gradient is clipped.
            compared: utilities of the user's algorithm without a defence, and their floors.
            seeds: the seeds of the runs.
            options: what names the data in the command to paste.
        """
        case = self._case(epsilon, rate, clip)
        trials = self._trials.of(case)
        upload, seconds = trials.cost(self._candidate)
        scores = self._utilities(trials, seeds)
        score, clear = float(np.mean(scores)), float(np.mean(compared.clear))
        beside = kept(scores, compared.clear, compared.floors)
        enough = keeps(score, clear, compared.keep) if math.isnan(beside.floor) else beside.keeps(compared.keep)
        limited = dict(case.setting) | {"epsilon": epsilon}  # in the command, clients refuse to spend more than this
        defense = f"--defense secure_aggregation --defense-set threshold={self._candidate.threshold}"
        scaled = f", {SCALED}" if trials.own.standardise else ""
        return RecordSetting(
            algorithm=METHOD,
            paste=f"{command(METHOD, self._candidate, options, limited)} {defense}",
            clients=self._candidate.clients,
            rounds=self._candidate.rounds,
            epsilon=epsilon,
            delta=trials.delta,
            guess=guess_bound(float(case.setting["noise_multiplier"]), self._steps),
            utility=score,
            utility_clear=clear,
            bytes_up=upload,
            seconds_per_round=seconds,
            usable=enough,
            note=NOT_COVERED + scaled,
            utility_deviation=float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan,
            changes=self._changes(rate, clip),
            smallest_rows=trials.prepare(self._candidate, 0).smallest,
            floor=beside.floor,
            share=beside.share,
            share_low=beside.low,
        )

    def _changes(self, rate: float, clip: float) -> str:
        """Say which settings of the command are not the user's own, and why."""
        inputs, *hidden, classes = self._fixed["widths"]
        network = f"a network of {inputs} columns, {''.join(f'{width} hidden outputs, ' for width in hidden)}"
        clients = self._candidate.clients
        return (
            f"The command trains your model as {network}{classes} classes (widths); learning rate {rate:g} (yours: "
            f"{self._rate:g}) and clip {clip:g} did best here at epsilon {EPSILONS[CHOSEN_AT]:g}, over {CHOICE_SEEDS} "
            f"runs each; threshold={clients}: no sum opens unless all {clients} clients answer."
        )

    def _case(self, epsilon: float, rate: float, clip: float) -> Case:
        """Return the private method's case at one epsilon, on the user's data and for as many rounds."""
        noise = noise_multiplier(epsilon, self._trials.delta, self._steps)
        tuned = {"learning_rate": rate, "max_grad_norm": clip, "noise_multiplier": noise}
        made = replace(self._trials.case, name=METHOD, setting=self._fixed | tuned)
        score, label = utility("accuracy", made.build)  # `Trials` balances it over the classes where one is small
        return replace(made, utility=score, utility_name=label)

    def _utilities(self, trials: Trials, seeds: Sequence[int]) -> list[float]:
        return [trials.utility(self._candidate, seed) for seed in seeds]


def noise_multiplier(epsilon: float, delta: float, steps: int) -> float:
    """Compute the least noise, rounded up, for which so many steps over all rows cost one row at most epsilon.

    Args:
        epsilon: the epsilon of the whole run, for one row, there or not.
        delta: the delta of epsilon.
        steps: local steps of one client in the whole run; each uses every row.

    Returns:
        The noise's standard deviation over the clip.

    Raises:
        MissingExtraError: opacus, whose accountant clients use, is not installed.
    """

    def spent(multiplier: float) -> float:
        run = {"local_steps": steps, "batch_size": None, "noise_multiplier": multiplier, "delta": delta}
        method: Any = algorithms.make(METHOD, **run)
        # one round of all steps; batches are all rows, so that the number of rows does not matter
        return float(method.per_round(rows=1))

    low, high = 2.0**-10, 2.0**20
    while high > (1 + _PRECISION) * low:  # bisection by geometric means: more noise costs less
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return math.ceil(high * 1e4) / 1e4


def guess_bound(multiplier: float, steps: int) -> float:
    """Bound the chance to tell rightly whether a row was there, where both are equally likely beforehand.

    So many steps over all rows are together as private as one Gaussian mechanism of mu = sqrt(steps) / multiplier
    (Dong, Roth and Su 2022, corollary 3.3), and the best test between N(0, 1) and N(mu, 1) is right with probability
    Phi(mu / 2). It holds for an attacker who knows all other rows and sees every message.

    Args:
        multiplier: the noise's standard deviation over the clip.
        steps: local steps of one client in the whole run.
    """
    return float(ndtr(math.sqrt(steps) / (2 * multiplier)))


def _settings(case: Case, public: Public) -> dict[str, Any]:
    """Translate the user's hyper-parameters to the private method's.

    Returns:
        Settings of the private method by name: `widths` (layers of a dense network, inputs first), `local_steps`, and
        `batch_size`, of which `None` takes all rows.

    Raises:
        ConfigError: the algorithm or its model has no private form that a command can name.
    """
    algorithm: Any = case.build()
    if not case.name.startswith("optimization/"):
        bounded = "; in Python `record_level` hides its rows" if case.name in _RECORD_LEVEL else ""
        raise ConfigError(f"{METHOD} trains classifiers by gradients, and {case.name} does not{bounded}")
    problem = algorithm.problem
    if isinstance(problem, SoftmaxRegression | LogisticRegression):
        hidden: tuple[int, ...] = ()
    elif getattr(problem, "name", "") == _DENSE:
        hidden = problem.hidden
    else:
        raise ConfigError(
            f"a command names no private form of this model ({type(problem).__name__}); in Python give `PrivateFedAvg` "
            "its torch module"
        )
    steps = getattr(algorithm, "local_steps", None) or getattr(algorithm, "local_epochs", None) or 1
    return {"widths": [public.features, *hidden, public.classes], "local_steps": int(steps), "batch_size": None}
