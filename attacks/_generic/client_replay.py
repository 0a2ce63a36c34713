"""Compute what clients with hypothetical rows would have sent in the observed rounds, by running the client step again.

The attacker knows the algorithm, its public hyper-parameters, every broadcast and each client's number of rows, so that
it can run the client's code on rows of its own. This code is called the client step here: `enroll` makes a client's
state from its rows, `contribute` its message from the state and a broadcast, `commit` the next state. Generic attacks
compare such messages with the observed ones. The members are the clients whose sum an observed message is; an equation
is one number of one observed message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import RoundOutcome
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks._engine import DualArray
from securefed.attacks._generic.message_units import MessageUnits
from securefed.attacks._generic.time_budget import TimeBudget, clock
from securefed.datasets._base import Dataset
from securefed.defenses._differential_privacy.clip import clipped
from securefed.errors import SecureFedError, TranscriptError

_UNIT_ROWS, _UNIT_DRAWS = 3, 8
"""Numbers of hypothetical rows and of random draws by which messages' units are estimated."""
_AGREEMENT = 0.1
"""Relative difference up to which a torch derivative agrees with a finite difference; wrong ones differ by about 1."""
_ADDITIVE = 1e-9
"""Relative difference, a margin above round-off, up to which random draws count as added to a message."""
_MOST_BYTES = 2**30
"""Largest number of bytes of the hypothetical rows."""


@runtime_checkable
class Differentiable(Protocol):
    """Optional interface of an algorithm: its (stateless) client step on torch tensors, for exact derivatives."""

    def torch_messages(self, rows: Any, labels: Array | None, broadcast: Tensors) -> Mapping[str, Any]:
        """Return one client's contribution as torch tensors.

        Args:
            rows: the client's rows, a (rows, features) float64 torch tensor.
            labels: (rows,), or `None` where the client has none.
            broadcast: what the server sent, NumPy arrays by name.
        """
        ...


