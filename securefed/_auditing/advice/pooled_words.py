"""Say what a setting of an advice leaves open of all clients together, beside what it hides of a single client.

A setting that hides single clients may still open the sums, in which people stand: so no sentence that gives a leak of
one client's data goes without this one. `trials` measures it on the same runs.
"""

from __future__ import annotations

import math
from typing import Final

from securefed._auditing.advice.advice_values import Setting
from securefed._auditing.engine.statistics import EXPOSED_FROM, PARTIAL_FROM

_UNTRIED: Final = "That is one client's; what the sums tell of all clients' data together was not attacked."
_EXPOSED: Final = "That is one client's: the sums give all clients' data together away (a leak of {leak:.2f})."
_MEASURED: Final = "That is one client's: of all clients' data together a leak of {leak:.2f} was measured."
_PEOPLE: Final = "People stand in the sums: the server reads {who} (a leak of {leak:.2f})."
_MEMBERS: Final = "Whether a given row was among all clients' rows is told with a leak of {leak:.2f}."


def pooled_words(one: Setting) -> str:
    """Say what was measured of all clients' data together, of people in it, and of membership."""
    if math.isnan(one.pooled_leak) and math.isnan(one.people_leak):
        said = [_UNTRIED]
    elif one.pooled_leak >= EXPOSED_FROM:
        said = [_EXPOSED.format(leak=one.pooled_leak)]
    else:
        said = [_MEASURED.format(leak=max(one.pooled_leak, 0.0))] if not math.isnan(one.pooled_leak) else []
    said += [people] if (people := people_words(one)) else []
    if one.member_leak > PARTIAL_FROM:
        said.append(_MEMBERS.format(leak=one.member_leak))
    return " ".join(said)


def people_words(one: Setting) -> str:
    """Say which people are read in the sums of a setting; empty for none."""
    return _PEOPLE.format(who=one.people, leak=one.people_leak) if one.people_leak > PARTIAL_FROM else ""
