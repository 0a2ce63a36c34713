"""Base classes of the personalised methods: a start that all parties know, and a model that stays with the client.

A personalised method gives every client a model of its own beside, or instead of, the server's. Models and whatever
else a client remembers (its memory) are flat vectors with one entry per parameter. The base class `PassingMethod`
draws the rows of the local steps and runs a client's part of a round; a method adds the steps themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._public import Public, require
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.algorithms._optimization.local_steps import Memory, Vectors
from securefed.algorithms._optimization.method import ModelClient, ModelServer
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.stepping import PassingMethod
from securefed.datasets._base import Dataset
from securefed.problems._base import known_smoothness


@dataclass(frozen=True, kw_only=True)
class KnownStart(PassingMethod):
    """Base of the methods in which a client has a state before it receives the first broadcast.

    The first model w^0 is in effect a hyper-parameter: every party draws it from `initial_seed`, not from a run's
    generator. So the server knows the first state of each client, and can count it in running sums over all clients
    before the client has sent anything.

    Attributes:
        initial_seed: seed of w^0; it has no effect on a problem that starts at zero.
    """

    initial_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("initial_seed", self.initial_seed, 0)

    @abstractmethod
    def curvature(self, smoothness: float, rows: int, public: Public) -> float:
        """Bound the curvature of the function that a client's local steps minimise, its Hessian's largest eigenvalue.

        Args:
            smoothness: L, that of the client's mean loss.
            rows: number of the client's rows.
            public: public facts of the run.
        """

    def start(self, public: Public, rng: np.random.Generator) -> ModelServer:
        """Return the server's state before the first round, with the model w^0."""
        return super().start(public, np.random.default_rng(self.initial_seed))

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ModelClient:
        """Check the step size against the loss's smoothness at the start, where that is known.

        Raises:
            ConfigError: the step is too long.
        """
        client = super().enroll(data, public, rng)
        smoothness = known_smoothness(self.problem, data, public.classes)
        if smoothness is not None:
            curvature = self.curvature(smoothness, data.rows, public)
            require(
                self.learning_rate * curvature <= 2,
                f"local steps diverge where learning_rate * curvature > 2; a client's loss has smoothness L = "
                f"{smoothness:.4g}, its local steps descend a function of curvature {curvature:.4g}: take "
                f"learning_rate <= {2 / curvature:.4g}, not {self.learning_rate:g}, or scale the features",
            )
        return client

    def initial(self, model: Model) -> Array:
        """Return w^0, (parameters,)."""
        return model.flatten(self.problem.initial(model.public, np.random.default_rng(self.initial_seed)))


@dataclass(frozen=True, kw_only=True)
class PersonalMethod(KnownStart):
    """Base of the methods that give each client a model of its own, the first vector of its memory.

    `evaluate` sums its loss (`personal_loss`) and whatever else the problem measures beside the global model's.
    """

    def personal(self, client: ModelClient) -> Tensors:
        """Return the personal model of the last round that counted the client, by the problem's names; at first w^0."""
        return client.model.name("", client.memory[0])

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        layout = super().evaluation_layout(public)
        own = (TensorSpec(f"personal_{s.name}", s.shape, s.bound, s.ring) for s in layout if s.name != "count")
        return Layout((*layout, *own))

    def evaluate(self, client: ModelClient, broadcast: Tensors) -> Tensors:
        """Return sums over the client's rows, of the global model and, as `personal_NAME`, of the personal one."""
        data, personal_model = client.data, self.personal(client)
        sums = self.problem.measure(personal_model, data.x, self.problem.targets(data))
        personal = {f"personal_{name}": np.asarray(value) for name, value in sums.items() if name != "count"}
        return {**super().evaluate(client, broadcast), **personal}

    def _contribution(self, client: ModelClient, sent: Vectors, memory: Memory) -> tuple[ModelClient, Tensors]:
        """Return a client's tentative state and its contribution; raise `DivergenceError` where a vector diverged."""
        # sent vectors are checked anyway, but not every method sends the personal model
        self._check(memory[0], "personal", "a client's local steps")
        return super()._contribution(client, sent, memory)
