"""Remember which client number each SuperNode has: the server numbers them, or asks the sites for their numbers.

Flower gives each SuperNode a large random id. A secure sum needs clients numbered 0 to N - 1; its terms, on which
server and clients agreed before the run, state N. Where the clients sign with identities, a client's key belongs to its
number, so that each site (the operator of a SuperNode) names its own. The grid behind `SecureStrategy` (`_sum_grid`)
has one roster for all rounds, and asks it before each sum.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

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
