"""The table of sentences: one sentence a key, each is reachable, and none is glued from clauses."""

from __future__ import annotations

import ast
import itertools
import json
import math
import string
from dataclasses import replace
from pathlib import Path

import pytest

from securefed._auditing.advice.advised_words import explained_words, nearest_sentence
from securefed._auditing.advice.advised_words import sentences as advised
from securefed._auditing.alerts import Alert
from securefed._auditing.alerts.alert import RARE_CATEGORY
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.audit_result import AUDIT, CUT, SmallestClient
from securefed._auditing.engine.incomplete_results import NOT_ATTACKED, Missing
from securefed._auditing.engine.kept_utility import Kept, floor_sentence
from securefed._auditing.engine.results import CLIENT, FEDERATION
from securefed._auditing.engine.statistics import INCONCLUSIVE, NOT_DETECTED, Verdict
from securefed._auditing.report import comparison_page
from securefed._auditing.report.audit_page import setup
from securefed._auditing.report.cards import TITLES, cards, conclusion, next_steps
from securefed._auditing.report.outcomes import settings_judged
from securefed._auditing.report.plain_sums import with_sums
from securefed._auditing.report.sureness import gaps, sureness
from securefed._auditing.sentences import table as sentences
from securefed._auditing.sentences.table import Key
from tests.auditing.test_advice_values import ADVICE, SETTING
from tests.auditing.test_comparison_page import AFTER, BEFORE
from tests.auditing.test_consistency import combinations
from tests.auditing.test_report import cell, report, run

PACKAGE = Path(sentences.__file__).parents[1]
SPEAKERS = ("say", "sentence", "_remark", "_said", "_next", "_say")
"""Functions that look a sentence up."""
OPTIONS = "securefed audit --active --membership"
TRAINING = {"secret": "samples", "also attacked": "tokens"}


