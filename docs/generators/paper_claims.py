"""The claims of the papers that the digests list, and the lines of the ledger that measure each of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, measured by lines of the ledger.

    Attributes:
        text: the claim, as the digest prints it.
        experiments: pattern (`fnmatch`) of the names of experiments.
        lines: regular expression that is searched in "WHERE | QUANTITY" of a line.
        why: reason that it was not reproduced; given exactly where a line was not.
    """

    text: str
    experiments: str
    lines: str
    why: str = ""


@dataclass(frozen=True)
class Paper:
    """A paper with its digest.

    Attributes:
        page: name of the page in `docs/papers`, and first part of its experiments' names.
        heading: beginning of its heading on the page of the ledger.
        methods: what the index calls it by.
        claims: rows of the table, in order.
        algorithms: registered names whose leaks the digest shows.
    """

    page: str
    heading: str
    methods: str
    claims: tuple[Claim, ...]
    algorithms: tuple[str, ...]


_ROWS = "Part of the paper's training rows is missing here; on the rows that are here centralised PCA does no better."
_RIVAL = "The paper leaves this rival's start or step size, the rows held out and the weight decay open."
_STOP = "A fixed number of inner steps suits some spectra and not others; the paper does not state its own."
_DRAWS = "The paper is silent on what counts as an edge and on the weights of the graphs that it draws."

FEDPCA = Paper(
    "fedpca",
    "Federated PCA on Grassmann Manifold",
    "FedPG, FedPE",
    (
        Claim("Training loss reaches that of centralised PCA, as a ratio", "fedpca/optimum", r"^Theorem IV\.8"),
        Claim("The same on UNSW-NB15, with the paper's penalty and with a large one", "fedpca/optimum", r"^Fig\. 4"),
        Claim("Detects as well as centralised PCA: difference of the AUC", "fedpca/optimum", r"\|AUC - AUC"),
        Claim("A higher rank does not need to raise the AUC: gain", "fedpca/sweeps", "AUC gained"),
        Claim("AUC stays constant over the number of clients: spread", "fedpca/sweeps", "spread of the AUC"),
        Claim("A round costs less than that of federated networks: ratio of bytes", "fedpca/bytes", "over FedPG"),
        Claim("UNSW-NB15: accuracy of FedPG, %", "fedpca/table1-unsw", r"\| accuracy, FedPG$", _ROWS),
        Claim("UNSW-NB15: AUC of FedPG", "fedpca/table1-unsw", r"\| AUC, FedPG$", _ROWS),
        Claim("TON-IoT: accuracy of FedPG, %", "fedpca/table1-ton", r"\| accuracy, FedPG$", _ROWS),
        Claim("TON-IoT: AUC of FedPG", "fedpca/table1-ton", r"\| AUC, FedPG$", _ROWS),
        Claim(
            "UNSW-NB15: FedPG above clients that learn alone, points of accuracy (judged by the sign alone)",
            "fedpca/table1-unsw",
            "accuracy above self-learning PCA, FedPG",
        ),
    ),
    ("pca/fedpg", "pca/fedpe"),
)

FLAME = Paper(
    "flame",
    "FLAME",
    "FLAME",
    (
        Claim("MNIST, linear model: accuracy of the global model, %", "flame/mlr", "FLAME global model"),
        Claim("MNIST, linear model: accuracy of the personal models, %", "flame/mlr", "FLAME personal model"),
        Claim("MNIST, linear model: rounds to 90 %", "flame/mlr", "FLAME, rounds"),
        Claim(
            "The same with Algorithm 1 as printed: global accuracy, %",
            "flame/anchors",
            r"drawn to w_i\), global",
            "Algorithm 1 draws a client to its own model, the authors' code to the broadcast one: the printed curves "
            "are the code's.",
        ),
        Claim("Rounds of FedADMM to the same accuracy", "flame/mlr-fedadmm", "rounds to 90", _RIVAL),
        Claim("Rounds of pFedMe to the same accuracy", "flame/mlr-pfedme", "rounds to 90", _RIVAL),
        Claim("Rounds of FedAvg to the same accuracy", "flame/mlr-fedavg", "rounds to 90"),
        Claim(
            "Synthetic data, SVM: accuracy of the global model, %",
            "flame/svm",
            "FLAME global model",
            "The clients' rules are drawn, and how well one model serves them all differs by draw; the paper's "
            "draw is not published.",
        ),
        Claim("Stronger attraction, more local passes, smaller penalty: loss ratio", "flame/fig[456]-*", ":"),
        Claim(
            "Biased selection of clients lowers the loss: ratio",
            "flame/fig7-selection",
            "biased",
            "It leads over the first rounds and is passed later: clients with the largest norms come again and again.",
        ),
        Claim(
            "Perceptron: rounds of FedAvg over rounds of FLAME",
            "flame/mlp",
            "FedAvg over FLAME",
            "A part of MNIST takes the place of the paper's data set, with fewer rounds.",
        ),
    ),
    ("personalized/flame",),
)

