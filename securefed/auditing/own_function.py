"""A bare client function as an algorithm: enough of one to run, to record and to attack it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from securefed.algorithms.base import Outcome, Public, require
from securefed.datasets.base import Dataset
from securefed.errors import DataError
from securefed.messages import Aggregate
from securefed.state import local
from securefed.tensors import Array, Layout, Tensors, TensorSpec

Contribute = Callable[..., Any]
"""`contribute(rows, broadcast)` -> tensors by name; it gets `labels` and `rng` too where it has parameters of those
names."""
Combine = Callable[[Tensors, Tensors, int], Tensors]
"""`combine(broadcast, total, clients)` -> the next broadcast, of the same names, shapes and types."""
_OPTIONAL = ("labels", "rng")


@dataclass(frozen=True)
class Rows:
    """A client of a function: its data, and nothing else."""

    data: Dataset = local()


@dataclass(frozen=True, repr=False)
class FunctionAlgorithm:
    """Satisfies `Algorithm` for a client function on NumPy arrays that keeps no memory.

    Attributes:
        function: see `Contribute`.      first: the first broadcast.      follow: see `Combine`.
        example: a contribution, for names and shapes.
    """

    function: Contribute
    first: Tensors
    follow: Combine | None
    example: Tensors
    needs_outcome: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def layout(self, public: Public) -> Layout:
        return Layout.of(self.example)

    def start(self, public: Public, rng: np.random.Generator) -> Tensors:
        return self.first

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> Rows:
        return Rows(data)

    def broadcast(self, server: Tensors) -> Tensors:
        return server

    def contribute(self, client: Rows, broadcast: Tensors, rng: np.random.Generator) -> tuple[Rows, Tensors]:
        found = self.call(client.data, broadcast, rng)
        if not isinstance(found, Mapping) or not found:
            raise DataError(f"{self.name} must return tensors by name, not {type(found).__name__}")
        return client, {str(name): np.asarray(value, np.float64) for name, value in found.items()}

    def call(self, data: Dataset, broadcast: Tensors, rng: np.random.Generator) -> Any:
        """What the function returns."""
        given = {"labels": data.y, "rng": rng}
        return self.function(data.x.copy(), dict(broadcast), **{name: given[name] for name in self.extra})

    @cached_property
    def extra(self) -> tuple[str, ...]:
        """Which of `labels` and `rng` the function asks for."""
        return tuple(name for name in _OPTIONAL if name in inspect.signature(self.function).parameters)

    def combine(self, server: Tensors, aggregate: Aggregate) -> Tensors:
        if self.follow is None:
            return server
        after = self.follow(server, aggregate.total, aggregate.count)
        if not isinstance(after, Mapping) or set(after) != set(server):
            raise DataError(f"combine must return the broadcast's tensors {sorted(server)}")
        return {name: np.asarray(after[name], np.asarray(server[name]).dtype) for name in server}

    def settle(self, client: Rows, outcome: Outcome) -> Rows:
        return client

    def evaluation_layout(self, public: Public) -> Layout:
        return Layout((TensorSpec("count", (), float(max(public.rows))),))

    def evaluate(self, client: Rows, broadcast: Tensors) -> Tensors:
        return {"count": np.asarray(float(client.data.rows))}

    def personal(self, client: Rows) -> None:
        return None

    def finished(self, server: Tensors) -> None:
        return None


class TorchFunction(FunctionAlgorithm):
    """The same for a function that takes and returns torch tensors; satisfies `Differentiable`."""

    def call(self, data: Dataset, broadcast: Tensors, rng: np.random.Generator) -> Any:
        import torch  # noqa: PLC0415 - only for functions written in it

        found: Any = self.torch_messages(torch.tensor(data.x), data.y, broadcast)
        return {name: value.detach().numpy() for name, value in found.items()} if isinstance(found, Mapping) else found

    def torch_messages(self, rows: Any, labels: Array | None, broadcast: Tensors) -> Mapping[str, Any]:
        """The contribution as torch tensors that depend differentiably on `rows`."""
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
    """The function as an algorithm; names and shapes of its messages are read off one call on `data`.

    Raises:
        ConfigError: the backend is unknown, or a torch function asks for `rng`.
        DataError: the function returns no mapping of finite arrays.
    """
    require(backend in _BACKENDS, f'backend must be "numpy" or "torch", not {backend!r}')
    start = {name: np.asarray(value) for name, value in first.items()}
    bare = _BACKENDS[backend](function, start, follow, {})
    require(
        backend == "numpy" or "rng" not in bare.extra,
        f'{bare.name} draws from `rng`, which torch cannot differentiate through; use backend="numpy"',
    )
    _, example = bare.contribute(Rows(data), start, np.random.default_rng(0))
    for name, value in example.items():
        if not np.isfinite(value).all():
            raise DataError(f"{bare.name} returned NaN or infinity in {name!r}")
    return _BACKENDS[backend](function, start, follow, example)
