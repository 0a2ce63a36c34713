"""Recover rows from a change of model state: closed forms of the first layer, then searches through simulated steps.

The audit of a user's torch loop (`training_seed_run`, `size_curve`) calls `recover_rows` for each run. Its argument
`AttackInputs` holds the observed change, the numbers of rows of the clients whose changes are summed in it (`rows`, in
all `count`), the caller's local step, rows like the clients' that the attacker knows (`prior`), and what two trial runs
of the step on such rows showed (`facts`). `one_gradient` says that the change is a multiple of one gradient, which
`gradient()` returns, and `rows_count_alike` that a sum weights clients by their rows.

The gradient of a linear first layer is a sum of (output gradient) x (input row), so that inputs can be separated from
it where each row activates outputs of its own (`FirstLayerEvidence`). A search looks for rows x that minimise the
distance between the observed message and the one that x would send (`StagedInversion`).

A search has to differentiate the client's local training, which it can where that is one gradient step. For other
training, gradient descent of several full-batch steps is tried as a stand-in, on rows that the attacker knows: where
it sends what the caller's training sends, the search differentiates it instead. Where none fits, the closed forms
remain, and the caller's own training checks their rows.

Numbers such as 31 in `inputs.rng(31)` and `inputs.simulate(rows, 31)` name the streams of random draws. Each use has
its own, so that no attack's draws depend on which others ran.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np
import torch

from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.attacked_network import follows_by_degrees
from securefed._auditing.training.head_labels import label_counts
from securefed._auditing.training.local_training import TrainedRows, as_vector
from securefed._auditing.training.mixed_rows import mixed_rows
from securefed._tensors import Array
from securefed.attacks._generic import clock
from securefed.attacks._networks.client_simulations import LocalSteps, OneGradient, mean_gradient
from securefed.attacks._networks.first_layer import FirstLayerEvidence
from securefed.attacks._networks.gradient_matching import InversionProblem, RowPrior
from securefed.attacks._networks.staged_inversion import InversionEffort, RecoveredRows, StagedInversion
from securefed.attacks._repeatability import SMALL
from securefed.attacks.scores import match
from securefed.errors import ConfigError, TranscriptError

SEARCHED: Final = 8
"""Most rows that a search is tried for: beyond 8 the searches of docs/attacks-networks.md find no batch whole."""
EFFORT: Final = InversionEffort(restarts=1, evaluations=1200, widths=(0.3, 0.1, 0.03, 0.01, 0.001), fits=2, counts=4)
"""Limits of a search, less than those of `invert` by default: an audit makes tens of them. They are: random starts,
evaluations of the objective, widths at which ReLU is smoothed in turn, starts of the fit in the row space, and label
counts that this fit tries."""
_STEPS: Final = (2, 3, 4, 5, 6, 8, 10, 15, 20)
"""Numbers of gradient steps to try for a stand-in: those of usual local training; each costs six simulations. One step
needs no stand-in."""
_EXPLAINED: Final = 1e-2
"""Relative difference of a simulated message up to which rows count as explaining it; rows of a closed form in float32
miss it by 1e-3 and less, other rows by .1 and more."""
_SOLVED: Final = 1e-3
"""The same for rows of a search: behind batch normalisation wrong rows can reach a residual of .01. Behind sigmoids
they reach 1e-5. So where no ReLU tells rows apart, a second search from other starts must also end at the same rows.
Digits, 2 to 8 rows, three networks of sigmoids or tanh, 54 runs: of 14 wrong sets of rows below this residual (a row
more than 5 % off) that leaves 1, whose labels were counted wrongly, and of 36 right ones 34."""
_OF_RELU: Final = "smoothed"
"""Name that `StagedInversion` gives a search through smoothed ReLUs, of which no wrong rows below `_SOLVED` were seen.
"""
_FIT: Final = 1e-3
"""The same for a stand-in of the step, on rows that are known."""
_NOT_MIXED: Final = (
    "no linear layer that takes the looked-up vectors, or numbers beside them, shows one of the {rows} rows by itself"
)
"""Reason why rows of numbers and categories were not read."""
_FEWEST: Final = 200
"""Evaluations below which a search is left out: it would end before it could find anything."""


@dataclass(frozen=True)
class ReadRows:
    """Rows that an attack found.

    Attributes:
        rows: (rows, features).
        stage: closed form or search that found them.
        residual: relative difference of the message that they would send; NaN where it was not computed.
        explained: whether the attacker may trust the rows: their residual is small, and a second search, where one was
            needed, ended at the same rows. The closed form of a single row is exact, and checked where labels allow it.
            `None` where only some of the rows were found, which no simulated message can check.
        evaluations: the largest number of evaluations of a start of the search, all widths together; 0 where a closed
            form gave the rows.
    """

    rows: Array
    stage: str
    residual: float
    explained: bool | None
    evaluations: int = 0


def stand_in(inputs: AttackInputs) -> LocalSteps | None:
    """Find full-batch gradient descent that sends what the caller's training sends for known rows; `None` if none does.

    For each number of steps T the learning rate begins at `facts.rate` / T, where `facts.rate` is the c of the best fit
    change = -c gradient. It is divided by the simulated change's component along the caller's change, as a share of
    that change's length, until that is 1; six corrections suffice. None is looked for where the step draws at random,
    or where the message is a sum.
    """
    facts = inputs.facts
    if facts is None or not facts.repeatable or facts.rate <= 0 or len(inputs.rows) != 1:
        return None
    known = inputs.draw(inputs.rng(31), inputs.count)
    sent = inputs.network.flatten(inputs.simulate(known, 31))
    x = known.x.reshape(len(known), -1).to(inputs.network.dtype)
    for steps in _STEPS:
        rate = facts.rate / steps
        for _ in range(6):
            simulated = LocalSteps(rate, steps)(inputs.network.plain, inputs.point, x, known.y).detach()
            along = float(simulated @ sent / (sent @ sent))
            if not 0.1 < along < 10:
                break
            rate /= along
        if float((simulated - sent).norm()) <= _FIT * float(sent.norm()):
            return LocalSteps(rate, steps)
    return None


def recover_rows(inputs: AttackInputs, seconds: float, *, evaluations: int | None = None) -> ReadRows:
    """Recover the rows behind a change.

    Args:
        inputs: the inputs of the attack.
        seconds: the time from which the number of evaluations of a search follows. The choice of label counts comes on
            top, so that a search may take longer.
        evaluations: the number of evaluations of each start, in place of as many as the seconds allow; 0 leaves the
            search out.

    Returns:
        The rows of the first method that explains the message: closed form, then search. Where the step cannot be
        differentiated, so that no search is possible, the closed form's rows stand even if they do not explain it.

    Raises:
        TranscriptError: no attack applies; the message says why.
    """
    layout = inputs.training.layout
    if inputs.facts is None and inputs.count > 1:
        raise TranscriptError("there is no local step that could check rows, or tell that the change is one gradient")
    if inputs.text is None and (mixed := _mixed(inputs)) is not None:
        return mixed
    whole = layout.whole_numbers if layout is not None else ()
    if whole or (inputs.text is None and any(table.columns for table in inputs.tables)):
        named = ", ".join(whole or dict.fromkeys(table.called for table in inputs.tables))
        beside = f", and {_NOT_MIXED.format(rows=inputs.count)}" if inputs.tables else ""
        raise TranscriptError(f"a search cannot vary whole numbers by degrees: {named}{beside}")
    steps = None if inputs.one_gradient else stand_in(inputs)
    simulation = OneGradient() if inputs.one_gradient or steps is None else steps
    message = inputs.gradient() if inputs.one_gradient else inputs.message
    # Without a simulation of several steps the whole change is read as one gradient. Closed forms divide one part of it
    # by another, so that its scale does not matter, and hold nearly where the steps change the gradients little.
    gradient = mean_gradient(simulation, message)
    # starts that are computed together would share the statistics of batch normalisation
    effort = replace(EFFORT, batched=False) if _has_batch_norm(inputs) else EFFORT
    prior = RowPrior(*inputs.bounds, image=_image(inputs.row_shape))
    features = int(np.prod(inputs.row_shape))
    inversion = StagedInversion(inputs.network, simulation, features, prior, effort)
    # a target of any row serves: it only shows which layer the rows enter
    first = FirstLayerEvidence.of(
        inputs.network, inputs.point, gradient, inputs.prior.y[:1], inputs.count, features, inputs.rng(32)
    )
    closed = _closed_form(inputs, first)
    if closed is not None and closed.explained:
        return closed
    if not (inputs.one_gradient or steps is not None):
        if closed is not None:
            return closed
        kind = inputs.facts.kind if inputs.facts else "not given"
        where = "the rows enter no linear layer" if first is None else "its first layer does not separate them"
        raise TranscriptError(f"{where}, and a search needs a step that it can differentiate; this one is {kind}")
    if len(inputs.rows) > 1 and _has_batch_norm(inputs):
        raise TranscriptError("a search through a sum would have to know which rows share their batch statistics")
    if not inputs.rows_count_alike:
        raise TranscriptError("a search needs a mean over rows, and this sum counts clients of any size alike")
    if evaluations == 0 or inputs.count > SEARCHED:
        raise TranscriptError(f"{inputs.count} rows, beyond the {SEARCHED} that a search is tried for")
    if not follows_by_degrees(inputs.training, inputs.observed.state, inputs.prior.x):
        raise TranscriptError("a search varies rows by degrees, and the model's output has no derivative in them")
    return _search(inputs, inversion, message, gradient, first, seconds, evaluations)


def _mixed(inputs: AttackInputs) -> ReadRows | None:
    """Return rows of numbers and categories, checked by the caller's own step where all of them were found.

    `None` where rows hold no categories, or no layer shows any row by itself.
    """
    if not any(table.columns for table in inputs.tables):
        return None
    found = mixed_rows(inputs, inputs.gradient(), inputs.rng(36))
    if found is None:
        return None
    if len(found.rows) < inputs.count:
        return ReadRows(found.rows, found.stage, float("nan"), None)
    if inputs.facts is None or found.labels is None:
        return ReadRows(found.rows, found.stage, float("nan"), inputs.count == 1)
    residual = _simulated_residual(inputs, found.rows, found.labels)
    return ReadRows(found.rows, found.stage, residual, residual <= max(_EXPLAINED, 3.0 * inputs.facts.draw_spread))


def _closed_form(inputs: AttackInputs, first: FirstLayerEvidence | None) -> ReadRows | None:
    """Return the rows that the first layer gives, checked by the caller's own step; `None` where it gives none.

    The check needs their labels. Without them only a single row counts as explained, since its closed form is exact.
    Without the caller's step (`facts` is `None`) there is a single row too: `recover_rows` refuses more.
    """
    if first is None or first.rows is None:
        return None
    rows, targets = first.rows, None
    if inputs.classes >= 2 and first.layer.bias is not None:
        labelled = first.labelled(inputs.classes, inputs.targets(np.arange(inputs.classes)))
        assert labelled is not None
        rows, targets = labelled
    if inputs.facts is None:
        return ReadRows(rows, first.stage, float("nan"), True)
    if targets is None:
        return ReadRows(rows, first.stage, float("nan"), inputs.count == 1)
    residual = _simulated_residual(inputs, rows, targets)
    # a step with random draws of its own sends other messages for the same rows, which differ by about `draw_spread`
    return ReadRows(rows, first.stage, residual, residual <= max(_EXPLAINED, 3.0 * inputs.facts.draw_spread))


def _simulated_residual(inputs: AttackInputs, rows: Array, labels: Array) -> float:
    """Run the caller's step on candidate rows; return the relative difference of what it sends."""
    kind = inputs.prior.x.dtype
    real = torch.as_tensor(rows)
    shaped = (real if kind.is_floating_point else real.round()).to(kind).reshape(-1, *inputs.row_shape)
    names = inputs.training.parameters
    sent = as_vector(inputs.simulate(TrainedRows(shaped, inputs.targets(labels)), 33), names)
    seen = as_vector(inputs.observed.change, names)
    return float(np.linalg.norm(sent - seen) / np.linalg.norm(seen))


