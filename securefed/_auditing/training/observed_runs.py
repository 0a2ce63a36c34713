"""Give an audit of a torch loop the changes of model state that a server sees: simulated, or read from a recording.

One run is one round and one target. In the server's view the change is the target's own; in that of sums it is the mean
over all clients, which is what exact secure aggregation leaves. Clients weigh in it by their numbers of rows, or all
alike where a recorded loop summed models, or updates without weights. `TrainingSubject` asks a source, `SimulatedRuns`
or `RecordedRuns`, for the change of each run and view.

Attacks are repeated on a null, a change that says nothing of the target: it has another client's rows in the target's
place. What an attack scores there is what chance gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._messages import Transcript
from securefed._public import require
from securefed._tensors import Array, Tensors
from securefed.attacks import views
from securefed.errors import ConfigError, TranscriptError

_DELTA = "delta."
"""Prefix of recorded tensors that are changes of a model's entries, not the entries."""


@dataclass(frozen=True)
class ObservedChange:
    """The change of model state that an attacker observes in one round.

    Attributes:
        view: `server` or `sum only`.
        seed: number of the run.
        target: the client attacked.
        members: clients whose changes are in `change`.
        shares: weight of each member's change in `change`; they sum to 1.
        state: the state that every client received.
        change: mean change of the members' states by name, weighted by `shares`.
        null: the same with another client's rows in place of the target's; `None` where that is unknown.
    """

    view: str
    seed: int
    target: int
    members: tuple[int, ...]
    shares: tuple[float, ...]
    state: Mapping[str, Tensor]
    change: Mapping[str, Array]
    null: Mapping[str, Array] | None


class SimulatedRuns:
    """Runs of the caller's step on the clients' rows, one round from the given model; targets take turns.

    Args:
        training: model, loss and step.
        clients: their rows.
        count: number of runs.
    """

    most: int | None = None
    """Number of runs that there can be; `None` for any."""

    def __init__(self, training: TorchTraining, clients: Sequence[TrainedRows], count: int) -> None:
        self._training, self._clients, self.count = training, clients, count
        self._cached: tuple[int, list[dict[str, Array]]] = (-1, [])

    def target(self, seed: int) -> int:
        """Return client `seed` modulo the number of clients."""
        return seed % len(self._clients)

    def observe(self, seed: int, view: str) -> ObservedChange:
        """Run every client once for each seed, and return what a view shows: `server` or `sum only`."""
        state, target = self._training.state, self.target(seed)
        if self._cached[0] != seed:
            draws = [1_000_003 * seed + 2 * client for client in range(len(self._clients))]  # all different
            found = [self._training.change(state, rows, s) for rows, s in zip(self._clients, draws, strict=True)]
            self._cached = seed, found
        return _observed(view, seed, target, state, self._cached[1], [len(rows) for rows in self._clients])


