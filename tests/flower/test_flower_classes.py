"""SuperNodes that read a table each: classes are numbered as the terms say, or a site does not enrol."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation, Public, RunOptions, Terms, chain
from securefed.algorithms import FedAvg
from securefed.datasets import load
from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError
from securefed.flower import client_app, serve
from securefed.problems import SoftmaxRegression
from tests.flower.grid import LocalGrid, Node

NAMES = ("healthy", "ill", "unknown")
LABELS = (["healthy", "ill", "ill"], ["ill", "unknown", "ill"], ["healthy", "unknown", "ill"])
METHOD = FedAvg(problem=SoftmaxRegression(), learning_rate=0.1)


def terms_of(names: tuple[Any, ...] = NAMES, classes: int = 3) -> Terms:
    return Terms.of(METHOD, Public(3, 3, 1, (3, 3, 3), classes, 2.0, names), chain(secure_aggregation()))


def rows_of(folder: Path, labels: Any = LABELS, **options: Any) -> Callable[[Any], Dataset]:
    """Read the site's own table, as its app does."""

    def rows(context: Any) -> Dataset:
        number = context.node_config["partition-id"]
        path = folder / f"site{number}.csv"
        lines = [f"{row / 2},{label}" for row, label in enumerate(labels[number])]
        path.write_text("\n".join(["age,outcome", *lines]) + "\n", encoding="utf-8")
        return load(path, label="outcome", **options).data

    return rows


def run(rows: Callable[[Any], Dataset], terms: Terms) -> Any:
    app = client_app(lambda _: terms, rows)
    grid = LocalGrid({100 + number: Node(app, {"partition-id": number}) for number in range(3)})
    return serve(grid, terms, 1, wait=2.0, poll=0.001, options=RunOptions(timeout=0.02))


def refusal(rows: Callable[[Any], Dataset], terms: Terms, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with pytest.raises(ConfigError, match="its own log gives the reason") as refused:
        run(rows, terms)
    assert "unknown" not in str(refused.value) and "ill" not in re.findall(r"\w+", str(refused.value))
    return caplog.text


def test_declared_classes_train_the_model_of_all_rows(tmp_path: Path) -> None:
    ours = run(rows_of(tmp_path, classes=NAMES), terms_of())
    x = np.arange(3)[:, None] / 2
    clients = [Dataset(x, [NAMES.index(label) for label in labels]) for labels in LABELS]
    theirs = Federation(METHOD, clients, public=terms_of().public, batched=False).run(1)
    assert sorted(ours.output) == sorted(theirs.output)
    for name, value in theirs.output.items():
        np.testing.assert_allclose(ours.output[name], value, atol=1e-6)


def test_labels_that_a_site_numbered_alone_are_refused_until_the_remedy_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = refusal(rows_of(tmp_path), terms_of((), 3), caplog)
    assert "client 1 numbers its classes 0 = ill, 1 = unknown" in said and "the public facts name no classes" in said
    assert "Public(..., class_names=(...))" in said
    declared = rows_of(tmp_path, classes=NAMES)
    assert "the public facts name no classes" in refusal(declared, terms_of((), 3), caplog)
    assert run(declared, terms_of()).output


def test_a_site_with_another_list_is_refused_until_the_remedy_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = refusal(rows_of(tmp_path, classes=NAMES[::-1]), terms_of(), caplog)
    assert (
        "client 0 numbers its classes 0 = unknown, 1 = ill, 2 = healthy, and the public facts say 0 = healthy" in said
    )
    named = re.findall(r"load\(\.\.\., classes=\[(.*?)\]\)", said)[0]
    assert run(rows_of(tmp_path, classes=re.findall(r"'(\w+)'", named)), terms_of()).output


def test_rows_without_names_are_refused_where_the_terms_name_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = tuple([NAMES.index(label) for label in labels] for labels in LABELS)

    def bare(names: tuple[str, ...] = ()) -> Callable[[Any], Dataset]:
        x = np.arange(3)[:, None] / 2
        return lambda context: Dataset(x, numbers[context.node_config["partition-id"]], names)

    said = refusal(bare(), terms_of(), caplog)
    assert "has labels without the names of their classes" in said and f"Dataset(x, y, {NAMES!r})" in said
    assert run(bare(NAMES), terms_of()).output
    assert run(bare(), terms_of(())).output  # as before: the caller numbered them, and the terms name none


def test_one_code_alone_is_no_other_class(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    codes = ([0, 1, 0], [1, 1, 1], [0, 1, 1])
    assert "client 1 numbers its classes 0 = 1" in refusal(rows_of(tmp_path, codes), terms_of((), 2), caplog)
    assert run(rows_of(tmp_path, codes, classes=[0, 1]), terms_of((), 2)).output


def test_parties_whose_terms_name_other_classes_do_not_enrol(tmp_path: Path) -> None:
    app = client_app(lambda _: terms_of(NAMES[::-1]), rows_of(tmp_path, classes=NAMES[::-1]))
    grid = LocalGrid({100 + number: Node(app, {"partition-id": number}) for number in range(3)})
    with pytest.raises(ConfigError, match="the server's terms have the fingerprint"):
        serve(grid, terms_of(), 1, wait=2.0, poll=0.001, options=RunOptions(timeout=0.02))
