"""Keep a privacy budget, so that a round which would exceed it never runs.

The server of a run holds a budget and spends from it before each exchange (one sum of the clients' contributions, whose
noisy result is released). Clients keep their own count (the ledger of the runtime), which does not trust the server's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from securefed._hyperparameters import check_integer, check_limit
from securefed._persistence.packing import local
from securefed.defenses._differential_privacy.accountant import DELTA, Sampler, epsilon_of
from securefed.defenses._differential_privacy.privacy_loss import PrivacyLoss
from securefed.errors import BudgetSpent, ConfigError


@dataclass(frozen=True)
class Budget:
    """An immutable privacy budget: `budget = budget.spend(1)` before every exchange whose sum is released.

    Make it with the mechanism's own method `budget` (of `gaussian`, `skellam`, ...), which knows the noise that is
    really added. Evaluations released through the same mechanism count as well. A void exchange (one without a sum, as
    too many clients were lost) releases nothing, but is counted too, to be safe. `packing.pack`, which stores states,
    leaves out the fields that are `local`: they come from the defence's settings again.

    Attributes:
        epsilon: the total that may be spent, at `delta`.
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, of every exchange; it cannot change
            between exchanges.
        delta: the delta of (epsilon, delta)-differential privacy.
        exchanges: number of exchanges spent so far.
        sampler: how the clients of an exchange are drawn; "full" counts every client in every exchange.
        loss: the mechanism's privacy loss, from which epsilon is computed; `None` for the central Gaussian, which its
            multiplier determines.

    Raises:
        ConfigError: a parameter outside its domain.
    """

    epsilon: float
    noise_multiplier: float
    delta: float = DELTA
    exchanges: int = 0
    sampler: Sampler = local(default="full")
    loss: PrivacyLoss | None = local(default=None)

    def __post_init__(self) -> None:
        check_limit("epsilon", self.epsilon)
        check_integer("exchanges", self.exchanges, 0)
        epsilon_of(self.noise_multiplier, 0, self.delta, self.sampler)  # checks their domains
        if self.loss is not None and self.sampler != "full":
            raise ConfigError("distributed noise is accounted with full participation only, not with a sampler")

    @property
    def spent(self) -> float:
        """Epsilon of the exchanges so far."""
        return self.after(self.exchanges)

    def after(self, exchanges: int) -> float:
        """Compute epsilon of this number of exchanges, as stated in a plan's `epsilon`."""
        if self.loss is not None:
            return self.loss.epsilon(exchanges, self.delta)
        return epsilon_of(self.noise_multiplier, exchanges, self.delta, self.sampler)

    def spend(self, exchanges: int = 1) -> Budget:
        """Return the budget after `exchanges` more.

        Raises:
            BudgetSpent: the exchanges would exceed `epsilon`; nothing is spent.
            ConfigError: `exchanges` is negative.
        """
        check_integer("exchanges", exchanges, 0)
        after = replace(self, exchanges=self.exchanges + exchanges)
        if after.spent > self.epsilon:
            raise BudgetSpent(
                f"{after.exchanges} exchanges would cost epsilon {after.spent:.4g} at delta {self.delta:g}, "
                f"the budget is {self.epsilon:.4g}; stop here, or plan with more noise"
            )
        return after
