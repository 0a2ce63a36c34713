"""Read labels and batch statistics off a change of model state: closed forms, and a regression on simulated clients.

`training_seed_run` calls `read_statistics`, `read_labels` and `learn_labels` on the change that a view shows. With
momentum m, a layer of batch normalisation moves its running mean r by r <- (1 - m) r + m (batch mean), and its running
variance alike, so that the change of r after a known number of batches gives their average. The gradient of a softmax's
bias is (mean probability - share of the class); other heads are read by `head_labels`. Where neither applies, how much
training on rows of a class raises its output is learned from clients that are simulated with the caller's own step.
Statistics are in units of the known rows' (`standardised`): (mean - known mean) / known deviation + 1, and variance /
known variance, so that both are 1 for the known rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import torch

from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.attacked_network import batch_norms
from securefed._auditing.training.head_labels import label_counts
from securefed._auditing.training.local_training import TrainedRows, counted_batches
from securefed._auditing.training.training_secrets import labels_of, layer_statistics, standardised
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._fitting.label_counts import round_to_total
from securefed.attacks._generic.row_regression import KernelRidge
from securefed.attacks._networks.batch_statistics import batch_statistics
from securefed.errors import TranscriptError

_SIMULATED: Final = 320
"""Simulated clients that the regression of labels learns from. CNN on digits, Adam, 32 rows: 96 gave a leakage of .66
on held-out clients with shares of classes drawn evenly, 160 gave .68, 320 .71 (64 rows, three epochs: .70, .75,
.80)."""
_LEARNING: Final = 0.3
"""Share of the time that is left which these clients may take; membership by simulation comes after them."""
_FEWEST: Final = 24
"""Simulated clients below which the regression is left out: ten classes make 20 features, and fewer would overfit."""
_SHIFTS: Final = 8
"""Simulated clients on which the errors of batch statistics are measured. Few are enough for the one factor that all
means of a layer share, and all variances; each of them is a run of the local step."""
_ASKED: Final = 200
"""Most known rows on which the outputs of the received and the returned model are compared."""


def read_statistics(inputs: AttackInputs) -> list[Reconstruction]:
    """Read means and variances of the batches off the running statistics.

    One batch is read exactly. While several pass, the weights in front of a layer move. How far that shifts and
    scatters what is read is measured on clients of known rows: the shift is subtracted, and what scatters is drawn
    towards the statistics of all known rows.

    Returns:
        One reconstruction, whose value is a vector: of each layer in order the means and then the variances of its
        channels, in the units of `standardised`. With several batches these are averages over the batches.

    Raises:
        TranscriptError: no layer of batch normalisation is in training mode, the change lacks its running statistics,
            or the number of batches is unknown.
    """
    module = inputs.training.received(inputs.observed.state)
    batches = counted_batches(inputs.observed.change) or (inputs.facts.batches if inputs.facts else None)
    if not batches:
        raise TranscriptError("the number of batches is unknown: the messages lack num_batches_tracked")
    pooled = layer_statistics(module, inputs.training.modes, inputs.prior.x)
    found = standardised(_read_layers(inputs, inputs.observed.change, batches), pooled)
    if batches > 1 and inputs.facts is not None:
        found = _corrected(inputs, found, pooled, batches)
    return [Reconstruction("statistics", found)]


def _corrected(inputs: AttackInputs, found: Array, pooled: list[Array], batches: int) -> Array:
    """Subtract the shift of simulated clients, and shrink each layer's means or variances by how far they scatter.

    With s the mean error (read - true) over simulated clients, and in units in which known rows have statistics 1, the
    corrected value is 1 + c (found - s - 1). c is the least-squares slope of (true - 1) on (read - s - 1), within
    [0, 1]: one number for all means of a layer, and one for all its variances.

    Args:
        inputs: the inputs of the attack.
        found: (numbers,) statistics as read, means and variances of all layers as `read_statistics` returns them.
        pooled: by layer the means, then the variances, of the known rows.
        batches: number of batches that the layers saw.

    Raises:
        TranscriptError: c is 0 everywhere, so that only the statistics of known rows would be left.
    """
    module, known, rng = inputs.training.received(inputs.observed.state), labels_of(inputs.prior), inputs.rng(22)
    reads, truths = [], []
    for number in range(_SHIFTS):
        rows = inputs.draw(rng, inputs.count) if known is None else _with_drawn_classes(inputs, known, rng)
        reads.append(standardised(_read_layers(inputs, inputs.simulate(rows, 22 + number), batches), pooled))
        truths.append(standardised(layer_statistics(module, inputs.training.modes, rows.x), pooled))
    shift = np.mean(np.subtract(reads, truths), axis=0)
    out, start, kept = [], 0, 0.0
    for part in pooled:
        place = slice(start, start + len(part))
        off = np.array(reads)[:, place] - shift[place] - 1.0
        true = np.array(truths)[:, place] - 1.0
        reliable = float(np.clip(np.sum(off * true) / max(float(np.sum(off * off)), 1e-300), 0.0, 1.0))
        out.append(1.0 + reliable * (found[place] - shift[place] - 1.0))
        start, kept = place.stop, max(kept, reliable)
    if not kept:  # what is left is the guess
        raise TranscriptError(
            f"over {batches} batches the weights move so much that on simulated clients what is read is noise"
        )
    return np.concatenate(out)


def _read_layers(inputs: AttackInputs, change: Mapping[str, Array], batches: int) -> list[Array]:
    """Return for each layer the means, then the variances, that a change of state tells."""
    training, state = inputs.training, inputs.observed.state
    layers = batch_norms(training.received(state), training.modes)
    if not layers:
        raise TranscriptError("the model has no batch normalisation in training mode")
    found = []
    for name, layer in layers.items():
        earlier = int(layer.num_batches_tracked) if layer.num_batches_tracked is not None else 0
        for kind in (f"{name}.running_mean", f"{name}.running_var"):
            if kind not in change:
                raise TranscriptError(f"the messages lack {kind!r}: record state dicts, not parameters alone")
            before = state[kind].double().numpy()
            found.append(batch_statistics(before, before + change[kind], layer.momentum, batches, earlier))
    return found


def read_labels(inputs: AttackInputs) -> list[Reconstruction]:
    """Count labels from the last layer's gradient; the estimate is (classes,) numbers of rows.

    Raises:
        TranscriptError: the change is not one gradient, or no linear layer outputs the scores.
    """
    if not inputs.one_gradient:
        kind = inputs.facts.kind if inputs.facts else "not given, so that nothing is known of its scale"
        raise TranscriptError(f"counting needs one gradient step, and the step is {kind}")
    counts = next(label_counts(inputs, inputs.gradient()))
    return [Reconstruction("labels", np.asarray(counts, np.float64))]


def learn_labels(inputs: AttackInputs) -> Callable[[AttackInputs], list[Reconstruction]]:
    """Learn counts of labels from how the model's outputs on known rows move, on clients simulated from known rows.

    Returns:
        The attack, a kernel ridge regression from the outputs' shift to the counts behind a message.

    Raises:
        TranscriptError: there is no step, targets are no classes, or the simulated clients would take too long.
    """
    facts, known = inputs.facts, labels_of(inputs.prior)
    if facts is None:
        raise TranscriptError("there is no local step to simulate clients with")
    if known is None or inputs.classes < 2:
        raise TranscriptError("targets are no classes")
    shift, rng = _output_shift(inputs, known), inputs.rng(21)
    # simulating the members of a sum takes one run of the step for each of them: len(inputs.rows)
    affordable = int(_LEARNING * inputs.budget.remaining / max(facts.seconds * len(inputs.rows), 1e-6))
    if affordable < _FEWEST:
        raise inputs.too_little_time(
            f"{_FEWEST} simulated clients at {facts.seconds:.2g} s a step take longer than the time left",
            _FEWEST * facts.seconds * len(inputs.rows) / _LEARNING,
        )
    shifts, counts = [], []
    for number in range(min(_SIMULATED, affordable)):
        rows = _with_drawn_classes(inputs, known, rng)
        shifts.append(shift(inputs.simulate(rows, 50_000 + number)))
        labels = labels_of(rows)
        assert labels is not None
        counts.append(np.bincount(labels, minlength=inputs.classes).astype(np.float64))
    features = np.stack(shifts)
    scale = np.maximum(features.std(axis=0), 1e-12)
    model = KernelRidge.of(features / scale, np.stack(counts))

    def read(attacked: AttackInputs) -> list[Reconstruction]:
        values = model(shift(attacked.observed.change) / scale)
        estimate = round_to_total(np.clip(values, 0.0, inputs.count), inputs.count)
        return [Reconstruction("labels", np.asarray(estimate, np.float64))]

    return read


def _output_shift(inputs: AttackInputs, known: Array) -> Callable[[Mapping[str, Array]], Array]:
    """Make the function from a change to how the outputs for each class move by it, on rows whose labels are `known`.

    Returns:
        change -> (2 classes,) for each class how its mean output moves over all rows, then over that class's rows. Of
        a single output (3,) how it moves over all rows, and over those of each class.

    Raises:
        TranscriptError: the outputs are no score for each class.
    """
    rows, labels = inputs.prior.x[:_ASKED], known[:_ASKED]
    received = _outputs(inputs, {}, rows)
    single = received.size == len(rows) and inputs.classes == 2  # one score, of class 1 against class 0
    if not single and received.shape != (len(rows), inputs.classes):
        raise TranscriptError(
            f"outputs of shape {received.shape[1:]} are no score for each of {inputs.classes} classes"
        )
    members = (labels == np.arange(inputs.classes)[:, None]).astype(np.float64)
    weights = members / np.maximum(members.sum(axis=1, keepdims=True), 1.0)  # (classes, rows) of each class's mean

    def shift(change: Mapping[str, Array]) -> Array:
        moved = (_outputs(inputs, change, rows) - received).reshape(len(rows), -1)
        if single:
            return np.concatenate([moved.mean(axis=0), (weights @ moved)[:, 0]])
        return np.concatenate([moved.mean(axis=0), np.diagonal(weights @ moved)])

    return shift


def _outputs(inputs: AttackInputs, change: Mapping[str, Array], rows: torch.Tensor) -> Array:
    """Return the outputs of the received model after a change, in evaluation mode."""
    with torch.no_grad():
        return np.asarray(inputs.training.received(inputs.state_after(change)).eval()(rows).double().numpy())


def _with_drawn_classes(inputs: AttackInputs, known: Array, rng: np.random.Generator) -> TrainedRows:
    """Draw as many rows as the members have, with shares of classes that differ widely from draw to draw."""
    present = np.unique(known)
    shares = rng.dirichlet(np.full(len(present), rng.choice([0.3, 1.0, 5.0])))
    drawn = present[rng.choice(len(present), inputs.count, p=shares)]
    places = [int(rng.choice(np.flatnonzero(known == label))) for label in drawn]
    return inputs.prior.part(torch.as_tensor(places))
