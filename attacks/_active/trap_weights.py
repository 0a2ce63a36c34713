"""Read rows of many clients out of sums, with trap weights in a fully connected ReLU network.

Every output of the first layer looks at the same projection of a row, at rising thresholds (`trap_network`). So the
summed gradients of neighbouring outputs differ by the rows between two thresholds, a bin: the ratio of the weight's and
the bias's difference is the row itself where a bin holds one, otherwise a weighted mean of its rows (`bin_reading`).
The bias's difference shows whether the bin holds one row, and of which label; rows of the label that the weights
predict show in no bin, so that label changes from round to round. Each further round takes another direction, and
thresholds where the rows found so far say that rows lie. `TrapWeights.run` asks a `Dialogue`: it sends a broadcast and
gets the round that the server observed (`chosen_broadcasts`). Source: Fowl et al. 2022, Robbing the Fed (arXiv
2110.13057). There the server inserts the layer; here it uses the network's own first layer, so that names and shapes
are those that the clients agreed to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.attacks._active.bin_reading import label_codes, read_bins
from securefed.attacks._active.chosen_broadcasts import ChosenBroadcast, Dialogue
from securefed.attacks._active.found_rows import FoundRows
from securefed.attacks._active.layer_inputs import LayerInputs
from securefed.attacks._active.simulated_client import SimulatedClient, why_no_method
from securefed.attacks._active.trap_network import (
    GENTLE,
    MARGIN,
    DenseChain,
    TrapNetwork,
    layer_inputs,
    possible_chains,
)
from securefed.attacks._base import Reconstruction, RoundView, Target
from securefed.attacks._requirements import has_labels
from securefed.errors import ConfigError, TranscriptError

NOT_POOLED = "The layers before the first fully connected one change pictures by more than pooling."
"""Why the attack cannot run behind convolutions that `MeasureInputs` finds no kernels for."""
_HEIGHT = 0.01
"""`TrapNetwork.height`, the sum of the layer's outputs. With small ones the layers behind hardly change over local
steps."""
_TOLERANCE = 0.01
"""Largest distance of a bin's slope from a label's slope, in units of code 1, at which the bin counts as one row. From
92 classes on, codes are nearer to each other; the nearest is then the label, and a sum of several rows still none."""
_READINGS = 4
"""How often a label is read, each time with the unit of the one before."""
_BLURRED_MARGIN = 30.0
"""`TrapNetwork.margin` where clients with several rows make several steps, so that no label is read. Rows whose logits
come to the margin stop moving the model, which blurs them less: of 8 clients with 16 rows each (`2nn`, 5 steps) 55 %
were read at 30, and 43 % at 100; of 8 with 8 behind an imprint module 66 % and 41 %."""
_FLOOR = 0.02
"""Slope, in units of code 1, below which a bin counts as empty; rounding must stay below it."""
_BEYOND = 1.5
"""A bin with an entry beyond this multiple of the declared range holds no row: slopes of other rows cancelled in it."""
_WIDER = 1.3
"""Factor between the standard deviation of the found rows' projections and that of the thresholds: the means of bins,
which are among the found rows, scatter less than rows."""
_MOST = 1e8
"""Largest number of entries of the map from pixels to the inputs of the first fully connected layer: it takes 800 MB,
and one gradient a pixel. Pictures of 32 x 32 pixels in 3 colours may enter through 32000 inputs."""
_FEWEST = 4
"""Vectors (found rows, and bins of the newest message) that thresholds need to be placed by their projections."""

MeasureInputs = Callable[[SimulatedClient, DenseChain, Mapping[str, Array]], LayerInputs | None]
"""Describes how rows enter the first fully connected layer of a chain, or returns `None`, as `layer_inputs` does."""


@dataclass(frozen=True)
class TrapWeights:
    """Choose a network's weights such that sums of gradients hold single rows.

    Where clients have one row, or make one local step on all their rows, a bin that holds one row shows that by its
    slope, and the row's label with it; the messages of such rows are then subtracted, and later rounds read the rows
    that are left. Elsewhere the attack cannot distinguish a bin of several rows from a bin of one, unless another round
    holds the same row.

    Attributes:
        rounds: number of rounds whose broadcasts the server chooses. One is enough where the layer has many times more
            outputs than there are rows.
        slope: `TrapNetwork.slope`, the factor of the codes in a row's slope. Small slopes drown in rounding; large ones
            leave the declared gradient bound, beyond which clients refuse. At .25 slopes are at most .48, half of a
            bound of 1, the default of the library's networks.
        brightness: mean and standard deviation, over rows, of the mean of a row's entries, where the server knows data
            like the clients', as in the paper; the first thresholds are then quantiles of this normal distribution.
            `None`: it knows the declared range alone, and its first broadcast finds out where rows lie.
    """

    rounds: int = 4
    slope: float = 0.25
    brightness: tuple[float, float] | None = None

    name: ClassVar[str] = "active/trap_weights"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Dialogue, measure: MeasureInputs = layer_inputs) -> str | None:
        """Return why the attack cannot run on layers whose inputs `measure` finds (`layers`), or `None`."""
        if (reason := why_no_method(target)) is not None:
            return reason
        client = SimulatedClient(target, observed)
        if not has_labels(client.method.problem):
            return "It holds a classifier's prediction fixed, and this model does not classify."
        try:
            client.method.problem.shapes(target.public)
        except ConfigError as error:
            return str(error)
        found = self.layers(client, client.model.parameters(observed.honest), measure)
        return found if isinstance(found, str) else None

    def layers(
        self, client: SimulatedClient, initial: Mapping[str, Array], measure: MeasureInputs = layer_inputs
    ) -> tuple[DenseChain, LayerInputs] | str:
        """Find the layers that the weights can be chosen for, by trying them on made-up rows.

        Args:
            client: computes gradients of made-up rows.
            initial: the parameters that an honest server would send.
            measure: chooses convolutions before these layers, and measures what enters through them.

        Returns:
            The layers and how a row enters the first of them, or why there are none, in a sentence.
        """
        if not client.begins_at_broadcast:
            return "Clients take their first step at a model that they keep, not at the broadcast one."
        reason = "It needs two or more fully connected layers with biases, which rows or a chain of convolutions enter."
        for chain in possible_chains(client, initial):
            if chain.kernels and not client.one_step:
                return "Convolutions move over several local steps, so that rows of several clients blur."
            if chain.kernels and (pairs := chain.inputs * client.target.public.features) > _MOST:
                return f"It measures every pair of a pixel and an input of the layer: {pairs:.2g}, at most {_MOST:.2g}."
            inputs, rng = measure(client, chain, initial), np.random.default_rng(0)
            if inputs is None:
                reason = NOT_POOLED
                continue
            if self.trap(client, chain, inputs, 0, [], rng).works(client, initial, rng):
                return chain, inputs
            reason = "Single rows have other slopes than in a fully connected ReLU network, so the model is none."
        return reason

    def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Choose broadcasts round by round, and read each message.

        Args:
            observed: the dialogue.
            target: the algorithm and the public facts.
            rng: draws directions and made-up rows.

        Returns:
            The rows found, at most as many as the clients in the sum have.
        """
        client = SimulatedClient(target, observed)
        layers = self.layers(client, client.model.parameters(observed.honest))
        assert not isinstance(layers, str)  # `applies` has refused other networks
        chain, inputs = layers
        found = FoundRows(inputs.width)
        for number in range(self.rounds):
            trap = self.trap(client, chain, inputs, number, found.all, rng)
            seen = observed.ask(ChosenBroadcast(trap_broadcast(client, trap), counted=False))
            self.read(client, trap, seen, found, rng)
        estimate = found.reconstruction(client)
        return replace(estimate, value=inputs.rows(estimate.value))

    def trap(
        self, client: SimulatedClient, chain: DenseChain, inputs: LayerInputs, number: int, known: Sequence[Array],
        rng: np.random.Generator,
    ) -> TrapNetwork:  # fmt: skip
        """Choose the weights of one round: g takes the mean of a row's entries first, and is random afterwards.

        Args:
            client: knows the declared range of a row's entries and the number of classes.
            chain: the network's layers.
            inputs: how rows enter the first fully connected layer.
            number: the number of the round, from 0. It determines the class that is predicted for every row: rows of
                this class have slope 0, so it changes from round to round.
            known: (inputs,) vectors found so far, of any clients; from `_FEWEST` on thresholds are quantiles of their
                projections.
            rng: draws the direction.
        """
        public = client.target.public
        bound, label = public.feature_bound, number % public.classes
        width, count = inputs.width, chain.outputs
        direction = np.full(width, 1.0 / width) if number == 0 else rng.normal(size=width) / width**0.5
        if number == 0 and self.brightness is not None:
            thresholds = _normal_quantiles(count, *self.brightness)
        elif len(known) < _FEWEST:
            # all values that g x takes for rows within their declared range
            thresholds = np.linspace(-bound, bound, count) * np.abs(direction).sum()
        else:
            projected = np.asarray(known) @ direction
            thresholds = _normal_quantiles(count, projected.mean(), _WIDER * projected.std() + 1e-9)
        height = _HEIGHT if chain.behind is None else GENTLE
        margin = MARGIN if client.additive else _BLURRED_MARGIN
        return TrapNetwork(chain, inputs, direction, thresholds, label, self.slope, height, margin)

    def read(
        self, client: SimulatedClient, trap: TrapNetwork, observed: RoundView, found: FoundRows,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        """Read the bins of one message into `found`.

        Where a message is the sum of what each row sends by itself (`client.additive`), the rows that are known are
        simulated and subtracted first, so that only the others are left in the bins, and a bin of one row is recognised
        by its slope, which is `unit` times its code. Elsewhere only a row that a bin of an earlier message held too
        counts as one (`add_bins`).

        Args:
            client: simulates messages.
            trap: the weights that were broadcast.
            observed: the round, with that broadcast.
            found: the rows found so far; those of this message are added.
            rng: draws a made-up row.
        """
        part, unit = _unit(client, trap, observed, rng)
        left = _FirstLayer.of(client, trap, part, client.heard(observed))
        if client.additive:
            left = left.without(_known(client, trap, part, observed, found.labelled, unit))
        # A vector with entries far outside the declared range is no row: slopes cancelled in its bin.
        bins = read_bins(left.weight, left.bias, _FLOOR * abs(unit))
        bound, entered_rows = _BEYOND * client.target.public.feature_bound, bins.rows - trap.inputs.offset
        inside = np.isfinite(entered_rows).all(axis=1) & (np.abs(entered_rows) <= bound).all(axis=1)
        entered_rows, slopes = entered_rows[inside], bins.slopes[inside]
        found.add_bins(entered_rows)
        if client.additive:
            for entered, slope in zip(entered_rows, slopes, strict=True):
                label_read = self._label(client, trap, part, observed, entered, slope, unit)
                if label_read is not None:
                    found.add(entered, label_read)

    def _label(
        self, client: SimulatedClient, trap: TrapNetwork, part: str, observed: RoundView, entered: Array,
        slope: float, unit: float,
    ) -> int | None:  # fmt: skip
        """Return the label with which a single row has the slope of its bin; `None` where the bin holds several rows.

        The nearest code gives a label. Several local steps change a row's slope a little, so a client with that row and
        label is simulated: its slope over its code is the unit with which the label is read again, until it stays. That
        slope must agree with the bin's.

        Args:
            client: simulates messages.
            trap: the weights that were broadcast.
            part: name of the part of a message that holds the gradient.
            observed: the round.
            entered: (inputs,) what entered the layer, less the offset, as read from the bin.
            slope: the bin's slope.
            unit: slope of a row over the code of its label.
        """
        codes = label_codes(client.target.public.classes)
        codes[trap.label] = np.inf  # rows of the predicted label have slope 0 and lie in no bin
        label, expected = -1, 0.0
        for _ in range(_READINGS):
            nearest = int(np.argmin(np.abs(slope / unit - codes)))
            if nearest == label:
                break
            label, expected = nearest, unit * codes[nearest]
            if client.one_step:
                break
            # Output 0 has the lowest threshold: its bias gradient is the row's slope.
            expected = float(_simulated(client, trap, part, observed, entered, label).bias[0])
            if expected == 0.0:  # the row lies below all thresholds, so it is not what this bin holds
                return None
            unit = expected / codes[label]
        return label if abs(slope - expected) <= _TOLERANCE * abs(unit) else None


def trap_broadcast(client: SimulatedClient, trap: TrapNetwork) -> dict[str, Array]:
    """Return an honest server's broadcast with these weights in place of the model."""
    honest = client.dialogue.honest
    parameters = trap.parameters(client.model.parameters(honest), client.target.public.classes)
    return client.broadcast(honest, parameters)


@dataclass(frozen=True)
class _FirstLayer:
    """The tensors of a message that belong to the first fully connected layer.

    Attributes:
        weight: (outputs, features).
        bias: (outputs,).
    """

    weight: Array
    bias: Array

    @classmethod
    def of(cls, client: SimulatedClient, trap: TrapNetwork, part: str, message: Tensors) -> _FirstLayer:
        """Take them from a message, whose gradient is the part of this name."""
        tensors = client.part(message, part)
        return cls(*trap.inputs.read(tensors[trap.chain.weights[0]], tensors[trap.chain.biases[0]]))

    def without(self, other: _FirstLayer) -> _FirstLayer:
        """Return the difference of two messages."""
        return _FirstLayer(self.weight - other.weight, self.bias - other.bias)


def _known(
    client: SimulatedClient, trap: TrapNetwork, part: str, observed: RoundView, rows: Sequence[tuple[Array, int]],
    unit: float,
) -> _FirstLayer:  # fmt: skip
    """Return what rows of known labels add to a message: by simulation, or in closed form where clients make one step.

    Args:
        client: simulates messages.
        trap: the weights that were broadcast.
        part: name of the part of a message that holds the gradient.
        observed: the round.
        rows: what entered the layer, less the offset, and the label of each row.
        unit: slope of a row over the code of its label.
    """
    width, outputs = trap.inputs.width, trap.chain.outputs
    if client.one_step:
        entered = np.asarray([row for row, _ in rows]).reshape(len(rows), width)
        codes = label_codes(client.target.public.classes)
        codes[trap.label] = 0.0
        active = (entered @ trap.direction > trap.thresholds[:, None]) * (unit * codes[[label for _, label in rows]])
        return _FirstLayer(active @ (entered + trap.inputs.offset), active.sum(axis=1))
    each = [_simulated(client, trap, part, observed, entered, label) for entered, label in rows]
    return _FirstLayer(
        sum((one.weight for one in each), np.zeros((outputs, width))),
        sum((one.bias for one in each), np.zeros(outputs)),
    )


def _simulated(
    client: SimulatedClient, trap: TrapNetwork, part: str, observed: RoundView, entered: Array, label: int
) -> _FirstLayer:
    """Return what a row adds to a message, given what of it enters the first layer, `entered` (inputs,)."""
    row = trap.inputs.rows(entered[None])[0]
    return _FirstLayer.of(client, trap, part, client.row_message(observed.broadcast, row, label))


def _unit(
    client: SimulatedClient, trap: TrapNetwork, observed: RoundView, rng: np.random.Generator
) -> tuple[str, float]:
    """Find out how this method's messages hold the gradient, from the message of a client with one made-up row.

    Each part of that message is read as if it were the gradient: the right one gives back the made-up row. The
    thresholds are shifted so that the middle one meets this row (`around`), or it might lie below all of them.

    Args:
        client: simulates messages.
        trap: the weights that were broadcast.
        observed: the round.
        rng: draws the made-up row.

    Returns:
        The name of the part that holds the gradient, and the unit: the slope of a row in that part over its code.

    Raises:
        TranscriptError: no part of the message depends on the row.
    """
    public, method = client.target.public, client.method
    row = rng.uniform(0.0, public.feature_bound, public.features)
    label, moved = (trap.label + 1) % public.classes, trap.around(row)
    initial = client.model.parameters(observed.broadcast)
    broadcast = client.broadcast(observed.broadcast, moved.parameters(initial, public.classes))
    message, found = client.row_message(broadcast, row, label), []
    for part in method.sent:
        own = _FirstLayer.of(client, trap, part, message)
        bins = read_bins(own.weight, own.bias, 0.0)
        if not len(bins.rows):
            continue
        # other bins are empty but for rounding errors
        entered = bins.rows[np.argmax(np.abs(bins.slopes))] - trap.inputs.offset
        error = float(np.linalg.norm(entered - trap.inputs.of(row)) / np.linalg.norm(row))
        found.append((error, part, float(bins.slopes.sum()) / label_codes(public.classes)[label]))
    if not found:
        raise TranscriptError(f"A row of slope {trap.slope:g} does not show in a client's message: raise `slope`.")
    _, part, unit = min(found)  # of least error
    return part, unit


def _normal_quantiles(count: int, mean: float, deviation: float) -> Array:
    """Return quantiles (count,) of a normal distribution, in equal steps of probability."""
    from scipy.special import ndtri  # noqa: PLC0415 - loaded when an attack runs

    return np.asarray(mean + deviation * ndtri((np.arange(count) + 0.5) / count))
