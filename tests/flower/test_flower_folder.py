"""A client's file on its own disk: runs that go on, files that are too old, runs that share a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import Result, Terms, chain
from securefed._runtime.sum_run import new_run
from securefed.defenses import Identities, secure_aggregation
from securefed.errors import ConfigError, RoundVoid, TooFewSurvivors
from securefed.flower import serve
from securefed.flower._enrolment import Invitation
from securefed.flower._folder import ClientFolder
from tests.contract.settings import CLIENTS
from tests.flower.grid import LocalGrid
from tests.flower.test_flower_attacks import asks, begin_anew, files, invite, masking
from tests.flower.test_flower_runs import grid_of, quick, terms_of


def dies_in(round: int) -> Callable[[Any], None]:
    def progress(entry: Any) -> None:
        if entry.round == round:
            raise KeyboardInterrupt

    return progress


def checkpointed(tmp_path: Path, rounds: int) -> tuple[Terms, LocalGrid, dict[str, Any]]:
    """A run that died after so many rounds, its server and its clients restored in a new Flower run."""
    terms = masking()
    grid = grid_of(terms, folder=lambda _: tmp_path / "clients")
    options = quick(checkpoint=tmp_path / "server.checkpoint")
    with pytest.raises(KeyboardInterrupt):
        serve(grid, terms, 9, progress=dies_in(rounds - 1), **options)
    begin_anew(grid)
    return terms, grid, options


def same(ours: Result, theirs: Result) -> None:
    for name, value in theirs.output.items():
        np.testing.assert_array_equal(ours.output[name], value)


def test_a_resume_that_died_before_the_server_wrote_it_down_is_tried_again(tmp_path: Path) -> None:
    """In the middle of enrolment, then of its first exchange: clients know the new run, and the server does not."""
    terms, grid, options = checkpointed(tmp_path, 2)
    missing = grid.nodes.pop(104)
    with pytest.raises(TooFewSurvivors):
        serve(grid, terms, 4, **options | {"wait": 0.05})
    grid.nodes[104] = missing
    begin_anew(grid)
    older = shutil.copy(tmp_path / "server.checkpoint", tmp_path / "older.checkpoint")

    def killed(message: Any) -> bool:
        if asks(message, "unmask", 4):
            raise KeyboardInterrupt
        return False

    grid.lose = killed
    with pytest.raises(KeyboardInterrupt):
        serve(grid, terms, 4, **options)
    shutil.copy(older, tmp_path / "server.checkpoint")
    grid.lose = lambda _: False
    begin_anew(grid)
    ours = serve(grid, terms, 4, **options)
    assert [entry.survivors for entry in ours.history] == [tuple(range(CLIENTS))] * 4
    same(ours, serve(grid_of(terms), terms, 4, **quick()))


def test_an_older_file_of_a_client_is_found_out_and_so_is_an_older_checkpoint(tmp_path: Path) -> None:
    """Both of the run that goes on, or of one that it went on from: running sums would be off without a word."""
    terms, grid, options = checkpointed(tmp_path, 1)
    older = {path: path.read_bytes() for path in (*files(tmp_path / "clients"), tmp_path / "server.checkpoint")}
    with pytest.raises(KeyboardInterrupt):
        serve(grid, terms, 9, progress=dies_in(3), **options)
    newer = {path: path.read_bytes() for path in older}
    begin_anew(grid)
    stale = files(tmp_path / "clients")[2]
    stale.write_bytes(older[stale])
    with pytest.raises(ConfigError, match="party 2 does not take part: StorageError"):  # of another run than asked
        serve(grid, terms, 5, **options)
    for path, data in newer.items():
        path.write_bytes(data)
    begin_anew(grid)
    (tmp_path / "server.checkpoint").write_bytes(older[tmp_path / "server.checkpoint"])
    with pytest.raises(RoundVoid, match="one of both went on from an older file"):
        serve(grid, terms, 5, **options | {"options": replace(options["options"], max_void=1)})


def test_an_older_file_of_the_same_run_is_found_out(tmp_path: Path) -> None:
    terms = masking()
    grid = grid_of(terms, folder=lambda _: tmp_path / "clients")
    options = quick(checkpoint=tmp_path / "server.checkpoint")
    older: dict[Path, bytes] = {}

    def copies(entry: Any) -> None:
        if entry.round == 0:
            older.update({path: path.read_bytes() for path in files(tmp_path / "clients")})
        if entry.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(grid, terms, 9, progress=copies, **options)
    begin_anew(grid)
    path = files(tmp_path / "clients")[2]
    path.write_bytes(older[path])
    result = serve(grid, terms, 4, **options)
    assert result.history[-1].survivors == (0, 1, 3, 4)
    assert "one of both went on from an older file" in result.history[-1].refusals[2]


def test_runs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    """One of other terms has a file of its own; one of the same terms ends the first run's part, and says so."""
    terms, grid, options = checkpointed(tmp_path, 2)
    other = terms_of("optimization/scaffold", chain(secure_aggregation()), seed=4)
    serve(grid_of(other, folder=lambda _: tmp_path / "clients"), other, 1, **quick())
    assert len(files(tmp_path / "clients")) == 2 * CLIENTS
    serve(grid, terms, 3, **options)
    begin_anew(grid)
    second = grid_of(terms, folder=lambda _: tmp_path / "clients")

    def between(message: Any) -> bool:
        if asks(message, "upload", 1):
            assert invite(second.nodes[101], Invitation(new_run(), terms.digest)) == ""
        return False

    grid.lose = between
    result = serve(grid, terms, 4, **options)
    assert result.history[-1].survivors == (0, 2, 3, 4)


def test_what_was_let_out_is_remembered_where_a_forgetful_methods_run_goes_on(tmp_path: Path) -> None:
    identities = Identities.generate(CLIENTS)
    terms = terms_of("optimization/fedavg", chain(secure_aggregation(identities=identities)))
    grid = grid_of(terms, folder=lambda _: tmp_path / "clients")
    options = quick(checkpoint=tmp_path / "server.checkpoint")
    serve(grid, terms, 1, **options)
    older = (tmp_path / "server.checkpoint").read_bytes()
    begin_anew(grid)
    serve(grid, terms, 2, **options)
    begin_anew(grid)
    (tmp_path / "server.checkpoint").write_bytes(older)
    grid.lose = lambda message: asks(message, "upload", 4)
    with pytest.raises(RoundVoid, match="entered a sum over other survivors"):
        serve(grid, terms, 2, **options | {"options": replace(options["options"], max_void=1)})


def test_a_runs_identifier_is_new_and_well_formed(tmp_path: Path) -> None:
    terms, grid, _ = checkpointed(tmp_path, 1)
    node, digest = grid.nodes[101], terms.digest
    kept = ClientFolder(files(tmp_path / "clients")[1]).read()
    assert kept is not None
    old = kept[0].run
    for wrong in ("", "../../etc", old.upper(), old + "0"):
        assert "DataError" in invite(node, Invitation(wrong, digest))
    assert "DataError" in invite(node, Invitation(new_run(), digest, "x"))
    assert "needs a new identifier" in invite(node, Invitation(old, digest, old))
    assert "took place already" in invite(node, Invitation(old, digest))
    assert "StorageError" in invite(node, Invitation(new_run(), digest, new_run()))
    assert invite(node, Invitation(new_run(), digest, old)) == ""  # positive control
