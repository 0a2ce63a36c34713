"""Fit models by several secure sums, one after the other, each over the same parties."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._tensors import Array
from securefed.defenses._chain import Link
from securefed.errors import ConfigError, ConvergenceError, DataError, SeparationError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._design import Design
from securefed.statistics._estimate import Estimate, Sums
from securefed.statistics._fitted import Fitted
from securefed.statistics._one_sum import Rows

SETTLED: Final = 1e-10
"""Largest last step, in units of z. Newton's steps shrink quadratically: the step before was near 1e-5. At twice or
half of it the number of iterations is the same."""
_STUCK: Final = (6, 0.8)
"""Steps that each are longer than 0.8 of the one before, one after the other, that count as no convergence: under
separation they approach a constant, else they shrink quadratically. Of 0.95 separated data would be named later, of 0.5
slow but convergent fits too."""


class SeveralSums(Design):
    """A model that is fitted by several secure sums."""

    @abstractmethod
    def fitting(self) -> Generator[Any, Any, Fitted]:
        """Yield the statistic of each sum, receive its estimate, and return the fitted model."""

    def fit(self, ask: Callable[[Any], Estimate]) -> Fitted:
        """Fit by secure sums, all over the same parties: sums over others would belong to another model.

        Args:
            ask: carries out one secure sum between the parties: takes a statistic (its `terms`, `summand` at each
                party, `estimate`), and returns its estimate.

        Raises:
            DataError: a later sum is over other parties than the first, or no row has an event.
            CollinearityError: columns are linearly dependent.
            SeparationError: columns tell the outcomes apart, or who has events first.
            ConvergenceError: no convergence in the number of sums allowed.
        """
        steps, number, parties = self.fitting(), 1, None
        statistic = next(steps)
        while True:
            found = ask(statistic)
            parties = found.survivors if parties is None else parties
            if found.survivors != parties:
                raise DataError(
                    f"sum {number} of this model is over the parties {_listed(found.survivors)}, and the first one is "
                    f"over {_listed(parties)}: fit it again, over the same parties in all sums"
                )
            try:
                statistic, number = steps.send(found), number + 1
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def simulate(self, parties: Sequence[Rows], defense: Link | None = None) -> Fitted:
        """Fit where all parties' rows are in this process (`Statistic.simulate`)."""
        return self.fit(lambda statistic: statistic.simulate(parties, defense))


@dataclass(frozen=True)
class Iterated(SeveralSums):
    """A model that is fitted by Newton's method, each iteration from one secure sum.

    Attributes:
        iterations: sums at most.
    """

    one_sum: ClassVar[bool] = False

    iterations: int = field(default=25, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("iterations", self.iterations, 2)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Raise `ConfigError`: each iteration has a sum of its own."""
        raise self._several()

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        raise self._several()

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        raise self._several()

    def _several(self) -> ConfigError:
        name = type(self).__name__
        return ConfigError(
            f"{name} takes a sum for each iteration: call {name}.fit(ask), or simulate(parties, defense)"
        )

    def _unsettled(self, move: Array, names: tuple[str, ...]) -> ConvergenceError:
        """Return the error of a fit whose last step was still too long."""
        return ConvergenceError(
            f"no convergence in {self.iterations} sums: the last step was {np.abs(move).max():.2g} in "
            f"{_largest_moves(move, names)}, in units of the bounds; give more iterations, bounds nearer to the "
            "largest entries, or a ridge"
        )


def stuck(sizes: list[float]) -> bool:
    """Tell whether the last steps have not shrunk."""
    number, ratio = _STUCK
    last = sizes[-number - 1 :]
    return len(last) > number and all(after > ratio * before for before, after in pairwise(last))


def separated(move: Array, names: tuple[str, ...], found: Estimate) -> SeparationError | ConvergenceError:
    """Return the error of a likelihood without a maximum, or of one that noise hides."""
    if found.noise:
        return ConvergenceError(
            f"the noise is larger than what the rows tell of {_largest_moves(move, names)}: the steps do not shrink; "
            "leave columns out, declare bounds near the largest entries, or give a ridge"
        )
    return SeparationError(
        f"the outcomes are told apart entirely, over all parties, by {_largest_moves(move, names)}: the likelihood has "
        "no maximum, and the steps do not shrink; leave such columns out, merge rare levels, or give a ridge"
    )


def _largest_moves(move: Array, names: tuple[str, ...]) -> str:
    """Name the parameters that a step moves."""
    size = np.abs(move)
    return ", ".join(name for name, one in zip(names, size, strict=True) if one > 0.2 * size.max())


def _listed(parties: Sequence[int]) -> str:
    return ", ".join(map(str, parties))
