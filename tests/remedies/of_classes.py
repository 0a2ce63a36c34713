"""Remedies of classes: every site numbers its labels by one declared list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from securefed import Dataset, Federation, Public, Terms, chain
from securefed.algorithms import FedAvg
from securefed.datasets import load
from securefed.defenses import secure_aggregation
from securefed.problems import SoftmaxRegression
from tests.remedies.followed import Followed, arguments, evaluated, found

NAMES = ("healthy", "ill", "unknown")
METHOD = FedAvg(problem=SoftmaxRegression(), learning_rate=0.1)


def site(folder: Path, *labels: str, label: str = "outcome", **options: Any) -> Dataset:
    """Write the table of a site and read it, with the column of labels where it is named."""
    path = folder / "site.csv"
    path.write_text("\n".join(["age,outcome", *(f"{row / 2},{word}" for row, word in enumerate(labels))]) + "\n")
    return load(path, label=label, **options).data


def two_sites(folder: Path, **options: Any) -> object:
    return Federation(METHOD, [site(folder, *words, **options) for words in (["healthy", "ill"], ["ill", "unknown"])])


def terms(*names: str) -> Terms:
    return Terms.of(METHOD, Public(3, 3, 1, (3, 3, 3), 3, 2.0, names), chain(secure_aggregation()))


def alone(folder: Path, **options: Any) -> Dataset:
    return site(folder, "ill", "unknown", "ill", **options)


def agreed(message: str, folder: Path) -> None:
    """Load the rows by one list, and declare it in the terms, as the message writes both."""
    assert all(part in message for part in ("load(..., classes=[...])", "Public(..., class_names=(...))"))
    one = dict.fromkeys(re.findall(r"(\w+)=[\[(]\.\.\.", message), NAMES)
    terms(*one.pop("class_names")).check_rows(0, alone(folder, **one))


def numbers(*names: str) -> Dataset:
    return Dataset(np.arange(3)[:, None] / 2, [1, 2, 1], names)


def as_the_facts_say(message: str, folder: Path) -> None:
    """Load the rows by the list that the message writes, or name the classes of the numbers."""
    terms(*NAMES).check_rows(0, alone(folder, **arguments(r"load\(\.\.\., (classes=\[.*?\])\)", message)))
    rows = numbers()
    named = evaluated(r"or give (Dataset\(x, y, .*\)) where", message, x=rows.x, y=rows.y)
    terms(*NAMES).check_rows(0, named)


def longer(message: str, folder: Path) -> None:
    """Declare the longer list that the message writes; or drop the row."""
    assert site(folder, *NAMES, **arguments(r"\((classes=\[.*?\]) in Python\)", message)).classes == 3
    kept = [NAMES[row] for row in range(3) if row != int(found(r"first: row (\d)", message))]
    assert site(folder, *kept, classes=NAMES[:2]).classes == 2


def named(message: str, folder: Path) -> None:
    """Name the column of labels, or leave the classes out."""
    name = found(r"\((\w+)= in Python\)", message)
    site(folder, *NAMES, classes=NAMES, **{name: "outcome"})
    (folder / "bare.csv").write_text("age,dose\n61,1\n48,2\n")
    load(folder / "bare.csv")


def without_classes(message: str) -> None:
    assert re.search(r"leave out --classes a,b \(classes=\['a', 'b'\] in Python\)", message)
    load("digits")


def undeclared(folder: Path) -> object:
    (folder / "bare.csv").write_text("age,dose\n61,1\n48,2\n")
    return load(folder / "bare.csv", classes=NAMES)


TABLE: dict[str, Followed] = {
    "two sites that number classes alone": Followed(
        "securefed/_class_names.py",
        "numbers classes as ",
        two_sites,
        lambda message, folder: two_sites(folder, **arguments(r"load\(\.\.\., (classes=\[.*?\])\)", message)),
    ),
    "classes that the public facts do not name": Followed(
        "securefed/_runtime/terms.py",
        "since the public facts name no classes",
        lambda folder: terms().check_rows(0, alone(folder)),
        agreed,
    ),
    "classes that the public facts name otherwise": Followed(
        "securefed/_runtime/terms.py",
        ", and the public facts say ",
        lambda _: terms(*NAMES).check_rows(0, numbers()),
        as_the_facts_say,
    ),
    "classes of a data set that has its own": Followed(
        "securefed/datasets/_loaders.py",
        "has its own classes; leave out ",
        lambda _: load("digits", classes=("a", "b")),
        lambda message, _: without_classes(message),
    ),
    "classes without a column of labels": Followed(
        "securefed/datasets/_row_tables.py", "classes are declared, and ", undeclared, named
    ),
    "a label that is not declared": Followed(
        "securefed/datasets/_tables/roles.py",
        "or declare one longer list at all parties: ",
        lambda folder: site(folder, *NAMES, classes=NAMES[:2]),
        longer,
    ),
}
"""By name, the remedies that are followed."""