class Recorded(dict[Key, str]):
    """A table that notes which of its sentences were said."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.said: set[Key] = set()

    def __getitem__(self, key: Key) -> str:
        self.said.add(key)
        return super().__getitem__(key)


def changed(made: Report, **shared: object) -> Report:
    return replace(made, settings={**made.settings, AUDIT: {**made.settings[AUDIT], **shared}})


def of_training(made: Report, skipped: tuple[str, ...] = ()) -> Report:
    settings = {name: {**values, **TRAINING} if name != AUDIT else values for name, values in made.settings.items()}
    alert = Alert(RARE_CATEGORY, "ward", 1, "Merge.", "One row.")
    return replace(made, settings=settings, skipped=("sum only, x: y", *skipped), alerts=(alert,))


def reports() -> list[Report]:
    """List reports in which every verdict, protection, owner and reason occurs."""
    plain, sums = cell("pca/ssi", "plain", "server", 1.0), cell("pca/ssi", "secure_aggregation", "sum only", 0.0)
    quiet, failed = cell("pca/ssi", "plain", "server", 0.0), cell("pca/ssi", "plain", "server", -0.4, explained=0.0)
    scattered = replace(failed, runs=sums.runs, verdict=Verdict(INCONCLUSIVE, 3.0))
    views = ("sum only", "smallest sum", "changing survivors")
    kept = [cell("pca/ssi", "secure_aggregation", view, 0.0) for view in views]
    out = list(itertools.islice(combinations(), 0, None, 53))
    out += [report(plain, *kept), report(plain, sums), report(quiet), report(plain), report(failed), report(scattered)]
    out.append(replace(report(), settings=report(plain).settings))
    for view, leak in ((views[1], 1.0), (views[1], -0.4), (views[2], 1.0)):
        one = cell("pca/ssi", "secure_aggregation", view, leak, explained=float(leak > 0))
        other = cell("pca/ssi", "dp", "sum only", 0.0)
        out += [report(plain, sums, one), report(plain, sums, one, other)]
    out.append(report(plain, sums, replace(sums, defense="paillier"), costs=[run("pca/ssi", "paillier", utility=0.1)]))
    out += [report(plain, replace(sums, defense="paillier")), report(plain, replace(sums, defense="dp"))]
    out += [report(plain, sums, replace(kept[2], defense="dp"), replace(sums, defense="dp"))]
    out.append(report(plain, *kept, *(replace(one, defense="paillier") for one in kept[:2])))
    out.append(report(plain, *kept, replace(failed, defense="dp", view=views[0]), cell("pca/ssi", "dp", views[2], 1.0)))
    for leak, word in itertools.product((1.0, 0.5, 0.0, -0.4), ("", "people")):
        pooled = cell("pca/ssi", "secure_aggregation", "sum only", leak, FEDERATION, explained=float(leak >= 0))
        out.append(report(plain, sums, replace(pooled, secret=word) if word else pooled))
    for view, defense in (("collusion(7)", "secure_aggregation"), ("server + key holder", "paillier")):
        out.append(report(plain, cell("pca/ssi", defense, view, 1.0)))
    for secret, defense in itertools.product(("membership", "confirmation"), ("plain", "dp")):
        for leak, without in itertools.product((0.6, 0.0, -0.4), ("", "membership/shadow")):
            for view in ("server", "sum only"):
                made = cell("step", defense, view, leak, secret, without=without, explained=float(leak >= 0))
                out.append(report(cell("step", "plain", "server", 0.0, "samples"), made))
    out += [report(cell("step", "plain", "server", leak, "samples")) for leak in (1.0, 0.5, 0.0)]
    for adversary, defense, word in itertools.product(
        ("informed", "population", "client canary"), ("plain", "skellam"), ("exposed", NOT_DETECTED, INCONCLUSIVE)
    ):
        row = {"algorithm": "pca/ssi", "adversary": adversary, "auc": [0.7] * 3}
        found = row | {"defense": defense, "verdict": word}
        out.append(replace(report(plain), membership=(found, row | {"defense": "dp", "verdict": NOT_DETECTED})))
    labels = [replace(one, secret="labels") for one in (quiet, *kept)]
    for skipped in ((), ("server, training/rows: no time", "sum only, pooled training/rows: no time")):
        own = [one for one in labels if one.defense == "plain"]
        for chosen in (labels, labels[:3], own, [replace(labels[0], verdict=plain.verdict), *labels[1:]]):
            out.append(of_training(report(*chosen), skipped))
            out.append(of_training(report(*chosen, replace(sums, secret="pooled labels")), skipped))
    leaking = replace(labels[0], verdict=plain.verdict, leakage=plain.leakage)
    out += [of_training(report(leaking, *labels[1:])), of_training(report(leaking, *labels[1:3]))]
    for word, defense, view in itertools.product((1.0, 0.5, 0.0, -0.4), ("plain", "ddp"), ("sum only", views[2])):
        small = SmallestClient(4, 5, cell("pca/ssi", defense, view, word, explained=float(word >= 0)))
        few = replace(small, cell=replace(small.cell, leakage=replace(small.cell.leakage, seeds=1)))
        out += [replace(report(plain), smallest=(small,)), replace(report(plain), smallest=(few,))]
    out += [replace(one, command=OPTIONS) for one in out[:60]]
    out += [changed(one, seeds=seeds) for one in out[:60] for seeds in (1, 2, 5)]
    out += [changed(report(plain, sums), seeds=1), changed(report(plain), **{CUT: [4, 64]})]
    gap = Missing("pca/ssi", "dp", "active server", "", 0, 10, "no rows")
    out.append(replace(report(plain), missing=(gap, replace(gap, kind=NOT_ATTACKED)), command=OPTIONS))
    out.append(report(plain, sums, costs=[run("pca/ssi", "secure_aggregation", utility=0.5)]))
    out.append(report(plain, sums, cell("pca/ssi", "quantise", "server", 0.0)))
    out.append(report(plain, replace(sums, verdict=Verdict(NOT_DETECTED, 0.43))))
    out.append(report(plain, replace(sums, runs=replace(sums.runs, asked=12))))
    out.append(changed(report(quiet, cell("pca/ssi", "plain", "sum only", 0.0, FEDERATION)), seeds=2))
    for defense, leak in itertools.product(("plain", "secure_aggregation"), (1.0, 0.5, 0.0, -0.4)):
        out.append(report(quiet, sums, cell("pca/ssi", defense, "active server", leak, explained=float(leak >= 0))))
    return [*out, *_open_cases(plain, sums)]


def _open_cases(plain, sums) -> list[Report]:  # type: ignore[no-untyped-def]
    """List reports of which something is not known, for each suggestion of what to run next."""
    failed = cell("pca/ssi", "plain", "server", -0.4, explained=0.0)
    wide = replace(sums, defense="ddp", leakage=replace(sums.leakage, mean=-0.5, low=-0.6, high=0.4, deviation=0.2))
    wide = replace(wide, verdict=Verdict(INCONCLUSIVE, 3.0))
    one_seed = replace(sums, verdict=Verdict(NOT_DETECTED, math.nan))
    out = [report(plain, wide), report(plain, replace(wide, null_leakage=replace(plain.leakage, mean=0.9, high=0.97)))]
    out.append(report(plain, replace(wide, leakage=replace(wide.leakage, mean=0.3, high=0.9, deviation=3.0))))
    out += [
        changed(report(plain, wide), recorded=10),
        report(plain, one_seed),
        report(plain, replace(failed, view="sum only")),
    ]
    for sizes in (
        {"rows of client 0": 16}, {"rows of client 0": 1, "local steps": 5}, {},
        {"rows of client 0": 280, "columns": 30, "rounds": 20, "numbers a round": 31},
    ):  # fmt: skip
        for rounds in (1, 10):
            made = report(failed)
            made.settings["pca/ssi"] = {
                **made.settings["pca/ssi"],
                "secret": "samples",
                "sizes": sizes,
                "rounds": rounds,
            }  # type: ignore[index]
            out.append(made)
    return [*out, replace(report(plain, sums), assumptions=("The seed is known",))]


def spoken() -> set[Key]:
    """Return the keys that are written out in the package's code, where the parts of a key are all constants."""
    out = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "sentences" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in SPEAKERS:
                out |= _keys(node)
    return out


