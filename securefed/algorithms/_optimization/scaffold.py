"""SCAFFOLD: control variates against client drift.

Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import AuditCase
from securefed.algorithms._base import algorithms
from securefed.algorithms._hyperparameters import check_choice
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

    option I:   c_i+ = gradient of all rows at x;      option II:  c_i+ = c_i - c + (x - y) / (T eta), which is the mean
    of the T gradients g(y) and is computed as that.
    Sends dx = y - x and dc = c_i+ - c_i.   Server:  x <- x + mean over survivors of dx,   c <- c + (1/N) sum dc.
    With one full-batch step the options agree. Signs: c_i and c are gradients, not steps.

    Invariant: c = (1/N) sum_i c_i over all N clients, c_i the committed ones. `dc` travels in the 64-bit ring:
    c is a running sum of differences, and in 32 bits rounding would make it drift from the clients' c_i.

    Attributes:
        option: how c_i is refreshed.
    """

    test_settings: ClassVar = {"learning_rate": 0.02, "local_steps": 2}
    # Two local steps, as in the comparison with LoSAC in LoSAC's table 2.
    audit_case: ClassVar = AuditCase(
        settings={"problem": "softmax", "learning_rate": 0.1, "local_steps": 2},
        secret="samples",
        split="rows_each=1",
        utility="accuracy",
        default=True,
    )

    option: Option = "II"

    received: ClassVar[tuple[str, ...]] = ("x", "c")
    sent: ClassVar[tuple[str, ...]] = ("dx", "dc")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("option", self.option, ("I", "II"))

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Bound each contributed vector in units of the gradient's largest entry."""
        # |g|, |c_i| and |c| are each at most one gradient.
        return {"dx": (3 * self.learning_rate * self.local_steps, 32), "dc": (2.0, 64)}

    def memory(self, model: Model) -> Memory:
        """Return what a client remembers before its first round."""
        return (model.zeros(),)

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one round."""
        x, c, own = received["x"], received["c"], memory[0]
        point, seen = x, 0.0 * own
        for step in range(self.local_steps):
            gradient = work.gradient(point, step)
            point, seen = self.moved(point, gradient - own + c, work.public), seen + gradient
        fresh = work.anchor(x) if self.option == "I" else seen / self.local_steps
        return {"dx": point - x, "dc": fresh - own}, (fresh,)

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Compute the server's next vectors from the sum."""
        return {"x": vectors["x"] + total["dx"] / len(survivors), "c": vectors["c"] + total["dc"] / public.clients}
