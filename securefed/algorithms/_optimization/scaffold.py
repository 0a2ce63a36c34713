"""SCAFFOLD: local gradient steps from which control variates remove the client's own bias.

A client stores an estimate c_i of its gradient, the server the mean c of these; a local step follows g - c_i + c.

Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, Algorithm 1.

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
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.stepping import SteppingMethod

Option = Literal["I", "II"]


@algorithms.register(
    "optimization/scaffold",
    summary="Control variates against client drift",
    source="Karimireddy et al. 2020, Algorithm 1",
    transmits="local update and change of the client's control variate",
)
@dataclass(frozen=True, kw_only=True)
class Scaffold(SteppingMethod):
    """Train with local steps that control variates correct against client drift.

    y <- y - eta (g(y) - c_i + c), T times from y = x.

    x is the server's model, y a client's, g the mean gradient over the rows of a step, eta the `learning_rate`, and T
    the `local_steps`. After the steps the client replaces its c_i by c_i+:

    option I:   c_i+ = gradient of all rows at x;      option II:  c_i+ = c_i - c + (x - y) / (T eta), which is the mean
    of the T gradients g(y) and is computed as that.
    Sends dx = y - x and dc = c_i+ - c_i.   Server:  x <- x + mean over survivors of dx,   c <- c + (1/N) sum dc.
    With one full-batch step the options agree. Signs: c_i and c are gradients, not steps.

    Invariant: c = (1/N) sum_i c_i over all N clients. A client whose contribution the sum does not count keeps its old
    c_i. `dc` is summed in integers of 64 bits: c is a running sum of differences, and in 32 bits rounding would make it
    drift from the clients' c_i.

    Attributes:
        option: how c_i is refreshed.
    """

    # Two local steps, as in the comparison with LoSAC in LoSAC's table 2.
    audit_case: ClassVar = replace(
        ROWS_CASE, settings={"problem": "softmax", "learning_rate": 0.1, "local_steps": 2}, default=True
    )

    option: Option = "II"

    received: ClassVar[tuple[str, ...]] = ("x", "c")
    exact_sums: ClassVar[bool] = True
    sent: ClassVar[tuple[str, ...]] = ("dx", "dc")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("option", self.option, ("I", "II"))

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        # |g|, |c_i| and |c| are each at most one gradient.
        return {"dx": (3 * self.learning_rate * self.local_steps, 32), "dc": (2.0, 64)}

    def memory(self, model: Model) -> Memory:
        """Return what a client remembers before its first round: c_i = 0."""
        return (model.zeros(),)

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `dx` and `dc` after the T steps, and the client's new memory, c_i+."""
        x, c, c_i = received["x"], received["c"], memory[0]
        y, summed = x, 0.0 * c_i  # zeros of c_i's shape
        for step in range(self.local_steps):
            gradient = work.gradient(y, step)
            y, summed = self.moved(y, gradient - c_i + c, work.public), summed + gradient
        # `anchor` is the gradient of all the client's rows
        new_c_i = work.anchor(x) if self.option == "I" else summed / self.local_steps
        return {"dx": y - x, "dc": new_c_i - c_i}, (new_c_i,)

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next `x` and `c`."""
        return {"x": vectors["x"] + total["dx"] / len(survivors), "c": vectors["c"] + total["dc"] / public.clients}
