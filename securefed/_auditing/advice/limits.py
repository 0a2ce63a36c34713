"""Say what an advised setting does not cover: the views that it allows and that the search did not attack.

The search attacks the smallest sum that a setting opens, less what colluders sent, in runs over the same clients in
every round. A sum over more clients tells no more. Sums over clients that come and go are not attacked here, so that a
setting whose threshold allows them is advised for a cohort that stays the same.
"""

from __future__ import annotations

from securefed._auditing.advice.candidates import Candidate
from securefed._auditing.engine.allowed_views import KEPT, Allowance, judge
from securefed._auditing.engine.defense_names import PLAIN
from securefed.attacks.views import SMALLEST_SUM


def limits(candidate: Candidate, *, holds: bool) -> str:
    """Say for which schedule and against whose help a setting holds; empty where it does not."""
    if not holds:
        return ""
    sizes = candidate.clients, candidate.threshold, candidate.colluding, candidate.rounds
    setting = Allowance(candidate.defense, *sizes, summed=candidate.defense != PLAIN)
    found = dict.fromkeys((*setting.same_clients, SMALLEST_SUM), KEPT)
    return " ".join(judge(setting, found).limits)
