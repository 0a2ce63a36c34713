"""Find the lookup tables of a model, and which of their rows a client's data look up.

A table (`nn.Embedding`, `nn.EmbeddingBag`) holds a vector for each category of a column, for each token of a text, or
for any other whole number. Which of its rows data look up is recorded while the model reads them, so that neither the
form of the inputs nor the model's way to the table matters: a dict of named inputs, or one packed tensor whose columns
the model takes apart. `table_attacks` reads the same off a change of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._tensors import Array

_PROBED: Final = 512
"""Rows on which the column behind a table is looked for: equal on all of them by chance is out of the question."""
_KINDS: Final = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class LookupTable:
    """One table of a model.

    Attributes:
        name: of its parameter.
        size: number of its rows.
        padding: row that is never trained; `None` without one.
        columns: of a packed row, the numbers that say which rows of the table are looked up, each with what the model
            adds to it, in the order of the lookups; empty where other numbers do.
    """

    name: str
    size: int
    padding: int | None
    columns: tuple[tuple[int, int], ...] = ()

    @property
    def called(self) -> str:
        """The name of the part of the model that holds the table."""
        return self.name.removesuffix(".weight")


@dataclass(frozen=True)
class HeldCategories:
    """Which rows of a model's lookup tables the rows of an audit look up.

    Attributes:
        tables: the tables.
        clients: for each client, by table, the share (size,) of its rows that look each row of the table up.
        population: the same of rows that no client has; `None` where there are none.
    """

    tables: tuple[LookupTable, ...]
    clients: tuple[Mapping[str, Array], ...]
    population: Mapping[str, Array] | None


NONE_HELD: Final = HeldCategories((), (), None)
"""Of a model without lookup tables."""


def find_tables(training: TorchTraining, rows: TrainedRows) -> tuple[LookupTable, ...]:
    """Return the tables that a model looks whole numbers up in, in the order of its parameters.

    Args:
        training: the model.
        rows: rows that it takes; a few of them are read.
    """
    tables = _tables(training.model)
    if not tables:
        return ()
    part = rows.part(slice(0, _PROBED))
    looked, found = looked_up(training, part.x), []
    for name, table in tables.items():
        if name in looked:
            found.append(LookupTable(name, len(table.weight), table.padding_idx, _columns(looked[name], part.x)))
    return tuple(found)


def looked_up(training: TorchTraining, x: Tensor) -> dict[str, list[Tensor]]:
    """Return by name of a table the numbers that rows look up in it, for each call (rows, numbers a row).

    A call whose numbers do not belong to single rows, such as positions that all rows share, gives (1, numbers).
    """
    module, seen = training.received(training.state).eval(), dict[str, list[Tensor]]()

    def note(name: str, given: Tensor) -> Tensor:
        first = len(x) if given.ndim and len(given) == len(x) else 1
        seen.setdefault(name, []).append(given.detach().reshape(first, -1).long().clone())
        return given

    with _watched(module, note), torch.no_grad():
        module(x)
    return seen


def categories(training: TorchTraining, tables: Sequence[LookupTable], x: Tensor) -> dict[str, Array]:
    """Return by table the share (size,) of rows that look each of its rows up; 1 for what every call looks up."""
    looked = looked_up(training, x) if tables else {}
    out = {}
    for table in tables:
        share = np.zeros(table.size)
        for numbers in looked.get(table.name, ()):
            share = np.maximum(share, share_of_rows(numbers.numpy(), table.size))
        if table.padding is not None:
            share[table.padding] = 0.0  # it leaves no trace
        out[table.name] = share
    return out


def share_of_rows(numbers: Array, size: int) -> Array:
    """Return (size,) the share of rows in which each number from 0 on stands; `numbers` is (rows, numbers a row)."""
    pairs = np.unique(np.arange(len(numbers))[:, None] * size + numbers)
    return np.bincount(pairs % size, minlength=size) / max(len(numbers), 1)


def with_parity(training: TorchTraining, parity: int, called: set[str]) -> TorchTraining:
    """Return the same training with every lookup moved to a neighbouring row of a table whose number has one parity.

    So the rows of the other parity are not looked up, whatever the data are.

    Args:
        training: model and step.
        parity: 0 for even numbers, 1 for odd ones.
        called: set that the names of the tables are added to which the step looks up.
    """
    module = deepcopy(training.model)
    tables = _tables(module)

    def moved(name: str, given: Tensor) -> Tensor:
        called.add(name)
        size, padding = len(tables[name].weight), tables[name].padding_idx
        last = max(size - 1 - (size - 1 - parity) % 2, 0)  # the largest number of this parity
        other = (given - given % 2 + parity).clamp(max=last)
        return other if padding is None else torch.where(given == padding, given, other)

    _watch(module, moved)
    return training.with_model(module)


def _tables(module: nn.Module) -> dict[str, Any]:
    """Return the tables of a module by the name of their parameter; a shared one has its first name."""
    names = {id(value): name for name, value in module.named_parameters()}
    parts = (part for part in module.modules() if isinstance(part, _KINDS))
    return {names[id(part.weight)]: part for part in parts if id(part.weight) in names}


def _watch(module: nn.Module, change: Callable[[str, Tensor], Tensor]) -> list[Any]:
    """Let a function see, and replace, the numbers that are looked up in each table; return the hooks."""
    names = {id(value): name for name, value in module.named_parameters()}
    hooks = []
    for part in module.modules():
        if not isinstance(part, _KINDS) or id(part.weight) not in names:
            continue

        def hook(_: nn.Module, given: Any, named: Any, name: str = names[id(part.weight)]) -> Any:
            if given:
                return (change(name, given[0]), *given[1:]), named
            return given, {**named, "input": change(name, named["input"])}

        hooks.append(part.register_forward_pre_hook(hook, with_kwargs=True))
    return hooks


@contextmanager
def _watched(module: nn.Module, change: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    hooks = _watch(module, change)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _columns(looked: Sequence[Tensor], x: Tensor) -> tuple[tuple[int, int], ...]:
    """Return the columns of packed rows that tell what is looked up, each with what is added; empty where some do not.

    Of several columns that would do, the one to which least is added counts, and of these the first.
    """
    if any(len(numbers) != len(x) for numbers in looked):
        return ()
    flat, found = x.reshape(len(x), -1).double(), []
    for numbers in torch.cat(list(looked), dim=1).double().T:
        apart = numbers[:, None] - flat
        constant = (apart == apart[:1]).all(dim=0) & (apart[0] == apart[0].round())
        places = torch.nonzero(constant)[:, 0].tolist()
        if not places:
            return ()
        place = min(places, key=lambda one: (abs(float(apart[0, one])), one))
        found.append((int(place), int(apart[0, place])))
    return tuple(found)
