"""Put an advice into sentences of the table: what to do, what it costs, and what it leaves open.

A setting is a defence at one size of federation. Its leak is 1 for exact data and 0 for a guess; `leak_upper` is the
end of its interval, and `detectable` the smallest leak that the attacks would have shown. It holds if both are
acceptable, and it is usable if it keeps enough of the utility that messages in the clear reach; `usable_from` is the
smallest cohort at which it was, in a simulation. `search` writes `sentences` into the advice; the terminal shows the
`answers`, and takes the words of its tables from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from securefed._auditing.advice.advice_values import Advice, RecordSetting, Setting
from securefed._auditing.alerts.alert import REPEATED
from securefed._auditing.engine.kept_utility import Kept, floor_sentence
from securefed._auditing.engine.statistics import EXPOSED_FROM, PARTIAL_FROM
from securefed._auditing.sentences.table import counted, say

ALL, NONE, FAILED, UNKNOWN = "all", "none", "failed", "n/a"
"""Words that stand in a table of settings instead of a figure; the table of sentences has what each means."""
WORDS: Final = (ALL, NONE, FAILED, UNKNOWN)


def _say(reason: str, owner: str = "client", /, **places: object) -> str:
    return say("advice", "some", owner, reason, **places)


def leak_words(one: Setting) -> tuple[str, str, str]:
    """Write the leak of a setting, its upper bound, and the smallest leak that would have shown, for a table.

    Where the attacks failed and found nothing, none of them is a figure: a small one would look like safety.
    """
    if math.isnan(one.leak):
        return UNKNOWN, UNKNOWN, UNKNOWN
    nothing = math.isnan(one.detectable) and one.leak < PARTIAL_FROM
    bound = ALL if not one.leak_upper < 1 else FAILED if nothing else f"{one.leak_upper:.2f}"
    seen = FAILED if math.isnan(one.detectable) else NONE if one.detectable > 1 else f"{one.detectable:.2f}"
    return FAILED if nothing else f"{one.leak:.2f}", bound, seen


def utility_words(one: Setting | RecordSetting) -> str:
    """Write a utility, with the standard deviation of a single run where that is known."""
    if math.isnan(one.utility):
        return UNKNOWN
    deviation = one.utility_deviation
    return f"{one.utility:.2f}" + ("" if math.isnan(deviation) else f"±{deviation:.2f}")


def floor_words(one: Setting) -> tuple[str, str, str]:
    """Write the utility in the clear, its floor, and the least share above it that is kept, for a table."""
    clear, floor = (f"{value:.2f}" if math.isfinite(value) else UNKNOWN for value in (one.utility_clear, one.floor))
    if not one.model:
        return clear, floor, "no model"
    return clear, floor, f"{max(one.share_low, 0.0):.0%}" if math.isfinite(one.share_low) else UNKNOWN


def explained_words(tried: Sequence[Setting]) -> str:
    """Explain those of `WORDS` that the table of some settings has, in a sentence each."""
    used = {word for one in tried for word in (*leak_words(one), utility_words(one))}
    return " ".join(_say(word) for word in WORDS if word in used)


def noise_words(advice: Advice) -> str:
    """Say what a noised setting that is not shown to hold, marked `-` in the table, means; empty without one."""
    noised = any(one.epsilon is not None and not one.holds for one in advice.tried)
    return _say("noise", level=advice.acceptable) if noised else ""


def record_rows(advice: Advice) -> list[tuple[str, str, str, str]]:
    """Write the settings that hide single rows: epsilon of a row, right guesses of 100, utility, whether usable."""
    return [
        (f"{one.epsilon:g}", f"{_of_100(one.guess)}", utility_words(one), "yes" if one.usable else "no")
        for one in advice.records
    ]


def sentences(
    tried: Sequence[Setting],
    advised: Setting | None,
    needed: int | None,
    acceptable: float,
    keep: float,
    largest: int,
) -> tuple[str, str]:
    """Say what to do and what it costs, or why there is nothing to do at this size.

    Args:
        tried: all settings, the first of them without a defence.
        advised: the one to use, if any.
        needed: the cohort from which on one is usable, if none is now.
        acceptable: leakage that the user can live with.
        keep: share of the utility that a usable setting keeps.
        largest: the largest cohort that was simulated; 0 for none.
    """
    if advised is not None:
        return " ".join(_do(advised, tried[0])), " ".join(_costs(advised, tried))
    holding = [one for one in tried if one.holds]
    settings = counted(len(tried), "setting")
    if not holding:
        first = _say("none holds", settings=settings, level=acceptable)
        return f"{first} {' '.join(_lowest(tried, acceptable))}", _say("do not train")
    best = max(holding, key=lambda one: one.utility)
    sizes = {"clients": counted(best.clients, "client"), "holding": len(holding), "settings": settings}
    kept = {"level": acceptable, "keep": keep}
    above = {} if math.isnan(best.floor) else {"floor": best.floor}
    said = (
        _say("none kept above floor" if above else "none kept", **sizes, **kept, **above),
        _say("best", defense=best.defense, utility=best.utility, clear=best.utility_clear),
        *_scatter(best),
        *_left_open(best),
    )
    return " ".join(said), _larger(holding, needed, largest)


def _lowest(tried: Sequence[Setting], acceptable: float) -> Iterator[str]:
    """Say how near settings come, none of which is shown to hold."""
    lowest = min((one for one in tried if not math.isnan(one.leak_upper)), key=lambda one: one.leak_upper, default=None)
    if lowest is None:
        yield _say("unmeasured")
        return
    yield _say("lowest", bound=lowest.leak_upper)
    if lowest.leak_upper <= acceptable:
        yield _missed(lowest)


def _larger(holding: Sequence[Setting], needed: int | None, largest: int) -> str:
    """Say from which cohort on a setting is usable, as far as larger cohorts were simulated."""
    if needed is not None:
        which = min((one for one in holding if one.usable_from == needed), key=lambda one: one.epsilon or 0.0)
        named = {"clients": counted(needed, "client"), "defense": which.defense}
        more = {"simulated": which.simulated} if which.simulated else {}
        return _say("from simulated" if more else "from", **named, **more)
    return _say("no cohort", clients=counted(largest, "client")) if largest else _say("not simulated")


def no_model_sentences(first: Setting, measure: str) -> tuple[str, str]:
    """Say that there is no model to protect, where runs in the clear do not exceed the floor of their utility.

    Args:
        first: the setting without a defence, with its floor.
        measure: what the utility measures.
    """
    kept = Kept(first.floor, first.floor_name, model=False)
    return floor_sentence(measure, first.utility_clear, kept), _say("no model")


def nearest_sentence(advice: Advice) -> str:
    """Say which setting comes nearest and what it leaves, where none is advised; empty otherwise."""
    one = advice.nearest
    if one is None:
        return ""
    said = [*_sizes("nearest", one, advice.tried[0]), _say("not excluded", upper=one.leak_upper)]
    if not one.detectable <= advice.acceptable:
        said.append(_missed(one))
    said += [*_utility(one), *_left_open(one)]
    larger = [s for s in advice.tried if s.usable_from is not None and s.epsilon is not None]
    if larger and not any(s.holds for s in advice.tried):
        first = min(larger, key=lambda s: (s.usable_from or 0, s.epsilon or 0.0, s.rounds))
        sizes = {"clients": counted(first.usable_from or 0, "client"), "rounds": counted(first.rounds, "round")}
        said.append(_say("from noise", **sizes, epsilon=first.epsilon, keep=advice.keep))
    return " ".join(said)


def _missed(one: Setting) -> str:
    """Say which leaks the attacks on a setting might have missed."""
    return _say("missed any") if math.isnan(one.detectable) else _say("missed", size=min(one.detectable, 1.0))


def _scatter(one: Setting | RecordSetting) -> list[str]:
    """Say how much the utility of single runs scatters; nothing where that is not known."""
    deviation = one.utility_deviation
    return [] if math.isnan(deviation) else [_say("scatter", deviation=deviation)]


def _utility(one: Setting | RecordSetting) -> Iterator[str]:
    """Say what utility a setting reaches, and what share of it above the floor is kept."""
    lost = one.utility_clear - one.utility
    if round(lost, 3) > 0:
        yield _say("less", utility=one.utility, lost=lost)
    else:
        yield _say("no less", utility=one.utility)
    yield from _scatter(one)
    if not math.isnan(one.share):
        low = {"low": max(one.share_low, 0.0)} if math.isfinite(one.share_low) else {}
        yield _say("kept at least" if low else "kept", share=one.share, floor=one.floor, **low)


def record_sentence(advice: Advice) -> str:
    """Say what noise that hides single rows of a client costs, and what it hides; or why none was tried."""
    one = advice.record
    if one is not None:
        noise = {"algorithm": one.algorithm, "epsilon": one.epsilon, "delta": one.delta}
        said = [_say("use", "record", **noise), *_utility(one), _say("guess", "record", cases=_of_100(one.guess))]
        if any(alert.kind == REPEATED for alert in advice.alerts):  # a row is no patient here
            said.append(_say("repeated", "record"))
        return " ".join([*said, _say("table", "record")])
    if not advice.records:
        return advice.records_note
    best = max(advice.records, key=lambda one: one.utility)
    tried = ", ".join(f"{one.epsilon:g}" for one in advice.records)
    return " ".join([_say("none", "record", epsilons=tried, keep=advice.keep), *_utility(best)])


@dataclass(frozen=True)
class AdvisedAnswer:
    """One answer of an advice, as the terminal shows it.

    Attributes:
        words: what to do and what it costs, in a few sentences.
        setting: the setting whose command is shown below the words; `None` for none.
    """

    words: str
    setting: Setting | RecordSetting | None

    @property
    def paste(self) -> str:
        """The command to paste; empty without a setting."""
        return "" if self.setting is None else self.setting.paste


def answers(advice: Advice) -> list[AdvisedAnswer]:
    """List what the reader may do: usable settings with the reader's own rows and rounds first, then other usable ones.

    Of equal ones that of higher utility comes first. Then follow why no setting is advised, where none is, and the
    setting that comes nearest.
    """
    if not any(one.model for one in advice.tried if not math.isnan(one.utility)) and advice.advised is None:
        return [AdvisedAnswer(" ".join(advice.sentences), None)]  # no model: nothing is nearest to a good setting
    main = AdvisedAnswer(" ".join((*advice.sentences, smallest_sentence(advice.advised))).strip(), advice.advised)
    hidden = advice.record  # noise that hides single rows
    parts = record_sentence(advice), smallest_sentence(hidden), hidden.changes if hidden else ""
    record = AdvisedAnswer(" ".join(filter(None, parts)), hidden)
    nearest = AdvisedAnswer(f"{nearest_sentence(advice)} {smallest_sentence(advice.nearest)}".strip(), advice.nearest)

    def rank(one: AdvisedAnswer) -> tuple[bool, bool, float]:
        setting, asked = one.setting, advice.tried[0]
        if setting is None:
            return True, True, 0.0
        sizes = isinstance(setting, Setting) and setting.rows_per_client != asked.rows_per_client
        return False, sizes or setting.rounds != asked.rounds, -setting.utility

    return [one for one in (*sorted((main, record), key=rank), nearest) if one.words]


def smallest_sentence(one: Setting | RecordSetting | None) -> str:
    """Say what a setting means for the client with fewest rows; empty where all clients have as many."""
    if one is None or not one.smallest_rows:
        return ""
    rows = counted(one.smallest_rows, "training row")
    if isinstance(one, RecordSetting):
        return _say("record", "smallest", rows=rows, epsilon=one.epsilon)
    promise = [_say("epsilon", "smallest", epsilon=one.epsilon)] if one.epsilon is not None else []
    if not one.smallest_runs or math.isnan(one.smallest_leak):
        return " ".join([_say("no attack", "smallest", rows=rows), *promise])
    runs = {"rows": rows, "runs": counted(one.smallest_runs, "run")}
    leak = leak_words(replace(one, leak=one.smallest_leak))[0]
    if leak == FAILED:
        return " ".join([_say("failed", "smallest", **runs), *promise])
    most = {} if math.isnan(one.smallest_upper) else {"upper": min(one.smallest_upper, 1.0)}
    return " ".join([_say("leak at most" if most else "leak", "smallest", leak=leak, **runs, **most), *promise])


def pooled_lines(advice: Advice) -> list[str]:
    """Say what settings leave open of all clients together, where no answer says it.

    Of those that hold for one client that is all of it, and of others, whose leak of one client may be small, people.
    """
    said = " ".join(one.words for one in answers(advice))
    found: dict[str, list[str]] = {}
    for one in advice.tried:
        words, mark = (" ".join(_pooled(one)), "+") if one.holds else (" ".join(_people(one)), "-")
        if words and words not in said:
            found.setdefault(f"{mark} {{}}: {words}", []).append(f"{one.defense}, {counted(one.rounds, 'round')}")
    return [line.replace("{}", " / ".join(names), 1) for line, names in found.items()]


def _pooled(one: Setting) -> Iterator[str]:
    """Say what was measured of all clients' data together, of people in it, and of membership.

    A setting that hides single clients may still open the sums, in which people stand: so no sentence that gives a
    leak of one client's data goes without these.
    """
    if math.isnan(one.pooled_leak) and math.isnan(one.people_leak):
        yield _say("not attacked", "everyone")
    elif one.pooled_leak >= EXPOSED_FROM:
        yield _say("exposed", "everyone", leak=one.pooled_leak)
    elif not math.isnan(one.pooled_leak):
        yield _say("leak", "everyone", leak=max(one.pooled_leak, 0.0))
    yield from _people(one)
    if one.member_leak > PARTIAL_FROM:
        yield _say("members", "everyone", leak=one.member_leak)


def _people(one: Setting) -> Iterator[str]:
    """Say which people are read in the sums of a setting, if any are."""
    if one.people_leak > PARTIAL_FROM:
        yield _say("people", "everyone", who=one.people, leak=one.people_leak)


def _left_open(one: Setting) -> list[str]:
    """Say for which schedule a leak was measured, and what it leaves open of all clients."""
    return [*([one.limits] if one.limits else []), *_pooled(one)]


def _of_100(chance: float) -> int:
    """Round a chance up to whole cases of a hundred."""
    return math.ceil(100 * chance - 1e-9)


def _sizes(reason: str, one: Setting, asked: Setting) -> Iterator[str]:
    """Name a setting with its clients, rows and rounds, and what the user asked for where that differs.

    Args:
        reason: of the sentence that names it.
        one: the setting.
        asked: the first setting of the search, which has the user's own sizes; a size of 0 is not known.
    """
    rows = counted(one.rows_per_client, "row")
    sizes = {"clients": counted(one.clients, "client"), "rows": rows, "rounds": counted(one.rounds, "round")}
    yield _say(reason, defense=one.defense, **sizes)
    for used, planned, noun in (
        (one.clients, asked.clients, "client"),
        (one.rows_per_client, asked.rows_per_client, "row"),
        (one.rounds, asked.rounds, "round"),
    ):
        if planned not in (used, 0):
            yield _say("asked", planned=counted(planned, noun))


def _do(advised: Setting, asked: Setting) -> Iterator[str]:
    """Name the advised setting, its leak and its epsilon; `asked` is the setting of the user's own sizes."""
    yield from _sizes("use", advised, asked)
    if math.isnan(advised.leak):
        yield _say("no leak")
    else:
        yield _say("leak", leak=advised.leak, upper=advised.leak_upper)
    if advised.epsilon is not None:
        delta = {} if advised.delta is None else {"delta": advised.delta}
        yield _say("epsilon delta" if delta else "epsilon", epsilon=advised.epsilon, **delta)
    yield from _left_open(advised)


def _costs(advised: Setting, tried: Sequence[Setting]) -> Iterator[str]:
    """Say what the advised setting costs: utility, bytes beside those of the first setting (no defence), and time."""
    yield from _utility(advised)
    plain, costs = tried[0], {"bytes": advised.bytes_up, "seconds": advised.seconds_per_round}
    if plain.bytes_up > 0:
        yield _say("times", **costs, times=advised.bytes_up / plain.bytes_up)
    else:
        yield _say("bytes", **costs)
