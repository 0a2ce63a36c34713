"""What an audit did not run is listed once, with how many seeds ran and the reason."""

from __future__ import annotations

from securefed._auditing.engine.incomplete_results import DID_NOT_RUN, NOT_ATTACKED, NOT_READ, UNTRIED, missing
from securefed._auditing.engine.seed_result import Gap

PLACE = "pca/ssi", "plain"
ENDED = Gap(*PLACE, "", "", 0, "a client left")
BARRED = Gap(*PLACE, "server", "gram/power", 1, "too few rounds")


def listed(*gaps: Gap) -> list[tuple[str, int, str, tuple[str, ...]]]:
    """Return (kind, seeds that ran, reason, refusals) of each gap of three seeds in which no attack ran."""
    found = missing([PLACE[0]], [PLACE[1]], 3, [], gaps, {})
    return [(item.kind, item.ran, item.reason, item.refusals) for item in found]


def test_runs_that_were_not_attacked_are_not_said_to_have_run_because_another_seed_ended() -> None:
    barred = ("gram/power: too few rounds",)
    assert listed(ENDED, BARRED) == [(DID_NOT_RUN, 0, "a client left", barred)]
    assert listed(ENDED) == [(DID_NOT_RUN, 0, "a client left", ())]
    assert listed(BARRED) == [(NOT_ATTACKED, 0, NOT_READ, barred)]
    assert listed() == [(DID_NOT_RUN, 0, UNTRIED, ())]
