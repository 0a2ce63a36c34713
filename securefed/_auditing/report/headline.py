"""Conclude an audit in a short text for each kind of message: in the clear, sums, and two kinds of noised sums.

The texts stand below the page's first screen. A cell is one attack on one secret in one view (what an attacker sees),
over all runs. A cell's owner says whose data it is about: `CLIENT` one client's, `FEDERATION` all clients' together,
`RECORD` whether a given row was in the data. A situation is an algorithm, a defence, a view and an owner; of the
attacks tried on it, `strongest(cells, by_owner=True)` keeps the one cell that found most, with the situation as its
key. The views in `ALONE` are those of a server that no client helps, `RELEASED` is that of parties who get the noised
sums.

A cell's verdict is one of four words: `EXPOSED` (data computed to nine tenths or better) and `PARTIAL` (a part of them)
are `FOUND`; else no leak was detected, or it is `INCONCLUSIVE`, since the attack failed or its results scatter. Of
inconclusive attacks on records the texts say nothing unless nothing else was attacked: the tables below show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from securefed._auditing.engine.audit_report import AUDIT, Report, rows_cut
from securefed._auditing.engine.results import CLIENT, FEDERATION, RECORD, Cell
from securefed._auditing.engine.statistics import EXPOSED, FOUND, INCONCLUSIVE, PARTIAL, SIGHTED
from securefed._auditing.registered.attacker import CHANGING_SURVIVORS
from securefed._auditing.report.conclusions import ALL_CLIENTS, ALONE, ONE_CLIENT, strongest
from securefed._auditing.report.decision import lied_in_the_clear
from securefed._auditing.report.report_words import short
from securefed.attacks.views import RELEASED


def headline(report: Report) -> list[str]:
    """Conclude, for a reader who stops there.

    Returns:
        At most four texts of a sentence or a few: messages in the clear, sums, sums in which every client's message has
        its share of noise (`ddp`), and sums to which the server adds noise (`dp`). Of the last three those that were
        attacked. Each begins with "With clients cut to their first 20 rows (yours hold 600): " or the like if
        clients were cut for lack of time (`rows_cut`).
    """
    # "confirmation" is left out: an attacker who guesses all data can confirm it from any message without noise
    cells = [c for c in report.cells if c.owner in (CLIENT, FEDERATION, RECORD)]
    clear = [c for c in cells if (c.view, c.defense, c.owner) == ("server", "plain", CLIENT)]
    # of one view, one defence and one owner, so that one cell is left for each algorithm
    first = _in_the_clear(list(strongest(clear, by_owner=True).values()))
    texts = [f"{first} {lied_in_the_clear(report)}".strip()]
    level = report.settings[AUDIT]["acceptable"]
    defended = [c for c in cells if c.defense == "secure_aggregation" and c.view in ALONE]
    if defended:
        texts.append(f"Under secure aggregation the server sees only sums, {_sums(defended, level)}")
    shares = [c for c in cells if c.defense == "ddp" and c.view in ALONE]
    if shares:
        texts.append(
            f"Where every client adds its share of noise, the server sees only noised sums, {_sums(shares, level)}"
        )
    if noised := _noised([c for c in cells if c.defense == "dp"], level):
        texts.append(noised)
    cut = rows_cut(report.settings[AUDIT])
    return [f"With {cut}: {text[0].lower()}{text[1:]}" for text in texts] if cut else texts


def _in_the_clear(cells: Sequence[Cell]) -> str:
    """Say what messages in the clear give away; the strongest cell of each algorithm."""
    if not cells:
        return "Messages in the clear were not attacked."
    if len(cells) == 1:
        return _alone(cells[0])
    exposed, part, failed = (_names(cells, word) for word in (EXPOSED, PARTIAL, INCONCLUSIVE))
    where = _in(exposed, len(cells))
    if len(exposed) < len(cells) or len(cells) == 2:  # else `where` is "all N algorithms"
        where = f"{len(exposed)} of {len(cells)} algorithms" + (f" ({where})" if exposed else "")
    text = f"In the clear, the server can compute a client's data in {where}"
    text += f", and a part of it in {len(part)} more ({', '.join(part)})" if part else ""
    return text + (f". Of {', '.join(failed)} nothing is known: the attacks {_failure(cells)}." if failed else ".")


def _alone(cell: Cell) -> str:
    """Say what messages in the clear give away, in a report on one algorithm."""
    name = short(cell.algorithm)
    if cell.verdict.word == INCONCLUSIVE:
        return f"Whether {name} in the clear gives a client's data away is not known: the attacks {_failure([cell])}."
    if cell.verdict.word not in FOUND:
        return f"No attack here learnt a client's data from {name} in the clear."
    what = "a part of a client's data" if cell.verdict.word == PARTIAL else "a client's data"
    return f"In the clear, the server can compute {what} in {name}."


def _noised(cells: Sequence[Cell], level: float) -> str:
    """Say what differential privacy leaves open: the server sees sums before the noise, all others after it."""
    server, others = ([cell for cell in cells if cell.view in views] for views in (ALONE, (RELEASED,)))
    sentences = []
    if server:
        sentences.append(
            "Differential privacy adds noise to what the server hands on: the server itself sees sums without it, "
            f"{_sums(server, level)}"
        )
    if others:
        missing = [name for name in _names(server) if name not in _names(others)]
        verb = "was" if len(missing) == 1 else "were"
        unseen = f" {', '.join(missing)} {verb} not attacked there." if missing else ""
        sentences.append(f"All others see sums with the noise, {_sums(others, level)}{unseen}")
    return " ".join(sentences)


def _sums(cells: Iterable[Cell], level: float) -> str:
    """Say what sums tell an observer who sees nothing else, by the strongest attack of each situation.

    The clause completes a sentence that ends in "sums,": what was found of clients, then of records, then of which
    clients nothing is known because the attacks failed. An algorithm can be named twice, for a set of clients that
    stays and for one that changes (`CHANGING_SURVIVORS`): these are two views, hence two situations.

    Args:
        cells: at least one, of one defence, with the owners `CLIENT`, `FEDERATION` or `RECORD`.
        level: leakage that is accepted.
    """
    situations = strongest(cells, by_owner=True).values()
    best = [cell for cell in situations if cell.owner in (CLIENT, FEDERATION)]
    found = [cell for cell in best if cell.verdict.word in FOUND]
    records = [cell for cell in situations if cell.owner == RECORD]
    members = [cell for cell in records if cell.verdict.word in FOUND]
    groups = (
        (ONE_CLIENT, [c for c in found if c.owner == CLIENT and c.view != CHANGING_SURVIVORS]),
        (ALL_CLIENTS, [c for c in found if c.owner == FEDERATION]),
        (f"where clients come and go, {ONE_CLIENT}", [c for c in found if c.view == CHANGING_SURVIVORS]),
    )
    parts = [f"{what} in {_in(_names(group), len(_names(best)))}" for what, group in groups if group]
    known = _names(cell for cell in found if cell.owner == CLIENT)
    unfound = [cell for cell in best if cell.owner == CLIENT and short(cell.algorithm) not in known]
    failed = _names(unfound, INCONCLUSIVE)
    hidden = f" Whether {ONE_CLIENT} are hidden in {', '.join(failed)} is open: attacks {_failure(unfound)}."
    much = "all or part of" if any(cell.leakage.high > level for cell in found) else "no more than the accepted leak of"
    clauses = [f"which still give away {much} {'; '.join(parts)}"] if parts else []
    if members:
        where = _in(_names(members), len(_names(records)))
        clauses.append(f"from which an attacker can tell, not always rightly, which rows were in the data of {where}")
    clause = ", and ".join(clauses)
    if not clauses:
        judged = best or records  # what attacks on the data found counts first
        all_failed = all(cell.verdict.word == INCONCLUSIVE for cell in judged)
        where = " where the attacks worked" if failed else ""
        quiet = f"in which no leak was detected{where}"
        clause = f"and the attacks on them {_failure(judged)}" if all_failed else quiet
    return f"{clause}.{hidden if failed else ''}"


def _failure(cells: Iterable[Cell]) -> str:
    """Say why the inconclusive ones among some cells are that.

    `explained` is the share of a cell's runs whose messages its estimate explains, NaN where the attack cannot tell;
    below `SIGHTED` the search failed.
    """
    failed = all(cell.explained < SIGHTED for cell in cells if cell.verdict.word == INCONCLUSIVE)
    return "failed" if failed else "failed or scatter too much to tell"


def _in(names: Sequence[str], of: int) -> str:
    """List algorithms by name, or as all of several."""
    return f"all {of} algorithms" if len(names) == of > 2 else ", ".join(names)


def _names(cells: Iterable[Cell], word: str = "") -> list[str]:
    """List the algorithms of cells, or of the cells with one verdict."""
    return list(dict.fromkeys(short(cell.algorithm) for cell in cells if word in ("", cell.verdict.word)))
