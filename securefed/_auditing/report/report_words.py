"""Names and explanations that the report uses for algorithms, defences and secrets.

Readers of the report may know no cryptography: the names are the usual ones of the papers, and `glossary` explains each
word of the pages. All modules of the report, the gate and the terminal take their words from here, and the templates
use the functions that format figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.statistics import INCONCLUSIVE, NOT_DETECTED, PARTIAL_FROM, SIGHTED, reaches_far
from securefed._auditing.report.palette import tone

DEFENSE_TITLES: Final = {
    "plain": "Plain",
    "secure_aggregation": "Secure aggregation",
    "paillier": "Paillier",
    "paillier_threshold": "Paillier, t of N",
    "ckks": "CKKS",
    "quantise": "Fixed point",
    "dp": "DP on secure aggregation",
    "ddp": "Distributed DP",
}
"""By defence, its title in a table."""
WORSE: Final = "worse than a guess"
"""A leakage below 0, in words."""
ATTACKS_FAILED: Final = "attacks failed"
"""Stands in a cell instead of its leakage where the search failed: any figure there would look like a finding."""
COUNTS: Final = (
    "A leak is stated where the interval's lower end is above .05 and above what guessing gives; a high mean with a "
    "wide interval is no finding."
)
"""How a mean leakage becomes a verdict, for the page and the terminal."""
SHORT_DEFENSES: Final = {
    "secure_aggregation": "SecAgg",
    "dp": "DP+SA",
    "ddp": "DDP+SA",
    "paillier_threshold": "Paillier t/N",
}
"""By defence, its title in a narrow column, where the usual one is too long."""
ALGORITHM_TITLES: Final = {
    "ssi": "SSI",
    "localpower": "LocalPower",
    "faps": "FAPS",
    "fedpg": "FedPG",
    "dsgd": "DSGD",
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
    "losac": "LoSAC",
    "losac_prox": "LoSAC-Prox",
    "scaffold_prox": "SCAFFOLD-Prox",
    "fedpe": "FedPE",
    "self": "self-learning PCA",
    "fedsaga": "FedSaga",
    "mimesvrg": "MimeSVRG",
    "fedcm": "FedCM",
    "fedprox": "FedProx",
    "fedadmm": "FedADMM",
    "flame": "FLAME",
    "pfedme": "pFedMe",
    "ditto": "Ditto",
    "ppgl": "PPGL",
    "igl": "IGL",
    "mrmtl": "MRMTL",
    "fedae": "FedAE",
    "fedae-2": "FedAE-2",
    "fedbigan": "FedBiGAN",
    "fedbigan-2": "FedBiGAN-2",
}
FAMILY_TITLES: Final = {"graph": "graphs", "personalized": "personalised"}
SHARED: Final = ("fedavg", "fedprox", "fedadmm", "ditto")
"""Names that occur in several families of algorithms; the family is added to them."""
SECRETS: Final = {
    "gram": (
        "Gram matrix",
        "all second moments of a client's rows (how its columns vary together; of few rows, the rows up to a rotation)",
    ),
    "samples": ("samples", "a client's rows themselves"),
    "labels": ("label counts", "how many rows of each class a client has"),
    "people": (
        "people in the pool",
        "the row or the label of one person, or the mean of two to four, in all clients' data together: of those who "
        "share a rare category",
    ),
    "counts": ("category counts", "how many of a client's rows have each category, and each two of them together"),
    "column means": ("column means", "the mean of each column over a client's rows"),
    "class means": ("class means", "the mean of each column over a client's rows of each class"),
    "statistics": ("batch statistics", "means and variances of a client's rows at the layers of batch normalisation"),
    "tokens": ("tokens", "which tokens occur in a client's rows"),
    "categories": ("categories", "which categories occur in the columns of a client's rows"),
    "data": ("rows, Gram matrix, labels", "a client's rows, their Gram matrix, or how many of them have each label"),
    "personal": ("personal model", "a client's personal model"),
    "distances": ("distances", "the distances between a client's signals (its data up to a rotation)"),
}
"""By kind of secret: its title in a table, and its description in a sentence."""


def short(algorithm: str) -> str:
    """Return an algorithm's usual name."""
    family, _, last = algorithm.rpartition("/")
    last, bracket, rows = last.partition(" (")  # "optimization/dsgd (16 rows)" stands beside "optimization/dsgd"
    title = ALGORITHM_TITLES.get(last, last)
    full = f"{title} ({FAMILY_TITLES[family]})" if last in SHARED and family in FAMILY_TITLES else title
    return full + bracket + rows


def secret_title(secret: str) -> str:
    """Return a secret's title in a table."""
    return SECRETS[secret][0] if secret in SECRETS else secret


def secret_words(secret: str) -> str:
    """Describe a secret in a sentence."""
    return SECRETS[secret][1] if secret in SECRETS else secret


