"""Every figure and table of the five papers, part by part: the lines that measure it, or the reason that none does."""

from __future__ import annotations

from dataclasses import dataclass

MEASURED, UNAVAILABLE, OUTSIDE, OPEN = "measured", "not to be had", "out of scope", "not measured yet"


@dataclass(frozen=True)
class Part:
    """A part of a figure or table.

    Attributes:
        place: as the paper numbers it, "Fig. 2"; with its panels, "Fig. 2(a)" or "Fig. 2(a-c)".
        shows: what this part shows.
        otherwise: what is said where no line measures it; `OPEN` is what can be measured and was not yet.
        why: reason; of a measured part, how far it is the paper's.
        experiments: pattern (`fnmatch`) of the experiments that measure it, "" where none does.
        lines: regular expression that is searched in "WHERE | QUANTITY" of their lines and in the names of their plots.
    """

    place: str
    shows: str
    otherwise: str
    why: str = ""
    experiments: str = ""
    lines: str = ""


def _measured(place: str, shows: str, experiments: str, lines: str, why: str = "") -> Part:
    return Part(place, shows, OPEN, why, experiments, lines)


CAPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    # by paper and place: the letters of its panels, and the beginning of its caption
    "faps": {
        "Fig. 1": ("ab", "Numerical examples of data leakage in the case of SSI"),
        "Fig. 2": ("abcd", "Comparison of SSI, LocalPower, and FAPS on synthetic data"),
        "Fig. 3": ("ab", "Comparison of SSI, LocalPower, and FAPS on four image data sets"),
        "Fig. 4": ("abc", "Comparison of empirical convergence rates"),
        "Table 1": ("", "Comparison of SSI and FAPS on a small example"),
        "Table 2": ("", "Average errors of SSI, LocalPower and FAPS on synthetic data"),
        "Table 3": ("", "Average errors of SSI, LocalPower and FAPS on four image data sets"),
        "Table 4": ("", "Comparison of SSI, LocalPower, and FAPS on unevenly distributed data"),
    },
    "fedpca": {
        "Fig. 1": ("", "Overview of a host-based IoT anomaly detection system utilizing Federated PCA"),
        "Fig. 2": ("", "Illustration of movement on a Grassmann manifold"),
        "Fig. 3": ("ab", "Class distribution of test sets for UNSW-NB15 and TON-IoT"),
        "Fig. 4": ("abcd", "Effects of rho on the performance of FedPG and Training loss over global iterations"),
        "Fig. 5": ("abcd", "Effects of rank-k on the performance of FedPE and FedPG"),
        "Fig. 6": ("abcd", "Test accuracy and training time over global iterations of FedPE and FedPG"),
        "Fig. 7": ("ab", "Effects of number of clients on training time and performance of FedPE and FedPG"),
        "Fig. 8": ("abcd", "Receiver Operating Characteristic (ROC) curve and Precision-Recall curve"),
        "Fig. 9": ("abcd", "Visualization of UNSW-NB15 traffic after reconstruction using different methods"),
        "Fig. 10": ("", "The size of model exchanged in each communication round"),
        "Fig. 11": ("", "The memory consumption and inference time of all methods"),
        "Table I": ("", "Performance of network anomaly detection tasks on UNSW-NB15 and TON-IoT datasets"),
    },
    "flame": {
        "Fig. 1": ("abcd", "Four skew patterns"),
        "Fig. 2": ("", "An example of FLAME"),
        "Fig. 3": ("", "A comparison of the training loss and test accuracy across different methods"),
        "Fig. 4": ("", "Effect of the regularization parameter lambda on the convergence of FLAME"),
        "Fig. 5": ("", "Effect of the local iterations H on the convergence of FLAME"),
        "Fig. 6": ("", "Effect of the penalty parameter rho on the convergence of FLAME"),
        "Fig. 7": ("", "Effect of the biased client selection strategy on the convergence of FLAME"),
        "Table I": ("", "An overview of the datasets and models"),
        "Table II": ("", "A comparison of accuracy among different approaches with 50 and 100 clients"),
        "Table III": ("", "Comparison of communication rounds among different methods"),
    },
    "ppgl": {
        "Fig. 1": ("", "The illustration of the target scenario"),
        "Fig. 2": ("ab", "The results of varying data sizes of different clients"),
        "Fig. 3": ("abcdefg", "The graphs of C_1 learned by different methods when N_i = 100, q = 0.5"),
        "Fig. 4": ("", "The learned gamma of different clients"),
        "Fig. 5": ("ab", "The results of parameter sensitivity"),
        "Fig. 6": ("ab", "The convergence of the proposed algorithm"),
        "Fig. 7": ("abcd", "The figure depicts the communities in the learned graphs"),
        "Fig. 8": ("abcdef", "The figure depicts our learned graphs from three views"),
        "Table I": ("", "Performance of varying data sizes"),
        "Table II": ("", "Performance of varying data heterogeneity"),
        "Table III": ("", "The results of removing adaptive weight schema"),
        "Table IV": ("", "The community detection results of graphs learned by different methods"),
        "Table V": ("", "Comparison between the graphs learned from the autism and non-autism groups"),
    },
    "losac": {
        "Fig. 1": ("", "Illustration of local updates in LoSAC"),
        "Fig. 2": ("", "The performance evaluations of all algorithms with different data heterogeneity parameter c%"),
        "Fig. 3": ("", "The performance evaluations with different client numbers using real dataset MNIST"),
        "Fig. 4": ("", "The performance evaluations with different local steps using real dataset MNIST"),
        "Fig. 5": ("", "The performance evaluations with different client number S and local iteration number T"),
        "Fig. 6": ("", "The performance evaluations on the defense against DLG"),
        "Fig. 7": ("", "The performance evaluations on the low rank matrix estimation problem"),
        "Table 1": ("", "Summary of major federated optimization algorithms"),
        "Table 2": ("", "Ablation study: measured by the communication rounds for LoSAC and SCAFFOLD"),
    },
}

