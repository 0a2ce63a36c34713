"""Read rows of many clients out of sums of a linear classifier's gradients, with classes as thresholds of a direction.

The server broadcasts logits z_c = k (c g x - t_1 - ... - t_c), c = 0..C - 1, for a row x, a random direction g,
thresholds t_1 < ... < t_C-1 and a large k: softmax then predicts class c for rows with t_c < g x < t_c+1, with
probability one, and the gradient of the weights has as its row c

    (sum of the rows x in that interval) - (sum of the rows x of label c),

the bias the numbers of the same rows. A first broadcast with all thresholds above every row shows the second term,
which is subtracted from later rounds. An interval that holds one row gives that row exactly, and each further round
divides the intervals that hold several. Logistic regression has one threshold. Clients with a memory are attacked
alike, as the server claims after every round that its sum counted no client; FLAME's clients are pulled from a model
w^0 of their own by public shares, which keeps the thresholds. Source: the thresholds of Fowl et al. 2022 (Robbing the
Fed, arXiv 2110.13057), for a model without a hidden layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.attacks._active.chosen_broadcasts import ChosenBroadcast, Dialogue
from securefed.attacks._active.simulated_client import SimulatedClient, why_no_method
from securefed.attacks._base import Reconstruction, Target
from securefed.attacks._requirements import has_labels
from securefed.errors import ConfigError, TranscriptError

_SHARPEST = 1e9
"""Largest k times the range of g x. Biases of C classes reach C times as much, and clients refuse broadcasts with
entries beyond 1e12."""
_DIGITS = 1e-3
"""Largest rounding error of a logit. Logits reach k times the range of g x, which is therefore at most this over the
relative precision of the clients' numbers."""
_WITHIN = 10.0
"""Width of an interval, in units of 1 / k, below which it is not divided: so near to a threshold softmax is
neither 0 nor 1."""
_WHOLE = 0.02
"""Distance of a count from a whole number above which a row lies at the threshold, partly on both sides; the threshold
is then left out. Fixed point leaves errors of 1e-3 in the count of 128 rows; a row read at .02 is wrong by 2 %."""
_JITTER = 0.4
"""Share of their distance by which thresholds are moved at random, so that one which met a row is not tried again."""