class RecordedRuns:
    """Rounds of a recorded run; each pair of a round and one of its clients is a run.

    The transcript's `meta` says what a message is. With the form `updates`, it is a change `delta.NAME`, times the
    client's number of rows over the mean of all clients' where `weighted`; with `models` it is the trained model.

    Args:
        transcript: recorded by `securefed.torch.record`, `FlowerRecording` or `Recording`.
        training: the model, whose state dict names the recorded entries.
        rows: number of rows of each client.
        most: number of pairs at most; the earlier rounds come first.

    Raises:
        ConfigError: no entry of the recording has a name of the model's state dict.
    """

    def __init__(self, transcript: Transcript, training: TorchTraining, rows: Sequence[int], most: int) -> None:
        self._transcript, self._training, self._rows = transcript, training, rows
        self._models = transcript.meta.get("form", "updates") == "models"
        self._weighted = bool(transcript.meta.get("weighted", True))
        require(len(transcript.records) > 0, "the recording holds no round")
        names = {name.removeprefix(_DELTA) for name in transcript.records[0].total}
        missing = [name for name in training.parameters if name not in names]
        require(
            not missing,
            f"the recording lacks {missing[:3]}, which the model trains; record state dicts under the model's own "
            f"names (it holds {sorted(names)[:3]})",
        )
        pairs = [(index, client) for index, record in enumerate(transcript.records) for client in record.survivors]
        self._pairs = pairs[:most]
        self.most: int | None = len(pairs)

    @property
    def count(self) -> int:
        """Number of pairs of a round and a client."""
        return len(self._pairs)

    def target(self, seed: int) -> int:
        """Return the client of a pair."""
        return self._pairs[seed][1]

    def observe(self, seed: int, view: str) -> ObservedChange:
        """Read one round as a view shows it: `server` or `sum only`.

        Raises:
            TranscriptError: the run does not show this view; for instance the recording holds no single messages.
        """
        place, target = self._pairs[seed]
        record = self._transcript.records[place]
        if not record.broadcast:
            raise TranscriptError(f"exchange {record.round} is recorded without its broadcast, to which changes refer")
        state = self._state(record.broadcast)
        members = tuple(record.survivors)
        if view == views.SUM_ONLY:
            weights = [1.0 if self._models else self._weight(client) for client in members]
            total = self._change(record.total, record.broadcast, sum(weights), len(members))
            shares = tuple(weight / sum(weights) for weight in weights)
            return ObservedChange(view, seed, target, members, shares, state, total, None)
        changes = []
        for client in members:
            seen = [one for one in views.server(self._transcript, client).rounds if one.round == record.round]
            changes.append(self._change(seen[0].message, record.broadcast, self._weight(client), 1))
        sizes = [self._rows[client] for client in members]
        found = _observed(view, seed, members.index(target), state, changes, sizes)
        return ObservedChange(view, seed, target, (target,), (1.0,), state, found.change, found.null)

    def _weight(self, client: int) -> float:
        """Return the factor of a client's recorded update: its number of rows over the mean of all clients', or 1."""
        return self._rows[client] / float(np.mean(self._rows)) if self._weighted else 1.0

    def _change(self, message: Tensors, broadcast: Tensors, weight: float, members: int) -> dict[str, Array]:
        """Return the mean change behind a recorded message, of one member or a sum of several.

        Args:
            message: the message or sum.
            broadcast: the model that changes refer to.
            weight: sum of the members' factors, by which updates are divided.
            members: number of members, by which a sum of models is divided.
        """
        values = {name: np.asarray(value, np.float64) for name, value in message.items()}
        if self._models:
            return {name: value / members - broadcast[name] for name, value in values.items()}
        return {name.removeprefix(_DELTA): value / weight for name, value in values.items()}

    def _state(self, broadcast: Tensors) -> dict[str, Tensor]:
        """Return the model's state dict with the broadcast's entries; `ConfigError` where these do not fit it."""
        own = self._training.state
        for name, value in broadcast.items():
            if name not in own or tuple(np.shape(value)) != tuple(own[name].shape):
                raise ConfigError(
                    f"the recording's {name!r} of shape {np.shape(value)} is no entry of the model's state dict"
                )
            own[name] = torch.as_tensor(np.array(value)).to(own[name].dtype)
        return own


ObservedRuns = SimulatedRuns | RecordedRuns
"""A source of observed changes."""


def _observed(
    view: str,
    seed: int,
    target: int,
    state: Mapping[str, Tensor],
    changes: Sequence[Mapping[str, Array]],
    rows: Sequence[int],
) -> ObservedChange:
    """Make a view of one round, in which every single change is known; the null takes the next client's.

    `target` is the place of the target in `changes` and `rows`.
    """
    after = (target + 1) % len(changes)
    if view == views.SERVER_VIEW:
        null = changes[after] if len(changes) > 1 else None
        return ObservedChange(view, seed, target, (target,), (1.0,), state, changes[target], null)
    other = [changes[after] if client == target else change for client, change in enumerate(changes)]
    everyone, shares = tuple(range(len(changes))), tuple(count / sum(rows) for count in rows)
    return ObservedChange(view, seed, target, everyone, shares, state, _mean(changes, shares), _mean(other, shares))


def _mean(changes: Sequence[Mapping[str, Array]], shares: Sequence[float]) -> dict[str, Array]:
    """Return the mean of changes, weighted by shares that sum to 1."""
    return {
        name: np.asarray(sum(share * change[name] for share, change in zip(shares, changes, strict=True)))
        for name in changes[0]
    }