def _keys(call: ast.Call) -> set[Key]:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    values = [_constants(one) for one in call.args]
    if name == "_remark":
        values = [{"remark"}, {"-"}, {"-"}, *values]
    if name == "_said":
        word = values[1] if len(values) > 1 else {"compare"}
        values = [word, {"-"}, {"-"}, values[0]]
    if name == "_say":
        values = [{"advice"}, {"some"}, values[1] if len(values) > 1 else {"client"}, values[0]]
    if name == "_next":
        values = [{"next"}, {"-"}, {"-"}, values[2]]
    if not all(values):
        return set()
    return {Key(*parts) for parts in itertools.product(*values)}


def _constants(node: ast.expr) -> set[str]:
    """Return what an argument of a call may be: a constant, one of two, or the name of a column that does not apply."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return _constants(node.body) | _constants(node.orelse)
    named = getattr(node, "attr", getattr(node, "id", ""))
    known = {
        "NOTHING": "-", "CLIENT": CLIENT, "EVERYONE": "everyone", "RECORD": "record", "UNTRIED": "not attacked",
        "EXPOSED": "exposed", "NOT_DETECTED": NOT_DETECTED, "INCONCLUSIVE": INCONCLUSIVE, "GREW": "grew",
    }  # fmt: skip
    return {known[named]} if named in known else set()


@pytest.fixture(scope="module")
def said() -> set[Key]:
    """Say all that is to be said of many reports, and return the keys of the sentences."""
    recorded = Recorded(sentences.table())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "table", lambda: recorded)
        for made in reports():
            told = with_sums(made)
            assert all(len(card.steps) in (0, 1, 2) for card in cards(told))
            settings_judged(told)
            conclusion(told, TITLES)
            next_steps(told)
            list(map(str, [*sureness(told), *gaps(told)]))
            setup(told)
            str(told)
        other = json.loads(json.dumps(AFTER))
        other["settings"]["audit"]["clients"] = 5
        for pair in ((BEFORE, AFTER), (BEFORE, BEFORE), (BEFORE, other)):
            comparison_page.render(*pair)
        for leak, upper, detectable in ((0.0, 1.0, 1.7), (0.0, 0.5, math.nan), (math.nan, math.nan, math.nan)):
            explained_words([replace(SETTING, leak=leak, leak_upper=upper, detectable=detectable)])
        leaky = replace(SETTING, holds=False, leak_upper=0.3)
        nearest_sentence(replace(ADVICE, advised=None, tried=(leaky,)))
        advised([leaky, SETTING], SETTING, None, 0.1, 0.9, 512)
        for clear, model in ((0.9, True), (0.4, False), (0.9, False)):
            floor_sentence("accuracy", clear, Kept(0.5, "naming the largest class", model=model))
    return recorded.said


def test_every_sentence_that_the_verdicts_can_ask_for_stands_in_the_table(said: set[Key]) -> None:
    """A missing key would have been refused while the reports were told."""
    assert said <= set(sentences.table())
    assert spoken() <= set(sentences.table())


def test_every_sentence_of_the_table_can_be_said(said: set[Key]) -> None:
    verdicts = {key for key in sentences.table() if key.owner != "-" or key.word in ("sure", "next", "setup")}
    verdicts = {key for key in verdicts if key.word != "advice"}
    unsaid = sorted(verdicts - said)
    assert not unsaid
    assert not sorted(set(sentences.table()) - spoken() - said)


def test_a_sentence_is_whole_and_glued_from_nothing() -> None:
    for key, text in sentences.table().items():
        assert text[0].isupper() or text[0] in "“{`" or key.word == "cell", text
        if key.reason.endswith("answer") or key.word == "cell":
            continue
        assert text.endswith((".", ":")), text
        assert ";" not in text or text.count(";") == 1, text
        assert all(name is None or name.isidentifier() for _, name, _, _ in string.Formatter().parse(text)), text


def test_two_sentences_of_one_key_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sentences.tsv").write_text("yes\t-\t-\t-\tOne.\nyes\t-\t-\t-\tTwo.\n")
    monkeypatch.setattr(sentences, "files", lambda _: tmp_path)
    sentences.table.cache_clear()
    with pytest.raises(ValueError, match="two sentences"):
        sentences.table()
    monkeypatch.undo()
    sentences.table.cache_clear()


def test_a_sentence_that_is_not_in_the_table_is_refused_by_its_key() -> None:
    with pytest.raises(KeyError, match="reassuring"):
        sentences.say("reassuring")
    assert sentences.counted(1, "row") == "1 row" and sentences.counted(1200, "row") == "1,200 rows"
    assert sentences.listed("abca") == "a, b and c"
