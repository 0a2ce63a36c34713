"""Every word of the report, in words."""

from __future__ import annotations

from typing import Final

DEFENSE_TITLES: Final = {
    "plain": "Plain",
    "secure_aggregation": "Secure aggregation",
    "paillier": "Paillier",
    "dp": "DP on secure aggregation",
}

SHORT_DEFENSES: Final = {"secure_aggregation": "SecAgg", "dp": "DP+SA"}
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
    "faps-guarded": "guarded FAPS",
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
"""Names that several families have."""
SECRETS: Final = {
    "gram": (
        "Gram matrix",
        "all second moments of a client's rows (how its columns vary together; of few rows, the rows up to a rotation)",
    ),
    "samples": ("samples", "a client's rows themselves"),
    "personal": ("personal model", "a client's personal model"),
    "distances": ("distances", "the distances between a client's signals (its data up to a rotation)"),
}
"""By the name in `scoring.SCORES`: in a table, and in a sentence."""


def short(algorithm: str) -> str:
    """An algorithm's usual name."""
    family, _, last = algorithm.rpartition("/")
    title = ALGORITHM_TITLES.get(last, last)
    return f"{title} ({FAMILY_TITLES[family]})" if last in SHARED and family in FAMILY_TITLES else title


def secret_title(secret: str) -> str:
    """A secret's name in a table."""
    return SECRETS[secret][0] if secret in SECRETS else secret


def secret_words(secret: str) -> str:
    """What a secret is, in a sentence."""
    return SECRETS[secret][1] if secret in SECRETS else secret


def short_defense(defense: str) -> str:
    """A defence's title where there is little room."""
    return SHORT_DEFENSES.get(defense) or DEFENSE_TITLES.get(defense, defense)


def in_sentence(defense: str) -> str:
    """A defence's title inside a sentence."""
    title = DEFENSE_TITLES.get(defense, defense)
    return title.lower() if defense == "secure_aggregation" else title


def leak_text(value: float) -> str:
    """Two decimals without a negative zero; what lies far below zero reads as such."""
    return "< -9" if value < -9 else f"{round(value, 2) + 0.0:.2f}"


GLOSSARY: Final = (
    (
        "leakage",
        "How much of the way from a guess (the baseline) to the secret an attack comes: 1 - error / baseline error, "
        "averaged over seeds with its sign. 1: recovered exactly. 0: no better than the guess. Negative: worse than "
        "the guess, so nobody would use it. An attack that explains the messages of some runs only counts with the "
        "guess in the others, if that is better on average.",
    ),
    (
        "plain",
        "No protection: the server reads every message of every client.",
    ),
    (
        "secure aggregation",
        "Clients mask their messages so that the masks cancel in the sum, which is all that the server can read.",
    ),
    (
        "Paillier",
        "Clients encrypt their messages; the server adds what it cannot read, and a key holder opens the sum alone.",
    ),
    (
        "DP on secure aggregation",
        "Differential privacy: every message is clipped to a largest size, summed under secure aggregation, and noise "
        "is added to the sum before anybody but the server sees it.",
    ),
    (
        "utility",
        "How good the final model is on held-out rows, by the algorithm's own measure (accuracy, captured variance and "
        "the like): more is better.",
    ),
    (
        "error",
        "Relative Frobenius error of the reconstruction; samples are first matched by the Hungarian method. A "
        "sum of several clients gives a client's samples as those of the recovered set that fit best; whose "
        "they are is not established.",
    ),
    (
        "baseline",
        "What one can guess without the messages. A client's Gram matrix: everybody's pooled matrix scaled by "
        "the public number of rows. The pooled Gram matrix: the best multiple of the projection on the final "
        "components. Samples: the mean image.",
    ),
    (
        "client, federation",
        "Whose secret: one client's own data; or everybody's data together, which a sum may give away even where it "
        "hides each client.",
    ),
    (
        "Gram matrix",
        "X^T X of a client's rows: all its second moments. For a client of few rows it is its data up to a rotation.",
    ),
    (
        "exposed",
        "The data can be computed, all but exactly: the interval's low end is at least .9, and above chance.",
    ),
    (
        "partial",
        "Something of the data can be computed: the interval's low end exceeds .05 and what chance reaches (the high "
        "end of the null's interval), or a single run was reconstructed.",
    ),
    (
        "not detected",
        "Neither, though nothing says that the attacks failed. The column “detectable” says how small a leak the test "
        "would have seen; an attack that nobody has thought of may see more.",
    ),
    (
        "inconclusive",
        "Neither, and the silence says nothing about whether the data are safe: in more than 2 of 10 runs the estimate "
        "does not explain the messages, so the search failed or they are not what the attack assumes (clipped, say); "
        "or the results, or those of chance, scatter so much that no leak would have been noticed.",
    ),
    (
        "null",
        "The same attack on a shuffled transcript: messages moved to other rounds and their entries permuted. "
        "What it “recovers” is chance. Made once for each attack and set of clients in a sum, and apart "
        "for what is released with noise.",
    ),
    (
        "interval",
        "How sure the mean is: made so that it holds the true mean in 95 of 100 repetitions of the audit (percentile "
        "bootstrap over seeds).",
    ),
    (
        "server",
        "The server, honest but curious: every message it received and sent, and all public parameters.",
    ),
    (
        "sum only",
        "The server under a defence that hides single messages: per round the sum, and who took part.",
    ),
    (
        "collusion(c)",
        "The server and c clients: what they sent is subtracted from the sum; exact in a ring of integers.",
    ),
    (
        "changing survivors",
        "Sum only, where the target stays away in every second of 30 rounds (with --survivor-change b: and b - 1 "
        "other clients with it): sums over different sets of clients subtract.",
    ),
    (
        "server + key holder",
        "Under Paillier, the server together with the party that holds the private key: everything is open.",
    ),
    (
        "released",
        "What leaves the aggregator: each round's sum after the server's noise. The only view that the "
        "central noise covers.",
    ),
    (
        "epsilon",
        "Client-level differential privacy (add or remove one client, delta as in the settings) of everything "
        "released in all rounds together. “Not covered”: the noise is added after this view has seen the sum.",
    ),
    (
        "rank / unknowns",
        "Rank of the attack's linear system or Jacobian against its number of unknowns: a full rank says that "
        "the information is there.",
    ),
    (
        "condition",
        "Condition number over the directions kept: how much noise or rounding is amplified.",
    ),
    (
        "residual",
        "Relative misfit of the messages under the reconstruction, mean over seeds; an attack that failed shows it "
        "here. “Explained” is the share of runs in which it is no more than numbers, rounding and noise allow.",
    ),
)
