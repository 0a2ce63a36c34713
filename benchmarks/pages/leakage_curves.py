"""Points of the leakage curves: the algorithms, their usual setting, and what each curve varies of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from securefed._auditing.cases import Preparation
from securefed._auditing.cases.data_splits import SMALL_CLIENT, even_shares, one_small, rows_each, standardised
from securefed.attacks import _distances as distances
from securefed.attacks import views
from securefed.attacks._base import Attack
from securefed.attacks._duals import FedPGDuals, JointDuals, PooledDuals
from securefed.attacks._gradient_inversion import SampleFit
from securefed.attacks._gradient_inversion.multistart_search import MultiStartSearch
from securefed.attacks._gram import ConsensusGram, PowerGram

SUBSPACES, SAMPLES = "subspace methods", "gradients and graphs"
DATA = "digits"
CLIENTS = 8
HAR: Final = "uci_har"
RACE = MultiStartSearch(budget=600)
"""Four times the audit's search: two classes need it."""
FIT = SampleFit(search=RACE)


@dataclass(frozen=True)
class Subject:
    """An algorithm in its usual setting; the hyper-parameters that are not named here are those of the audit's case.

    Attributes:
        group: the panel it is drawn in.      algorithm: its name.
        attacks: on one client's messages.      on_sums: on sums over clients.
        prepare: (rows of the target, `None` for an even share) -> the split.
        rows, features, rank, learning_rate, rounds: the usual ones; `None`: even shares, all features, as in the case.
    """

    group: str
    algorithm: str
    attacks: tuple[Attack, ...]
    on_sums: tuple[Attack, ...]
    prepare: Callable[[int | None], Preparation]
    rows: int | None
    rounds: int
    features: int | None = None
    rank: int | None = None
    learning_rate: float | None = None


def _raw(rows: int | None) -> Preparation:
    return even_shares if rows is None else one_small(rows)


def _z_scored(rows: int | None) -> Preparation:
    return standardised(None, rows)


def _labelled(rows: int | None) -> Preparation:
    return rows_each(rows or 1)


def _subspace(name: str, attack: Attack, rows: int | None) -> Subject:
    return Subject(SUBSPACES, f"pca/{name}", (attack,), (attack,), _raw, rows, rounds=10, rank=5)


def _gradients(name: str, rate: float, attack: Attack = FIT) -> Subject:
    return Subject(SAMPLES, name, (attack,), (FIT,), _labelled, rows=4, rounds=8, learning_rate=rate)


_DUALS, _DISTANCES = FedPGDuals(), distances.DistanceFit()
_FEDPG_SUMS = PooledDuals(), JointDuals()
SUBJECTS: Mapping[str, Subject] = {
    "SSI": _subspace("ssi", PowerGram(), SMALL_CLIENT),
    "SSI, even shares": _subspace("ssi", PowerGram(), None),
    "LocalPower, even shares": _subspace("localpower", PowerGram(), None),
    "FAPS": _subspace("faps", ConsensusGram(), SMALL_CLIENT),
    "FedPG": Subject(SUBSPACES, "pca/fedpg", (_DUALS,), _FEDPG_SUMS, _z_scored, None, 13, features=20, rank=3),
    "DSGD": _gradients("optimization/dsgd", 0.1),
    "FedAvg": _gradients("optimization/fedavg", 0.05),
    "SCAFFOLD": _gradients("optimization/scaffold", 0.05),
    "LoSAC": _gradients("optimization/losac", 0.02),
    "FLAME": _gradients("personalized/flame", 0.01),
    "PPGL": Subject(SAMPLES, "graph/ppgl", (_DISTANCES,), (_DISTANCES,), _z_scored, None, 6, features=8),
}


@dataclass(frozen=True)
class Point:
    """One setting, to be measured with every seed.

    Attributes:
        curve, subject, value: where it belongs.
        data: name of the set.      features: columns of highest variance, `None` for all.
        rows: of the target (of every client where rows are z-scored or labelled), `None` for an even share.
        rank: of subspace methods.      learning_rate: of the others.      clients: N.      rounds: run and seen.
        view: what is attacked.      wire: what numbers travel as, by its name in `WIRES`.
    """

    curve: str
    subject: str
    value: float | str
    data: str
    features: int | None
    rows: int | None
    rank: int | None
    learning_rate: float | None
    clients: int
    rounds: int
    view: str = views.SERVER_VIEW
    wire: str = "float64"

    @property
    def name(self) -> str:
        """Unique among all points."""
        return f"{self.curve}/{self.subject}/{self.value}"

    @property
    def attacks(self) -> tuple[Attack, ...]:
        """Tried on this view."""
        subject = SUBJECTS[self.subject]
        return subject.on_sums if self.view == views.SUM_ONLY else subject.attacks


