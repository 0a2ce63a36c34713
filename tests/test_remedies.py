"""Follow the remedy of each error on the input that raised it: it must work.

A remedy that is an expression is taken from the message and evaluated. A test reads the sources for errors with
remedies (code in backticks, an option, an expression to write), and fails for one that has no entry here and whose
file is not in `NOT_YET`, which may only shrink.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Public, audit_algorithm, chain
from securefed._auditing.own.function_algorithm import _checked_start
from securefed._auditing.report.comparison import read
from securefed.algorithms import SSI
from securefed.algorithms._validation import check_object
from securefed.attacks._generic import RegressRows
from securefed.datasets import load, partition, partitioned
from securefed.defenses import clip, gaussian
from securefed.defenses._fixed_point import Quantise
from securefed.errors import SecureFedError
from securefed.parties import SummedTensor, SumTerms
from securefed.problems import LogisticRegression, SoftmaxRegression
from securefed.recording import Recording
from securefed.testing import checks_for, parametrize_with_checks
from tests.auditing.test_report import report
from tests.remedies import NOT_YET, Followed, command, data_file, run_file, sites, written

X = np.arange(12.0).reshape(6, 2)
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


class Lacking:
    def start(self, public: Any, rng: Any) -> None: ...


def draws_by_itself(rows: np.ndarray, broadcast: Any, source: Any = RNG) -> dict[str, np.ndarray]:
    return {"y": rows.sum(0) + source.normal(size=rows.shape[1])}


def draws(rows: np.ndarray, broadcast: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"y": rows.sum(0) + rng.normal(size=rows.shape[1])}


def audited(function: Any, **given: Any) -> object:
    start = {"start": {"round": np.zeros(1)}}
    quick = {"rounds": 1, "seeds": 1, "seconds": 0.1, "view": ["server"]}
    return audit_algorithm(function, [Dataset(X), Dataset(X + 1)], **(start | quick | given)).cells


def recorded(rounds: int) -> object:
    first = {"w": np.zeros(2)}
    recording = Recording(rows=[6, 6], features=2)
    for number in range(rounds):
        recording.round(first, {client: {"w": np.full(2, number + client)} for client in range(2)})
    return recording.finish(first)


def sums(rows: np.ndarray, broadcast: Any) -> dict[str, np.ndarray]:
    return {"y": rows.sum(0)}


def next_of(value: np.ndarray) -> Callable[..., dict[str, np.ndarray]]:
    return lambda *_: {"round": value}


def compared(folder: Path, text: str | None) -> object:
    if text is None:
        report().save(folder)
    else:
        (folder / "audit.json").write_text(text)
    return read(folder / "audit.json")


def sealed(folder: Path, *more: str) -> object:
    (folder / "key").write_bytes(bytes(range(32)))
    (folder / "key").chmod(0o600)
    return command(*RUN, "--seal-key-file", "HERE/key", *more)(folder)


TERM = SummedTensor("w", (2,), 1.0)
SMALL = ["--algorithms", "ssi", "--defenses", "plain", "--clients", "4", "--seeds", "2", "--rounds", "2"]
AUDIT = ["audit", *SMALL, "--workers", "1", "--out", "HERE/out", "--views", "server"]
RUN = ["run", "ssi", "--set", "rank=2", "--rounds", "1", "--clients", "3"]
START = "securefed/_auditing/own/function_algorithm.py"
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
        lambda message, _: partitioned(load("digits"), re.search(r"Write (.*)\.$", message)[1], 3, RNG),
    ),
    "an integer of a partition": Followed(
        "securefed/datasets/_named_partitions.py",
        "must have an integer after",
        lambda _: partitioned(load("digits"), "shards=1.5", 3, RNG),
        lambda message, _: partitioned(load("digits"), re.search(r"Write (.*)\.$", message)[1], 3, RNG),
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
        lambda _: LogisticRegression().shapes(Public.of([Dataset(X, FLOATS)])),
        lambda message, _: LogisticRegression().shapes(
            Public.of([written(r"write (Dataset\(.*\]\))", y=FLOATS)(message, _)])
        ),
    ),
    "no classes": Followed(
        "securefed/problems/_base.py",
        "a classifier needs at least 2 classes",
        lambda _: SoftmaxRegression().shapes(Public.of([Dataset(X, FLOATS)])),
        lambda message, _: SoftmaxRegression().shapes(
            Public.of([written(r"write (Dataset\(.*\]\))", y=FLOATS)(message, _)])
        ),
    ),
    "a class for an object, checks": Followed(
        "securefed/testing/_parametrize.py",
        "the checks need an object",
        lambda _: checks_for(SSI),
        lambda message, _: re.search(r"Write SSI\(\.\.\.\)", message) and checks_for(SSI(rank=2)),
    ),
    "what is none of them": Followed(
        "securefed/testing/_parametrize.py",
        "it lacks ",
        lambda _: checks_for(3),
        lambda message, _: all(
            hasattr(item, re.findall("`(.*?)`", message)[place]) and checks_for(item)
            for place, item in ((0, SSI(rank=2)), (3, clip(1.0)))
        ),
    ),
    "one object for a list": Followed(
        "securefed/testing/_parametrize.py",
        "instances must be a list",
        lambda _: parametrize_with_checks(SSI(rank=2)),
        lambda *_: parametrize_with_checks([SSI(rank=2)]),
    ),
    "an empty list": Followed(
        "securefed/testing/_parametrize.py",
        "got none. Write [MyAlgorithm(...)]",
        lambda _: parametrize_with_checks([]),
        lambda *_: parametrize_with_checks([SSI(rank=2)]),
    ),
    "a name for an algorithm": Followed(
        "securefed/algorithms/_validation.py",
        "algorithm must be an object; got the text",
        lambda _: check_object("ssi"),
        lambda message, _: [
            check_object(written(pattern)(message.replace("...", "rank=2"), _))
            for pattern in (r"Write (SSI\(rank=2\))", r"or (securefed\.\S* rank=2\))")
        ],
    ),
    "methods that lack": Followed(
        "securefed/algorithms/_validation.py",
        "derive it from ",
        lambda _: check_object(Lacking()),
        lambda *_: check_object(type("Whole", (Lacking, SSI), {})(rank=2)),
    ),
    "links out of order": Followed(
        "defenses/_chain.py",
        "write chain(",
        lambda _: chain(gaussian(1.0), clip(1.0)),
        lambda message, _: chain(clip(1.0), gaussian(1.0)) and re.search(r"write chain\(clip.*gaussian", message),
    ),
    "tensors without a ring": Followed(
        "defenses/_fixed_point.py",
        "give a ring",
        lambda _: Quantise(only=("w",)),
        lambda *_: Quantise(ring=32, only=("w",)),
    ),
    "fewer than the fewest": Followed(
        "attacks/_generic/row_regression.py",
        "at most `most`",
        lambda _: RegressRows(fewest=900),
        lambda *_: RegressRows(fewest=800),
    ),
    "a start that is none": Followed(
        START,
        "for clients that are sent nothing give ",
        lambda _: _checked_start({}),
        lambda message, _: _checked_start(written(r"give start=(.*)$")(message, _)),
    ),
    "a start of words": Followed(
        START,
        "which is no array of finite numbers",
        lambda _: _checked_start({"z": "no"}),
        lambda *_: _checked_start({"z": np.zeros(2)}),
    ),
    "a function that draws by itself": Followed(
        START, "For draws give it a parameter `rng`", lambda _: audited(draws_by_itself), lambda *_: audited(draws)
    ),
    "a function without a start": Followed(
        "securefed/_auditing/own/own_audit.py",
        "give it as `start`",
        lambda _: audited(draws, start=None),
        lambda *_: audited(draws),
    ),
    "draws in torch": Followed(
        START,
        'use backend="numpy"',
        lambda _: audited(draws, backend="torch"),
        lambda *_: audited(draws, backend="numpy"),
    ),
    "a broadcast of another shape": Followed(
        START,
        "names and shapes of the first",
        lambda _: audited(sums, combine=next_of(np.zeros(3)), rounds=2),
        lambda *_: audited(sums, combine=next_of(np.zeros(1)), rounds=2),
    ),
    "a broadcast of other names": Followed(
        START,
        "as `start` names them",
        lambda _: audited(sums, combine=lambda *_: {"other": np.zeros(1)}, rounds=2),
        lambda *_: audited(sums, combine=next_of(np.zeros(1)), rounds=2),
    ),
    "a broadcast of whole numbers": Followed(
        START,
        "give it as floating-point numbers there",
        lambda _: audited(sums, combine=next_of(np.array([0.5])), start={"round": np.zeros(1, int)}, rounds=2),
        lambda *_: audited(sums, combine=next_of(np.array([0.5])), rounds=2),
    ),
    "a function of one argument": Followed(
        START,
        "must be callable as contribute(rows, broadcast)",
        lambda _: audited(lambda rows: {"y": rows.sum(0)}),
        lambda *_: audited(sums),
    ),
    "a JSON of something else": Followed(
        "securefed/_auditing/report/comparison.py",
        "but not of an audit",
        lambda folder: compared(folder, "{}"),
        lambda _, folder: compared(folder, None),
    ),
    "no JSON": Followed(
        "securefed/_auditing/report/comparison.py",
        "is not JSON (",
        lambda folder: compared(folder, "cells"),
        lambda _, folder: compared(folder, None),
    ),
    "a recording of no round": Followed(
        "securefed/recording/_recording.py",
        "the recording holds no round",
        lambda _: recorded(0),
        lambda *_: recorded(1),
    ),
    "a run without an algorithm": Followed(
        "securefed/_commands/run_file.py",
        "lacks the algorithm",
        lambda folder: run_file(folder, "rounds = 3\n"),
        lambda message, folder: run_file(folder, re.search("write (.*), or another", message)[1]),
    ),
    "a table that is none": Followed(
        "securefed/_commands/run_file.py",
        "with one setting a line",
        lambda folder: run_file(folder, 'algorithm = "ssi"\nsettings = 3\n'),
        lambda message, folder: run_file(
            folder, 'algorithm = "ssi"\n' + re.search(r"write (\[.*?\])", message)[1] + "\nrank = 3\n"
        ),
    ),
    "views without a gate": Followed(
        "securefed/_commands/audits.py", "add --fail-above 0.2", command(*AUDIT), command(*AUDIT, "--fail-above", "0.2")
    ),
    "an anchor without a key": Followed(
        "securefed/_commands/runs.py",
        "give --seal-key-file as well",
        command(*RUN, "--seal-anchor", "HERE/a", "--checkpoint", "HERE/c"),
        lambda _, folder: sealed(folder, "--seal-anchor", "HERE/a", "--checkpoint", "HERE/c"),
    ),
    "a key without a checkpoint": Followed(
        "securefed/_commands/runs.py",
        "give --checkpoint as well",
        sealed,
        lambda _, folder: sealed(folder, "--checkpoint", "HERE/c"),
    ),
    "an advice of nothing": Followed(
        "securefed/_commands/advising.py", "or --questions", command("advise"), command("advise", "--questions")
    ),
    "terms without a tensor": Followed(
        "securefed/parties/_terms.py",
        "terms need at least one tensor",
        lambda _: SumTerms((), 3, cohort=3, defense=chain()),
        lambda *_: SumTerms((TERM,), 3, cohort=3, defense=chain()),
    ),
}
"""By name, the remedies that are followed."""


@pytest.mark.parametrize("name", TABLE)
def test_the_remedy_of_an_error_works_on_what_raised_it(name: str, tmp_path: Path) -> None:
    item = TABLE[name]
    with pytest.raises(SecureFedError) as raised:
        item.raises(tmp_path)
    message = str(raised.value)
    assert item.piece in message
    outcome = item.remedy(message, tmp_path)
    assert outcome is None or outcome is not False


def test_every_error_with_a_remedy_is_followed_or_listed() -> None:
    found = list(sites())
    for item in TABLE.values():
        assert any(site.file == item.file and item.piece in site.text for site in found), item.piece
    open_ = Counter(
        site.file
        for site in found
        if not any(item.file == site.file and item.piece in site.text for item in TABLE.values())
    )
    new = {file: count for file, count in open_.items() if count > NOT_YET.get(file, 0)}
    assert not new, "add an entry to TABLE for these errors, or mend their words"
    assert {file: open_[file] for file in NOT_YET} == NOT_YET, "followed by now: lower or remove the entry in NOT_YET"