def short_defense(defense: str) -> str:
    """Return a defence's short title, for narrow columns."""
    return SHORT_DEFENSES.get(defense) or DEFENSE_TITLES.get(defense, defense)


def in_sentence(defense: str) -> str:
    """Return a defence's title as it stands within a sentence."""
    title = DEFENSE_TITLES.get(defense, defense)
    return title.lower() if defense == "secure_aggregation" else title


def listed(names: Iterable[str], last: str = "and") -> str:
    """List names in a sentence, each once: "a, b and c"."""
    names = list(dict.fromkeys(names))
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def figure(value: float | None, form: str) -> str:
    """Format a number; empty if it is not known."""
    return "" if value is None or math.isnan(value) else format(value, form)


def arrow(pair: Iterable[float | None], form: str) -> str:
    """Format a figure of two audits: "before → after"; `None` is written as "none"."""
    return " → ".join("none" if value is None else format(value, form) for value in pair)


def times(pair: tuple[float, float]) -> str:
    """Format by what factor a figure of two audits changed; empty if the earlier one is 0."""
    before, after = pair
    return f" (× {after / before:.2f})" if before > 0 else ""


def ranged(values: Iterable[float]) -> str:
    """Format (value, low, high) as a value with the ends of its interval."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*values)


def protection(defense: str) -> str:
    """Return a defence's title, or the name of a noise of the membership part in words."""
    return DEFENSE_TITLES.get(defense, defense.replace("_", " "))


def style(verdict: str) -> str:
    """Return the style class of a verdict."""
    return tone(verdict).name


def leak_text(value: float | None) -> str:
    """Format a leakage: two decimals, in words below 0, empty if it is not known.

    Below 0 the estimate is further from the secret than the guess. How much further says nothing of the data.
    """
    if value is None or math.isnan(value):
        return ""
    return WORSE if round(value, 2) < 0 else f"{round(value, 2) + 0.0:.2f}"


def interval_text(low: float | None, high: float | None) -> str:
    """Format an interval of leakages; what lies below 0 is no better than the guess, so only its upper end counts."""
    if low is None or high is None or math.isnan(low) or math.isnan(high) or round(high, 2) < 0:
        return ""
    return f"up to {leak_text(high)}" if round(low, 2) < 0 else f"{leak_text(low)} to {leak_text(high)}"


def search_failed(cell: Cell) -> bool:
    """Whether a cell is inconclusive since its attack explained the messages of too few runs."""
    return cell.verdict.word == INCONCLUSIVE and cell.runs.explained < SIGHTED


def runs_text(cell: Cell) -> str:
    """Say that the strongest attack did not test a cell, or none did, or on how few runs it rests; else empty."""
    if cell.reach.bound:
        return "by argument, not by an attack"
    if cell.reach.without and cell.verdict.word == INCONCLUSIVE:
        return "not tested by the strongest attack"
    return f"{cell.leakage.seeds} of {cell.runs.asked} runs" if cell.leakage.seeds < cell.runs.asked else ""


def chance_text(cell: Cell) -> str:
    """Say why a leakage above 0 is no finding: what guessing gives, or that its interval is too wide.

    Empty for other verdicts, and where the mean is too small for the question to arise.
    """
    if cell.verdict.word != NOT_DETECTED or cell.leakage.mean < PARTIAL_FROM:
        return ""
    if cell.null_leakage.high > PARTIAL_FROM:
        return f"guessing gives up to {leak_text(cell.null_leakage.high)}"
    # of few runs the verdict rests on a wider interval than the one that is shown
    widened = f", with the interval widened for {cell.leakage.seeds} runs" if cell.leakage.low > PARTIAL_FROM else ""
    return f"not clear of {PARTIAL_FROM:g}{widened}"


@cache
def glossary() -> Mapping[str, str]:
    """Read what each word of the pages means, in the order of the page."""
    text = (files("securefed._auditing.report") / "glossary.tsv").read_text(encoding="utf-8")
    lines = [line.partition("\t") for line in text.splitlines() if not line.startswith("#")]
    return {word: meaning for word, _, meaning in lines}


def why_inconclusive(cell: Cell) -> str:
    """Say why a cell is inconclusive."""
    if cell.reach.without:
        return f"it was not tested by the strongest attack, {cell.reach.without}, which did not run"
    if (
        not cell.runs.explained < SIGHTED
        and cell.verdict.detectable < 1
        and reaches_far(cell.leakage, cell.null_leakage)
    ):
        return "the interval of the results reaches far beyond chance, so that their silence says nothing"
    if not cell.runs.explained < SIGHTED:
        return "the results, or those of chance, scatter so much that no leak would have been noticed"
    where = "" if cell.runs.explained == 0 else f" in {1 - cell.runs.explained:.0%} of the runs"
    return f"the attack did not fit the messages{where}, with a residual of {cell.figure('residual'):.1g}"