def asked(point: Point) -> dict[str, Any]:
    """What a result depends on, as it is kept beside it."""
    return {"point": asdict(point), "attacks": [str(attack) for attack in point.attacks]}


def is_current(point: Point, stored: Mapping[str, Any]) -> bool:
    """Whether a point was measured in its present setting by its present attacks."""
    return asked(point).items() <= stored.get(point.name, {}).items()


@dataclass(frozen=True)
class Curve:
    """Leakage against one quantity.

    Attributes:
        name: of the curve, and of its figure.      title, axis: for the page.
        varied: the field of `Point` that takes the values.      values: in order.
        subjects: those measured.      fixed: fields that differ from the usual setting, for all subjects.
        own: likewise for single subjects.      left_out: (subject, value) pairs that have no meaning.
        setting: what is fixed, in words.      reading: what the measured curve says.
        pooled: draw the federation's secret in the lower panels, instead of errors.
        table: `leakage`, or `error` where leakage is 1 all along.
    """

    name: str
    title: str
    axis: str
    varied: str
    values: tuple[float | str, ...]
    subjects: tuple[str, ...]
    setting: str
    reading: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: tuple[tuple[str, float | str], ...] = ()
    pooled: bool = False
    table: Literal["leakage", "error"] = "leakage"

    def points(self) -> Iterator[Point]:
        """Value by value, so that a curve that is cut short has all subjects."""
        for value in self.values:
            for name in self.subjects:
                if (name, value) not in self.left_out:
                    yield self._point(name, value)

    def _point(self, name: str, value: float | str) -> Point:
        subject = SUBJECTS[name]
        usual = {"data": DATA, "clients": CLIENTS}
        usual |= {part: getattr(subject, part) for part in ("features", "rows", "rank", "learning_rate", "rounds")}
        return Point(self.name, name, value, **(usual | self.fixed | self.own.get(name, {}) | {self.varied: value}))