@dataclass(frozen=True)
class LinearClassifier:
    """The parameters of a linear classifier on the wire.

    Attributes:
        weight: name of the weight: (classes, features), or (features,) in logistic regression.
        bias: name of the bias: (classes,), or () in logistic regression.
        classes: number of rows of the weight; 1 in logistic regression, whose two classes share one logit.
    """

    weight: str
    bias: str
    classes: int

    @classmethod
    def of(cls, shapes: dict[str, tuple[int, ...]], features: int) -> LinearClassifier | None:
        """Recognise the two parameters of a linear classifier by their shapes; `None` for other models."""
        if len(shapes) != 2:
            return None
        (weight, form), (bias, other) = shapes.items()
        if (form, other) == ((features,), ()):
            return cls(weight, bias, 1)
        return cls(weight, bias, form[0]) if form[1:] == (features,) and other == form[:1] else None

    @property
    def thresholds(self) -> int:
        """Number of thresholds of one broadcast."""
        return max(self.classes - 1, 1)

    def parameters(self, direction: Array, thresholds: Array, sharpness: float) -> dict[str, Array]:
        """Return parameters by name that predict class c for rows with t_c < g x < t_c+1.

        Args:
            direction: (features,) g.
            thresholds: (thresholds,) t_1, t_2, ..., ascending.
            sharpness: k.
        """
        if self.classes == 1:
            return {self.weight: sharpness * direction, self.bias: np.asarray(-sharpness * thresholds[0])}
        # Softmax ignores what all classes share: the middle class is taken as 0, so that entries are small.
        steps, heights = np.arange(self.classes), np.append(0.0, np.cumsum(thresholds))
        middle = self.classes // 2
        return {
            self.weight: sharpness * (steps - middle)[:, None] * direction,
            self.bias: -sharpness * (heights - heights[middle]),
        }

    def above(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """Return (thresholds, features) sums and (thresholds,) counts of what lies above each threshold.

        Args:
            weight: gradient of the weight, in the shape of the weight.
            bias: gradient of the bias.
        """
        if self.classes == 1:
            return weight[None], bias[None]
        # Above t_c lie the intervals of the classes c..C - 1: sums from the last class down to c, without c = 0
        return np.cumsum(weight[::-1], axis=0)[::-1][1:], np.cumsum(bias[::-1])[::-1][1:]


@dataclass
class _Ladder:
    """All thresholds tried so far along one direction, with what lies above each.

    Attributes:
        levels: thresholds, ascending.
        sums: by threshold, (features,) the sum of the rows above it.
        counts: by threshold, the number of rows above it.
        narrow: width below which an interval is not divided.
    """

    levels: list[float]
    sums: list[Array]
    counts: list[int]
    narrow: float

    def add(self, levels: Array, sums: Array, counts: Array) -> None:
        """Insert further thresholds, but for those at which a row lies: their counts are no whole numbers.

        Args:
            levels: (levels,) thresholds.
            sums: (levels, features) the sum of the rows above each.
            counts: (levels,) the number of rows above each, up to rounding.
        """
        for level, total, count in zip(levels, sums, counts, strict=True):
            if abs(count - np.rint(count)) > _WHOLE:
                continue
            place = int(np.searchsorted(self.levels, level))
            self.levels.insert(place, float(level))
            self.sums.insert(place, total)
            self.counts.insert(place, int(np.rint(count)))

    def intervals(self) -> list[tuple[float, float, Array, int]]:
        """Return (low, high, sum of rows, count) of all intervals that hold rows."""
        ends = zip(range(len(self.levels) - 1), range(1, len(self.levels)), strict=True)
        found = [
            (self.levels[a], self.levels[b], self.sums[a] - self.sums[b], self.counts[a] - self.counts[b])
            for a, b in ends
        ]
        return [item for item in found if item[3] > 0]

    def next_levels(self, count: int, rng: np.random.Generator) -> Array:
        """Choose `count` thresholds within the intervals that hold several rows, more where more rows are.

        Args:
            count: number of thresholds of a broadcast.
            rng: moves the thresholds a little.

        Returns:
            The thresholds, ascending; none where no interval is left to divide.
        """
        crowded = [item for item in self.intervals() if item[3] > 1 and item[1] - item[0] > self.narrow]
        if not crowded:
            return np.empty(0)
        pieces = [1] * len(crowded)  # each threshold adds a piece to the interval with most rows a piece
        for _ in range(count):
            place = int(np.argmax([item[3] / part for item, part in zip(crowded, pieces, strict=True)]))
            pieces[place] += 1
        levels = []
        for (low, high, _, _), parts in zip(crowded, pieces, strict=True):
            step = (high - low) / parts
            levels.append(low + step * (np.arange(1, parts) + rng.uniform(-_JITTER, _JITTER, parts - 1)))
        return np.sort(np.concatenate(levels))


@dataclass(frozen=True)
class ClassThresholds:
    """Choose a linear classifier's weights such that its classes are intervals of a direction.

    Attributes:
        rounds: largest number of rounds whose broadcasts the server chooses; a broadcast has one threshold fewer than
            classes. With 10 classes, 20 rounds separate 100 rows; with two, each round adds one threshold.
    """

    rounds: int = 24

    name: ClassVar[str] = "active/class_thresholds"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Dialogue) -> str | None:
        """Return why the attack cannot run, or `None`."""
        if (reason := why_no_method(target)) is not None:
            return reason
        client, public = SimulatedClient(target, observed), target.public
        problem = client.method.problem
        try:
            model = LinearClassifier.of(dict(problem.shapes(public)), public.features)
        except ConfigError as error:
            return str(error)
        if model is None or not has_labels(problem):
            return "It needs a linear classifier with a bias."
        return _why_not_counted(client) or _why_not_saturated(client, model)

    def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Choose thresholds round by round; the estimate holds the rows, and means of those that stay together."""
        client, public = SimulatedClient(target, observed), target.public
        model = LinearClassifier.of(dict(client.method.problem.shapes(public)), public.features)
        assert model is not None
        direction = rng.normal(size=public.features) / public.features**0.5
        reach = public.feature_bound * float(np.abs(direction).sum()) * (1 + 1e-6)  # |g x| < reach for every row
        # Clients that send how far they moved towards the broadcast refuse large entries: `limit` is the largest with
        # which they stay within bounds, once these are doubled as often as clients allow.
        limit, sharpest = client.largest, _sharpness(client, model) / reach
        doublings = observed.doublings if np.isfinite(limit) else 0

        def choose(thresholds: Array) -> tuple[ChosenBroadcast, float]:
            """Return the broadcast with these thresholds, as sharp as clients take it, and its sharpness."""
            entries = model.parameters(direction, thresholds, 1.0).values()
            sharpness = min(sharpest, limit / max(float(np.abs(value).max()) for value in entries))
            parameters = model.parameters(direction, thresholds, sharpness)
            broadcast = client.broadcast(observed.honest, parameters)
            return ChosenBroadcast(broadcast, counted=False, doublings=doublings), sharpness

        above_all = np.full(model.thresholds, 2 * reach)
        base = observed.ask(choose(above_all)[0])
        below = choose(-above_all)[0]
        part, unit = _unit(client, model, base.broadcast, below.to_all, rng)
        by_label = _read(client, model, part, unit, client.heard(base))  # minus the rows of each label: the second term
        ladder = _Ladder([reach], [np.zeros(public.features)], [0], 0.0)
        levels = np.linspace(-reach, reach, model.thresholds + 1)[:-1]
        for _ in range(self.rounds - 1):
            chosen, sharpness = choose(levels)
            ladder.narrow = _WITHIN / sharpness
            sums, counts = _read(client, model, part, unit, client.heard(observed.ask(chosen)))
            ladder.add(levels, sums - by_label[0], counts - by_label[1])
            levels = ladder.next_levels(model.thresholds, rng)
            if not len(levels):
                break
        return _reconstruction(client, ladder)


def _reconstruction(client: SimulatedClient, ladder: _Ladder) -> Reconstruction:
    """Return the rows that are alone in an interval, then the means of the others."""
    found = sorted(ladder.intervals(), key=lambda item: item[3])
    rows = [total / count for _, _, total, count in found]
    value = np.asarray(rows) if rows else np.zeros((1, client.target.public.features))
    single = sum(item[3] == 1 for item in found)
    return Reconstruction(
        "samples",
        value,
        unknowns=client.rows * client.target.public.features,
        members=client.dialogue.members,
        diagnostics={"single rows": single},
    )


def _read(
    client: SimulatedClient, model: LinearClassifier, part: str, unit: float, message: Tensors
) -> tuple[Array, Array]:
    """Return the sums and counts above each threshold (`LinearClassifier.above`), the labels' term included."""
    tensors = client.part(message, part)
    return model.above(tensors[model.weight] / unit, tensors[model.bias] / unit)