def _search(
    inputs: AttackInputs,
    inversion: StagedInversion,
    message: torch.Tensor,
    gradient: torch.Tensor,
    first: FirstLayerEvidence | None,
    seconds: float,
    evaluations: int | None,
) -> ReadRows:
    """Count labels in the last layer and search for rows, with as many evaluations as given or as the time allows.

    Args:
        inputs: the inputs of the attack.
        inversion: the search, with the simulation of the step that it differentiates.
        message: (parameters,) the message that this simulation would send.
        gradient: (parameters,) the mean gradient that follows from it, for the labels.
        first: evidence of the first layer, where the search starts; `None` without.
        seconds: the time that it may take.
        evaluations: as in `recover_rows`.

    Raises:
        TranscriptError: targets are no classes, or time or memory do not suffice.
    """
    if inputs.classes < 2:
        raise TranscriptError("a search needs labels, which are counted in the last layer; targets are no classes")
    try:
        inversion.require_memory(inputs.count)
        counted = islice(label_counts(inputs, gradient), inversion.effort.counts)
        guesses = [inputs.targets(np.repeat(np.arange(len(counts)), counts)) for counts in counted]
        hypotheses = [InversionProblem(inputs.point, message, labels) for labels in guesses]
        if evaluations is None:
            evaluations = _affordable(inputs, inversion, hypotheses[0], seconds / 2)  # a second search may follow
        inversion = replace(inversion, effort=replace(inversion.effort, evaluations=evaluations))
        found: RecoveredRows = inversion.with_unknown_labels(hypotheses, inputs.rng(34), first)
        explained = found.residual <= _SOLVED
        if explained and found.stage != _OF_RELU:
            again = inversion.with_unknown_labels(hypotheses, inputs.rng(35), first)
            explained = _largest_distance(again.rows, found.rows) <= SMALL  # 5 %
    except ConfigError as error:
        raise TranscriptError(str(error)) from error
    low, high = inputs.bounds
    rows = np.clip(np.nan_to_num(found.rows), low, high)
    return ReadRows(rows, found.stage, found.residual, explained, evaluations)


