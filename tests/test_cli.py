from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import securefed
from securefed import Dataset, Federation
from securefed import _catalogue as catalogue
from securefed._commands.cli import app
from securefed._commands.named_run import build
from securefed._registry import Registry
from securefed.algorithms import SSI
from securefed.errors import ConfigError
from tests.auditing import test_report as made
from tests.auditing.page import text

RUNNER = CliRunner()
SMALL = [
    "--algorithms",
    "ssi",
    "--defenses",
    "plain,secure_aggregation",
    "--seeds",
    "2",
    "--workers",
    "1",
    "--clients",
    "4",
]


def test_list_names_every_algorithm_defence_and_attack_with_its_source() -> None:
    shown = " ".join(RUNNER.invoke(app, ["list"]).output.split())  # lines end where the terminal does
    for registry in (catalogue.algorithms, catalogue.defenses, catalogue.attacks):
        assert len(registry) >= 5
        for entry in registry:
            assert entry.name in shown
            assert " ".join(entry.source.split()) in shown
    assert "active/trap_weights" in shown
    only = RUNNER.invoke(app, ["list", "attacks"]).output
    assert "gram/power" in only
    assert "pca/faps" not in only.split("attacks")[0]


def test_plan_says_bits_stages_threshold_and_assumptions() -> None:
    shown = RUNNER.invoke(app, ["plan", "ssi", "secure_aggregation"], env={"COLUMNS": "200"}).output
    for word in ("2^64", "largest N", "keys -> shares -> upload -> unmask", "5 of 8", "honest but curious"):
        assert word in shown
    assert "epsilon after" in RUNNER.invoke(app, ["plan", "ssi", "dp"]).output


