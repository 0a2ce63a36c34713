"""An audit at the user's own sizes: rows a client, rounds, hyper-parameters, owners, and every registered defence."""

from __future__ import annotations

import numpy as np
import pytest

from securefed import Federation, audit
from securefed._auditing.cases import case
from securefed._auditing.cases.held_out import dealt_rows
from securefed._auditing.cases.own_setup import OwnSetup, head_text, owner_note
from securefed._auditing.engine.defense_names import CKKS, DDP, QUANTISE
from securefed._auditing.registered.audited_defenses import DEFENSES, USUAL, choose, distributed, distributed_multiplier
from securefed._catalogue import defenses
from securefed._commands.audit_run import run_and_save
from securefed.datasets import load
from securefed.errors import (
    ConfigError,
    DataError,
    MissingExtraError,
    SecureFedError,
    StorageError,
    UnknownNameError,
)

QUICK = {"algorithms": ["dsgd"], "attacks": ["gradient_inversion/fit"], "seeds": 1, "workers": 1}


def test_all_stands_for_every_defence_and_leaves_out_those_whose_package_is_missing(monkeypatch) -> None:
    assert (choose(None)[0], choose(["all"])[0]) == (USUAL, DEFENSES)
    monkeypatch.setattr("securefed._extras.is_installed", lambda module: module != "tenseal")
    chosen, missing = choose(["all"])
    assert set(DEFENSES) - set(chosen) == {CKKS} == set(missing) and "lattice" in missing[CKKS]
    with pytest.raises(MissingExtraError, match="lattice"):  # one that was named is not left out in silence
        choose([CKKS])
    with pytest.raises(UnknownNameError, match="all"):
        choose(["all", CKKS])


def prepared(own: OwnSetup, algorithm: str = "optimization/dsgd", clients: int = 4):
    return own.apply(case(algorithm)).prepare(load("digits"), clients, 0)


def test_every_registered_defence_can_be_audited_by_its_name() -> None:
    assert set(DEFENSES) == set(defenses.names)


@pytest.mark.parametrize("algorithm", ["optimization/dsgd", "pca/ssi", "graph/fedavg"])
def test_every_client_has_the_rows_that_the_user_names(algorithm: str) -> None:
    assert prepared(OwnSetup(rows=7), algorithm).public.rows == (7, 7, 7, 7)


def test_an_empty_setup_leaves_the_audit_case_as_it_is() -> None:
    assert OwnSetup().apply(case("pca/ssi")).data == case("pca/ssi").data
    assert OwnSetup().apply(case("pca/ssi")).describe() == case("pca/ssi").describe()


def test_settings_replace_those_of_the_case_and_unknown_ones_are_refused() -> None:
    changed = OwnSetup(rounds=3, settings=(("local_steps", 2), ("problem", "svm"))).apply(case("optimization/fedavg"))
    assert changed.rounds == 3
    assert changed.build().local_steps == 2
    assert type(changed.build().problem).__name__ == "SupportVectorMachine"
    with pytest.raises(ConfigError, match=r"does not take these settings .rank=3."):
        OwnSetup(settings=(("rank", 3),)).apply(case("optimization/fedavg"))
    with pytest.raises(ConfigError, match="rows_per_client must be an integer of at least 1; got 0"):
        OwnSetup(rows=0)


@pytest.mark.parametrize("problem", ["logistic", "svm", "mlp"])
def test_the_utility_is_that_of_the_problem_that_the_user_names(problem: str) -> None:
    """`--set problem=logistic` stands in the examples of --help: its weights have another shape than softmax's."""
    changed = OwnSetup(rounds=1, settings=(("problem", problem),)).apply(case("optimization/fedavg"))
    run = changed.prepare(load("breast_cancer"), 3, 0)
    output = Federation(changed.build(), run.clients, seed=0, public=run.public).run(1).output
    right = changed.build().problem.accuracy(output, run.test.x, run.test.labels())
    assert changed.utility(output, run.test) == right


def test_too_many_rows_are_refused_with_how_many_there_are() -> None:
    with pytest.raises(ConfigError, match=r"4 clients with 1000 rows each need 4000 rows.*at most 359 rows a client"):
        prepared(OwnSetup(rows=1000))


