"""Separate the clients of a sum by sending each of them a convolution with channels of its own.

The server sends every client a model of its own: in client k's, the picture passes through channels that are dead (0
for any picture) in the models of all others. What enters the first fully connected layer, h, is then 0 outside client
k's columns, and so is k's gradient of that layer's weight, sum of s h. The sum over clients holds each client's
gradient in columns of its own. One of k's channels is a constant beside the picture's colours. Its columns hold the sum
of the slopes s of k's rows alone, in place of the bias gradient, which adds up all clients.

With that, `TrapWeights` reads the columns of each client, which `ClientChannels` describes, as a client's own gradient.
Where there are fewer channels than clients need, the clients are read in groups, one after the other, while the others
receive dead channels only.

A message layer that sums only clients that received the same broadcast does not sum these.

Source: Zhao et al. 2023, LOKI (arXiv 2303.12233). There the server inserts the convolution (`insert_imprint_module`
makes such a model), and the attacker knows a client's gradients up to their scale; the constant channel, which gives
the scale, is this package's, and so is the use of the network's own convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Array, Tensors
from securefed.attacks._active.chosen_broadcasts import ChosenBroadcast, Dialogue
from securefed.attacks._active.found_rows import FoundRows
from securefed.attacks._active.layer_inputs import PooledPixels, measure_pixels
from securefed.attacks._active.simulated_client import SimulatedClient
from securefed.attacks._active.trap_network import DenseChain, entering
from securefed.attacks._active.trap_weights import NOT_POOLED, TrapWeights, trap_broadcast
from securefed.attacks._base import Reconstruction, Target

_CLOSE = 1e-3
"""Largest error, in units of the range, of what enters through another client's channels; rounding leaves 1e-5."""