FAPS = Paper(
    "faps",
    "FAPS",
    "FAPS",
    (
        Claim("Table 1: rounds of FAPS over rounds of SSI", "faps/table1", "FAPS / SSI"),
        Claim("Table 4: rounds of FAPS over rounds of SSI", "faps/table4", r"FAPS \(10 inner steps\) / SSI"),
        Claim(
            "Table 4: rounds of FAPS, many starts",
            "faps/table4",
            "FAPS, 10 inner steps, 30 starts",
            "Some starts need several times the rounds of the median start: this number of inner steps is on an edge.",
        ),
        Claim("Figure 2: FAPS clearly outperforms, ratio of rounds", "faps/figure2", "clearly", _STOP),
        Claim("Figure 4: residual of FAPS over that of its rivals", "faps/figure4", "residual after"),
        Claim(
            "Figure 3: on pictures FAPS always dominates, ratio of rounds",
            "faps/images",
            "always dominates",
            "The weight of the consensus is set by the mean picture, whose eigenvalue is many times the smallest "
            "wanted one; near the solution that makes FAPS slow.",
        ),
        Claim("Figure 1: SSI gives a client's matrix away, rounds until it is known", "faps/figure1", "rounds of SSI"),
    ),
    ("pca/faps", "pca/ssi"),
)

PPGL = Paper(
    "ppgl",
    "PPGL",
    "PPGL",
    (
        Claim(
            "Graphs learned together beat graphs learned alone: gain of F-score", "ppgl/table[12]", "less that of IGL"
        ),
        Claim("Views of objects: the same gain, of mutual information", "ppgl/coil20", "less that of IGL"),
        Claim("The objective never rises: rounds in which it does", "ppgl/fig6", "objective"),
        Claim("Tables I and II: PPGL's F-scores", "ppgl/table[12]", r"F-score, PPGL", _DRAWS),
        Claim("Tables I and II: the rivals' F-scores", "ppgl/table[12]", r"F-score, (?!PPGL)", _DRAWS),
        Claim(
            "Automatic weights of the clients: gain of F-score",
            "ppgl/table3",
            "automatic weights gain",
            "Equal weights, to which they are compared, were given a grid of settings of their own here.",
        ),
        Claim(
            "Brain graphs: edges of other persons over those of persons with autism",
            "ppgl/abide",
            "edges, non-autism over autism",
            "Other data: fewer persons, of two sites, in another atlas of regions.",
        ),
    ),
    ("graph/ppgl",),
)

LOSAC = Paper(
    "losac",
    "LoSAC",
    "LoSAC",
    (
        Claim("Rounds of SCAFFOLD over rounds of LoSAC (ESR, HAR, MNIST)", "losac/table2-*", "rounds of LoSAC \\("),
        Claim("The same where both make steps of one size", "losac/table2-*", "rounds of LoSAC, equal step"),
        Claim(
            "Accuracy of LoSAC (ESR, HAR, MNIST), %",
            "losac/table2-*",
            "after 500 rounds, LoSAC$",
            "On MNIST LoSAC as printed stands at the edge of stability, and one seed falls. The paper does not say how "
            "the signals of ESR are scaled.",
        ),
        Claim("Low-rank regression: rank that LoSAC-Prox recovers", "losac/fig7-*", "rank recovered, LoSAC-Prox, true"),
        Claim("Low-rank regression: SCAFFOLD-Prox does not find it", "losac/fig7-*", "rank recovered, SCAFFOLD-Prox"),
        Claim(
            "Sorted labels cost little: points of accuracy",
            "losac/fig2",
            "label-sorted rows, LoSAC$",
            "The paper says it in words alone; the target that was fixed before the run is a little narrower.",
        ),
        Claim(
            "The attack on gradients fails: distance to the rows after the attack over before",
            "losac/fig6",
            "LoSAC$",
            "The printed attack moves its guess by a few percent whatever was sent, so this figure cannot tell a "
            "protected method from an open one.",
        ),
    ),
    ("optimization/losac",),
)

PAPERS = (FEDPCA, FLAME, FAPS, PPGL, LOSAC)