def test_each_client_holds_the_rows_of_one_owner_and_owners_change_with_the_seed(tmp_path) -> None:
    owner = np.repeat(np.arange(6), 10)
    rng = np.random.default_rng(0)
    x = owner[:, None] + rng.uniform(0, 0.5, (60, 3))
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(60) % 2, site=owner)
    source = load(tmp_path / "rows.npz", owner="site")
    whole = OwnSetup(owner="site").apply(case("optimization/dsgd"))
    targets = []
    for seed in range(6):
        clients = whole.prepare(source, 6, seed).clients
        owners = [set(np.floor(data.x).ravel()) for data in clients]
        assert sorted(min(one) for one in owners) == list(range(6))
        assert all(len(one) == 1 for one in owners)
        targets.append(min(owners[0]))
    assert sorted(targets) == list(range(6))  # each is attacked once in as many runs
    assert {min(np.floor(whole.prepare(source, 3, seed).clients[0].x).ravel()) for seed in range(9)} != {0.0}
    few = OwnSetup(owner="site", rows=2).apply(case("optimization/dsgd")).prepare(source, 6, 0)
    assert max(few.public.rows) == 2
    with pytest.raises(ConfigError, match="rows of 6 owners"):
        whole.prepare(source, 7, 0)
    with pytest.raises(DataError, match="no column 'clinic'"):
        audit(data=str(tmp_path / "rows.npz"), owner_column="clinic", **QUICK)


def test_the_report_says_the_sizes_the_warning_and_a_command_that_repeats_it(tmp_path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "rows.npz"
    np.savez(path, x=rng.normal(size=(40, 3)) * [1, 10, 1e4], y=np.arange(40) % 2, site=np.arange(40) % 5)
    own = {"rows_per_client": 2, "rounds": 2, "settings": {"learning_rate": 0.5, "batch_size": 2}}
    report = audit(data=str(path), owner_column="site", defenses=[QUANTISE], **own, **QUICK)
    sizes = report.settings["optimization/dsgd"]["sizes"]
    assert head_text(sizes) == "5 clients, 2 rows each, 2 rounds, step 0.5, batch 2"
    assert any("not scaled" in alert.text and "--standardise" in alert.opens for alert in report.alerts)
    for part in ("--owner-column site", "--rows-per-client 2", "--rounds 2", "--set learning_rate=0.5"):
        assert part in report.command
    assert "--clients" not in report.command
    dealt = audit(data=str(path), clients=4, defenses=[QUANTISE], **{**QUICK, "rounds": 1})  # 40 rows less 8 held out
    assert head_text(dealt.settings["optimization/dsgd"]["sizes"]).startswith("4 clients, 8 rows each, ")
    assert "--clients 4 --rows-per-client 8" in dealt.command
    assert dealt_rows("digits", load("digits"), 4) is None  # named sets keep the sizes of the audit cases
    scaled = audit(data=str(path), standardise=True, defenses=[QUANTISE], **own, **QUICK)
    assert not any(alert.kind == "not scaled" for alert in scaled.alerts)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (
            {"clients": 3, "rows of client 0": 1, "rows of the others": 1, "rounds": 6},
            "3 clients, 1 row each, 6 rounds",
        ),
        (
            {"clients": 8, "rows of client 0": 8, "rows of the others": [60, 61], "rounds": 9, "batch": None},
            "8 clients, the attacked client 8 rows, others 60 to 61, 9 rounds, batch all rows",
        ),
        (
            {"clients": 5, "rows of client 0": 97, "rows of the others": [26, 151], "rounds": 9, "owner": "hospital"},
            "5 clients, the attacked client 97 rows in the first run, others 26 to 151, 9 rounds",
        ),
    ],
)
def test_the_head_of_a_matrix_in_one_line(sizes, text) -> None:
    assert head_text(sizes) == text


def test_of_owners_of_different_sizes_the_report_says_of_whom_its_figures_are() -> None:
    rows = {"rows of client 0": 97, "rows of the others": [26, 151]}
    sizes = {"clients": 5, "rounds": 9, "owner": "hospital", "owners": 5} | rows
    assert owner_note(sizes).startswith("Every run attacks one hospital, in turn, the smallest in the first: each")
    assert owner_note(sizes | {"owners": 6}).startswith("Every run attacks one hospital, drawn at random: each figure")
    assert owner_note(sizes | {"rows of client 0": 2, "rows of the others": 2}) == ""
    assert owner_note({name: value for name, value in sizes.items() if name != "owner"}) == ""


def test_distributed_noise_keeps_the_epsilon_and_little_less_noise_does_not() -> None:
    data = prepared(OwnSetup())
    layout = case("optimization/dsgd").build().layout(data.public)
    arguments = (1.0, 8.0, 1e-5, 6, layout, 4, 3)
    multiplier = distributed_multiplier(*arguments)
    made = distributed(1.0, 8.0, 1e-5, 6, layout, 4)
    noise = made.transforms[1]
    assert noise.noise_multiplier == multiplier
    assert noise.loss(made.plan(layout, 4)).epsilon(6, 1e-5) <= 8.0
    less = distributed(1.0, 8.2, 1e-5, 6, layout, 4).transforms[1]
    assert less.noise_multiplier < multiplier
    assert less.loss(made.plan(layout, 4)).epsilon(6, 1e-5) > 8.0


