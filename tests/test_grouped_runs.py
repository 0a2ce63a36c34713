"""Runs whose sums are made group by group: parity, liars, algorithms, ledgers, survivors, transcripts and views."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, DataUsage, Federation, Ledger, Limits, Public, RunOptions, Terms, Transcript
from securefed import _catalogue as catalogue
from securefed._runtime.sum_memory import GROUP, REFUSAL, SumMemory
from securefed._runtime.terms import check_grouped
from securefed.algorithms import SSI, FedAvg
from securefed.attacks import Target, views
from securefed.defenses import Identities, chain, clip, grouped, secure_aggregation
from securefed.defenses._grouped_sums.drawing import groups_of
from securefed.errors import ConfigError, RoundVoid
from securefed.parties import SumClient, SumServer, SumTerms
from securefed.statistics import Histogram
from tests.contract.settings import make
from tests.parties.helpers import play

N, FEW = 20, 15
"""Clients of the sums below, in groups of 4; and of federations, in groups of 3."""
RNG = np.random.default_rng(0)
DATA = [Dataset(RNG.uniform(-1, 1, (6, 4)), RNG.integers(0, 2, 6)) for _ in range(FEW)]
PINNED = Identities.generate(N)
PINNED_FEW = Identities({i: PINNED.public[i] for i in range(FEW)}, {i: PINNED.own[i] for i in range(FEW)})


def federation(defense: Any, data: Any = DATA, **options: Any) -> Federation:
    return Federation(FedAvg(learning_rate=0.1), data, defense, seed=1, options=RunOptions(**options), batched=False)


def test_one_group_or_equal_groups_with_the_mean_give_the_run_of_secure_aggregation_bit_for_bit() -> None:
    plain = federation(secure_aggregation()).run(2)
    for groups in (1, 5):
        ours = federation(grouped(secure_aggregation(), groups=groups, aggregator="mean")).run(2)
        for name, value in plain.output.items():
            np.testing.assert_array_equal(ours.output[name], value)


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    defense = grouped(secure_aggregation(identities=PINNED_FEW), groups=5)
    whole = federation(defense).run(2)
    federation(defense, checkpoint=tmp_path / "run").run(1)
    resumed = federation(defense, checkpoint=tmp_path / "run").run(2)
    for name, value in whole.output.items():
        np.testing.assert_array_equal(resumed.output[name], value)


def test_groups_stay_the_same_in_a_run_and_with_identities_in_all_runs() -> None:
    def groups(defense: Any) -> list[Any]:
        records = federation(defense).run(2).transcript.records
        return [record.sums for record in records]

    active, curious = (
        grouped(secure_aggregation(identities=PINNED_FEW), groups=5),
        grouped(secure_aggregation(), groups=5),
    )
    first, second = groups(active), groups(active)
    assert first == second
    assert first[0] == first[1]
    ours, theirs = groups(curious), groups(curious)
    assert ours[0] == ours[1]
    assert ours != theirs


EXACT = {
    "optimization/losac", "optimization/losac_prox", "optimization/scaffold", "optimization/scaffold_prox",
    "optimization/fedadmm", "pca/fedpg", "pca/fedpe", "personalized/fedadmm", "personalized/flame",
}  # fmt: skip


@pytest.mark.parametrize("name", catalogue.algorithms.names)
def test_an_algorithm_is_refused_by_name_where_its_state_follows_from_exact_sums(name: str) -> None:
    algorithm, public = make(name), Public.of(DATA)
    defense = chain(grouped(secure_aggregation(), groups=5))
    if name in EXACT:
        with pytest.raises(ConfigError, match=f"^{type(algorithm).__name__} keeps running sums or duals"):
            Terms.of(algorithm, public, defense, reveal=False)
        Terms.of(algorithm, public, chain(grouped(secure_aggregation(), groups=5, aggregator="mean")), reveal=False)
        return
    check_grouped(defense, algorithm, public)


def test_a_cohort_smaller_than_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="drawn over all 15 clients of a run, and cohort=12 are planned"):
        Terms.of(FedAvg(learning_rate=0.1), Public.of(DATA, cohort=12), chain(grouped(secure_aggregation(), groups=5)))
    with pytest.raises(ConfigError, match="drawn over all 15 clients of a run, and cohort=12 are planned"):
        SumTerms.like({"w": np.zeros(2)}, clients=15, cohort=12, defense=grouped(secure_aggregation(), groups=5))


def lies(node: Any, size: float) -> None:
    """Let a client contribute `size` times its bound in all entries, past its own checks."""
    defense, encode = node._defense, node._defense.encode

    class Lying(type(defense)):  # type: ignore[misc]
        def encode(self, contribution: Any, plan: Any) -> Any:
            own, units = encode(contribution, plan), {t.name: int(size * t.bound / t.step) for t in plan.tensors}
            return {n: v if n.startswith("out.") else np.full_like(v, units[n]) for n, v in own.items()}

    node._defense = Lying(defense.transforms, defense.aggregation)


@pytest.mark.parametrize("aggregator", ["mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum"])
def test_a_liar_at_ten_times_its_bound_changes_nothing_but_the_clients_that_count(aggregator: Any) -> None:
    """The model is that of a run without the liar's group. Control: the plain mean of the same groups is far away."""
    defense = grouped(secure_aggregation(identities=PINNED_FEW), groups=5, aggregator=aggregator)
    made = federation(defense)
    lies(made.nodes[7], 10.0)
    found = made.run(1)
    record = found.transcript.records[0]
    own = next(members for members in record.sums if 7 in members)
    if aggregator == "mean":
        expected = federation(defense).run(1).output["weight"]
        assert np.abs(found.output["weight"] - expected).max() > 0.2
        return
    honest = federation(defense, schedule=lambda _: tuple(c for c in range(FEW) if c not in own))
    assert record.survivors == tuple(c for c in range(FEW) if c not in own)
    assert "larger than its clients may send" in found.history[0].refusals[7]
    np.testing.assert_array_equal(found.output["weight"], honest.run(1).output["weight"])


