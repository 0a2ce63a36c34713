"""Say which SuperNodes take part in a sum: the client number of each, and how many a phase needs.

Flower gives each SuperNode a large random id. A secure sum needs clients numbered 0 to N - 1; its terms, on which
server and clients agreed before the run, state N. Where the clients sign with identities, a client's key belongs to its
number, so that each site (the operator of a SuperNode) names its own. The grid behind `SecureStrategy` (`_sum_grid`)
has one `Roster` for all rounds, and asks it before each sum.

Flower's strategies sample max(int(connected * fraction_PHASE), min_PHASE_nodes) of the connected SuperNodes in a phase,
`train` or `evaluate`. Secure aggregation of two clients hides nothing, and Flower's defaults (two simulated SuperNodes,
minima of two) sample two. Training is paid for before the first evaluation, so both phases are checked before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from flwr.serverapp.strategy import Strategy

from securefed.errors import ConfigError, PlanError
from securefed.flower._sum_messages import EVALUATE, TRAIN

_MOST: Final = 256
"""The smallest number of SuperNodes that a defence accepts is looked for up to here; then its own error is raised."""
_SAMPLERS: Final = {TRAIN: "configure_train", EVALUATE: "configure_evaluate"}
_LOG = logging.getLogger("securefed.flower")


class Roster:
    """Numbers of SuperNodes as clients 0 to N - 1.

    A number passes to a new SuperNode only when the one that had it is no longer connected: a SuperNode that was
    restarted comes back under a new id of Flower's.

    Args:
        clients: N.

    Attributes:
        nodes: the SuperNode of each number that was given.
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.nodes: dict[int, int] = {}

    def party(self, node: int) -> int | None:
        """Return the number of a SuperNode; `None` for one that has none."""
        return next((party for party, own in self.nodes.items() if own == node), None)

    def node(self, party: int) -> int:
        """Return the SuperNode that has a number."""
        return self.nodes[party]

    def unknown(self, nodes: Iterable[int]) -> list[int]:
        """Return those SuperNodes that have no number."""
        return [node for node in nodes if self.party(node) is None]

    def number(self, nodes: Sequence[int], connected: Iterable[int]) -> None:
        """Give numbers to SuperNodes in their order, first those that were never given, then those of lost SuperNodes.

        SuperNodes for which none is left get none, which is logged.

        Args:
            nodes: SuperNodes without a number.
            connected: all SuperNodes that are connected now.
        """
        alive = set(connected)
        free = [party for party in range(self.clients) if party not in self.nodes]
        free += [party for party, node in sorted(self.nodes.items()) if node not in alive]
        for node, party in zip(nodes, free, strict=False):
            self.nodes[party] = node
        if late := nodes[len(free) :]:
            _LOG.warning(
                "SuperNodes %s take no part: the terms are for %d clients, and all of them are connected; give "
                "SecureStrategy a larger `clients`",
                list(late), self.clients,
            )  # fmt: skip

    def name(self, node: int, party: int, connected: Iterable[int]) -> None:
        """Enter the number that a site named; one that another connected SuperNode has is refused, which is logged.

        The caller asks only SuperNodes without a number, so that none gets a second one.

        Args:
            node: the site's SuperNode.
            party: the number.
            connected: all SuperNodes that are connected now.
        """
        holder = self.nodes.get(party)
        if not 0 <= party < self.clients or (holder not in (None, node) and holder in set(connected)):
            _LOG.warning("SuperNode %d says that it is client %d, which is taken or outside the terms", node, party)
            return
        self.nodes[party] = node


@dataclass(frozen=True)
class Sampling:
    """The number of SuperNodes that Flower's own strategies sample in a phase.

    Attributes:
        phase: `train` or `evaluate`.
        fraction: the strategy's `fraction_train` or `fraction_evaluate`.
        least: its `min_train_nodes` or `min_evaluate_nodes`.
        available: its `min_available_nodes`; the strategy waits for so many.
    """

    phase: str
    fraction: float
    least: int
    available: int

    @classmethod
    def of(cls, strategy: Strategy, phase: str) -> Self | None:
        """Read a strategy's numbers; `None` where it samples in its own way, or not at all in this phase."""
        sampler = getattr(type(strategy), _SAMPLERS[phase])
        names = (f"fraction_{phase}", f"min_{phase}_nodes", "min_available_nodes")
        if not sampler.__module__.startswith("flwr.") or not all(hasattr(strategy, name) for name in names):
            return None
        fraction, least, available = (getattr(strategy, name) for name in names)
        return cls(phase, fraction, least, available) if fraction > 0 else None

    def nodes(self, connected: int) -> int:
        """Return the number of sampled SuperNodes, once the strategy has waited for as many as it needs."""
        return max(int(max(connected, self.available, self.least) * self.fraction), self.least)


def samplings(strategy: Strategy) -> Iterator[Sampling]:
    """Iterate over the phases in which a strategy samples as Flower's own ones do."""
    for phase in (TRAIN, EVALUATE):
        if (found := Sampling.of(strategy, phase)) is not None:
            yield found


def check_nodes(
    sampled: Mapping[str, int], connected: int, make_terms: Callable[[str, int], Any], samplings: Iterable[Sampling]
) -> None:
    """Raise `PlanError`, with the numbers to write, where a phase samples too few SuperNodes for its sum.

    Args:
        sampled: by phase, the number of SuperNodes that it samples.
        connected: number of SuperNodes that are connected.
        make_terms: makes the terms of a phase for a number of sampled SuperNodes.
        samplings: how the strategy comes to the numbers, where it is one of Flower's.

    Raises:
        PlanError: too few SuperNodes; or, as `make_terms` raises it, terms that no number of SuperNodes makes possible.
    """
    known = {sampling.phase: sampling for sampling in samplings}
    for phase, number in sampled.items():
        try:
            make_terms(phase, number)
        except PlanError as error:
            more = range(number + 1, _MOST + 1)
            needed = next((n for n in more if _possible(partial(make_terms, phase, n))), None)
            if needed is None:
                raise
            raise PlanError(
                f"{phase}: the strategy samples {number} of {connected} SuperNodes{_why(known.get(phase))}, and a sum "
                f"needs at least {needed}: {error}. {_remedy(needed)}"
            ) from error


def check_most_nodes(clients: int, make_terms: Callable[[str, int], Any], samplings: Iterable[Sampling]) -> None:
    """Raise `PlanError` where the largest number of SuperNodes in the run already gives a phase too few.

    Args:
        clients: the largest number of SuperNodes.
        make_terms: as of `check_nodes`.
        samplings: as of `check_nodes`.
    """
    known = tuple(samplings)
    check_nodes({sampling.phase: sampling.nodes(clients) for sampling in known}, clients, make_terms, known)


def _why(sampling: Sampling | None) -> str:
    if sampling is None:
        return ""
    name = sampling.phase
    return f" (fraction_{name}={sampling.fraction:g}, min_{name}_nodes={sampling.least})"


def _possible(make: Callable[[], Any]) -> bool:
    """Tell whether terms can be made."""
    try:
        make()
    except ConfigError:
        return False
    return True


def _remedy(needed: int) -> str:
    return (
        f"Give the strategy min_train_nodes={needed}, min_evaluate_nodes={needed} (or fraction_evaluate=0.0, and "
        f"evaluate at the server) and min_available_nodes={needed}, and start {needed} SuperNodes or more; simulated "
        f"ones by `flwr federation simulation-config --num-supernodes {needed}`, or, for one run, `flwr run . "
        f"--federation-config num-supernodes={needed}`"
    )