LESSONS: tuple[str, ...] = (
    "Directions seen against directions there are: a Gram matrix falls once rounds x rank reach the rank of the data, "
    "which a client of few rows bounds. Width, clients and data set matter only through that.",
    "Equations against unknowns: rows behind softmax fall with ten classes, and with two on most seeds.",
    "Local steps that overshoot hinder the search, and so do the limits of the attacks: neither protects.",
    "In the clear the number of clients does not matter; sums hide the client where messages are linear in its secret.",
)
"""What the curves say together, for the head of the page."""
_NO_SPREAD = (("FedPG", 1), ("PPGL", 1))
_SAMPLES = ("FedAvg", "LoSAC", "FLAME")
CURVES: tuple[Curve, ...] = (
    Curve(
        "data",
        "Data sets",
        "data set",
        "data",
        ("digits", "breast_cancer", "unsw_nb15", HAR),
        tuple(SUBJECTS),
        "digits: 64 columns, 10 classes; breast cancer: 30, 2; UNSW-NB15: 39, 2 (logarithm, then unit range); "
        "HAR: 561, 6. FedPG takes the 20 columns of highest variance, PPGL 8.",
        "Shape alone protects nobody: SSI, FedPG and PPGL are exact on all four sets. Where rows behind softmax are"
        " missed, the search fails, not the information: with two classes a round gives few equations for a row, "
        "the Jacobian's condition is 1e5 and more, and some fits end in wrong minima, as residuals say. FAPS is "
        "fitted in the few directions that eight rows and three messages span, 23 whatever the set; where every start "
        "fails, what is seen near consensus among matrices of that rank stands.",
    ),
    Curve(
        "features",
        "Number of features",
        "features n",
        "features",
        (20, 50, 100, 150, 200),
        ("SSI", "SSI, even shares", "FAPS", "FedPG", "FedAvg", "LoSAC", "FLAME", "PPGL"),
        "The n columns of highest variance of HAR.",
        "Rows behind softmax do not get safer with width: they are searched in their own span. SSI with few rows "
        "neither. Where rows outnumber the directions seen, what counts is rounds x rank over n: even shares and "
        "FedPG lose slowly. PPGL at 20: the messages tell 158 distances exactly and 18 sums of "
        "the other 32, which are completed. Beyond 35 columns the attack refuses: its search fails there, and that is "
        "no protection.",
        fixed={"data": HAR},
        left_out=(("FAPS", 150),),
    ),
    Curve(
        "rank",
        "Rank",
        "rank p",
        "rank",
        (2, 3, 5, 8, 10),
        ("SSI", "SSI, even shares", "LocalPower, even shares", "FAPS", "FedPG"),
        "Digits.",
        "A larger rank shows more of the matrix in every round: ten rounds of rank 8 span the 64 columns, and even "
        "shares fall whole. FedPG's 13 rounds show 26 directions of 20 columns at rank 2; with the unit diagonal of "
        "z-scored columns, which shows in the messages, that is enough.",
    ),
    Curve(
        "clients",
        "Number of clients, messages in the clear",
        "clients N",
        "clients",
        (2, 10, 50),
        ("SSI, even shares", "FAPS", "FedPG", "FedAvg", "LoSAC", "FLAME", "PPGL"),
        "Digits; even shares shrink as N grows, the other targets hold what they hold.",
        "In the clear N does not matter. Even shares leak more as they shrink: a client of 29 rows has a matrix of "
        "rank 29.",
    ),
    Curve(
        "sum",
        "Number of clients, only sums seen",
        "clients N",
        "clients",
        (2, 5, 10, 20, 50),
        ("SSI, even shares", "LocalPower, even shares", "FAPS", "FedPG", "FedAvg", "LoSAC", "FLAME", "PPGL"),
        "Digits, one row for every client of the gradient methods; what secure aggregation leaves.",
        "Sums of SSI and LocalPower hide the client, down to the pooled matrix that the baseline knows already, and"
        " give that matrix away; FedPG's give .65 of it away at two clients and .43 at fifty, since the mean of its "
        "clients is nearly a client; of a single one that tells less than the baseline knows. Rows behind softmax are "
        "not hidden by the sum: up to ten clients they are found exactly, of twenty on four seeds of five.",
        fixed={"view": views.SUM_ONLY},
        own={name: {"rows": 1} for name in _SAMPLES},
        pooled=True,
    ),
    Curve(
        "rows",
        "Rows of the client",
        "rows n_i",
        "rows",
        (1, 2, 4, 8, 16, 32),
        ("SSI", "FAPS", "FedPG", *_SAMPLES, "PPGL"),
        "Digits.",
        "FedPG and PPGL do not depend on the rows, and up to 32 of them SSI does not in ten rounds either. Rows "
        "behind softmax are exact up to 16; above 25 (640 unknowns) nothing is fitted: that is a limit of the "
        "attack, not of the leak.",
        left_out=_NO_SPREAD,
    ),
    Curve(
        "rounds",
        "Rounds seen",
        "rounds",
        "rounds",
        (1, 2, 3, 5, 8, 13, 20, 40),
        ("SSI", "SSI, even shares", "LocalPower, even shares", "FAPS", "FedPG", "FedAvg", "LoSAC", "FLAME", "PPGL"),
        "Digits; 8 rows for every client of the gradient methods.",
        "One round of PPGL is all. SSI on 8 rows falls with the second round, on even shares with the number of "
        "directions seen; FedPG with the fifth, which shows that the diagonal is that of z-scored columns. With two or "
        "three rounds its equations are fewer than its unknowns: the estimate of least trace has an error of .3 to .5, "
        "and the baseline, the pooled matrix, which a client's own messages do not hold, one of .2. The same is true "
        "of SSI's even shares after one. With two rounds softmax rows are as good as with many. Later rounds of SSI "
        "add little: the iteration converges.",
        own={name: {"rows": 8} for name in _SAMPLES},
        left_out=(("FLAME", 13), ("FLAME", 20), ("FLAME", 40)),
    ),
    Curve(
        "step",
        "Learning rate",
        "learning rate",
        "learning_rate",
        (0.01, 0.03, 0.1, 0.3, 1.0),
        ("DSGD", "FedAvg", "SCAFFOLD", "LoSAC", "FLAME"),
        "Digits, 4 rows. The mean square norm of a row is 15. FLAME refuses a rate at which its local steps diverge.",
        "Neither small steps help the client nor large ones. Where local steps overshoot, the bias no longer counts "
        "the rows of each class; all counts of the classes that it shows are tried.",
        left_out=(("FLAME", 1.0),),
    ),
    Curve(
        "wire",
        "Precision of the messages",
        "messages in",
        "wire",
        ("float64", "float32", "fixed point", "float16"),
        tuple(SUBJECTS),
        "Digits. Messages rounded to 24 or 11 bits, or sent as the 32-bit integers of secure aggregation; clients "
        "compute in float64.",
        "Rounding to float32 leaves rows, distances and second moments of few rows exact to 1e-5. Even shares, whose "
        "rank nothing bounds, lose the directions that rounding hides and no others, 17 to 19 of 50 to float32 and 28 "
        "to 30 to float16: the leakage goes from .97 to .91 and .74 (LocalPower: .92, .82 and .50). FedPG's gradients, "
        "differences of messages over a step of .01, lose two digits more: float32 leaves .62 to .80, and float16 "
        "nothing that opens. The 32-bit integers of secure aggregation cost nothing. FAPS' few directions show "
        "in exact messages alone: at full width its fit takes 20 to 60 s, where it ends (float32: 4e-7, first seed).",
        table="error",
    ),
)
