"""What a server does with an upload that arrives late, twice, or from another run: it changes no sum."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError
from securefed.parties import SumClient, SumServer, SumTerms

TERMS = SumTerms.like({"w": np.zeros(2)}, clients=4, defense=secure_aggregation(), base=False, pipelined=False)


class Round:
    """A round of four clients, up to the uploads, which are made and not handed in."""

    def __init__(self) -> None:
        self.server, self.members = SumServer(TERMS), [SumClient(TERMS, party) for party in range(4)]
        self.server.open()
        while not self.server.wants_updates:
            self.server.receive(self.replies())
        self.uploads = self.replies()

    def replies(self) -> dict[int, bytes]:
        return {
            party: self.members[party].receive(request, {"w": np.full(2, 10.0**party)})
            for party, request in self.server.outgoing.items()
        }

    def said(self, party: int, upload: bytes) -> str:
        """Hand in an upload beside the stage, and return why it is refused."""
        self.server.receive({party: upload}, more=True)
        return self.server.refusals[party]


def test_an_upload_that_arrives_late_or_twice_changes_no_sum() -> None:
    made = Round()
    late, server = made.uploads.pop(3), made.server
    server.receive({0: made.uploads[0]}, more=True)
    assert "it has replied already" in made.said(0, made.uploads[0])
    server.receive({party: made.uploads[party] for party in (1, 2)})  # ends the stage
    assert "it was not asked" in made.said(3, late)
    assert "stage is 'upload', expected 'unmask'" in made.said(0, made.uploads[0])
    server.receive(made.replies())
    assert server.result is not None and server.result.survivors == (0, 1, 2)
    assert server.result.total["w"].tolist() == [111.0, 111.0]
    with pytest.raises(ConfigError, match="no round is open"):
        server.receive({3: late})
    server.open()
    assert "round is 0, expected 1" in made.said(3, late)


def test_an_upload_of_another_run_is_refused_and_its_client_may_send_the_right_one() -> None:
    made, other = Round(), Round()
    assert "run is " in made.said(3, other.uploads[3])
    made.server.receive(made.uploads)
    made.server.receive(made.replies())
    assert made.server.result is not None and made.server.result.total["w"].tolist() == [1111.0, 1111.0]
