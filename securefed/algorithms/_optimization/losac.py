"""LoSAC: local stochastic average control, local gradient steps corrected by a stored average of all gradients.

A client stores the last gradient y_ij of each of its M blocks of rows. The server stores phi, the sum of all of them.

Source: Liu et al., LoSAC: An Efficient Local Stochastic Average Control Method for Federated Optimization,
equations (8), (11)-(13), Algorithm 2.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis. n_i is client i's number of rows, N the number of
clients; `public` holds the facts that all parties know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from securefed._hyperparameters import check_choice
from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.blocks import BlockMethod
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Size, Vectors, pick, put

BlockScale = Literal["printed", "consistent"]


@algorithms.register(
    "optimization/losac",
    summary="Local stochastic average control",
    source="Liu et al., (8), (11)-(13), Algorithm 2",
    transmits="local update and change of the stored gradients",
)
@dataclass(frozen=True, kw_only=True)
class LoSAC(BlockMethod):
    """Train with local steps that a stored average of all clients' gradients corrects.

    A client takes T local steps (11), each on one of the M blocks of its rows, drawn at random; x^- is the point before
    the step:

        x_i   <- x_i - eta (phi_i / N - y_ij + g_ij(x_i^-))
        phi_i <- phi_i + g_ij(x_i^-) - y_ij
        y_ij  <- g_ij(x_i^-)                                           (8)

    from x_i = x, phi_i = phi, with x the server's model, eta the `learning_rate`, M = `blocks` and T = `local_steps`.
    The client sends dx = x_i - x and dphi = phi_i - phi. The server sets (13), with S the number of clients PLANNED
    for a round (whatever number survives): x <- x + (1/N) sum dx,   phi <- phi + (N/S) sum dphi.
    Invariant: phi = (N/S) sum_ij y_ij. Without it (13) would not come to rest at the optimum. It holds at the start,
    where y and phi are 0, although the server knows no gradient yet. A client whose contribution the sum does not count
    keeps its old y_ij. `dphi` is summed in integers of 64 bits: phi is a running sum of differences, and in 32 bits
    rounding would make it drift from the clients' y.

    For M = 1 it converges if T eta is below about 2 / L, with L the smoothness of the losses as scaled below.

    Attributes:
        block_scale: `printed`: g_ij = n_i * mean gradient of block j, so that the sum over blocks is M times the
            client's gradient and the effective step is M eta; `consistent`: g_ij = sum of the block's gradients.
    """

    # Two local steps, as in the comparison with SCAFFOLD in the paper's table 2.
    audit_case: ClassVar = replace(
        ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.1, "local_steps": 2, "blocks": 1}, default=True
    )

    exact_sums: ClassVar[bool] = True
    block_scale: BlockScale = "printed"

    received: ClassVar[tuple[str, ...]] = ("x", "phi")
    sent: ClassVar[tuple[str, ...]] = ("dx", "dphi")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("block_scale", self.block_scale, ("printed", "consistent"))

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        self.enough_rows(public)
        rows = max(public.rows)
        stored = float(rows if self.block_scale == "printed" else -(-rows // self.blocks))
        # |g_ij| and |y_ij| are at most `stored`, |phi / N| <= control * stored (a sum over N clients and M blocks, over
        # S), and a block that is drawn changes by at most 2 stored. So a step moves by eta (control + 2) stored.
        control = self.blocks * public.clients / public.cohort
        touched = min(self.local_steps, self.blocks)
        step = self.learning_rate * self.local_steps * (control + 2.0)
        return {"dx": (step * stored, 32), "dphi": (2.0 * touched * stored, 64)}

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `dx` and `dphi` after the T steps, and the client's new memory, y_ij for each block j."""
        point, phi, stored, public = received["x"], received["phi"], list(memory), work.public
        for step, j in enumerate(work.blocks):
            scale: Size = work.rows if self.block_scale == "printed" else work.sizes[step]
            fresh = scale * work.gradient(point, step)
            change = fresh - pick(stored, j)  # g_ij - y_ij
            # (11), first line: `moved` steps by -eta times the direction
            point = self.moved(point, phi / public.clients + change, public)
            phi = phi + change  # second line
            stored = put(stored, j, fresh)  # (8)
        return {"dx": point - received["x"], "dphi": phi - received["phi"]}, tuple(stored)

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next `x` and `phi`."""
        return {  # (13)
            "x": vectors["x"] + total["dx"] / public.clients,
            "phi": vectors["phi"] + public.clients / public.cohort * total["dphi"],
        }