def test_plan_takes_the_parameters_of_the_defence() -> None:
    def shown(*more: str) -> str:
        done = RUNNER.invoke(app, ["plan", "ssi", "secure_aggregation", *more], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.output

    assert "upload -> unmask" in shown("--defense-set", "pipelined=true")
    assert shown("--defense-set", "verify=true") != shown()
    refused = RUNNER.invoke(app, ["plan", "ssi", "secure_aggregation", "--defense-set", "pipelines=true"])
    assert refused.exit_code == 2
    assert "pipelines" in refused.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "fedag", "plain"], "nearest known ones are graph/fedavg, optimization/fedavg, private/fedavg"),
        (["plan", "ssi", "secureaggregation"], "nearest known one is 'secure_aggregation'"),
        (["plan", "ssi", "plain", "--set", "rank=3", "--set", "rank=4"], "two values for one setting, rank"),
        (["plan", "ssi", "dp", "--defense-set", "epsilon=3", "--defense-set", "epsilon=4"], "setting, epsilon"),
        (["run", "ssi", "--set", "rank=3", "--set", "rank=4"], "two values for one setting, rank"),
        (["audit", "--algorithms", "sssi"], "nearest known one is 'pca/ssi'"),
        (["audit", "--attacks", "power2"], "nearest known one is 'gram/power'"),
        (["audit", "--defenses", "pailier"], "nearest known one is 'paillier'"),
        (["audit", "--data", "digit"], "nearest known one is 'digits'"),
        (["audit", "--data", "missing.npz"], "cannot read"),
        (["audit", "--clients", "2"], "at least 3 clients"),
        (["audit", "--seeds", "0"], "at least one seed"),
        (["audit", "--workers", "0"], "workers must be at least 1"),
        (["audit", "--epsilon", "-1"], "epsilon must be positive"),
        (["audit", "--epsilons", "1,nan", "--defenses", "dp"], "epsilon must be positive"),
        (["audit", "--delta", "1"], "delta must lie between"),
        (["audit", "--out", "/dev/null/x"], "cannot write"),
    ],
)
def test_bad_input_is_one_readable_line_and_exit_code_2(arguments, says, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["nan", "empty", "vector", "pickle"])
def test_unusable_data_files_are_refused_before_anything_runs(name, tmp_path) -> None:
    path = tmp_path / "d.npz"
    x = {
        "nan": np.full((4, 3), np.nan),
        "empty": np.zeros((0, 3)),
        "vector": np.zeros(4),
        "pickle": np.array([{}], dtype=object),
    }[name]
    np.savez(path, x=x)
    result = RUNNER.invoke(app, ["audit", "--data", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "DataError" in result.output


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("audit")
    result = RUNNER.invoke(app, ["audit", *SMALL, "--out", str(out)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    return out, result.output


def test_an_audit_prints_a_table_and_writes_json_and_one_html_file(small) -> None:
    out, shown = small
    assert "SSI" in shown
    assert "collusion(3)" in shown
    report = json.loads((out / "audit.json").read_text())
    assert {"version", "command", "environment", "cells"} <= set(report)
    for cell in report["cells"]:
        assert {"algorithm", "defense", "view", "attack", "secret", "leakage", "runs", "figures"} <= set(cell)
        assert {"null_leakage", "verdict", "detectable", "read", "reach"} <= set(cell)
        assert set(cell["leakage"]) >= {"mean", "low", "high", "seeds"}
    costs = {"utility", "bytes_per_client_round", "seconds_per_round", "epsilon", "covered"}
    assert report["format"] == 3 and all(costs <= set(run) for run in report["costs"])
    html = (out / "audit.html").read_text()
    assert "http://" not in html
    assert "https://" not in html
    assert html.count("data:image/png;base64,") >= 4
    for reference, inside in (("src=", '"data:'), ("href=", '"#')):
        assert all(rest.startswith(inside) for rest in html.split(reference)[1:])


@pytest.mark.exhaustive
def test_an_audit_is_reproducible(small, tmp_path) -> None:
    out, _ = small
    RUNNER.invoke(app, ["audit", *SMALL, "--out", str(tmp_path)])
    ours, theirs = (json.loads((folder / "audit.json").read_text()) for folder in (out, tmp_path))
    for a, b in zip(ours["cells"], theirs["cells"], strict=True):
        assert a == b


def test_two_audits_compare_and_growth_fails_on_request(small, tmp_path) -> None:
    out, _ = small
    before, after = out / "audit.json", tmp_path / "after.json"
    report = json.loads(before.read_text())
    compared = ["compare", str(before), str(after), "--fail-on-growth"]
    after.write_text(json.dumps(report))
    assert RUNNER.invoke(app, compared).exit_code == 0
    for bound in ("mean", "low", "high"):
        report["cells"][0]["leakage"][bound] += 1
    after.write_text(json.dumps(report))
    result = RUNNER.invoke(app, compared, env={"COLUMNS": "140"})
    assert result.exit_code == 3
    assert "grew" in result.output
    assert RUNNER.invoke(app, compared[:-1]).exit_code == 0
    assert json.loads(RUNNER.invoke(app, [*compared[:-1], "--json"]).stdout)["cells"][0]["change"] == "grew"
    assert not list(tmp_path.glob("**/comparison.*"))
    shown = RUNNER.invoke(app, [*compared, "--out", str(tmp_path / "page")])
    assert shown.exit_code == 3
    page, data = (tmp_path / "page" / f"comparison.{kind}" for kind in ("html", "json"))
    said = json.loads(data.read_text())["summary"]
    assert said in _joined(shown.output) and said in text(page.read_text())
    refused = RUNNER.invoke(app, [*compared, "--out", "/dev/null/x"])
    assert refused.exit_code == 2 and "choose another folder" in _joined(refused.output)
    after.write_text("[]")
    assert RUNNER.invoke(app, compared).exit_code == 2


def _joined(output: str) -> str:
    """Without the breaks of lines, wherever the terminal's width puts them."""
    return " ".join(output.split())


@pytest.mark.exhaustive
def test_curves_over_epsilon_are_asked_for_with_numbers(tmp_path) -> None:
    audited = ["audit", *SMALL, "--out", str(tmp_path), "--json", "--epsilons"]
    assert RUNNER.invoke(app, [*audited, "1,64"]).exit_code == 2  # none of these defences has an epsilon
    audited = [*audited[:-1], "--defenses", "dp", "--epsilons"]
    assert RUNNER.invoke(app, [*audited, "1,x"]).exit_code == 2
    found = json.loads(RUNNER.invoke(app, [*audited, "64,1"]).stdout)["tradeoffs"]
    assert [point["epsilons"] for point in found] == [[1.0, 64.0]]


def test_the_gate_exits_with_3_above_its_threshold_only(tmp_path, monkeypatch) -> None:
    audited = ["audit", *SMALL, "--out", str(tmp_path), "--json"]
    for leakage, code in ((0.99, 3), (0.01, 0)):
        found = made.report(made.cell("pca/ssi", "plain", "server", leakage))
        monkeypatch.setattr("securefed._commands.audit_run.run_and_save", lambda *_, found=found, **__: found)
        passed = RUNNER.invoke(app, [*audited, "--fail-above", "0.5"])
        assert passed.exit_code == code, passed.output
    assert json.loads(passed.stdout)["cells"]


@pytest.mark.parametrize(("earlier", "parts", "said"), [(0, 0, None), (0, 3, 3), (2, 3, 3), (2, 0, None)])
def test_an_audit_that_stops_says_where_it_goes_on(tmp_path, monkeypatch, earlier: int, parts: int, said) -> None:
    """Parts of an earlier audit are no progress of one that is stopped, or refused, at once."""

    def keep(count: int) -> None:
        (tmp_path / "unfinished").mkdir(exist_ok=True)
        for seed in range(count):
            (tmp_path / "unfinished" / f"pca-ssi-{seed}.task").touch()

    def stopped(*_: object, **__: object) -> None:
        keep(parts)
        raise KeyboardInterrupt

    keep(earlier)
    monkeypatch.setattr("securefed._commands.audit_run.run_and_save", stopped)
    ended = RUNNER.invoke(app, ["audit", *SMALL, "--out", str(tmp_path)])
    assert ended.exit_code != 0
    shown = " ".join(ended.output.split())
    assert ("parts are done and kept in" in shown) is (said is not None)
    assert said is None or f"{said} parts are done" in shown


def test_a_gate_that_nothing_could_exceed_is_refused(tmp_path) -> None:
    refused = RUNNER.invoke(app, ["audit", *SMALL, "--out", str(tmp_path / "none"), "--fail-above", "nan"])
    assert refused.exit_code == 2 and "--fail-above" in refused.output
    assert not (tmp_path / "none").exists()


def test_a_recorded_run_is_attacked_from_its_file(tmp_path) -> None:
    rng = np.random.default_rng(0)
    clients = [Dataset(rng.uniform(0, 1, (5, 6))) for _ in range(3)]
    path, truth = str(tmp_path / "run.transcript"), tmp_path / "rows.npz"
    Federation(SSI(rank=2), clients, seed=0).run(5).transcript.save(path)
    np.savez(truth, x=np.concatenate([data.x for data in clients]), client=np.repeat([0, 1, 2], 5))
    shown = RUNNER.invoke(app, ["attack", path, "ssi", "--set", "rank=2", "--rows", str(truth), "--target", "2"])
    assert shown.exit_code == 0, shown.output
    assert "gram/power from 5 rounds: recovered" in shown.output
    assert "leakage 1.000" in shown.output
    tried = RUNNER.invoke(app, ["attack", path, "ssi", "--try", "rank=2", "--try", "rank=3", "--json"])
    assert len(json.loads(tried.output)["candidates"]) == 2
    np.savez(truth, x=np.zeros((2, 6)))
    rank = ["ssi", "--set", "rank=2"]
    for arguments, says in (
        ([path, *rank, "--rows", str(truth)], "must be an .npz"),
        ([path, "ssi", "--set", "rnk=2"], "rnk"),
        ([path, *rank, "--target", "9"], "numbered 0 to 2"),
        ([path, *rank, "--set", "rank=3"], "two values for one setting, rank"),
        ([path, *rank, "--try", "rank=3"], "given as known (--set) and as a guess (--try)"),
        ([str(truth), *rank], "StorageError"),
    ):
        refused = RUNNER.invoke(app, ["attack", *arguments], env={"COLUMNS": "400"})
        assert refused.exit_code == 2, refused.output
        assert says in refused.output


def test_the_module_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "securefed", "--help"], capture_output=True, text=True, check=True)
    assert "securefed" in done.stdout
    for command in ("audit", "attack", "compare", "run", "plan", "list"):
        assert f" {command} " in done.stdout


def test_help_says_what_arguments_are() -> None:
    """typer 0.20 beside click 8.4 and later shows their names only."""
    said = " ".join(RUNNER.invoke(app, ["attack", "--help"], env={"COLUMNS": "200"}).output.split())
    assert "A recorded run: `Transcript.save`, or an imported one." in said


def test_a_checkpoint_is_sealed_under_a_key_that_the_command_line_makes(tmp_path) -> None:
    key, other, file, anchor = (tmp_path / name for name in ("seal.key", "other.key", "run.checkpoint", "anchor"))
    run = ["run", "ssi", "--set", "rank=2", "--clients", "4", "--checkpoint", str(file)]

    def says(*arguments: object) -> tuple[int, str]:
        result = RUNNER.invoke(app, [str(argument) for argument in arguments])
        return result.exit_code, " ".join(result.output.split())

    assert says("key", key)[0] == 0
    assert key.stat().st_mode & 0o777 == 0o600
    assert says("key", other)[0] == 0
    made = key.read_bytes()
    code, said = says("key", key)
    assert (code, "is there already, and a key is never overwritten" in said) == (2, True)
    assert key.read_bytes() == made != other.read_bytes()

    sealed = [*run, "--seal-key-file", key, "--seal-anchor", anchor]
    assert says(*sealed, "--rounds", 2)[0] == 0
    first = file.read_bytes()
    assert first.startswith(b"securefed sealed")
    assert says(*sealed, "--rounds", 4)[0] == 0  # resumed
    assert file.read_bytes() != first
    for arguments, word in [
        ([*run, "--rounds", 4], "is sealed; give the key"),
        ([*run, "--rounds", 4, "--seal-key-file", other], "sealed under another key"),
        ([*run, "--rounds", 4, "--seal-key-file", tmp_path / "none.key"], "there is no key"),
        ([*run, "--rounds", 4, "--seal-anchor", anchor], "give --seal-key-file"),
        (["run", "ssi", "--set", "rank=2", "--seal-key-file", key], "give --checkpoint"),
    ]:
        code, said = says(*arguments)
        assert code == 2
        assert word in said
    assert not (tmp_path / "none.key").exists()  # a path misspelt makes no key
    key.chmod(0o644)
    assert "chmod 600" in says(*sealed, "--rounds", 4)[1]
    key.chmod(0o600)
    file.write_bytes(first)
    assert "RolledBackError" in says(*sealed, "--rounds", 4)[1]
    clear = tmp_path / "clear.checkpoint"  # control: without a key it is in clear, and opens without one
    assert says(*run[:-1], clear, "--rounds", 2)[0] == says(*run[:-1], clear, "--rounds", 3)[0] == 0
    assert not clear.read_bytes().startswith(b"securefed sealed")


def test_the_version_is_printed_and_a_defence_names_the_option_of_its_settings() -> None:
    shown = RUNNER.invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"securefed {securefed.__version__}\n")
    refused = RUNNER.invoke(app, ["plan", "ssi", "dp", "--defense-set", "clap=2"])
    assert refused.exit_code == 2 and "defense 'dp': it has no setting clap" in _joined(refused.output)
    keyed = Registry[float]("defense")
    keyed.register("keyed", lambda x, y: x + y, summary="a sum", source="this test")
    with pytest.raises(ConfigError, match="it needs x and y; write --defense-set x=VALUE --defense-set y=VALUE"):
        build(keyed, "keyed", {})
    with pytest.raises(ConfigError, match="unsupported operand"):  # other errors in their own words
        build(keyed, "keyed", {"x": 1, "y": ""})


def test_algorithms_that_the_data_do_not_suit_are_left_out_by_name_and_refused_where_they_were_asked_for(
    tmp_path,
) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "narrow.npz", x=rng.uniform(0, 1, (60, 4)))  # no labels, and fewer columns than SSI's rank
    quick = ["--data", str(tmp_path / "narrow.npz"), "--defenses", "plain", "--seeds", "1", "--workers", "1"]
    done = RUNNER.invoke(
        app, ["audit", *quick, "--clients", "4", "--out", str(tmp_path / "out")], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    assert "did not run" in _joined(done.output)
    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert "rank must be an integer between 1 and 4" in json.dumps(report["missing"])
    assert {cell["algorithm"] for cell in report["cells"]} == {"pca/fedpg"}
    assert any(reason.startswith("optimization/dsgd: this algorithm needs labels") for reason in report["skipped"])
    refused = RUNNER.invoke(app, ["audit", *quick, "--algorithms", "fedpg,ssi", "--out", str(tmp_path / "none")])
    assert refused.exit_code == 2 and "pca/ssi does not run on these data: rank must be" in _joined(refused.output)
    np.savez(tmp_path / "few.npz", x=rng.uniform(0, 1, (3, 4)))  # too few rows for anybody
    few = ["--data", str(tmp_path / "few.npz"), "--clients", "4", "--out", str(tmp_path / "none")]
    assert RUNNER.invoke(app, ["audit", *few]).exit_code == 2
