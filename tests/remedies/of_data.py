"""Remedies of data, of their splits, and of the problems that are trained on them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from torch import nn

from securefed import Dataset, Federation, Public
from securefed.algorithms import SSI, FedAvg
from securefed.datasets import load, partition, partitioned
from securefed.problems import Classifier, ConvolutionalNetwork, LogisticRegression, SoftmaxRegression, TorchModule
from tests.datasets.frames import PandasLike, PolarsLike
from tests.remedies.followed import Followed, X, arguments, evaluated, found, refused, written

RNG = np.random.default_rng(0)


def labels(y: np.ndarray, right: list[int], piece: str = "labels must be one integer a row") -> Followed:
    """Labels of another form, and the labels that they become."""

    def follow(message: str, folder: Path) -> bool:
        made = written(r"write (Dataset\(.*\))$", y=y)(message, folder)
        return made.labels().tolist() == right

    return Followed("securefed/datasets/_base.py", piece, lambda _: Dataset(X, y).labels(), follow)


REAL = "this algorithm needs class labels"
LABELS = {
    "a column": labels(np.array([[2], [0], [1], [1], [2], [0]]), [2, 0, 1, 1, 2, 0]),
    "a column of booleans": labels(np.array([[1], [0], [0], [1], [1], [0]], bool), [1, 0, 0, 1, 1, 0]),
    "booleans": labels(np.array([1, 0, 0, 1, 1, 0], bool), [1, 0, 0, 1, 1, 0]),
    "one-hot": labels(np.eye(3, dtype=int)[[2, 0, 1, 1, 2, 0]], [2, 0, 1, 1, 2, 0]),
    "one-hot booleans": labels(np.eye(3, dtype=bool)[[2, 0, 1, 1, 2, 0]], [2, 0, 1, 1, 2, 0]),
    "marks": labels(np.array([[1, 1], [0, 1], [0, 0], [0, 1], [1, 1], [0, 0]]), [2, 1, 0, 1, 2, 0]),
    "pictures": labels(np.repeat([2, 0, 1, 1, 2, 0], 4).reshape(6, 2, 2), [2, 0, 1, 1, 2, 0]),
    "negative": labels(np.array([-1, 1, -1, 1, 1, -1]), [0, 1, 0, 1, 1, 0]),
    "a negative column": labels(np.array([[-1], [1], [-1], [1], [1], [-1]]), [0, 1, 0, 1, 1, 0]),
    "words": labels(np.array(list("cabbca")), [2, 0, 1, 1, 2, 0]),
    "a column of words": labels(np.array(list("cabbca"))[:, None], [2, 0, 1, 1, 2, 0]),
    "floats": labels(np.array([2.0, 0, 1, 1, 2, 0]), [2, 0, 1, 1, 2, 0], REAL),
    "a column of floats": labels(np.array([[2.0], [0], [1], [1], [2], [0]]), [2, 0, 1, 1, 2, 0], REAL),
    "fractions": labels(np.array([0.9, 0.1, 0.5, 0.5, 0.9, 0.1]), [2, 0, 1, 1, 2, 0], REAL),
    "negative floats": labels(np.array([-1.0, 1, -1, 1, 1, -1]), [0, 1, 0, 1, 1, 0], REAL),
}
FLOATS = np.array([[0.0], [1], [1], [0], [1], [0]])


def data_file(folder: Path, suffix: str) -> object:
    np.savez(folder / "data.npz", x=X, y=np.arange(6))
    return load(str(folder / f"data.{suffix}"))


def public(features: int = 2, classes: int = 2) -> Public:
    return Public.of([Dataset(np.ones((6, features)), np.arange(6) % classes)])


def shapes(problem: Classifier, data: Dataset | None = None) -> object:
    """Return a classifier's shapes; by default for labels that are no classes."""
    return problem.shapes(Public.of([data or Dataset(X, FLOATS)]))


def with_classes(problem: Classifier) -> Callable[[str, Path], object]:
    """Do so for the data that the message writes."""
    return lambda message, _: shapes(problem, evaluated(r"write (Dataset\(.*\]\))", message, y=FLOATS))


class Pandas(PandasLike):
    """A frame of pandas with the method that a message names."""

    def __init__(self, columns: Any) -> None:
        super().__init__(columns)
        self.given = list(columns)

    def drop(self, *, columns: str) -> Pandas:
        return Pandas([(name, values) for name, values in self.given if name != columns])


