"""Wrap a user's client function as an `Algorithm`, which can be run, recorded and attacked.

`audit_algorithm` calls `as_algorithm` for each seed where it was given a function and no `Algorithm`. The function maps
a client's rows and a broadcast (the tensors that the server sends to all clients) to tensors by name, which the server
sums. Attackers call it again and again, so it must give the same answer to the same question: `as_algorithm` checks
that, and sets the global random generators for each call if the function draws from them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from securefed._auditing.own.global_seed import global_seed
from securefed._extras import needed_for
from securefed._messages import Aggregate
from securefed._persistence.packing import local
from securefed._public import Public, require
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.algorithms._base import Algorithm
from securefed.attacks._engine import DualArray
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, DataError, SecureFedError

Contribute = Callable[..., Any]
"""`contribute(rows, broadcast)` -> tensors by name; parameters named `labels` and `rng` are given too. `rows` is a
(rows, features) array, `labels` is (rows,) or `None`, and `rng` a NumPy generator."""
Combine = Callable[[Tensors, Tensors, int], Tensors]
"""`combine(broadcast, total, clients)` -> the next broadcast, of the same names, shapes and types as the one before.
`total` is the sum of the clients' tensors, by name, and `clients` the number of clients in it."""
_OPTIONAL = ("labels", "rng")
_SAME = 1e-9  # relative difference up to which two answers count as the same


@dataclass(frozen=True)
class Rows:
    """State of a client. Both fields stay with the client, and neither is sent.

    Attributes:
        data: its rows.
        rounds: number of rounds that it took part in, which only error messages use.
    """

    data: Dataset = local()
    rounds: int = local(default=0)


@dataclass(frozen=True)
class Fault:
    """The first failure of a client step.

    Attributes:
        data: the rows on which it failed; the very object that the client holds, by which `own_seed_run` finds it.
        rounds: number of rounds that this client had taken part in.
        what: the error message.
    """

    data: Dataset
    rounds: int
    what: str


