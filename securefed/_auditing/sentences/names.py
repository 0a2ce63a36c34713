"""The names of algorithms, defences and secrets in sentences and tables: the usual ones of the papers."""

from __future__ import annotations

from typing import Final

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


def protection(defense: str) -> str:
    """Return a defence's title, or the name of a noise of the membership part in words."""
    return DEFENSE_TITLES.get(defense, defense.replace("_", " "))