class Polars(PolarsLike):
    """A frame of Polars with the method that a message names."""

    def __init__(self, columns: Any) -> None:
        super().__init__(columns)
        self.given = list(columns)

    def drop(self, column: str) -> Polars:
        return Polars([(name, values) for name, values in self.given if name != column])


def dropped(name: str, piece: str) -> Followed:
    """A frame with a column that is no feature, and the frame without it."""
    columns = [("a", [1.5, 2.5, 4.0]), (name, [7, 9, 8] if name == "id" else [0, 1, 2])]

    def follow(message: str, folder: Path) -> bool:
        calls = found(r"drop it, by (.*?) in pandas", message), found(r"or (\S*frame\.drop\(.*?\)) in Polars", message)
        made = [
            Dataset(evaluated("(.*)", call, frame=kind(columns)))
            for call, kind in zip(calls, (Pandas, Polars), strict=True)
        ]
        return all(data.x.tolist() == [[1.5], [2.5], [4.0]] for data in made)

    return Followed("securefed/datasets/_tables/roles.py", piece, lambda _: Dataset(Pandas(columns)), follow)


def without_pyarrow(_: Path) -> object:
    with mock.patch.dict(sys.modules, {"pyarrow": None}):
        return load("table.parquet")


def as_csv(message: str, folder: Path) -> bool:
    file = folder / f"table{found(r'write the table as (.csv)', message)}"
    file.write_text("a,b,label\n1,2,0\n3,4.5,1\n")
    return len(load(str(file)).data.x) == 2


class Net(nn.Linear):
    """A module that is made with arguments."""


class Whole(nn.Linear):
    """A module that is made without arguments."""

    def __init__(self) -> None:
        super().__init__(2, 2)


def trainable(module: Any) -> object:
    return TorchModule(module=module).shapes(public())


def made_otherwise(piece: str, module: Any) -> Followed:
    """A module that is no function of none, and both functions that the message names."""

    def follow(message: str, folder: Path) -> None:
        named = evaluated(r"or (functools\.partial\(.*\))", message, functools=functools, Net=Net)
        assert isinstance(named, functools.partial) and named.func is Net
        trainable(functools.partial(Net, 2, 2))
        trainable(Whole)

    return Followed("securefed/problems/_torch_module.py", piece, lambda _: trainable(module), follow)


class Recurrent(nn.LSTM):
    """A recurrent network that returns one tensor."""

    def forward(self, x: Any, state: Any = None) -> Any:
        return super().forward(x, state)[0]


def undropped(message: str) -> None:
    """Give the part of the network that draws the argument that the message names for it."""
    trainable(lambda: nn.Sequential(nn.Dropout(**arguments(r"set (p=0),", message)), nn.Linear(2, 2)))
    own = arguments(r"or (dropout=0) of", message)
    trainable(lambda: Recurrent(2, 2, num_layers=2, **own))
    assert getattr(nn, found(r"; (\w+) replaces RReLU", message))()


def as_matrix(message: str, folder: Path) -> bool:
    line = np.arange(3.0)
    row = Dataset(evaluated(r"Write (x\[.*?\]) where it is one row", message, x=line))
    column = Dataset(evaluated(r"row, (x\[.*?\]) where it is one feature", message, x=line))
    images = refused(lambda: Dataset(np.ones((5, 4, 4))))
    flat = Dataset(evaluated(r"or (x\.reshape\(.*\)) where", images, x=np.ones((5, 4, 4))))
    return (row.x.shape, column.x.shape, flat.x.shape) == ((1, 3), (3, 1), (5, 16))