def clients(terms: SumTerms, folder: Path, identities: Identities = PINNED) -> dict[int, SumClient]:
    def ledger(party: int) -> Ledger:
        path = folder / f"{party}.ledger"
        if not path.exists():
            Ledger.create(path, Limits(), spent=DataUsage())
        return Ledger.open(path)

    return {i: SumClient(terms, i, identity=identities.own[i], ledger=ledger(i)) for i in range(terms.clients)}


def summed(terms: SumTerms, folder: Path, base: float = 0.0, identities: Identities = PINNED, **opened: Any) -> Any:
    """Make a sum in a run of its own; empty where it was void."""
    given: dict[str, Any] = {"base": {"w": np.full(2, base)}} if terms.base else {}
    mine = {i: {"update": {"w": np.full(2, i / N)}, **given} for i in range(terms.clients)}
    try:
        return play(SumServer(terms), clients(terms, folder, identities), mine, **given, **opened)
    except RoundVoid as error:
        return error


def terms_of(groups: int = 5, identities: Identities = PINNED, **settings: Any) -> SumTerms:
    masking = secure_aggregation(identities=Identities(identities.public))
    defense = grouped(masking, groups=groups)
    return SumTerms.like({"w": np.zeros(2)}, clients=N, defense=defense, bounds=1.0, max_void=1, **settings)


def members(terms: SumTerms, client: int) -> tuple[int, ...]:
    aggregation = terms.defense.aggregation
    drawn = groups_of(aggregation.masking.identities, "", N, aggregation.groups)  # type: ignore[attr-defined]
    return next(group for group in drawn if client in group)


def test_rule_a_holds_group_by_group(tmp_path: Path) -> None:
    """One client less from the same base: its group lets no second sum out, and the others do; all do from another."""
    terms = terms_of()
    own = members(terms, 6)
    assert summed(terms, tmp_path).survivors == tuple(range(N))
    fewer = summed(terms, tmp_path, cohort=[c for c in range(N) if c != 6])
    assert fewer.survivors == tuple(c for c in range(N) if c not in own)
    other = next(c for c in own if c != 6)
    assert REFUSAL in fewer.refusals[other] or "is left out" in fewer.refusals[other]
    assert summed(terms, tmp_path).survivors == tuple(range(N))
    assert len(summed(terms, tmp_path, 1.0, cohort=[c for c in range(N) if c != 6]).survivors) == N - 1


def test_rule_b_holds_group_by_group(tmp_path: Path) -> None:
    """Sums without a base: of a group of 4 no sums tell one client apart, so that the group waits for all of it."""
    terms = terms_of(base=False)
    own = members(terms, 6)
    assert terms.core.rule.least_block == 3
    assert summed(terms, tmp_path).survivors == tuple(range(N))
    fewer = summed(terms, tmp_path, cohort=[c for c in range(N) if c != 6])
    assert fewer.survivors == tuple(c for c in range(N) if c not in own)
    assert summed(terms, tmp_path).survivors == tuple(range(N))


def test_a_ledger_keeps_its_group_and_refuses_another(tmp_path: Path) -> None:
    """Other numbers of groups, and identities among which one is new, make other groups; new data may have them."""
    assert summed(terms_of(5), tmp_path).survivors == tuple(range(N))
    assert len(Ledger.open(tmp_path / "3.ledger").sums.group) == 4
    refused = summed(terms_of(4), tmp_path, 1.0)
    assert isinstance(refused, RoundVoid)
    assert GROUP[:60] in str(refused)
    assert summed(terms_of(5), tmp_path, 2.0).survivors == tuple(range(N))
    for party in range(N):
        ledger = Ledger.open(tmp_path / f"{party}.ledger")
        ledger.change_sums(lambda sums: sums.of_new_data(), always=True)
    assert summed(terms_of(4), tmp_path, 1.0).survivors == tuple(range(N))


def test_a_group_goes_into_the_ledger_s_file_and_a_ledger_without_one_stays_as_it_was() -> None:
    kept = SumMemory(group=frozenset({b"a" * 32, b"b" * 32}))
    assert SumMemory.from_tensors(kept.to_tensors()) == kept
    assert b"group" not in SumMemory().to_tensors()["facts"].tobytes()