@dataclass(frozen=True)
class Replay:
    """The observed messages as a function of all members' rows.

    Building it raises `TranscriptError` where a round lacks its broadcast, or the rows take too much memory.

    Attributes:
        observed: the view.
        target: algorithm and public facts.
        labels: all members' labels in order, if the attacker knows them.
        seed: seed of the attacker's random draws, in place of the clients', which it does not know.
        through: the caller's own clip: maps a contribution and its round to what is summed; `None`: as the view states.
        prior: rows like the members' that the attacker has; hypothetical rows are drawn like them.
        budget: time for all client steps together.
    """

    observed: View
    target: Target
    labels: Array | None = None
    seed: int = 0
    through: Callable[[Tensors, int], Tensors] | None = None
    prior: Array | None = None
    budget: TimeBudget | None = None

    @classmethod
    def of(cls, observed: View | Replay, target: Target) -> Replay:
        """Return a replay as it is, and of a view the replay by an attacker who knows nothing else."""
        return observed if isinstance(observed, Replay) else cls(observed, target)

    def __post_init__(self) -> None:
        if not self.observed.rounds:
            raise TranscriptError("the view holds no round to replay")
        size = 8 * self.rows * self.features
        if size > _MOST_BYTES:
            raise TranscriptError(
                f"{self.rows} hypothetical rows of {self.features} take {size / 2**30:.3g} GiB, the limit is "
                f"{_MOST_BYTES / 2**30:.3g} GiB; audit smaller clients"
            )
        for observation in self.observed.rounds:
            if not observation.broadcast:
                raise TranscriptError(
                    f"exchange {observation.round}: the view holds no broadcast, so the client step cannot be replayed"
                )

    @cached_property
    def members(self) -> tuple[ClientId, ...]:
        """Clients whose rows are sought, ascending; the rows are in this order."""
        return tuple(sorted(self.observed.members))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of rows of each member, which is public."""
        return tuple(self.target.public.rows[client] for client in self.members)

    @property
    def rows(self) -> int:
        """Number of all members' rows."""
        return sum(self.sizes)

    @property
    def features(self) -> int:
        """Number of features."""
        return self.target.public.features

    @cached_property
    def messages(self) -> Array:
        """All observed messages as one vector, (equations,)."""
        vector = np.concatenate([_flat(o.message) for o in self.observed.rounds])
        if not np.isfinite(vector).all():
            raise TranscriptError("the view's messages are not finite")
        return vector

    @cached_property
    def noise(self) -> Array:
        """Standard deviation of the noise that a defence added to each entry of `messages`, (equations,)."""
        pairs = [(o, name) for o in self.observed.rounds for name in sorted(o.message)]
        return np.concatenate([np.full(np.size(o.message[name]), o.noise.get(name, 0.0)) for o, name in pairs])

    @cached_property
    def scale(self) -> float:
        """Norm of the observed messages, or 1 if they are zero."""
        return float(np.linalg.norm(self.messages)) or 1.0

    @cached_property
    def units(self) -> MessageUnits:
        """Units of differences between messages; from the observed alone if the client step fails on the tried rows."""
        rng = np.random.default_rng([self.seed, 7])  # 7: a stream of its own; other numbers below likewise
        try:
            rows = [self.likely(rng) for _ in range(_UNIT_ROWS)]
            of_rows = [self(rows_tried) for rows_tried in rows]
            of_draws = [self(rows[0], seed=1 + k) for k in range(0 if self.deterministic else _UNIT_DRAWS)]
            one_client = self.alone(0, self._split(rows[0])[0])
        except SecureFedError:
            of_rows, of_draws, one_client = [self.messages], [], self.messages
        return MessageUnits.of(self.messages, list(self.blocks()), of_rows, of_draws, one_client, self.noise)

    def with_messages(self, message: Array) -> View:
        """Return the view with the observed messages replaced by these entries (equations,)."""
        rounds, begin = [], 0
        for observation in self.observed.rounds:
            tensors = {}
            for name in sorted(observation.message):
                shape = np.shape(observation.message[name])
                end = begin + int(np.prod(shape))
                tensors[name] = message[begin:end].reshape(shape)
                begin = end
            rounds.append(replace(observation, message=tensors))
        return replace(self.observed, rounds=tuple(rounds))

    def distance(self, message: Array) -> float:
        """Return the distance of a message (equations,) from the observed one, in `units`: about 1 for random rows."""
        return float(np.linalg.norm((message - self.messages) / self.units.unit))

    def blocks(self) -> Iterator[slice]:
        """Yield the positions of each tensor of each round."""
        begin = 0
        for observation in self.observed.rounds:
            for name in sorted(observation.message):
                end = begin + int(np.size(observation.message[name]))
                yield slice(begin, end)
                begin = end

    def __call__(self, rows: Array, seed: int | None = None, labels: Array | None = None) -> Array:
        """Compute what members with these rows would have sent, (equations,).

        Args:
            rows: hypothetical rows, (rows, features).
            seed: seed of the clients' draws; the attacker's own by default.
            labels: labels of the rows; the members' by default.

        Raises:
            SecureFedError: the client step fails on such rows, or the budget is spent.
        """
        parts = [self.alone(index, member_rows, seed) for index, member_rows in enumerate(self._split(rows, labels))]
        return np.asarray(np.sum(parts, axis=0))

    def alone(self, index: int, data: Dataset, seed: int | None = None) -> Array:
        """Compute one member's part of all messages (equations,), zero where it took no part; raises as a call.

        Args:
            index: the member's place in `members`.
            data: its rows and labels.
            seed: seed of its draws; the attacker's own by default.
        """
        client, (algorithm, public) = self.members[index], (self.target.algorithm, self.target.public)
        self.check_budget()
        clock().count(len(data.x))
        state: Any = None
        parts = []
        for observation in self.observed.rounds:
            if client not in observation.members:
                parts.append(np.zeros(sum(np.size(value) for value in observation.message.values())))
                continue
            rng = np.random.default_rng([self.seed if seed is None else seed, 17, client, observation.round])
            with _named():  # the outcome: this client was counted, and `followed` is the broadcast after the round
                if state is None:
                    state = algorithm.enroll(data, public, rng)
                tentative, sent = algorithm.contribute(state, observation.broadcast, rng)
                state = algorithm.commit(tentative, RoundOutcome(True, observation.followed or None))
                summed = self._clipped(sent, observation)
            parts.append(_like(summed, observation.message))
        return np.concatenate(parts)

    def check_budget(self) -> None:
        """Raise `TranscriptError` if the time is spent."""
        if self.budget is not None:
            self.budget.check()

    def member_data(self, index: int, rows: Any) -> Dataset:
        """Return a member's data with other rows, an array or a `DualArray`, which no check of a `Dataset` would pass.

        Args:
            index: the member's place in `members`.
            rows: hypothetical rows, as many as the member has.
        """
        first = sum(self.sizes[:index])
        labels = None if self.labels is None else self.labels[first : first + self.sizes[index]]
        if not isinstance(rows, DualArray):
            return Dataset(rows, labels)
        data = object.__new__(Dataset)
        for name, value in {"x": rows, "y": labels, "class_names": ()}.items():
            object.__setattr__(data, name, value)
        return data

    def _clipped(self, sent: Tensors, observation: RoundView) -> Tensors:
        """Clip a contribution as the caller says (`through`), or as the view says: some tensors together, to a norm."""
        if self.through is not None:
            return self.through(sent, observation.round)
        out = dict(sent)
        for names, norm in observation.clips:
            out |= clipped({name: out[name] for name in names if name in out}, norm)
        return out

    @property
    def calls(self) -> int:
        """Number of client steps for one Jacobian by finite differences."""
        participations = {client: sum(client in o.members for o in self.observed.rounds) for client in self.members}
        sizes = zip(self.members, self.sizes, strict=True)
        return 2 * self.features * sum(size * participations[client] for client, size in sizes)

    def residual(self, rows: Array) -> float:
        """Return the distance of what `rows` would have sent from what was sent; infinite if the step fails."""
        try:
            distance = self.distance(self(rows))
        except SecureFedError:
            return float("inf")
        return distance if np.isfinite(distance) else float("inf")

    @cached_property
    def deterministic(self) -> bool:
        """True if the client step draws nothing at random."""
        rows = self.likely(np.random.default_rng([self.seed, 5]))
        return bool(np.array_equal(self(rows, seed=1), self(rows, seed=2), equal_nan=True))

    @cached_property
    def additive(self) -> bool:
        """True if the clients' random draws are added to their messages, as noise is.

        The difference between the messages of two data sets is then the same under all draws. It is not where clients
        send a sketch along random directions, or use a random half of their rows.
        """
        rng = np.random.default_rng([self.seed, 9])
        some, others = self.likely(rng), self.likely(rng)
        try:
            first, second = (self(some, seed=k) - self(others, seed=k) for k in (1, 2))
        except SecureFedError:
            return False
        size = np.abs(self(some, seed=1)) + np.abs(self(others, seed=2))
        return bool(np.all(np.abs(first - second) <= _ADDITIVE * (size + np.abs(first))))

    @cached_property
    def repeatable(self) -> bool:
        """True if the client step draws only from the generator it is given, and keeps nothing outside its state."""
        rows = self.likely(np.random.default_rng([self.seed, 5]))
        return bool(np.array_equal(self(rows, seed=1), self(rows, seed=1), equal_nan=True))

    @cached_property
    def differentiable(self) -> bool:
        """True if torch derivatives exist and, for one member, agree with a finite difference along one line.

        A step that leaves torch, or detaches, has a derivative of zero; one that calls `backward` itself has none.
        """
        if any(o.clips for o in self.observed.rounds) or not isinstance(self.target.algorithm, Differentiable):
            return False
        rng = np.random.default_rng([self.seed, 8])
        rows = self.likely(rng)[: self.sizes[0]]
        line, step = rng.normal(size=rows.shape), self.units.step * self.target.public.feature_bound
        try:
            ends = [self.alone(0, self.member_data(0, rows + sign * step * line)) for sign in (1, -1)]
            slope = (ends[0] - ends[1]) / (2 * step)
            exact = self.torch_slopes(0, rows) @ line.reshape(-1)
        except (SecureFedError, RuntimeError, TypeError, ValueError, AttributeError):
            return False
        size = float(np.linalg.norm(slope / self.units.unit))
        return float(np.linalg.norm((slope - exact) / self.units.unit)) <= _AGREEMENT * size

    def sample(self, rng: np.random.Generator) -> Array:
        """Draw rows that are uniform within the public bound."""
        return rng.uniform(-1, 1, (self.rows, self.features)) * self.target.public.feature_bound

    def likely(self, rng: np.random.Generator) -> Array:
        """Draw rows that are uniform on the prior's range of each feature, or within the bound if there is no prior."""
        if self.prior is None:
            return self.sample(rng)
        return rng.uniform(self.prior.min(axis=0), self.prior.max(axis=0), (self.rows, self.features))

    def torch_slopes(self, index: int, rows: Array) -> Array:
        """Return the derivative of one member's messages by its rows, (equations, rows * features), from torch.

        Args:
            index: the member's place in `members`.
            rows: its rows.
        """
        import torch  # noqa: PLC0415 - only for algorithms written in it

        algorithm: Any = self.target.algorithm
        client, labels = self.members[index], self.member_data(index, rows).y

        def messages(point: Any) -> Any:
            parts = []
            for observation in self.observed.rounds:
                shapes = {name: np.shape(observation.message[name]) for name in sorted(observation.message)}
                sent = {name: torch.zeros(shape) for name, shape in shapes.items()}
                if client in observation.members:
                    sent = algorithm.torch_messages(point, labels, observation.broadcast)
                parts += [sent[name].reshape(-1) for name in shapes]
            return torch.cat(parts)

        jacobian = torch.func.jacrev(messages)(torch.tensor(rows, dtype=torch.float64))
        return np.asarray(jacobian.detach().numpy(), np.float64).reshape(-1, rows.size)

    def _split(self, rows: Array, labels: Array | None = None) -> list[Dataset]:
        """Split all members' rows and labels into each member's data."""
        ends = np.cumsum(self.sizes)[:-1]
        all_labels = self.labels if labels is None else labels
        split = [None] * len(self.sizes) if all_labels is None else np.split(all_labels, ends)
        return [Dataset(x, y) for x, y in zip(np.split(np.asarray(rows), ends), split, strict=True)]


@contextmanager
def _named() -> Iterator[None]:
    """Turn what a client step raises on rows of the attacker into an error that attacks expect."""
    try:
        yield
    except SecureFedError:
        raise
    except Exception as error:
        raise TranscriptError(
            f"the client step raised {type(error).__name__} on rows that the attacker tried: {error}"
        ) from error


def _like(sent: Tensors, message: Tensors) -> Array:
    """Return the entries of a contribution that match the observed message's tensors, as one vector."""
    for name, value in message.items():
        if name not in sent or np.shape(sent[name]) != np.shape(value):
            raise TranscriptError(
                f"on rows that the attacker tried the client step sends no {name!r} of shape {np.shape(value)}: its "
                "names or shapes depend on the rows, which by itself tells something about them"
            )
    return _flat({name: sent[name] for name in message})


def _flat(tensors: Tensors) -> Array:
    kept: list[Any] = [tensors[name] for name in sorted(tensors)]
    return np.concatenate([np.reshape(v if isinstance(v, DualArray) else np.asarray(v, np.float64), -1) for v in kept])