_DRAWING = "A drawing that explains; nothing was run for it."
_UNBUILT = "No experiment was built for it yet."
_SECONDS = (
    "Seconds of one machine. Ratios of seconds were not measured yet: the runs here live in the leading directions of "
    "the matrices alone, whose seconds say nothing about the paper's."
)
_POINT = "One of the four points of the group, in the matrix' leading directions."
_TON = "The TON-IoT here has 22 features; ports are lacking. " + _UNBUILT
_RATIO = "As the ratio of FedPG to FedPE in seconds of one processor."
_SETS = "Fashion-MNIST and Medical MNIST are not at hand; parts of MNIST stand in where the ledger says so."

FAPS = (
    _measured(
        "Fig. 1(a)", "reconstruction of a client's matrix beside SSI's convergence", "faps/figure1", r"^Fig\. 1\(a\)"
    ),
    Part("Fig. 1(b)", "rounds to the reconstruction, n = 1000 to 5000", OPEN, _UNBUILT),
    _measured("Fig. 2(a)", "rounds, n = 2000", "faps/table1", r"\| rounds", "It is the setting of Table 1."),
    Part("Fig. 2(a)", "rounds, n = 3000, 4000, 5000", OPEN, _UNBUILT),
    _measured("Fig. 2(b)", "rounds, m = 160000", "faps/figure2", r"^Fig\. 2\(b\)", _POINT),
    _measured("Fig. 2(c)", "rounds, p = 10", "faps/figure2", r"^Fig\. 2\(c\)", _POINT),
    _measured("Fig. 2(d)", "rounds, xi = 1.1", "faps/figure2", r"^Fig\. 2\(d\)", _POINT),
    Part("Fig. 2(b-d)", "rounds at the other three points of each group", OPEN, _UNBUILT),
    Part("Fig. 2(a-d)", "wall time", OPEN, _SECONDS),
    _measured("Fig. 3(a)", "rounds on MNIST", "faps/images", r"^Fig\. 3"),
    Part("Fig. 3(a)", "rounds on Fashion-MNIST, CIFAR-10, CIFAR-100", UNAVAILABLE, "The data are not at hand."),
    Part("Fig. 3(b)", "wall time", OPEN, _SECONDS),
    _measured("Fig. 4(a-c)", "residual by round", "faps/figure4", r"^Fig\. 4", "At half the paper's size."),
    _measured("Table 1", "rounds and relative errors", "faps/table1", r"^Table 1"),
    Part("Table 2", "errors, varying n", OPEN, _UNBUILT),
    _measured(
        "Table 2", "errors, varying m, p and xi", "faps/figure2", r"^Table 2", "One of four points of each group."
    ),
    _measured("Table 3", "errors on MNIST", "faps/images", r"^Table 3", "The paper prints means over four sets."),
    Part("Table 3", "errors on the other three sets", UNAVAILABLE, "The data are not at hand."),
    _measured("Table 4", "rounds and errors", "faps/table4", r"^Table 4"),
    Part("Table 4", "wall time", OPEN, _SECONDS),
)