@dataclass(frozen=True)
class ClientChannels(PooledPixels):
    """The columns of one client: those through which its picture enters, and those of its constant channel.

    Attributes:
        total: number of inputs of the layer.
        columns: (width,) the columns of the picture.
        constant: (columns of the constant channel,) their numbers.
        level: what enters through the constant channel.
    """

    total: int = 0
    columns: Array = field(default_factory=lambda: np.empty(0, np.int64))
    constant: Array = field(default_factory=lambda: np.empty(0, np.int64))
    level: float = 1.0

    def widen(self, weight: Array) -> Array:
        """Return the whole weight: zero outside the client's picture."""
        whole = np.zeros((len(weight), self.total))
        whole[:, self.columns] = weight
        return whole

    def read(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """Return the client's own gradients; those of the bias come from the constant channel."""
        return weight[:, self.columns], weight[:, self.constant].mean(axis=1) / self.level


@dataclass(frozen=True)
class ClientKernels:
    """Send each client a convolution with channels of its own, and trap weights behind it.

    Attributes:
        traps: the attack on each client's columns.
    """

    traps: TrapWeights = field(default_factory=lambda: TrapWeights(rounds=2))

    name: ClassVar[str] = "active/client_kernels"
    secret: ClassVar[str] = "samples"

    @property
    def rounds(self) -> int:
        """Number of rounds whose broadcasts the server chooses for each group of clients."""
        return self.traps.rounds

    def applies(self, target: Target, observed: Dialogue) -> str | None:
        """Return why the attack cannot run, or `None`."""
        if len(observed.members) < 2:
            return "It separates clients in a sum, and this view holds the client's own messages."
        reason = self.traps.applies(target, observed, client_channels)
        if reason == NOT_POOLED:
            return (
                "It gives each client channels of a convolution, one more than pictures have colours; none fits here."
            )
        return reason

    def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Set traps for all clients at once, or for one group of them after the other.

        Args:
            observed: the dialogue.
            target: the algorithm and the public facts.
            rng: draws directions and made-up rows.

        Returns:
            The rows found, the single ones first; `diagnostics["clients"]` holds the client of each.
        """
        client = SimulatedClient(target, observed)
        initial = client.model.parameters(observed.honest)
        layers = self.traps.layers(client, initial, client_channels)
        assert not isinstance(layers, str)  # `applies` has refused other networks
        chain, inputs = layers
        assert isinstance(inputs, ClientChannels)
        channels = _all_channels(client, chain, initial, inputs)
        dead = {name: np.zeros_like(initial[name]) for name in inputs.kernels}
        to_all = client.broadcast(observed.honest, {**initial, **dead})
        members, found = sorted(observed.members), dict[ClientId, Reconstruction]()
        for start in range(0, len(members), len(channels)):
            group = dict(zip(members[start : start + len(channels)], channels, strict=False))
            found |= self._group(client, to_all, chain, group, rng)
        return _joined(client, found)

    def _group(
        self, client: SimulatedClient, to_all: Tensors, chain: DenseChain, group: Mapping[ClientId, ClientChannels],
        rng: np.random.Generator,
    ) -> dict[ClientId, Reconstruction]:  # fmt: skip
        """Set traps for the clients of a group at once, each on its own columns; return the estimates of their rows.

        Args:
            client: knows the algorithm, the public facts, and the dialogue.
            to_all: the broadcast of all other clients, whose channels are dead.
            chain: the network's layers.
            group: the columns of each client.
            rng: draws directions and made-up rows.
        """
        dialogue = client.dialogue
        alone = {one: SimulatedClient(client.target, replace(dialogue, members=frozenset({one}))) for one in group}
        found = {member: FoundRows(own.width) for member, own in group.items()}
        for number in range(self.rounds):
            # All clients' vectors show in which range rows lie: a client alone may have too few for that.
            known = [vector for rows in found.values() for vector in rows.all]
            traps = {
                member: self.traps.trap(alone[member], chain, own, number, known, rng) for member, own in group.items()
            }
            chosen = {member: trap_broadcast(alone[member], trap) for member, trap in traps.items()}
            observed = dialogue.ask(ChosenBroadcast(to_all, dict(chosen), counted=False))
            for member, trap in traps.items():
                seen = replace(observed, broadcast=chosen[member])
                self.traps.read(alone[member], trap, seen, found[member], rng)
        estimates = {member: found[member].reconstruction(alone[member]) for member in group}
        return {
            member: replace(estimate, value=group[member].rows(estimate.value))
            for member, estimate in estimates.items()
        }


def client_channels(client: SimulatedClient, chain: DenseChain, initial: Mapping[str, Array]) -> ClientChannels | None:
    """Measure the columns of the first channels of the last convolution: a picture's colours and a constant.

    Args:
        client: computes gradients of made-up rows.
        chain: the layers.
        initial: all parameters by name.

    Returns:
        The columns, or `None` where there are no such channels, or layers between change pictures by more than pooling.
    """
    shapes, public = list(chain.kernels.values()), client.target.public
    if not shapes or min(shape[0] for shape in shapes) <= shapes[0][1]:
        return None
    enter, kernels = entering(client, chain, initial), _kernels(chain, public.feature_bound, 0)
    found = measure_pixels(kernels, public.features, public.feature_bound, enter, np.random.default_rng(0))
    if found is None:
        return None
    moved = found.windows.any(axis=1)
    constant = np.flatnonzero(~moved & (found.offset > _CLOSE * public.feature_bound))
    if not len(constant):
        return None
    return ClientChannels(
        int(moved.sum()), found.offset[moved], kernels, found.windows[moved],
        None if found.least is None else found.least[moved],
        total=chain.inputs, columns=np.flatnonzero(moved), constant=constant,
        level=float(found.offset[constant].mean()),
    )  # fmt: skip


def _all_channels(
    client: SimulatedClient, chain: DenseChain, initial: Mapping[str, Array], first: ClientChannels
) -> list[ClientChannels]:
    """Return the columns of as many clients as there are channels for: those of the first, shifted by whole channels.

    A made-up row shows whether it enters through the shifted columns; those through which it does not are left out.
    """
    (outputs, *_), colours = list(chain.kernels.values())[-1], next(iter(chain.kernels.values()))[1]
    public, enter = client.target.public, entering(client, chain, initial)
    row, out = np.random.default_rng(0).uniform(-1.0, 1.0, public.features) * public.feature_bound, [first]
    for place in range(colours + 1, outputs - colours, colours + 1):
        shift = place * (chain.inputs // outputs)
        kernels = _kernels(chain, public.feature_bound, place)
        own = replace(first, kernels=kernels, columns=first.columns + shift, constant=first.constant + shift)
        expected = np.zeros(chain.inputs)
        expected[own.columns] = own.of(row) + own.offset
        expected[own.constant] = own.level
        if np.abs(enter(kernels, row) - expected).max() < _CLOSE * public.feature_bound:
            out.append(own)
    return out


def _kernels(chain: DenseChain, bound: float, place: int) -> dict[str, Array]:
    """Return convolutions that pass a picture and a constant to the last one's channels from `place` on.

    The first bias lifts all pixels above zero, as in `layer_inputs`; it is the constant too.
    """
    names, chosen = list(chain.kernels), dict[str, Array]()
    colours = chain.kernels[names[0]][1]
    for name, shape in chain.kernels.items():
        weight, bias = np.zeros(shape), np.zeros(shape[0])
        start, middle = place if name == names[-1] else 0, tuple((side - 1) // 2 for side in shape[2:])
        for channel in range(colours + 1):
            if name != names[0] or channel < colours:  # the constant channel's first kernel is zero
                weight[(start + channel, channel, *middle)] = 1.0
            bias[start + channel] = bound if name == names[0] else 0.0
        chosen |= {name: weight, chain.kernel_biases[name]: bias}
    return chosen


def _joined(client: SimulatedClient, estimates: Mapping[ClientId, Reconstruction]) -> Reconstruction:
    """Return all clients' rows as one estimate, those that are known to be single rows first."""
    parts: list[tuple[bool, ClientId, Array, int]] = []
    for member, estimate in estimates.items():
        single, labels = int(estimate.diagnostics["single rows"]), estimate.labels
        assert labels is not None
        rows = enumerate(zip(estimate.value, labels, strict=True))
        parts += [(place >= single, member, row, int(label)) for place, (row, label) in rows]
    parts.sort(key=lambda part: part[0])
    return Reconstruction(
        "samples",
        np.asarray([row for _, _, row, _ in parts]),
        labels=np.asarray([label for *_, label in parts], np.int64),
        unknowns=client.rows * client.target.public.features,
        members=client.dialogue.members,
        diagnostics={
            "single rows": sum(not several for several, *_ in parts),
            "clients": [member for _, member, *_ in parts],
        },
    )
