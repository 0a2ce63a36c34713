"""Compute personal models that are not sent, by training them as the client does on rows that a fit gives.

In personalised methods (pFedMe, Ditto, FLAME, FedADMM) a client keeps a personal model, which it trains in each round
from its memory, the broadcast model and its rows, and sends only changes of other models. The attack knows the
broadcasts and the training rule; it lacks the rows. This is the attack `personal/replay`, for logistic and softmax
regression; the audit runs it like every registered attack. Where the messages give the personal model directly,
`personal/recursion` does that without rows.

Both ways below call the method's own local steps, `PersonalMethod.steps`, round by round, and keep the client's memory
that they return; its first vector is the personal model. The steps ask for gradients through a `LocalTraining`: of the
fitted rows (`_replayed`), or one gradient for the whole round (`_constant`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import LocalTraining
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.method import PersonalMethod
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.gradient_rounds import (
    GradientRound,
    estimate_gradients,
    local_steps,
    method_of,
    penalty,
    read_rounds,
    why_not_invertible,
)
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.multistart_search import SOLVED
from securefed.attacks._gradient_inversion.sample_fit import SampleFit
from securefed.attacks._personal.message_denoising import denoised, is_distorted, without_rows
from securefed.attacks._requirements import check_applies
from securefed.errors import TranscriptError

_FIT = SampleFit(limit=256)
"""Fits the rows; clients of more rows are replayed by constant gradients, in less time."""


@dataclass(frozen=True)
class PersonalModelReplay:
    """Fit the rows by `gradient_inversion/fit` and train the personal model on them.

    If the rows explain the messages, all rounds are replayed with them, and the personal model is the client's,
    exactly. Otherwise the gradient of each round is taken to be constant along its steps, which is nearly so where the
    steps are short; `diagnostics["method"]` names the method. Under clipping and noise the attack reads denoised
    messages (`message_denoising`), and `Reconstruction.guess` is what follows from the broadcasts alone.
    """

    name: ClassVar[str] = "personal/replay"
    secret: ClassVar[str] = "personal"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        if not isinstance(target.algorithm, PersonalMethod):
            return "It replays personal models, and this algorithm has none."
        if observed.rounds and len({item.members for item in observed.rounds}) > 1:
            return "It replays the same clients in every round, and here they change."
        return why_not_invertible(target, observed)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the personal model after the last round, (1, parameters); of a sum, that of the mean member.

        Raises:
            TranscriptError: the attack does not apply, or numbers are not finite.
        """
        check_applies(self.applies(target, observed))
        model, history = LinearModel.of(target), read_rounds(denoised(observed, target), target)
        guess = read_rounds(without_rows(observed, target), target) if is_distorted(observed) else ()
        assert model is not None  # `applies` refuses other models
        alone = len(observed.members) == 1
        found = _FIT.run(observed, target, rng) if alone else None
        if found is not None and found.labels is not None and found.residual <= SOLVED:
            value, how = (_replayed(target, model, history, found.value, found.labels), "rows fitted, rounds replayed")
        else:
            value, how = _constant(target, model, history), "gradients taken to be constant in a round"
        if not np.isfinite(value).all():
            raise TranscriptError("the view's messages lead to numbers that are not finite")
        residual = found.residual if found is not None else float("nan")
        return Reconstruction(
            self.secret,
            value[None],
            residual=residual,
            rank=found.rank if found else 0,
            unknowns=found.unknowns if found else 0,
            condition=found.condition if found else float("nan"),
            members=observed.members,
            diagnostics={"method": how},
            guess=_constant(target, model, guess) if is_distorted(observed) else None,
        )


def _replayed(
    target: Target, model: LinearModel, history: tuple[GradientRound, ...], rows: Array, labels: Array
) -> Array:
    """Return the personal model of a client with these rows, (parameters,).

    The method's own local steps are run through all rounds, with full batches.

    Args:
        target: the algorithm and the public facts.
        model: the linear model.
        history: the rounds, with what the client received.
        rows: (rows, features).
        labels: (rows,).
    """
    targets, weights = model.targets(labels), np.full(len(rows), 1.0 / len(rows))

    def gradient(point: Array, _: int = 0) -> Array:
        """Return the mean gradient of all rows at the point, whatever the step."""
        return model.gradient(point, rows, targets, weights)

    method, count = method_of(target), float(len(rows))
    steps = local_steps(method)
    work = _full_batches(gradient, target.public, count, steps)
    memory = method.memory(Model(method.problem, target.public))
    for item in history:
        memory = method.steps(item.received, memory, work)[1]  # [0] are the messages
    return np.asarray(memory[0])


def _constant(target: Target, model: LinearModel, history: tuple[GradientRound, ...]) -> Array:
    """Return the personal model of the mean member, if its gradient is constant in each round, (parameters,).

    Each round's message gives such a gradient (`estimate_gradients`), summed over rows and without the penalty.
    """
    method, public = method_of(target), target.public
    memory = method.memory(Model(method.problem, public))
    steps = local_steps(method)
    for item, read_as in zip(history, estimate_gradients(history, method, public, model), strict=True):
        rows = float(np.mean([public.rows[client] for client in item.members]))
        mean = read_as.gradient / (rows * len(item.members))

        def gradient(point: Array, _: int = 0, mean: Array = mean) -> Array:
            """Return the round's mean gradient, plus that of the penalty at the point."""
            return mean + penalty(model, point)

        work = _full_batches(gradient, public, rows, steps)
        memory = method.steps(item.received, memory, work)[1]
    return np.asarray(memory[0])


def _full_batches(gradient: Callable[..., Array], public: Public, rows: float, steps: int) -> LocalTraining:
    """Return the inputs of local steps that each use all rows of the client.

    Args:
        gradient: (point, step) -> the mean gradient of all rows.
        public: public facts of the run.
        rows: the client's number of rows.
        steps: number of local steps.
    """
    # `blocks` matter only to methods that remember a gradient for each block of rows: here there is one block
    return LocalTraining(
        gradient=gradient, anchor=gradient, public=public, rows=rows, blocks=(0,) * steps, sizes=(rows,) * steps
    )