TABLE: dict[str, Followed] = {
    **{f"labels, {name}": item for name, item in LABELS.items()},
    "rows that are none": Followed(
        "securefed/datasets/_base.py",
        "got None. Write Dataset(x), or",
        lambda _: Dataset(None),
        written(r"Write (Dataset\(x\))"),
    ),
    "no labels": Followed(
        "securefed/datasets/_base.py",
        "this algorithm needs labels, the data has none",
        lambda _: Dataset(X).labels(),
        lambda message, _: written(r"write (Dataset\(x, y\))", y=np.arange(6))(message, _).labels() is not None,
    ),
    "no responses": Followed(
        "securefed/datasets/_base.py",
        "this algorithm needs real responses",
        lambda _: Dataset(X, np.arange(6)).responses(),
        lambda message, _: written(r"write (Dataset\(.*\))$", y=np.arange(6))(message, _).responses() is not None,
    ),
    "a matrix for data": Followed(
        "securefed/_public.py",
        "Write securefed.Dataset(x, y).",
        lambda _: Public.of([X]),
        lambda message, _: Public.of([written(r"Write (.*)\.$", y=np.arange(6))(message, _)]),
    ),
    "a matrix to split": Followed(
        "securefed/datasets/partition.py",
        "Write Dataset(x, y).",
        lambda _: partition.iid(X, 2, RNG),
        lambda message, _: partition.iid(written(r"Write (.*)\.$", y=np.arange(6))(message, _), 2, RNG),
    ),
    "a seed for a generator": Followed(
        "securefed/datasets/partition.py",
        "Write numpy.random.default_rng(0).",
        lambda _: partition.iid(Dataset(X), 2, 0),
        lambda message, _: partition.iid(Dataset(X), 2, written(r"Write (.*)\.$")(message, _)),
    ),
    "a number of a partition": Followed(
        "securefed/datasets/_named_partitions.py",
        "must have a number after",
        lambda _: partitioned(load("digits"), "dirichlet=x", 3, RNG),
        lambda message, _: partitioned(load("digits"), found(r"Write (.*)\.$", message), 3, RNG),
    ),
    "an integer of a partition": Followed(
        "securefed/datasets/_named_partitions.py",
        "must have an integer after",
        lambda _: partitioned(load("digits"), "shards=1.5", 3, RNG),
        lambda message, _: partitioned(load("digits"), found(r"Write (.*)\.$", message), 3, RNG),
    ),
    "a file of another kind": Followed(
        "securefed/datasets/_loaders.py",
        "Write numpy.savez('data.npz'",
        lambda folder: data_file(folder, "xyz"),
        lambda _, folder: data_file(folder, "npz"),
    ),
    "no classes, logistic": Followed(
        "securefed/problems/_linear.py",
        "the data declares no classes",
        lambda _: shapes(LogisticRegression()),
        with_classes(LogisticRegression()),
    ),
    "no classes": Followed(
        "securefed/problems/_base.py",
        "a classifier needs at least 2 classes",
        lambda _: shapes(SoftmaxRegression()),
        with_classes(SoftmaxRegression()),
    ),
    "an array of another shape": Followed(
        "securefed/datasets/_base.py",
        "data must be a non-empty (rows, features) matrix; got shape",
        lambda _: Dataset(np.arange(3.0)),
        as_matrix,
    ),
    "an array for a client": Followed(
        "securefed/_runtime/federation.py",
        "give securefed.Dataset(x), or",
        lambda _: Federation(SSI(rank=1), [X, X]),
        lambda message, _: [
            Federation(SSI(rank=1), [evaluated(pattern, message)] * 2)
            for pattern in (r"give (securefed\.Dataset\(x\)),", r"or (Dataset\(x, y\)) with labels")
        ],
    ),
    "row numbers in a frame": dropped("Unnamed: 0", "has no name of its own"),
    "keys in a frame": dropped("id", "is a key, with another whole number in each row"),
    "parquet without pyarrow": Followed(
        "securefed/datasets/_tables/frames.py", "parquet files need pyarrow", without_pyarrow, as_csv
    ),
    "more than two classes, logistic": Followed(
        "securefed/problems/_linear.py",
        "use problem='softmax', or relabel",
        lambda _: FedAvg.from_settings(problem="logistic").problem.shapes(public(classes=3)),
        lambda message, _: FedAvg.from_settings(**arguments(r"use (problem='\w+')", message)).problem.shapes(
            public(classes=3)
        ),
    ),
    "images of another shape": Followed(
        "securefed/problems/_convolutional.py",
        "pass image_shape=(channels, height, width)",
        lambda _: ConvolutionalNetwork(image_shape=(1, 28, 28)).shapes(public(400)),
        lambda message, _: ConvolutionalNetwork(
            **arguments(r"pass (image_shape=\(.*\))", message, channels=1, height=20, width=20)
        ).shapes(public(400)),
    ),
    "a module for a function": made_otherwise("module is an instance of", nn.Linear(2, 2)),
    "a number for a module": made_otherwise("module must be a function", 3),
    "a module that needs arguments": made_otherwise("module failed when called without arguments", nn.Linear),
    "a function that makes no module": made_otherwise("not a torch.nn.Module", lambda: 3),
    "a module that draws": Followed(
        "securefed/problems/_torch_module.py",
        "draws at random in every step",
        lambda _: trainable(lambda: nn.Sequential(nn.Dropout(), nn.Linear(2, 2))),
        lambda message, _: undropped(message),
    ),
}
