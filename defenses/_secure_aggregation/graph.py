"""Design a sparse graph of clients' neighbours for a stated failure probability, and plan an exchange on it.

`SecureAggregation.plan` calls `design_sparse_graph` before a run; the graph is drawn in each exchange, by
`masks.neighbours`.
A client's upload hides under masks that it has in common with its neighbours. It deals Shamir shares of its secrets to
them, t of which open a secret. An upload is exposed if t of the holders of its shares collude with the server, or if
the masks no longer connect it with the other honest clients: the sum then falls into parts that open one by one.
Corrupt clients collude with the server; lost ones do not finish the exchange.

Each client masks with its neighbours only and deals its secrets to them and to itself (Bell, Bonawitz, Gascon, Lepoint
and Raykova 2020, CCS, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", section 3). The graph of n
clients is the circulant (Harary) graph of even degree k on a random order of them: neighbours stand at most k / 2 apart
on a circle. The order is drawn after the corrupt and the lost clients are fixed, so the numbers of them among k
neighbours are hypergeometric, and every probability below is a sum of exact integers.

`design_sparse_graph` requires three conditions of (k, t), for N clients of which C are corrupt and D lost at any time:
1. No honest client has t corrupt neighbours: N - C of them, each with the tail of Hyp(n - 1, C, k) at t (the
   hypergeometric distribution, defined at `_tails`). Here n = N - D, the fewest clients that can advertise keys, as
   corrupt ones stay.                                                                         <= 2^-security
2. The graph without the corrupt and the lost clients is connected. A circulant graph is disconnected only if two
   separate blocks of k / 2 consecutive clients are removed: at most N (N - 1) / 2 pairs of blocks, each removed with
   probability binom(C + D, k) / binom(N, k). Clients lost before the graph is drawn make it smaller.
                                                                                               <= 2^-security
3. Every secret finds t holders: of a lost client among its k neighbours (D - 1 others are lost), of one that uploaded
   among its k neighbours and itself.                                                       <= 2^-correctness
The first two probabilities are added. With `active` the server may lie about which clients are lost, so that corrupt
holders answer twice, and it may choose the lost clients when it knows the graph. Three further conditions are required,
of which the first two may each fail with probability 2^-security, so that all in all some honest client is exposed with
probability 3 * 2^-security at most:
4. 2 t > (k + 1) + c, where c bounds the corrupt among the neighbours of every honest client.
5. t > k / 2 + 1 + b, where b bounds the corrupt among the k / 2 neighbours on one side of it. So a client whose seed t
   holders reveal has an honest survivor on either side, whichever clients are lost: the survivors stay connected.
   (More than b of the t holders stand on either side, as the other side and the client itself are k / 2 + 1 holders.)
6. (N - D) t / (k + 1) > C + D. A sum of the N - D survivors or more that an exchange needs takes t shares of each of
   them, and one client holds k + 1 at most: so at least as many clients reveal shares as stand on the left, more than
   D of them honest. These sign no other survivors for the same contribution (`consistency`), so fewer than N - D
   clients are left to sign: a repeated round opens no second sum to subtract.

Not promised: anything where more clients than C are corrupt, where they are corrupted after the graph is known (the
server may then choose a client's neighbours), or where the server has many graphs drawn and picks one. The graph
follows from keys that every client draws (`graph_seed`), so the server alone cannot choose it; one that deviates can
leave clients out, and corrupt clients can draw their keys again after they have received all others, and so try 2^g
graphs. By the union bound, a plan with `security = 40 + g` then has security 40.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Final

from securefed.defenses._plan import MaskingPlan, Plan
from securefed.defenses._secure_aggregation.planning import check_change, shares_of
from securefed.errors import PlanError

SECURITY: Final = 40
"""-log2 of the probability of exposure. An attacker gets one try a round, online, so that no computing power helps it:
2^-40 is the usual level for such statistical security."""
CORRECTNESS: Final = 20
"""-log2 of the probability that a round cannot be completed: it is only repeated, so that 2^-20 is rare enough."""
SMALL: Final = 32
"""Largest cohort for which `auto` takes the complete graph: a sparse one gains little, and assumes a bound on C."""


@dataclass(frozen=True)
class SparseGraphDesign:
    """A sparse graph and the probabilities with which it fails.

    Attributes:
        clients: N.
        corrupt: C.
        lost: D.
        degree: k, even.
        threshold: t, the number of shares that open a secret.
        insecure: log2 of the bound on the first two probabilities, `-inf` where it is 0.
        incomplete: log2 of the bound on the third one, `-inf` where it is 0.
        most_corrupt: c, corrupt neighbours of an honest client, except with probability 2^-security.
        most_beside: b, corrupt neighbours on one side of it on the circle, except with probability 2^-security.
        security: required -log2 of `insecure`.
        correctness: required -log2 of `incomplete`.
        active: whether conditions 4 to 6 were required.
    """

    clients: int
    corrupt: int
    lost: int
    degree: int
    threshold: int
    insecure: float
    incomplete: float
    most_corrupt: int
    most_beside: int
    security: int
    correctness: int
    active: bool

    @property
    def withstands_lies(self) -> bool:
        """True if conditions 4 and 5 hold, against a server that chooses or misreports the lost clients."""
        both = 2 * self.threshold > self.degree + 1 + self.most_corrupt
        return both and self.threshold > self.degree // 2 + 1 + self.most_beside

    def explain(self) -> str:
        """Describe the design in a paragraph, for the plan."""
        lies = "also against" if self.withstands_lies else "not against"
        return (
            f"{self.clients} clients, up to {self.corrupt} corrupt and {self.lost} lost: each masks with "
            f"{self.degree} neighbours and deals its secrets to them; any {self.threshold} of the {self.degree + 1} "
            f"holders open one. An honest client has at most {self.most_corrupt} corrupt neighbours. Some honest "
            f"client is exposed {_chance(self.insecure)} (asked: 2^-{self.security}); a round cannot be completed "
            f"although no more are lost {_chance(self.incomplete)} (asked: 2^-{self.correctness}). "
            f"It holds {lies} a server that misreports the lost clients, or chooses them (2t > holders + corrupt ones: "
            f"{2 * self.threshold} against {self.degree + 1 + self.most_corrupt}; t > one side, itself and the corrupt "
            f"on the other: {self.threshold} against {self.degree // 2 + 1 + self.most_beside})."
        )


def _chance(exponent: float) -> str:
    return "never" if exponent == -math.inf else f"with probability 2^{exponent:.1f} at most"


@lru_cache(maxsize=256)
def design_sparse_graph(
    clients: int,
    adversarial: float,
    dropouts: float,
    *,
    security: int = SECURITY,
    correctness: int = CORRECTNESS,
    active: bool = False,
) -> SparseGraphDesign:
    """Find the smallest degree k for which a threshold t meets the conditions; of those t the largest, the most secret.

    Args:
        clients: N.
        adversarial: C / N.
        dropouts: D / N.
        security: -log2 of the probability allowed for conditions 1 and 2 together, and for 4 and 5 each.
        correctness: -log2 of that for condition 3.
        active: whether the server may deviate: conditions 4 to 6 are required too.

    Raises:
        ConfigError: a share outside [0, 1).
        PlanError: no degree below that of the complete graph is enough.
    """
    corrupt, lost = shares_of(clients, adversarial, dropouts)
    for degree in range(2, clients - lost - 1, 2):
        design = _design(clients, corrupt, lost, degree, security, correctness, active)
        if design is not None:
            return design
    raise PlanError(
        f"no sparse graph of {clients} clients withstands {corrupt} corrupt and {lost} lost ones"
        f"{' and a lying server' if active else ''} at 2^-{security} and 2^-{correctness}; "
        'take graph="complete", or plan for fewer of them'
    )


def plan_sparse_graph(plan: Plan, design: SparseGraphDesign, *, survivor_change: int) -> Plan:
    """Add threshold N - D, shares, what collusion opens, and assumptions to a plan with a sparse graph.

    Args:
        plan: with the number N of planned clients.
        design: the graph's degree, the number of shares that open a secret, C and D (`design_sparse_graph`).
        survivor_change: as for `plan_complete_graph`.

    Raises:
        PlanError: the threshold N - D is not above N / 2, or not above (N + C) / 2 where the server may deviate; or b
            is above 1 and above D.
    """
    threshold = plan.clients - design.lost
    if design.active and 2 * threshold <= plan.clients + design.corrupt:
        raise PlanError(
            f"{design.lost} of {plan.clients} clients lost and {design.corrupt} that sign twice leave no majority "
            "that agrees on the survivors; lower `dropouts` or `adversarial`"
        )
    if not plan.clients < 2 * threshold:
        raise PlanError(f"{design.lost} of {plan.clients} clients lost leave no more than half; lower `dropouts`")
    check_change(plan.clients, threshold, survivor_change)
    opens = (
        f"the server and any {design.threshold} of a client's {design.degree} neighbours together; "
        "the server and all other survivors"
    )
    masking = MaskingPlan(design.degree, design.threshold, survivor_change)
    return replace(plan, threshold=threshold, open_to=opens, masking=masking).assume(
        design.explain(),
        f"At most {design.corrupt} clients collude with the server, the same whatever the graph turns out to be"
        + (", and it has no other graph drawn by leaving clients out." if design.active else "."),
        f"A round that more than {design.lost} clients leave is void.",
    )


def _design(
    clients: int, corrupt: int, lost: int, degree: int, security: int, correctness: int, active: bool
) -> SparseGraphDesign | None:
    """Design for one degree by the conditions of the module, whose numbers stand beside them; `None` for no design.

    A larger t is safer against corrupt neighbours, and finds t holders less often. So t is searched from the degree
    down to the first one with which rounds complete: if that one is not secure, no smaller one is.
    """
    disconnected = _log2(math.comb(clients, 2) * math.comb(corrupt + lost, degree), math.comb(clients, degree))  # 2
    if disconnected > -security:
        return None
    draws, tails = _tails(clients - lost - 1, corrupt, degree)
    exposed = [_log2((clients - corrupt) * tail, draws) for tail in tails]  # 1, log2 of the bound by t = 0 .. k + 1
    most_corrupt = next(c for c in range(degree + 1) if exposed[c + 1] <= -security)
    most_beside = _most_beside(clients, corrupt, lost, degree // 2, security)
    # Draws in which at least 0, 1, ... of the k neighbours are lost, of a client that is lost and of one that is not.
    draws, lost_beside_lost = _tails(clients - 1, max(lost - 1, 0), degree)
    _, lost_beside_survivor = _tails(clients - 1, lost, degree)
    for threshold in range(degree, 1, -1):
        if active and not (
            threshold > max((degree + 1 + most_corrupt) // 2, degree // 2 + 1 + most_beside)  # 4, 5
            and (clients - lost) * threshold > (corrupt + lost) * (degree + 1)  # 6
        ):
            return None  # nor would a smaller threshold do
        # 3: more than k - t of the k neighbours lost, or more than k + 1 - t where the client holds its own share too.
        too_few = lost * lost_beside_lost[degree - threshold + 1]
        too_few += (clients - lost) * lost_beside_survivor[degree - threshold + 2]
        incomplete, insecure = _log2(too_few, draws), _add(exposed[threshold], disconnected)
        if incomplete <= -correctness:
            if insecure > -security:
                return None
            return SparseGraphDesign(
                clients, corrupt, lost, degree, threshold, insecure, incomplete, most_corrupt,
                most_beside, security, correctness, active,
            )  # fmt: skip
    return None


def _most_beside(clients: int, corrupt: int, lost: int, side: int, security: int) -> int:
    """Compute b of condition 5: two sides for each honest client, with the fewest clients that can advertise keys."""
    draws, tails = _tails(clients - lost - 1, corrupt, side)
    return next(b for b in range(side + 1) if _log2(2 * (clients - corrupt) * tails[b + 1], draws) <= -security)


def _tails(population: int, marked: int, drawn: int) -> tuple[int, list[int]]:
    """Count the draws of Hyp(population, marked, drawn), and those with at least 0, 1, ..., drawn + 1 marked.

    Counts are exact integers; a count over all draws is the probability P(Hyp >= x).

    Hyp(population, marked, drawn) is the number of marked items among `drawn` ones, taken without replacement from
    `population` items of which `marked` are marked.
    """
    counts = [math.comb(marked, x) * math.comb(population - marked, drawn - x) for x in range(drawn + 1)]
    return math.comb(population, drawn), [*list(accumulate(reversed(counts)))[::-1], 0]


def _log2(count: int, draws: int) -> float:
    """Compute log2(count / draws) of integers of any size; `-inf` for no count."""
    return math.log2(count) - math.log2(draws) if count else -math.inf


def _add(left: float, right: float) -> float:
    """Compute log2(2^left + 2^right)."""
    high, low = max(left, right), min(left, right)
    return high if low == -math.inf else high + math.log2(1 + 2 ** (low - high))
