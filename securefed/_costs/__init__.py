"""Predict what an exchange costs before it runs: CPU, bytes and memory, from its plan.

Every cost is a sum of a few terms, each a count that the plan fixes (bytes of masks, key agreements, ciphertexts, ...)
times a constant. The constants are fitted to measured exchanges by non-negative least squares
(`python -m benchmarks scaling`) and stand in `figures.json` with the machine they were measured on; bytes are exact
counts. Costs are known for secure aggregation with all of its options, and for Paillier encryption with encryption
randomness of half length or short.
"""

from securefed._costs.aggregator_tree import aggregator_tree, level_plan
from securefed._costs.cost_text import cost_lines, format_bytes, format_seconds, tree_lines
from securefed._costs.prediction import FIGURES, MODELS, CountedExchange, figures, predict

__all__ = [
    "FIGURES",
    "MODELS",
    "CountedExchange",
    "aggregator_tree",
    "cost_lines",
    "figures",
    "format_bytes",
    "format_seconds",
    "level_plan",
    "predict",
    "tree_lines",
]
