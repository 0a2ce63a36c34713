"""Put an advice into two sentences: what to do, and what it costs.

A setting is a defence at one size of federation. Its leak is 1 for exact data and 0 for a guess; `leak_upper` is the
end of its interval, and `detectable` the smallest leak that the attacks would have shown. It holds if both are
acceptable, and it is usable if it keeps enough of the utility that messages in the clear reach; `usable_from` is the
smallest cohort at which it was, in a simulation. `search` writes `sentences` into the advice; the terminal shows the
`answers`, and takes the words of its tables from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from securefed._auditing.advice.advice_values import Advice, RecordSetting, Setting
from securefed._auditing.advice.pooled_words import people_words, pooled_words
from securefed._auditing.alerts.alert import REPEATED
from securefed._auditing.engine.kept_utility import Kept, floor_sentence
from securefed._auditing.engine.statistics import PARTIAL_FROM

ALL, NONE, FAILED, UNKNOWN = "all", "none", "failed", "n/a"
WORDS: Final = {
    ALL: "all of the data may leak, since a run was reconstructed or the runs scatter too much for a bound",
    NONE: "the runs scatter so much that no leak would have shown",
    FAILED: "the attacks did not explain the messages, so that their silence says nothing",
    UNKNOWN: "the setting did not run, or no attack reads what the server sees then",
}
"""Words that stand in a table of settings instead of a figure, and what each means."""


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
    return " ".join(f"`{word}`: {meaning}." for word, meaning in WORDS.items() if word in used)


def noise_words(advice: Advice) -> str:
    """Say what a noised setting that is not shown to hold, marked `-` in the table, means; empty without one."""
    if not any(one.epsilon is not None and not one.holds for one in advice.tried):
        return ""
    return (
        f"Under noise epsilon holds whatever the attacks show: `-` there means that the attacks could not show that "
        f"the setting holds, not that it leaks, unless the leak itself is above {advice.acceptable:g}."
    )


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
        return _do(advised, tried[0]), _costs(advised, tried)
    holding = [one for one in tried if one.holds]
    lowest = min((one for one in tried if not math.isnan(one.leak_upper)), key=lambda one: one.leak_upper, default=None)
    if not holding:
        known = "none of them could be measured"
        if lowest is not None:
            known = f"the lowest bound is {lowest.leak_upper:.2f}"
            known += f", but {_missed(lowest)}" if lowest.leak_upper <= acceptable else ""
        first = f"Of {len(tried)} settings none is shown to keep the leak at {acceptable:g} or less: {known}."
        return (
            first,
            "To hide a whole client, do not train on these data at this size, or accept a larger leak; larger cohorts "
            "were not attacked.",
        )
    best = max(holding, key=lambda one: one.utility)
    first = (
        f"With {best.clients} clients {len(holding)} of {len(tried)} settings keep the leak at {acceptable:g} or less, "
        f"but none is shown to keep {keep:.0%} of {_what_is_kept(best)}: the best, {best.defense}, has "
        f"{best.utility:.3f}{_scatter(best)} "
        f"where messages in the clear reach {best.utility_clear:.3f}. "
    ) + " ".join(filter(None, (best.limits, pooled_words(best))))
    if needed is not None:
        which = min((one for one in holding if one.usable_from == needed), key=lambda one: one.epsilon or 0.0)
        return first, f"From {needed} clients on {which.defense} is usable{_simulation(which)}."
    if not largest:
        return first, "Larger cohorts, in which noise costs less, were not simulated."
    return first, f"No cohort of up to {largest} clients that was simulated makes one usable."


def no_model_sentences(first: Setting, measure: str) -> tuple[str, str]:
    """Say that there is no model to protect, where runs in the clear do not exceed the floor of their utility.

    Args:
        first: the setting without a defence, with its floor.
        measure: what the utility measures.
    """
    return (
        floor_sentence(measure, first.utility_clear, Kept(first.floor, first.floor_name, model=False)),
        "So no setting is advised: do not train for this. More rows, more rounds or other settings may give a model "
        "that is worth protecting; then ask again.",
    )


def _what_is_kept(one: Setting | RecordSetting) -> str:
    """Say of what a usable setting keeps its share."""
    return "the utility" if math.isnan(one.floor) else f"what the model adds to its floor of {one.floor:.3f}"


def _kept(one: Setting | RecordSetting) -> str:
    """Say what share of the utility above its floor is kept; empty where no floor is known."""
    if math.isnan(one.share):
        return ""
    low = f" (at least {max(one.share_low, 0.0):.0%})" if math.isfinite(one.share_low) else ""
    return f", {one.share:.0%}{low} of {_what_is_kept(one)}"


def nearest_sentence(advice: Advice) -> str:
    """Say which setting comes nearest and what it leaves, where none is advised; empty otherwise."""
    one = advice.nearest
    if one is None:
        return ""
    said = f"Nearest is {one.defense} with {_sizes(one, advice.tried[0])}: "
    said += f"a leak of up to {one.leak_upper:.2f} is not excluded"
    if not one.detectable <= advice.acceptable:
        said += f", and {_missed(one)}"
    said += f"; its utility is {one.utility:.3f}{_scatter(one)}, {one.utility_clear:.3f} in the clear{_kept(one)}."
    said += " " + " ".join(filter(None, (one.limits, pooled_words(one))))
    larger = [s for s in advice.tried if s.usable_from is not None and s.epsilon is not None]
    if larger and not any(s.holds for s in advice.tried):
        first = min(larger, key=lambda s: (s.usable_from or 0, s.epsilon or 0.0, s.rounds))
        said += (
            f" From {first.usable_from} clients on, noise of epsilon {first.epsilon:g} in {first.rounds} "
            f"round{'s' * (first.rounds != 1)} keeps {advice.keep:.0%} of {_what_is_kept(first)}{_simulation(first)}; "
            "its leak there was not measured."
        )
    return said


def _missed(one: Setting) -> str:
    """Say which leaks the attacks on a setting might have missed."""
    smaller = "of any size" if math.isnan(one.detectable) else f"below {min(one.detectable, 1.0):.2f}"
    return f"the attacks might have missed a leak {smaller}"


def _scatter(one: Setting | RecordSetting) -> str:
    """Say how much the utility of single runs scatters; empty where that is not known."""
    deviation = one.utility_deviation
    return "" if math.isnan(deviation) else f" on average (standard deviation of single runs {deviation:.3f})"


def _simulation(one: Setting) -> str:
    """Say on what the smallest usable cohort of a setting was simulated."""
    found = f" ({one.simulated})" if one.simulated else ""
    return f", in a simulation with rows drawn from yours{found}"


def record_sentence(advice: Advice) -> str:
    """Say what noise that hides single rows of a client costs, and what it hides; or why none was tried."""
    one = advice.record
    if one is not None:
        lost = one.utility_clear - one.utility
        kept = f"{lost:.3f} less than" if round(lost, 3) > 0 else "no less than"
        return (
            "If it is enough to hide each single row (a patient) and not a whole client: use "
            f"{one.algorithm} with epsilon {one.epsilon:g} (delta {one.delta:g}) for a row. Its utility is "
            f"{one.utility:.3f}{_scatter(one)}, {kept} in the clear{_kept(one)}. An attacker who knows all "
            "other rows and sees "
            "every message then tells whether a row was there in at most "
            f"{_of_100(one.guess)} of 100 cases; a coin is right in 50. What a client's rows "
            f"have in common is not hidden.{_repeated(advice)} The table of single rows has the other epsilons."
        )
    if not advice.records:
        return advice.records_note
    best = max(advice.records, key=lambda one: one.utility)
    tried = ", ".join(f"{one.epsilon:g}" for one in advice.records)
    return (
        f"Noise that hides single rows, at epsilon {tried} for a row, does not keep {advice.keep:.0%} of "
        f"{_what_is_kept(best)} either: the best has {best.utility:.3f}, {best.utility_clear:.3f} in the clear. More "
        "rows a client, or fewer rounds and local steps, need less noise."
    )


def _repeated(advice: Advice) -> str:
    """Say that a row is no patient here, where rows repeat others; empty otherwise."""
    if not any(alert.kind == REPEATED for alert in advice.alerts):
        return ""
    return " Rows repeat others here (see the alert): of a patient with k rows about as much is told as at k epsilon."


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
    rows = f"{one.smallest_rows} training row{'s' * (one.smallest_rows != 1)}"
    if isinstance(one, RecordSetting):
        return (
            f"For the smallest client ({rows}) epsilon of a row is the same {one.epsilon:g}, since every local step "
            "uses all rows; its own update is the noisiest."
        )
    promise = f" Epsilon {one.epsilon:g} holds for it as for every client." if one.epsilon is not None else ""
    if not one.smallest_runs or math.isnan(one.smallest_leak):
        return f"No attack applied to the smallest client ({rows}), so that nothing is known of its leak.{promise}"
    times = "1 run" if one.smallest_runs == 1 else f"{one.smallest_runs} runs"
    leak = leak_words(replace(one, leak=one.smallest_leak))[0]
    if leak == FAILED:
        said = f"On the smallest client ({rows}, {times}) the attacks failed, so that nothing is known of its leak."
        return f"{said}{promise}"
    bound = (
        "" if math.isnan(one.smallest_upper) else f", {min(one.smallest_upper, 1.0):.2f} at most with 95 % confidence"
    )
    return f"Of the smallest client ({rows}, {times}) a leak of {leak} was measured{bound}.{promise}"


def pooled_lines(advice: Advice) -> list[str]:
    """Say what settings leave open of all clients together, where no answer says it.

    Of those that hold for one client that is all of it, and of others, whose leak of one client may be small, people.
    """
    said = " ".join(one.words for one in answers(advice))
    found: dict[str, list[str]] = {}
    for one in advice.tried:
        words, mark = (pooled_words(one), "+") if one.holds else (people_words(one), "-")
        if words and words not in said:
            name = f"{one.defense}, {one.rounds} round{'s' * (one.rounds != 1)}"
            found.setdefault(f"{mark} {{}}: {words}", []).append(name)
    return [line.replace("{}", "; ".join(names), 1) for line, names in found.items()]


def _of_100(chance: float) -> int:
    """Round a chance up to whole cases of a hundred."""
    return math.ceil(100 * chance - 1e-9)


def _sizes(one: Setting, asked: Setting, where: str = "") -> str:
    """Say the clients, rows and rounds of a setting, and beside each that differs what the user asked for.

    Args:
        one: the setting.
        asked: the first setting of the search, which has the user's own sizes; a size of 0 is not known.
        where: words after the number of rows that say whose rows these are, such as " at the attacked one".
    """
    sizes = (
        (one.clients, asked.clients, "client", ""),
        (one.rows_per_client, asked.rows_per_client, "row", where),
        (one.rounds, asked.rounds, "round", ""),
    )
    return ", ".join(
        f"{used} {word}{'s' * (used != 1)}{end}{f' in place of your {planned}' if planned not in (used, 0) else ''}"
        for used, planned, word, end in sizes
    )


def _do(advised: Setting, asked: Setting) -> str:
    """Name the advised setting, its leak and its epsilon; `asked` is the setting of the user's own sizes."""
    if math.isnan(advised.leak):
        leak = "no leak measured"
    else:
        leak = f"a leak of {advised.leak:.2f} was measured, {advised.leak_upper:.2f} at most with 95 % confidence"
    sizes = _sizes(advised, asked, " at the attacked one")
    promise = ""
    if advised.epsilon is not None:
        of = "" if advised.delta is None else f" (delta {advised.delta:g})"
        promise = f", and epsilon {advised.epsilon:g}{of} holds against the server"
    said = f"Use {advised.defense} with {sizes}: {leak}{promise}."
    return " ".join(filter(None, (said, advised.limits, pooled_words(advised))))


def _costs(advised: Setting, tried: Sequence[Setting]) -> str:
    """Say what the advised setting costs: utility, bytes beside those of the first setting (no defence), and time."""
    lost = advised.utility_clear - advised.utility
    utility = f"The utility is {advised.utility:.3f}{_scatter(advised)}"
    utility += f", {lost:.3f} less than in the clear" if round(lost, 3) > 0 else ", no less than in the clear"
    utility += _kept(advised)
    plain = tried[0]
    times = f" ({advised.bytes_up / plain.bytes_up:.1f} times)" if plain.bytes_up > 0 else ""
    return (
        f"{utility}; a client sends {advised.bytes_up:,.0f} bytes a round{times}, and a round of all clients takes "
        f"{advised.seconds_per_round:.2g} s in one process."
    )