@dataclass(frozen=True, repr=False)
class FunctionAlgorithm(Algorithm[Tensors, Rows]):
    """An algorithm made of a client function on NumPy arrays that keeps no memory.

    Attributes:
        function: see `Contribute`.
        first: the first broadcast.
        follow: see `Combine`; `None` if every round repeats the first broadcast.
        example: the first client's first message, for names and shapes; empty before there is one.
        seeded: whether the global generators of `random`, NumPy and torch are set for each call and restored after it,
            for a function that draws from them.
        faults: the first client step that failed, or nothing; `own_seed_run` names client and round from it.
    """

    function: Contribute
    first: Tensors
    follow: Combine | None
    example: Tensors
    seeded: bool = False
    faults: list[Fault] = field(default_factory=list, compare=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def name(self) -> str:
        """The function's name."""
        inner = getattr(self.function, "func", self.function)  # of a functools.partial
        return str(getattr(inner, "__name__", type(inner).__name__))

    def layout(self, public: Public) -> Layout:
        """Return names and shapes of the messages."""
        return Layout.of(self.example)

    def start(self, public: Public, rng: np.random.Generator) -> Tensors:
        """Return the server's state, which is the first broadcast."""
        return self.first

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> Rows:
        """Return the state of a client."""
        return Rows(data)

    def broadcast(self, server: Tensors) -> Tensors:
        """Return the broadcast, which is the server's state."""
        return server

    def contribute(self, client: Rows, broadcast: Tensors, rng: np.random.Generator) -> tuple[Rows, Tensors]:
        """Call the function; raise `DataError` if it fails or returns other names or shapes than the first message."""
        try:
            sent = self._sent(client.data, broadcast, rng)
        except SecureFedError as error:
            if not self.faults:
                self.faults.append(Fault(client.data, client.rounds, str(error)))
            raise
        return replace(client, rounds=client.rounds + 1), sent

    def _sent(self, data: Dataset, broadcast: Tensors, rng: np.random.Generator) -> dict[str, Array]:
        """Call the function, and check its result: finite real arrays by name, in the shapes and order of `example`."""
        seed = int(rng.integers(2**32)) if self.seeded else None
        try:
            found = self._found(data, broadcast, rng, seed)
        except SecureFedError:
            raise
        except Exception as error:
            raise DataError(f"{self.name} raised {type(error).__name__}: {error}") from error
        if not isinstance(found, Mapping) or not found:
            raise DataError(
                f'{self.name} must return tensors by name, as {{"update": array}}, not {type(found).__name__}'
            )
        sent = {str(name): self._numbers(str(name), value) for name, value in found.items()}
        if self.example:
            self._check_shapes(sent)
        return sent

    def _found(self, data: Dataset, broadcast: Tensors, rng: np.random.Generator, seed: int | None) -> Any:
        """Call the function, with the global generators at a seed if there is one.

        `global_seed` sets torch's generator only where torch is loaded already. A call that is the first to load torch
        therefore draws from a generator that was not set, so it is repeated with the same seed.
        """
        if seed is None:
            return self.call(data, deepcopy(dict(broadcast)), rng)
        loaded = "torch" in sys.modules
        again = None if loaded else deepcopy(rng)
        with global_seed(seed):
            found = self.call(data, deepcopy(dict(broadcast)), rng)
        if again is None or "torch" not in sys.modules:
            return found
        with global_seed(seed):
            return self.call(data, deepcopy(dict(broadcast)), again)

    def _numbers(self, name: str, value: Any) -> Array:
        """Return a tensor of the message as float64; raise `DataError` if its numbers are not real and finite.

        Where an attack runs the function on a `DualArray`, the message stays one.
        """
        if isinstance(value, DualArray):
            return value  # type: ignore[return-value] # it stands for an array
        try:
            array = np.asarray(value)
            real = array.dtype.kind in "fiub"
            numbers = np.asarray(array, np.float64) if real else array
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{self.name} returned {name!r}, which is no array of numbers: {error}") from error
        if not real:
            raise DataError(
                f"{self.name} returned {name!r} of type {array.dtype}; real numbers are needed (complex ones as two "
                "tensors, nested ones under names of their own)"
            )
        if not np.isfinite(numbers).all():
            raise DataError(f"{self.name} returned NaN or infinity in {name!r}; mend the step, or audit fewer rounds")
        return numbers

    def _check_shapes(self, sent: Tensors) -> None:
        """Raise `DataError` unless a message has the names, shapes and order of `example`."""
        if not any(np.size(value) for value in sent.values()):
            raise DataError(f"{self.name} returned no number at all, so there is nothing to sum and nothing to audit")
        for name in sorted({*sent, *self.example}):
            mine, first = (np.shape(t[name]) if name in t else None for t in (sent, self.example))
            if mine != first:
                raise DataError(
                    f"{self.name} returned {name!r} of shape {mine}, and of shape {first} for the first client in the "
                    "first round; what a server sums has one shape, and a shape that follows the rows gives them away"
                )
        if list(sent) != list(self.example or sent):
            raise DataError(
                f"{self.name} returned its tensors in the order {', '.join(sent)}, and for the first client in the "
                f"first round in the order {', '.join(self.example)}; an order that follows the rows gives them away: "
                "return every message in one order"
            )

    def call(self, data: Dataset, broadcast: Tensors, rng: np.random.Generator) -> Any:
        """Call the function on copies of the client's data."""
        given = {"labels": None if data.y is None else data.y.copy(), "rng": rng}
        return self.function(data.x.copy(), broadcast, **{name: given[name] for name in self.extra})

    @cached_property
    def extra(self) -> tuple[str, ...]:
        """The parameters among `labels` and `rng` that the function has."""
        return tuple(name for name in _OPTIONAL if name in _parameters(self.function))

    def combine(self, server: Tensors, aggregate: Aggregate) -> Tensors:
        """Compute the next broadcast from the sum of a round.

        Raises:
            DataError: `follow` fails, or returns other names or shapes than the broadcast's, numbers that are not
                finite, or fractions for a tensor that `start` gives as integers.
        """
        if self.follow is None:
            return server
        try:
            after = self.follow(deepcopy(dict(server)), deepcopy(dict(aggregate.total)), aggregate.count)
        except Exception as error:
            raise DataError(f"combine raised {type(error).__name__}: {error}") from error
        if not isinstance(after, Mapping) or set(after) != set(server):
            raise DataError(f"combine must return the broadcast's tensors {sorted(server)}, as `start` names them")
        return {name: _converted(name, after[name], np.asarray(server[name])) for name in server}

    def evaluation_layout(self, public: Public) -> Layout:
        """Return the layout of an evaluation, which counts rows only."""
        return Layout((TensorSpec("count", (), float(max(public.rows))),))

    def evaluate(self, client: Rows, broadcast: Tensors) -> Tensors:
        """Count the client's rows."""
        return {"count": np.asarray(float(client.data.rows))}


class TorchFunction(FunctionAlgorithm):
    """An algorithm made of a function on torch tensors, whose exact derivatives attacks use (`Differentiable`)."""

    def call(self, data: Dataset, broadcast: Tensors, rng: np.random.Generator) -> Any:
        """Call the function on tensors, and convert its result to NumPy."""
        with needed_for("a function of torch tensors"):
            import torch  # noqa: PLC0415 - only for functions written in it

        found: Any = self.torch_messages(torch.tensor(data.x), data.y, broadcast)
        if not isinstance(found, Mapping):
            return found
        return {name: value.detach().numpy() if torch.is_tensor(value) else value for name, value in found.items()}

    def torch_messages(self, rows: Any, labels: Array | None, broadcast: Tensors) -> Mapping[str, Any]:
        """Call the function on torch tensors.

        Args:
            rows: (rows, features) a torch tensor.
            labels: (rows,) or `None`.
            broadcast: NumPy arrays by name.

        Returns:
            By name, torch tensors that depend differentiably on `rows`.
        """
        import torch  # noqa: PLC0415

        sent = {name: torch.tensor(np.asarray(value)) for name, value in broadcast.items()}
        extra: dict[str, Any] = {}
        if "labels" in self.extra:
            extra["labels"] = None if labels is None else torch.tensor(labels)
        found: Mapping[str, Any] = self.function(rows, sent, **extra)
        return found


Backend = Literal["numpy", "torch"]
_BACKENDS: Mapping[str, type[FunctionAlgorithm]] = {"numpy": FunctionAlgorithm, "torch": TorchFunction}


def as_algorithm(
    function: Contribute, data: Dataset, first: Tensors, follow: Combine | None, backend: Backend
) -> FunctionAlgorithm:
    """Wrap a function; names and shapes of its messages come from calls on `data`.

    Args:
        function: see `Contribute`.
        data: the first client's.
        first: the first broadcast.
        follow: see `Combine`.
        backend: "numpy" or "torch".

    Raises:
        ConfigError: the backend is unknown; the function cannot be called so, or lacks labels that it asks for; a torch
            function asks for `rng`; or `first` holds no arrays of numbers.
        DataError: the function returns no finite arrays by name, or two answers to the same question.
    """
    require(backend in _BACKENDS, f'backend must be "numpy" or "torch", not {backend!r}')
    wrapped = _BACKENDS[backend](function, _checked_start(first), follow, {})
    _check_parameters(wrapped)
    require(
        backend == "numpy" or "rng" not in wrapped.extra,
        f'{wrapped.name} draws from `rng`, which torch cannot differentiate through; use backend="numpy"',
    )
    require(
        "labels" not in wrapped.extra or data.y is not None,
        f"{wrapped.name} asks for labels, and the first client has none; give clients as securefed.Dataset(x, y)",
    )
    try:
        _, example = wrapped.contribute(Rows(data), wrapped.first, np.random.default_rng(0))
    except DataError as error:
        if backend == "numpy" and "Tensor" in str(error):
            raise DataError(f'{error}; for a function of torch tensors say backend="torch"') from error
        raise
    for seeded in (False, True):
        tried = replace(wrapped, example=example, seeded=seeded, faults=[])
        if _repeats(tried, data):
            return tried
    raise DataError(
        f"{wrapped.name} answers one question in two ways, so that its messages cannot be replayed: it keeps something "
        "from one call to the next, or draws from a generator of its own. For draws give it a parameter `rng` and use "
        "that; a method with a memory is a class that satisfies securefed.Algorithm"
    )


def _repeats(method: FunctionAlgorithm, data: Dataset) -> bool:
    """Whether two calls with the same rows, broadcast and state of the generator give the same message."""
    first, second = (
        np.concatenate([np.ravel(sent[name]) for name in sorted(sent)])
        for _, sent in (method.contribute(Rows(data), method.first, np.random.default_rng(0)) for _ in range(2))
    )
    return bool(np.allclose(first, second, rtol=_SAME, atol=_SAME * float(np.abs(first).max(initial=0.0))))


def _checked_start(first: Tensors) -> dict[str, Array]:
    """Copy the first broadcast; raise `ConfigError` unless it holds arrays of finite numbers by name."""
    if not isinstance(first, Mapping) or not first:
        raise ConfigError(
            "`start` must hold the first broadcast's arrays by name; for clients that are sent nothing give "
            'start={"round": np.zeros(1)}'
        )
    start = {str(name): np.array(value) for name, value in first.items()}
    for name, value in start.items():
        if value.dtype.kind not in "fiub" or not np.isfinite(value).all():
            raise ConfigError(f"`start` holds {name!r}, which is no array of finite numbers")
    return start


def _converted(name: str, value: object, first: Array) -> Array:
    """Return a tensor of the next broadcast in the type of the first one; raise `DataError` where that cannot be.

    Rounding from one floating type to another is allowed, and no other change of a number.
    """
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"combine returned {name!r}, which is no array of numbers: {error}") from error
    if given.shape != first.shape:
        raise DataError(
            f"combine returned {name!r} of shape {given.shape}, `start` has {first.shape}; every broadcast has the "
            "names and shapes of the first"
        )
    if given.dtype.kind not in "fiub":
        raise DataError(f"combine returned {name!r} of type {given.dtype}; real numbers are needed")
    with np.errstate(all="ignore"):  # what does not fit is refused below
        array = np.array(given, first.dtype)
    if not np.isfinite(given).all() or not np.isfinite(array).all():
        raise DataError(f"combine returned NaN or infinity in {name!r}; mend it, or audit fewer rounds")
    if first.dtype.kind != "f" and not np.array_equal(array, given):
        raise DataError(
            f"combine returned {name!r} with numbers that {first.dtype} does not hold, the type of {name!r} in "
            "`start`; give it as floating-point numbers there, for instance np.zeros(3)"
        )
    return array


def _parameters(function: Contribute) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # built-in functions state none
        return {}


def _check_parameters(wrapped: FunctionAlgorithm) -> None:
    """Raise `ConfigError` unless the function can be called with rows, a broadcast, and the parameters it names."""
    if inspect.isclass(wrapped.function):
        raise ConfigError(f"{wrapped.name} is a class; give an instance, or its function")
    try:
        signature = inspect.signature(wrapped.function)
    except (TypeError, ValueError):  # as in `_parameters`: it is called as it is
        return
    try:
        signature.bind(None, None, **dict.fromkeys(wrapped.extra))
    except TypeError as error:
        raise ConfigError(
            f"{wrapped.name} must be callable as contribute(rows, broadcast), and may name `labels` and `rng` behind "
            f"these two: {error}; bind others with functools.partial"
        ) from error
