"""Read the means and variances of a client's batches off the running statistics of batch normalisation.

A layer of momentum m that sees a batch with statistics s replaces its running statistics r by (1 - m) r + m s. After T
batches from r_0 the client returns

    r_T = (1 - m)^T r_0 + m sum_t (1 - m)^(T - t) s_t,

so that (r_T - (1 - m)^T r_0) / (1 - (1 - m)^T) is a weighted average of the batches' statistics: exact for one batch,
the later batches count more for several. Without a momentum (torch's `momentum=None`) the running statistics are the
mean over all K + T batches ever seen, and s = r_0 + (K + T) (r_T - r_0) / T. The closed form needs no search. The audit
of training loops calls this where messages hold the buffers of such layers.
"""

from __future__ import annotations

from securefed._public import require
from securefed._tensors import Array


def batch_statistics(before: Array, after: Array, momentum: float | None, batches: int, earlier: int = 0) -> Array:
    """Compute the average statistics of the batches between two states of a layer.

    Args:
        before: (channels,) running means, or variances, that the client received.
        after: (channels,) those that it returned.
        momentum: the momentum of the layer; `None` where it averages over all batches that it has ever seen.
        batches: T, the number of batches in between.
        earlier: K, the number of batches that the layer had seen before; used without a momentum only.

    Returns:
        (channels,) the average mean, or unbiased variance, of the batches.

    Raises:
        ConfigError: no batch lies in between, or the momentum is 0.
    """
    require(batches >= 1, f"batches must be at least 1, the number that the layer saw; got {batches}")
    if momentum is None:
        return before + (earlier + batches) * (after - before) / batches
    require(0 < momentum <= 1, f"momentum must lie above 0 and be at most 1; got {momentum}")
    kept = (1 - momentum) ** batches
    return (after - kept * before) / (1 - kept)
