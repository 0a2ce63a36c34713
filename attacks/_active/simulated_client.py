"""Run a client of a gradient method on made-up rows, so that an attacker learns the units of its messages.

A message holds one or several parts, each one vector of all parameters (`delta`, or `dx` and `dc` in SCAFFOLD). One of
them is a sum of gradients times a factor (learning rate, local steps, weight of the client). A dishonest server that
chooses its broadcasts (`trap_weights`, `class_thresholds`) computes one message on a row of its own and reads off it
which part that is, and the factor. It also learns here whether rows act one by one in a sum, which its readings assume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.algorithms._optimization.local_steps import LocalTraining, Vectors
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model, label
from securefed.attacks._active.chosen_broadcasts import Dialogue
from securefed.attacks._base import RoundView, Target
from securefed.datasets._base import Dataset


@dataclass(frozen=True)
class SimulatedClient:
    """A client of a gradient method that the attacker plays itself.

    Attributes:
        target: the algorithm and the public facts.
        dialogue: the clients whose sum each message is, and an honest broadcast.
    """

    target: Target
    dialogue: Dialogue

    @property
    def rows(self) -> int:
        """Number of the members' rows, which is public."""
        return sum(self.target.public.rows[client] for client in self.dialogue.members)

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows that the members have, ascending, each once."""
        return sorted({self.target.public.rows[client] for client in self.dialogue.members})

    @property
    def method(self) -> GradientMethod:
        """The method; `why_no_method` has accepted it."""
        assert isinstance(self.target.algorithm, GradientMethod)
        return self.target.algorithm

    @property
    def model(self) -> Model:
        """The problem's model."""
        return Model(self.method.problem, self.target.public)

    @property
    def repeats(self) -> bool:
        """Whether clients use all their rows in every step, so that equal broadcasts give equal messages.

        This holds for clients with a memory too: the server claims that its sum counted no client, and each client then
        returns to the memory that it had before the round.
        """
        most = self.sizes[-1]
        return set(self._batches(most)) == {most}

    @property
    def begins_at_broadcast(self) -> bool:
        """Whether clients compute their first gradient at the broadcast model, and not at a model that they keep."""
        chosen = self._raised()
        return bool(np.allclose(self._without_rows(chosen)[1][0], self.model.vector("", chosen)))

    @property
    def follows_broadcast(self) -> bool:
        """Whether the models at which clients compute their gradients depend on the broadcast at all."""
        pairs = zip(self._without_rows(self._raised())[1], self._without_rows(self.dialogue.honest)[1], strict=True)
        return any(not np.array_equal(*pair) for pair in pairs)

    @property
    def largest(self) -> float:
        """Largest entry of a broadcast with which messages stay within the bounds that clients accept.

        A client that keeps a model, as in FLAME, sends how far it moved towards the broadcast, which is proportional to
        the broadcast's entries; that has to stay within the declared bound, which may be doubled
        `Dialogue.doublings` times. One of the doublings is left for the gradients. The result is infinite where
        messages hold nothing but gradients, and where no bound is declared.
        """
        ends = [self._without_rows(broadcast)[0] for broadcast in (self.dialogue.honest, self._raised())]
        moved = max(float(np.abs(ends[1][part] - ends[0][part]).max()) for part in self.method.sent)
        bounds = [spec.bound for spec in self.method.layout(self.target.public) if spec.bound is not None]
        bound = min(bounds, default=np.inf)
        return bound * 2.0 ** (self.dialogue.doublings - 1) / moved if moved > 0 else np.inf

    @property
    def additive(self) -> bool:
        """Whether a message is the sum of what each row would have sent by itself.

        It is so where every client has one row, and where clients make one step on all their rows, which weigh alike.
        """
        return self.sizes == [1] or (self.one_step and self.weighs_alike)

    @property
    def one_step(self) -> bool:
        """Whether clients make one step on all their rows."""
        return all(self._batches(size) == (size,) for size in self.sizes)

    @property
    def weighs_alike(self) -> bool:
        """Whether a row adds as much to the sum where its client has many rows as where it has few."""
        public = self.target.public
        model = {name: np.zeros(shape) for name, shape in self.method.problem.shapes(public).items()}
        begun = self.broadcast(self.dialogue.honest, model)
        row = np.full(public.features, 0.5 * public.feature_bound)
        shares = [self.row_message(begun, row, 0, size) for size in self.sizes]
        return all(np.allclose(share[name], value) for share in shares[1:] for name, value in shares[0].items())

    def _batches(self, rows: int) -> tuple[int, ...]:
        """Return the sizes of the batches of a client's local steps."""
        return self.method.draw(rows, np.random.default_rng(0)).sizes(rows)

    def broadcast(self, honest: Tensors, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """Replace the model in a broadcast, in the clients' precision; the other vectors stay as they are."""
        chosen = {name: np.asarray(value, self.method.problem.dtype) for name, value in parameters.items()}
        return {**honest, **chosen}

    def gradient(self, parameters: Mapping[str, Array], x: Array, y: Array) -> Tensors:
        """Return the mean gradient of rows `x` (rows, features) with targets `y`, in the clients' precision."""
        held = {name: np.asarray(value, self.method.problem.dtype) for name, value in parameters.items()}
        return self.method.problem.gradient(held, x, y)

    def message(self, broadcast: Tensors, row: Array, target: int, size: int) -> Tensors:
        """Return the first message of a client that has `size` copies of one row.

        Args:
            broadcast: the tensors that the client receives.
            row: (features,).
            target: its label.
            size: number of copies.
        """
        data, rng = Dataset(np.tile(row, (size, 1)), np.full(size, target)), np.random.default_rng(0)
        state = self.method.enroll(data, self.target.public, rng)
        return self.method.contribute(state, broadcast, rng)[1]

    def row_message(self, broadcast: Tensors, row: Array, target: int, size: int | None = None) -> dict[str, Array]:
        """Return one row's share: `learned` of the message of a client with `size` copies of the row, over `size`.

        Args:
            broadcast: the tensors that the client receives.
            row: (features,).
            target: its label.
            size: number of copies; by default the rows of the smallest member.

        Returns:
            The share by the tensors' names.
        """
        size = self.sizes[0] if size is None else size
        learned = self.learned(self.message(broadcast, row, target, size), broadcast, 1)
        return {name: value / size for name, value in learned.items()}

    def heard(self, observed: RoundView) -> dict[str, Array]:
        """Return `learned` of a round that the server observed."""
        return self.learned(observed.message, observed.broadcast, len(observed.members))

    def learned(self, message: Tensors, broadcast: Tensors, clients: int) -> dict[str, Array]:
        """Subtract from a first message of some clients what they would send if their rows had no gradient.

        Most methods send nothing then. Clients of FLAME send how far they moved towards the broadcast. All clients are
        taken to send what the smallest member does: where that depends on the number of rows (FLAME with
        `weighting="rows"`), rows do not weigh alike, and the attack on such methods does not apply.
        """
        moved = self._without_rows(broadcast)[0]
        idle: dict[str, Array] = {}
        for part in self.method.sent:
            idle |= self.model.name(part, np.asarray(moved[part], float))
        return {name: np.asarray(value, float) - clients * idle[name] for name, value in message.items()}

    def part(self, message: Tensors, part: str) -> dict[str, Array]:
        """Return one part of a message by the problem's own names: `weight` for the tensor named `delta.weight`."""
        return {name: np.asarray(message[label(part, name)], float) for name in self.model.layout.names}

    def _raised(self) -> dict[str, Array]:
        """Return the honest broadcast with 1 added to every parameter."""
        return self.broadcast(
            self.dialogue.honest, {n: v + 1.0 for n, v in self.model.parameters(self.dialogue.honest).items()}
        )

    def _without_rows(self, broadcast: Tensors) -> tuple[Vectors, list[Array]]:
        """Return the first message of a client whose rows have no gradient, and the models of its local steps."""
        points: list[Array] = []

        def gradient(point: Array, _: int = 0) -> Array:
            """Return zeros, and note where they were asked for."""
            points.append(point)
            return 0 * point

        size = self.sizes[0]
        draw = self.method.draw(size, np.random.default_rng(0))
        work = LocalTraining(
            gradient=gradient, anchor=gradient, public=self.target.public, rows=float(size), blocks=draw.blocks,
            sizes=draw.sizes(size),
        )  # fmt: skip
        received = self.method.read(self.model, broadcast)
        return self.method.steps(received, self.method.memory(self.model), work)[0], points


def why_no_method(target: Target) -> str | None:
    """Return why the algorithm is none whose messages hold gradients, or `None`."""
    if not isinstance(target.algorithm, GradientMethod):
        return "It chooses models whose gradients tell rows apart, and this algorithm sends no gradients."
    return None