def _unit(
    client: SimulatedClient, model: LinearClassifier, above: Tensors, below: Tensors, rng: np.random.Generator
) -> tuple[str, float]:
    """Find out how this method's messages hold the gradient, from messages of a client with one made-up row.

    A row above a threshold adds itself to what is read there. So the readings of two messages, with the thresholds
    below and above the row, differ by the row times a factor. In FLAME they have more in common than the label's term:
    a gradient at the model from which the client starts.

    Args:
        client: computes the messages.
        model: the linear classifier.
        above: broadcast with all thresholds above every row.
        below: broadcast with all thresholds below every row.
        rng: draws the row.

    Returns:
        The name of the part that holds the gradient, and the factor by which a row's gradient enters a message.

    Raises:
        TranscriptError: no part of the message depends on the row.
    """
    row = rng.uniform(0.0, client.target.public.feature_bound, client.target.public.features)
    messages = [client.row_message(broadcast, row, 1) for broadcast in (below, above)]
    found = []  # (distance from the row, part, factor)
    for part in client.method.sent:
        (sums, counts), (other, fewer) = (_read(client, model, part, 1.0, message) for message in messages)
        if factor := float(counts[0] - fewer[0]):
            found.append((float(np.linalg.norm((sums[0] - other[0]) / factor - row)), part, factor))
    if not found:
        raise TranscriptError("A row does not show in a client's message: the model's entries are too large for it.")
    _, part, factor = min(found)
    return part, factor


def _sharpness(client: SimulatedClient, model: LinearClassifier) -> float:
    """Return the largest k times the range of g x with which the clients' numbers hold the logits."""
    digits = float(np.finfo(client.method.problem.dtype).eps)
    return min(_SHARPEST, _DIGITS / digits / max(model.classes, 2))


def _why_not_counted(client: SimulatedClient) -> str | None:
    """Return why rounds cannot be subtracted from each other, or rows not counted in them, or `None`."""
    if getattr(client.method.problem, "l2", 0.0) > 0:
        return "Its weights are so large that the regulariser's gradient would leave the declared bound."
    if not client.repeats:
        return "It subtracts messages of several rounds, and clients here draw other rows in each."
    if not client.follows_broadcast:
        return "The models at which clients compute their gradients depend on what they keep, not on the broadcast."
    if not client.weighs_alike:
        return "It counts rows, and rows of clients that have many weigh less in this sum than those of others."
    return None


def _why_not_saturated(client: SimulatedClient, model: LinearClassifier) -> str | None:
    """Return why the model is no classifier whose predictions can be held fixed, or `None`."""
    public = client.target.public
    row = np.full(public.features, 0.5 * public.feature_bound)
    reach = public.feature_bound * public.features  # of g x, with g = (1, ..., 1)
    far = np.full(model.thresholds, 10.0 * reach)
    parameters = model.parameters(np.ones(public.features), far, _sharpness(client, model) / reach)
    found = client.gradient(parameters, row[None], np.array([1]))
    _, counts = model.above(np.asarray(found[model.weight], float), np.asarray(found[model.bias], float))
    if abs(float(counts[0]) + 1.0) < 1e-6:
        return None
    return "The loss is no cross entropy of these logits, so predictions far from a threshold still have a slope."
