"""Run the attacked algorithm on rows of the auditor's own, so that a failed attack is told from wrong hyper-parameters.

`transcript_audit` attacks a recorded run with the hyper-parameters that its user believes. Where an attack does not
explain the messages, either these are wrong or the search failed. A control decides: a run with the believed
hyper-parameters on known rows. If the attack solves the controls and not the recorded run, the hyper-parameters differ.

The runs have the recorded run's participation, and its types: every broadcast and message is rounded to float32 where
the recorded ones were. One control takes random rows. Another takes, for the target, rows that agree with the attack's
own estimate, so that its data are as hard to attack as those of the recorded run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from securefed._messages import Aggregate, ClientId, RoundRecord, Transcript
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm, RoundOutcome
from securefed.attacks._base import Reconstruction
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError
from securefed.recording._recording import Recording

_MOST: Final = 2**30
"""Largest number of bytes of the rows of a control."""


@dataclass(frozen=True)
class ControlRuns:
    """Runs of the algorithm on rows of the auditor's own, in the types of the recorded run.

    Attributes:
        recorded: the run under audit.
        algorithm: the algorithm with the hyper-parameters under test.
        public: public facts of the recorded run.
        seed: the seed of the rows and of the clients' draws.
    """

    recorded: Transcript
    algorithm: Algorithm[Any, Any]
    public: Public
    seed: int

    @cached_property
    def on_random_rows(self) -> Transcript:
        """A run on rows whose entries are uniform in [0, feature_bound], the same for all attacks.

        Raises:
            ConfigError: the rows would take more than 1 GiB.
        """
        return self._run(list(self._random_rows(0)))

    def on_estimate(self, found: Reconstruction, target: ClientId) -> tuple[Transcript, list[Dataset]] | None:
        """Run on rows that agree with an estimate of the target's Gram matrix or rows.

        The other clients get rows with the same second moments, turned at random: their Gram matrix is the estimate,
        scaled to their number of rows. Where the estimate is of rows, the others get uniform rows.

        Args:
            found: the attack's estimate.
            target: the client attacked.

        Returns:
            The run, and each client's rows; `None` for an estimate of another secret, or of several clients.

        Raises:
            ConfigError: as in `on_random_rows`.
        """
        members = found.members or frozenset({target})
        if members != {target} or not np.isfinite(found.value).all():
            return None
        clients = list(self._random_rows(1))
        rng = np.random.default_rng([self.seed, 8])
        bound = self.public.feature_bound
        if found.secret == "samples" and found.value.shape == clients[target].x.shape:
            labels = clients[target].y if found.labels is None else np.asarray(found.labels)
            clients[target] = Dataset(np.clip(found.value, -bound, bound), labels)
        elif found.secret == "gram" and clients[target].y is None:  # a Gram matrix says nothing of labels
            own = self.public.rows[target]
            for client, rows in enumerate(self.public.rows):
                gram = found.value * (1.0 if client == target else rows / own)
                clients[client] = Dataset(_rows_of(gram, rows, rng))
        else:
            return None
        return self._run(clients), clients

    def _random_rows(self, stream: int) -> Iterator[Dataset]:
        """Draw each client's rows, and labels where there are classes; another stream draws other rows."""
        size = 8 * sum(self.public.rows) * self.public.features
        if size > _MOST:
            raise ConfigError(f"a control takes {size / 2**30:.3g} GiB of random rows, the limit is 1 GiB")
        rng, classes = np.random.default_rng([self.seed, 2, stream]), self.public.classes
        for rows in self.public.rows:
            x = rng.uniform(0.0, self.public.feature_bound, (rows, self.public.features))
            yield Dataset(x, rng.integers(0, classes, rows) if classes else None)

    def _run(self, clients: Sequence[Dataset]) -> Transcript:
        """Run on these rows, with the same clients in each round, and every number rounded as it was recorded."""
        records = [record for record in self.recorded.records if record.kind == "train"]
        sent, received = _types(records, "broadcast"), _types(records, "total")
        method, public = self.algorithm, self.public
        server = method.start(public, np.random.default_rng([self.seed, 9]))
        states = [
            method.enroll(data, public, np.random.default_rng([self.seed, 9, client]))
            for client, data in enumerate(clients)
        ]
        recording = Recording(
            rows=public.rows, features=public.features, classes=public.classes, feature_bound=public.feature_bound
        )
        broadcast = _rounded(method.broadcast(server), sent)
        for number, record in enumerate(records):
            tentative, messages = {}, {}
            for client in record.survivors:
                rng = np.random.default_rng([self.seed, 9, client, number])
                tentative[client], message = method.contribute(states[client], broadcast, rng)
                messages[client] = _rounded(message, received)
            server = method.combine(server, Aggregate(_sum(list(messages.values())), tuple(record.survivors)))
            recording.round(broadcast, messages)
            broadcast = _rounded(method.broadcast(server), sent)
            for client, state in tentative.items():
                states[client] = method.commit(state, RoundOutcome(True, broadcast))
        return recording.finish(broadcast)


def _sum(messages: Sequence[Tensors]) -> dict[str, Array]:
    """Add messages of the same tensors in float64."""
    return {
        name: np.sum([np.asarray(message[name], np.float64) for message in messages], axis=0) for name in messages[0]
    }


def _types(records: Sequence[RoundRecord], part: str) -> dict[str, np.dtype[Any]]:
    """Return by tensor the type of the recorded numbers, to which a control run's numbers are rounded.

    float64 counts as float32 where every number in the tensor is one, since a framework may have widened it.

    Args:
        records: the records of the rounds.
        part: `broadcast` or `total`.
    """
    values: dict[str, list[Array]] = {}
    for record in records:
        for name, value in getattr(record, part).items():
            values.setdefault(name, []).append(np.asarray(value))
    return {name: _type(group) for name, group in values.items()}


def _type(values: Sequence[Array]) -> np.dtype[Any]:
    kind = values[0].dtype
    single = kind == np.float64 and all(np.array_equal(value, value.astype(np.float32)) for value in values)
    return np.dtype(np.float32) if single else kind


def _rounded(tensors: Tensors, types: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    return {name: np.asarray(value, types.get(name)) for name, value in tensors.items()}


def _rows_of(gram: Array, rows: int, rng: np.random.Generator) -> Array:
    """Return rows X whose Gram matrix X^T X is the nearest to `gram` that so many rows can have, turned at random.

    With G = V L V^T, cut to its min(rows, features) largest eigenvalues (negative ones as 0), X = Q L^1/2 V^T, where Q
    has random orthonormal columns.
    """
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    rank = min(rows, len(gram))
    factor = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, len(gram) - rank :].T  # eigh sorts upwards
    turn, _ = np.linalg.qr(rng.normal(size=(rows, rank)))
    return np.asarray(turn @ factor)
