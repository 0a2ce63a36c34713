"""`securefed run`: any registered algorithm, on named data, under a named defence, from the shell."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from securefed._commands.base import parse_settings
from securefed._commands.cli import app
from securefed._commands.named_run import NamedRun, build, execute, measures, prepare
from securefed.algorithms import algorithms
from securefed.datasets import partitioned
from securefed.datasets._loaders import digits
from securefed.datasets._named_partitions import PARTITIONS
from securefed.errors import ConfigError

RUNNER = CliRunner()


def test_a_run_prints_a_summary_and_keeps_history_and_model(tmp_path) -> None:
    arguments = ["run", "losac", "--set", "learning_rate=0.001", "--set", "blocks=5", "--partition", "by_label"]
    done = RUNNER.invoke(app, [*arguments, "--rounds", "6", "--evaluate-every", "3", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    for words in ("6 rounds", "accuracy", "score of the result on held-out rows", "in the clear"):
        assert words in done.output
    kept = json.loads((tmp_path / "out" / "run.json").read_text())
    assert kept["rounds"] == 6 and [bool(entry["measures"]) for entry in kept["history"]] == [False, False, True] * 2
    losses = [entry["measures"]["loss"] for entry in kept["history"] if entry["measures"]]
    assert losses[1] < losses[0] < np.log(10)
    model = load_file(tmp_path / "out" / "output.safetensors")
    assert model["weight"].shape == (10, 64)


def test_a_seed_that_is_none_is_refused_in_one_line() -> None:
    refused = RUNNER.invoke(app, ["run", "ssi", "--set", "rank=3", "--seed", "-1"])
    assert refused.exit_code == 2 and "seed must be an integer of at least 0; got -1" in refused.output


def test_the_same_run_under_secure_aggregation_gives_the_same_result() -> None:
    plain = execute(NamedRun("ssi", {"rank": 3}, rounds=4, clients=4))
    masked = execute(NamedRun("ssi", {"rank": 3}, "secure_aggregation", rounds=4, clients=4))
    np.testing.assert_allclose(masked.result.output["basis"], plain.result.output["basis"], atol=1e-9)
    assert masked.result.plan.stages != plain.result.plan.stages


def test_a_killed_run_resumes_from_its_checkpoint(tmp_path) -> None:
    path = tmp_path / "run.checkpoint"
    run = NamedRun("optimization/fedavg", {"learning_rate": 0.1}, rounds=4, clients=3)
    execute(NamedRun("optimization/fedavg", {"learning_rate": 0.1}, rounds=2, clients=3), checkpoint=path)
    resumed, whole = execute(run, checkpoint=path), execute(run)
    assert len(resumed.result.history) == 4
    np.testing.assert_array_equal(resumed.result.output["weight"], whole.result.output["weight"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ssi"], "it needs rank; write --set rank=VALUE"),
        (["ssi", "--set", "rnk=5"], "it has no setting rnk"),
        (["ssi", "--set", "rank=900"], "rank must be an integer between 1 and 64"),
        (["ssi", "--set", "rank"], "name=value"),
        (["optimization/fedavg", "--cohort", "9"], "cohort must be an integer between 1 and 8"),
        (["optimization/fedavg", "--partition", "shuffled"], "unknown partition 'shuffled'"),
        (["optimization/fedavg", "--partition", "dirichlet=a"], "dirichlet=0.3"),
        (["optimization/fedavg", "--partition", "by_group=subject"], "no groups 'subject'"),
        (["optimization/fedavg", "--partition", "by_feature=age"], "no column 'age'"),
        (["optimization/fedavg", "--held-out", "1.5"], "held-out share"),
        (["optimization/fedavg", "--set", "problem=sofmax"], "nearest known one is 'softmax'"),
        (["optimization/fedavg", "--rounds", "1", "--out", "/dev/null/x"], "cannot write"),
        (["fedavgg"], "optimization/fedavg"),
    ],
)
def test_bad_input_is_one_line_that_names_the_remedy(arguments: list[str], says: str) -> None:
    done = RUNNER.invoke(app, ["run", *arguments], env={"COLUMNS": "300"})
    assert done.exit_code == 2, done.output
    assert says in done.output and "Traceback" not in done.output


HOW = ["iid", "power_law", "power_law=2", "one_small=8", "by_label", "shards", "shards=3", "partly_sorted=0.5"]


@pytest.mark.parametrize("how", [*HOW, "dirichlet=0.5", "by_feature=20", "by_group=half"])
def test_every_partition_has_a_name(how: str) -> None:
    source = replace(digits(), groups={"half": np.arange(1797) // 150})
    parts = partitioned(source, how, 6, np.random.default_rng(0))
    assert len(parts) == 6 and 1790 <= sum(part.rows for part in parts) <= 1797
    assert {name for name in PARTITIONS if how.startswith(name)}


def test_groups_follow_their_rows_past_the_held_out_ones(tmp_path) -> None:
    _, clients, test = prepare(NamedRun("ssi", clients=8, partition="by_feature=20", held_out=0.25))
    assert test is not None and test.rows == 449
    ends = [(part.x[:, 20].min(), part.x[:, 20].max()) for part in clients]
    assert all(left[1] <= right[0] for left, right in pairwise(ends))
    assert prepare(NamedRun("ssi", held_out=0.0))[2] is None


def test_settings_are_json_or_text() -> None:
    parsed = parse_settings(["rank=3", "tolerance=1e-6", "stop=kkt", "normalise=true", "sizes=[1, 2]", "text=a=b"])
    assert parsed == {"rank": 3, "tolerance": 1e-6, "stop": "kkt", "normalise": True, "sizes": [1, 2], "text": "a=b"}
    with pytest.raises(ConfigError, match="name=value"):
        parse_settings(["=3"])


@pytest.mark.parametrize("second", ["rank=4", "rank=3", " rank =4"])
def test_a_setting_has_one_value(second) -> None:
    with pytest.raises(ConfigError, match=r"two values for one setting, rank: '3' and .*; give it once"):
        parse_settings(["rank=3", second])
    assert parse_settings([" rank =4"]) == {"rank": 4}
    python = parse_settings(["rate=.1", "rounds=+3", "normalise=True", "size=None", "rule='kkt'", "path=a/b", "id=007"])
    others = {"size": None, "rule": "'kkt'", "path": "a/b", "id": "007"}
    assert python == {"rate": 0.1, "rounds": 3, "normalise": True, **others}


def test_sums_are_shown_as_ratios() -> None:
    shown = measures({"loss": 6.0, "correct": 3.0, "count": 4.0, "clients": 2.0})
    assert shown == {"loss": 1.5, "accuracy": 0.75}
    assert measures({"captured": 3.0, "total": 4.0, "clients": 2.0}) == {"captured": 0.75}
    assert measures({"other": 3.0, "clients": 2.0}) == {"other": 3.0}


def test_an_unknown_setting_is_refused_with_the_settings_that_there_are():
    with pytest.raises(ConfigError, match=r"it has no setting rnk; the nearest one is rank. Its settings: rank, "):
        build(algorithms, "ssi", {"rnk": 5})
    with pytest.raises(ConfigError, match=r"rank must be an integer .* got 'five'"):
        build(algorithms, "ssi", parse_settings(["rank=five"]))
    with pytest.raises(ConfigError, match="a setting must be written name=value; got 'rank'"):
        parse_settings(["rank"])


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Sixty rows of three owners, one of them with half of the rows, in columns of very different sizes."""
    rng = np.random.default_rng(0)
    lines = ["small,large,outcome,hospital"]
    for owner in ["A"] * 30 + ["B"] * 20 + ["C"] * 10:
        small, large = rng.standard_normal(2) * (1, 1000)
        lines.append(f"{small:.4g},{large:.6g},{int(small > 0)},{owner}")
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    return path