FEDPCA = (
    Part("Fig. 1", "the system", OUTSIDE, _DRAWING),
    Part("Fig. 2", "a step on the manifold", OUTSIDE, _DRAWING),
    Part("Fig. 3(a,b)", "attacks in the test sets", UNAVAILABLE, "The paper's test sets are not here in full."),
    _measured("Fig. 4(a)", "rho and detection, UNSW-NB15", "fedpca/rho-unsw", r"^Fig\. 4\(a,b\)"),
    _measured("Fig. 4(b)", "rho and detection, TON-IoT", "fedpca/rho-ton", r"^Fig\. 4\(a,b\)", "On 22 features."),
    _measured("Fig. 4(c)", "training loss by round, UNSW-NB15", "fedpca/optimum", r"^Fig\. 4, UNSW"),
    _measured("Fig. 4(d)", "training loss by round, TON-IoT", "fedpca/rounds-ton", r"^Fig\. 4", "On 22 features."),
    _measured("Fig. 5(a,c)", "rank, UNSW-NB15: detection and loss", "fedpca/sweeps", r"^Fig\. 5"),
    Part("Fig. 5(b,d)", "rank, TON-IoT: detection and loss", OPEN, _TON),
    _measured("Fig. 6(a)", "accuracy by round, UNSW-NB15", "fedpca/rounds-unsw", r"^Fig\. 6"),
    _measured("Fig. 6(c)", "accuracy by round, TON-IoT", "fedpca/rounds-ton", r"^Fig\. 6", "On 22 features."),
    _measured("Fig. 6(b,d)", "training time", "fedpca/time", r"^Figs\. 6 and 7", _RATIO),
    _measured(
        "Fig. 7(a,b)", "number of clients and AUC, UNSW-NB15", "fedpca/sweeps", r"^Fig\. 7", "The paper shows accuracy."
    ),
    Part("Fig. 7(a,b)", "number of clients and AUC, TON-IoT", OPEN, _TON),
    _measured("Fig. 7(a,b)", "training time", "fedpca/time", r"^Figs\. 6 and 7", _RATIO),
    _measured("Fig. 8(a,c)", "areas below ROC and precision-recall, UNSW-NB15", "fedpca/table1-unsw", r"^Fig\. 8"),
    _measured(
        "Fig. 8(b,d)",
        "areas below ROC and precision-recall, TON-IoT",
        "fedpca/table1-ton",
        r"^Fig\. 8",
        "On 22 features.",
    ),
    Part(
        "Fig. 9(a-d)",
        "reconstructed traffic in three features",
        OPEN,
        "A picture without figures; ours is not drawn yet.",
    ),
    _measured("Fig. 10", "bytes a round, UNSW-NB15", "fedpca/bytes", r"^Fig\. 10"),
    _measured("Fig. 10", "bytes a round, TON-IoT", "fedpca/bytes-ton", r"^Fig\. 10", "On 22 features."),
    Part("Fig. 11", "memory and time of inference", UNAVAILABLE, "Memory of a GPU, which is not at hand."),
    _measured("Table I", "accuracy, F1 and FNR", "fedpca/table1-*", r"^Table I.*\| (accuracy|F1|FNR),"),
    _measured("Table I", "precision and recall", "fedpca/table1-*", r"^Table I.*\| (precision|recall),"),
)

FLAME = (
    Part("Fig. 1(a-d)", "kinds of skew", OUTSIDE, _DRAWING),
    Part("Fig. 2", "the method", OUTSIDE, _DRAWING),
    _measured("Fig. 3", "accuracy by round, Mnist-MLR", "flame/mlr*", r"^Fig\. 3, Mnist-MLR$"),
    _measured("Fig. 3", "accuracy by round, Synthetic-SVM", "flame/svm*", r"^Fig\. 3, Synthetic"),
    Part("Fig. 3", "training loss by round, Mnist-MLR and Synthetic-SVM", OPEN, _UNBUILT),
    Part("Fig. 3", "Fmnist-MLP and Mmnist-CNN", UNAVAILABLE, _SETS),
    _measured("Fig. 4", "lambda, Mnist-MLR", "flame/fig4-*", r"^Fig\. 4"),
    _measured("Fig. 5", "H, Mnist-MLR", "flame/fig5-*", r"^Fig\. 5"),
    _measured("Fig. 6", "rho, Mnist-MLR", "flame/fig6-*", r"^Fig\. 6"),
    _measured("Fig. 7", "biased selection, Mnist-MLR", "flame/fig7-*", r"^Fig\. 7"),
    *(Part(f"Fig. {number}", "Synthetic-SVM", OPEN, _UNBUILT) for number in range(4, 8)),
    *(Part(f"Fig. {number}", "Fmnist-MLP and Mmnist-CNN", UNAVAILABLE, _SETS) for number in range(4, 8)),
    Part("Table I", "sizes of data and models", OUTSIDE, "It describes the data and the models."),
    _measured("Table II", "50 clients, Mnist-MLR", "flame/mlr*", r"^Table II, Mnist-MLR"),
    _measured("Table II", "50 clients, Synthetic-SVM", "flame/svm*", r"^Table II, Synthetic"),
    _measured("Table II", "100 clients, Mnist-MLR, FLAME", "flame/anchors", r"^Table II, Mnist-MLR, 100"),
    _measured("Table II", "100 clients, Mnist-MLR, rivals", "flame/mlr-100", r"^Table II, Mnist-MLR, 100"),
    Part("Table II", "100 clients, Synthetic-SVM", OPEN, _UNBUILT),
    Part("Table II", "50 and 100 clients, Fmnist-MLP and Mmnist-CNN", UNAVAILABLE, _SETS),
    _measured("Table III", "Mnist-MLR", "flame/mlr*", r"^Table III, Mnist-MLR"),
    _measured("Table III", "Synthetic-SVM", "flame/svm*", r"^Table III, Synthetic"),
    Part("Table III", "Fmnist-MLP and Mmnist-CNN", UNAVAILABLE, _SETS),
)

