"""What an audit did not run is listed once, with how many seeds ran and the reason."""

from __future__ import annotations

from securefed._auditing.engine.incomplete_results import UNTRIED, missing
from securefed._auditing.engine.seed_result import Gap

PLACE = "pca/ssi", "plain"
ENDED = Gap(*PLACE, "", "", 0, "a client left")
BARRED = Gap(*PLACE, "server", "gram/power", 1, "too few rounds")


def listed(*gaps: Gap) -> list[tuple[int, str]]:
    """Return (seeds that ran, reason) of each gap of three seeds in which no attack ran."""
    return [(item.ran, item.reason) for item in missing([PLACE[0]], [PLACE[1]], 3, [], gaps, {})]


def test_runs_that_were_not_attacked_are_not_said_to_have_run_because_another_seed_ended() -> None:
    assert listed(ENDED, BARRED) == [(0, "a client left; gram/power: too few rounds")]
    assert listed(ENDED) == [(0, "a client left")]
    assert listed(BARRED) == [(0, "gram/power: too few rounds")]
    assert listed() == [(0, UNTRIED)]