def _largest_distance(again: Array, found: Array) -> float:
    """Return the distance of the worst row from its match, relative to the root mean square norm of the rows."""
    norm = float(np.sqrt(np.mean(np.sum(found**2, axis=1))))
    if not (norm > 0 and np.isfinite(found).all() and np.isfinite(again).all()):
        return float("inf")
    return float(np.linalg.norm(match(again, found) - found, axis=1).max() / norm)


def _affordable(inputs: AttackInputs, inversion: StagedInversion, problem: InversionProblem, seconds: float) -> int:
    """Return how many evaluations of one start fit into the time, at most those of the effort; refuse too few."""
    x = torch.rand(inputs.count, inversion.features, dtype=inputs.network.dtype).requires_grad_()
    for _ in range(2):  # the first run also loads code
        began = clock().now()
        sent = inversion.simulation(inputs.network.plain, problem.point, x, problem.targets)
        torch.autograd.grad(sent.square().sum(), x)
        clock().count(inputs.count)
        cost = clock().now() - began
    affordable = int(seconds / max(cost, 1e-6))
    if affordable < _FEWEST:
        # the search has a fixed part of the time that is left, so that all of it grows alike
        needed = inputs.budget.remaining * _FEWEST * cost / seconds if seconds > 0 else 0.0
        raise inputs.too_little_time(
            f"a search of {_FEWEST} evaluations at {cost:.2g} s each takes longer than the time left",
            max(needed, _FEWEST * cost),
        )
    return min(inversion.effort.evaluations, affordable)


def _has_batch_norm(inputs: AttackInputs) -> bool:
    return any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in inputs.training.model.modules())


def _image(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else None