def test_rows_of_a_file_go_to_their_owners(hospitals: Path) -> None:
    run = NamedRun(
        "optimization/fedavg", data=str(hospitals), owner_column="hospital", label_column="outcome", standardise=True
    )
    source, clients, test = prepare(run)
    assert len(clients) == 3 and test is not None
    assert sum(part.rows for part in clients) + test.rows == 60
    sizes = [part.rows for part in clients]
    assert sizes[0] > sizes[1] > sizes[2]
    assert np.abs(source.data.x).max() < 10  # the large column is scaled
    assert len(prepare(replace(run, clients=2))[1]) == 2  # whole owners together
    with pytest.raises(ConfigError, match=r"by their owner .* or by the partition by_label, not by both"):
        prepare(replace(run, partition="by_label"))


def test_the_options_and_the_file_of_a_run_read_the_same_rows(hospitals: Path, tmp_path: Path) -> None:
    options = ["--owner-column", "hospital", "--label-column", "outcome", "--standardise", "--rounds", "3"]
    training = ["--set", "problem=logistic", "--set", "learning_rate=0.1"]
    given = RUNNER.invoke(app, ["run", "optimization/fedavg", "--data", str(hospitals), *options, *training, "--json"])
    assert given.exit_code == 0, given.output
    study = tmp_path / "study.toml"
    study.write_text(
        f"algorithm = 'optimization/fedavg'\ndata = '{hospitals}'\nowner_column = 'hospital'\n"
        "label_column = 'outcome'\nstandardise = true\nrounds = 3\n[settings]\nproblem = 'logistic'\n"
        "learning_rate = 0.1\n"
    )
    written = RUNNER.invoke(app, ["run", str(study), "--json"])
    assert written.exit_code == 0, written.output
    first, second = json.loads(given.output), json.loads(written.output)
    assert first["score"] == second["score"] and first["bytes"] == second["bytes"]