def test_weights_and_metrics_do_not_travel_beside_a_robust_mean() -> None:
    for more in ({"largest_weight": 8.0}, {"metrics": ["loss"]}):
        with pytest.raises(ConfigError, match="leave largest_weight and metrics out"):
            terms_of(**more)
    mean = grouped(secure_aggregation(), groups=5, aggregator="mean")
    SumTerms.like({"w": np.zeros(2)}, clients=N, defense=mean, largest_weight=8.0, metrics=["loss"])


def test_terms_are_the_same_after_a_file_and_differ_by_each_setting() -> None:
    terms = terms_of()
    assert SumTerms.from_bytes(terms.to_bytes()).digest == terms.digest
    masking = secure_aggregation()
    several = [
        grouped(masking, groups=5), grouped(masking, groups=6), grouped(masking, groups=5, liars=2),
        grouped(masking, groups=5, aggregator="krum"), grouped(secure_aggregation(4), groups=5),
    ]  # fmt: skip
    made = [SumTerms.like({"w": np.zeros(2)}, clients=N, defense=defense) for defense in several]
    assert len({one.digest for one in made}) == 5
    assert [SumTerms.from_bytes(one.to_bytes()) for one in made] == made


def test_a_statistic_may_be_a_robust_mean(tmp_path: Path) -> None:
    """Least parties hold in each group: a site's rule and the terms count the clients of one sum."""
    table = Histogram((0.0, 0.5, 1.0), rows=50)
    terms = table.terms(clients=12, defense=grouped(secure_aggregation(), groups=4))
    own = {i: {"update": table.summand(np.full((8, 1), 0.25 + 0.5 * (i % 2)))} for i in range(12)}
    result = play(SumServer(terms), {i: SumClient(terms, i) for i in range(12)}, own)
    assert result.survivors == tuple(range(12))
    with pytest.raises(ConfigError, match="those of its group, 3 in the smallest; give least_parties=3"):
        replace(terms, least_parties=4)


def test_a_server_and_its_clients_freeze_between_any_two_messages(tmp_path: Path) -> None:
    terms, update = terms_of(), {i: {"w": np.full(2, i / N)} for i in range(N)}
    base = {"w": np.zeros(2)}
    server = SumServer(terms, file=tmp_path / "server")
    made = {i: SumClient(terms, i, identity=PINNED.own[i], file=tmp_path / f"{i}") for i in range(N)}
    server.open(base=base)
    while server.result is None:
        replies = {}
        for party, request in server.outgoing.items():
            made[party] = SumClient(terms, party, identity=PINNED.own[party], file=tmp_path / f"{party}")
            replies[party] = made[party].receive(request, update[party], base=base)
        server = SumServer(terms, file=tmp_path / "server")
        server.receive(replies)
    whole = summed(terms, tmp_path / "other") if (tmp_path / "other").mkdir() is None else None
    np.testing.assert_array_equal(server.result.mean["w"], whole.mean["w"])


def test_views_hold_the_sums_of_groups_and_a_saved_transcript_keeps_them(tmp_path: Path) -> None:
    """Of the target's group; less what its colluders sent, bit for bit the target's own encoded contribution."""
    result = federation(chain(clip(1.0), grouped(secure_aggregation(), groups=5))).run(2)
    result.transcript.save(tmp_path / "run.transcript")
    for transcript in (result.transcript, Transcript.load(tmp_path / "run.transcript")):
        record = transcript.records[0]
        assert [len(members) for members in record.sums] == [3] * 5
        own = next(set(members) for members in record.sums if 3 in members)
        seen = views.sum_only(transcript, 3)
        assert [set(view.members) for view in seen.rounds] == [own, own]
        assert len(views.sum_only(transcript, None).rounds) == 10
        alone = views.collusion(transcript, 3, own - {3}).rounds[0]
        assert alone.members == frozenset({3})
        assert alone.survivors == frozenset(own)
        for name, step in record.step.items():
            np.testing.assert_array_equal(alone.message[name], transcript.contributions[record.round, 3][name] * step)
        assert views.collusion(transcript, 3, set(range(FEW)) - own).rounds[0].members == frozenset(own)


def test_the_audit_s_attack_reads_a_group_and_with_its_other_clients_the_target() -> None:
    """Groups cost privacy: without them the same attack finds the sum of all (`benchmarks.pages.group_sums`)."""
    method, public = SSI(rank=2, tolerance=0.0), Public.of(DATA)
    found = Federation(method, DATA, chain(grouped(secure_aggregation(), groups=5)), seed=1).run(4).transcript
    own = next(set(members) for members in found.records[0].sums if 3 in members)
    for colluding in (set(), own - {3}):
        view = views.collusion(found, 3, colluding)
        attack = catalogue.attacks.make("gram/power")
        value = attack.run(view, Target(method, public), np.random.default_rng(0)).value
        expected = sum(DATA[client].x.T @ DATA[client].x for client in own - colluding)
        np.testing.assert_allclose(value, expected, rtol=1e-6)