def test_simulated_sums_have_the_noise_of_those_under_masks() -> None:
    """Both sums of 4 clients' zeros: their standard deviations agree to six standard errors, and not with 4/3 of it."""
    data = prepared(OwnSetup())
    method = case("optimization/dsgd").build()
    layout = method.layout(data.public)
    deviations = []
    for real in (True, False):
        made = distributed(1e-3, 8.0, 1e-5, 1, layout, 4, real=real)
        parts = []
        for seed in range(8):
            result = Federation(method, data.clients, made, seed=seed, public=data.public).run(1)
            (record,) = result.transcript.records
            parts += [np.ravel(record.encoded[name] * record.step[name]) for name in record.encoded]
        values = np.concatenate(parts)
        deviations.append(values.std() / 1e-3)
        claimed = next(iter(record.distortion.noise.values())) / 1e-3
        assert deviations[-1] == pytest.approx(claimed, rel=6 / np.sqrt(2 * values.size) + 0.02)
        assert deviations[-1] != pytest.approx(claimed * 4 / 3, rel=6 / np.sqrt(2 * values.size) + 0.02)


def test_epsilon_covers_the_servers_view_of_distributed_noise_and_not_of_lattice_encryption() -> None:
    report = audit(defenses=[CKKS, DDP], clients=3, rounds=1, **QUICK)
    assert {report.cost(cell).promised(cell.view) for cell in report.cells if cell.defense == DDP} == {8.0}
    assert {run.epsilon for run in report.costs if run.defense == CKKS} == {None}
    assert {cell.view for cell in report.cells if cell.defense == CKKS} == {"sum only", "server + key holder"}
    assert {cell.view for cell in report.cells if cell.defense == DDP} == {"sum only"}  # all three, by default


def test_several_numbers_of_rows_give_an_algorithm_several_rows_of_the_report() -> None:
    report = audit(rows_per_client=[1, 2], clients=3, rounds=1, defenses=[QUANTISE], **QUICK)
    assert report.algorithms == ("optimization/dsgd (1 row)", "optimization/dsgd (2 rows)")
    assert [report.settings[name]["sizes"]["rows of client 0"] for name in report.algorithms] == [1, 2]
    assert "--rows-per-client 1,2" in report.command
    with pytest.raises(ConfigError, match="rows_per_client"):
        audit(rows_per_client=[1, 0], **QUICK)


def test_sums_with_noise_have_a_null_of_their_own() -> None:
    """The null of sums without noise, which come first, is not taken for that of noised sums."""
    report = audit(defenses=["secure_aggregation", DDP], clients=3, rounds=2, **QUICK)
    fits = [one for one in report.cells if (one.view, one.attack) == ("sum only", "gradient_inversion/fit")]
    nulls = {one.defense: one.null_leakage.mean for one in fits}
    assert len(nulls) == len(set(nulls.values())) == 2


def test_an_algorithm_without_an_audit_case_is_named_as_that() -> None:
    with pytest.raises(ConfigError, match="private/fedavg is registered but cannot be audited by name"):
        audit(algorithms=["private/fedavg"], seeds=1)
    with pytest.raises(ConfigError, match=r"`audit_algorithm\(algorithm, clients\)` attacks its messages, in Python$"):
        audit(algorithms=["detection/fedae"], seeds=1)


@pytest.mark.parametrize("wrong", [{"algorithms": ["private/fedavg"]}, {"data": "nowhere.csv"}, {"attacks": ["none"]}])
def test_an_audit_that_is_refused_leaves_no_folder(tmp_path, wrong) -> None:
    with pytest.raises(SecureFedError):
        run_and_save(tmp_path / "new" / "report", None, seeds=1, workers=1, **wrong)
    assert list(tmp_path.iterdir()) == []
    kept = tmp_path / "audit.json"
    kept.write_text("earlier")
    with pytest.raises(SecureFedError):
        run_and_save(tmp_path, None, seeds=1, workers=1, **wrong)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["earlier"]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "report"):
        with pytest.raises(StorageError, match="cannot write into"):
            run_and_save(place, None, algorithms=["private/fedavg"])
    (tmp_path / "audit.html").mkdir()  # a folder where the page would go
    with pytest.raises(StorageError, match="cannot write into"):
        run_and_save(tmp_path, None, algorithms=["private/fedavg"])