PPGL = (
    Part("Fig. 1", "the setting", OUTSIDE, _DRAWING),
    _measured("Fig. 2(a,b)", "scores of clients with more and more signals", "ppgl/table3", r"^Fig\. 2"),
    Part("Fig. 3(a-g)", "learned graphs", OPEN, "Pictures without figures; ours are not drawn yet."),
    _measured("Fig. 4", "weights of the clients", "ppgl/table3", r"Fig\. 4"),
    _measured("Fig. 5(a,b)", "lambda and nu", "ppgl/fig5", r"^Fig\. 5"),
    _measured("Fig. 6(a,b)", "convergence", "ppgl/fig6", r"Fig\. 6", "The objective, which both panels' graphs lower."),
    Part("Fig. 7(a-d)", "communities of COIL-20", OPEN, "Pictures without figures; ours are not drawn yet."),
    Part("Fig. 8(a-f)", "brain graphs", UNAVAILABLE, "Series of the atlas that the paper uses (AAL) are not at hand."),
    _measured("Table I", "number of signals", "ppgl/table1", r"^Table I,"),
    _measured("Table II", "heterogeneity", "ppgl/table2", r"^Table II,"),
    _measured("Table III", "without the weights", "ppgl/table3", r"^Table III,"),
    _measured("Table IV", "communities of COIL-20", "ppgl/coil20", r"^Table IV,"),
    _measured(
        "Table V", "edges with and without autism", "ppgl/abide", r"^Table V,", "Other persons, in another atlas."
    ),
)

_CELLS = "A cell of MNIST or ESR takes four to five minutes a seed on one core; the losses were not kept."

LOSAC = (
    Part("Fig. 1", "a local update", OUTSIDE, _DRAWING),
    _measured(
        "Fig. 2", "accuracy with 0, 50 and 100 % sorted rows", "losac/fig2", r"^Fig\. 2", "100 clients for 1000."
    ),
    Part("Fig. 2", "losses, and shares between", OPEN, _UNBUILT),
    Part("Fig. 3", "clients a round, MNIST", OPEN, _UNBUILT),
    Part("Fig. 4", "local steps, MNIST", OPEN, _UNBUILT),
    _measured("Fig. 5", "local steps, HAR", "losac/fig5-har", r"^Fig\. 5"),
    Part("Fig. 5", "clients a round, HAR; both, ESR", OPEN, _UNBUILT),
    _measured("Fig. 6", "the attack on gradients", "losac/fig6", r"^Fig\. 6"),
    _measured("Fig. 7", "rank and error of the matrix", "losac/fig7-*", r"^Fig\. 7"),
    Part("Table 1", "a comparison of methods", OUTSIDE, "It lists properties; nothing was run for it."),
    _measured(
        "Table 2",
        "rounds and accuracy, T = 2, M = 5 (12 of 162 figures)",
        "losac/table2-*",
        r"^Table 2.*(LoSAC|SCAFFOLD) ?(\(|$)",
    ),
    _measured("Table 2", "rounds, HAR, three cells for the claims on T and M", "losac/table2-har-cells", r"^Table 2"),
    Part("Table 2", "the other cells, and all losses", OPEN, _CELLS),
)

PARTS: dict[str, tuple[Part, ...]] = {"fedpca": FEDPCA, "flame": FLAME, "faps": FAPS, "ppgl": PPGL, "losac": LOSAC}
"""By the name of a paper's page."""
