"""What an exchange will cost, before it runs: CPU, bytes and memory, from its plan.

Every cost is a sum of few terms, each a count that the plan fixes (streams of mask bytes, key agreements,
ciphertexts, ...) times a constant. The constants are fitted to measured exchanges by non-negative least squares
(`python -m benchmarks scaling`) and stand in `figures.json` with the machine they were measured on; bytes are exact
counts. Known for secure aggregation with all of its options, and for Paillier with noise of half length or short.
"""

from securefed.costs.prediction import FIGURES, MODELS, Cost, Sized, figures, predict
from securefed.costs.trees import Level, Tree, level_plan, tree
from securefed.costs.wording import seconds, size, tree_words, words

__all__ = [
    "FIGURES", "MODELS", "Cost", "Level", "Sized", "Tree", "figures", "level_plan", "predict", "seconds", "size",
    "tree", "tree_words", "words",
]  # fmt: skip
