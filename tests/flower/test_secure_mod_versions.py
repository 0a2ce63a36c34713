"""A site of another version of the protocol is refused by name, by the first message that each side sends."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg

from securefed.defenses import Identities, new_identity, public_identity, secure_aggregation
from securefed.errors import ConfigError, VersionRefused
from securefed.flower import secure_mod
from securefed.flower._sum_messages import party_content, party_named
from tests.flower import ordinary_app
from tests.flower.grid import of_version, released
from tests.flower.ordinary_app import CLIENTS
from tests.flower.test_secure_mod import site_files, survivors
from tests.flower.test_secure_strategy import run, secured


@pytest.mark.parametrize("pinned", [False, True])
def test_sites_of_another_version_are_refused_by_name(tmp_path: Path, pinned: bool) -> None:
    """The first message of each side names the version, also where the server first asks which client a site is."""
    keys = {i: new_identity() for i in range(CLIENTS)}
    public = Identities({i: public_identity(key) for i, key in keys.items()})
    config = {"config": site_files(tmp_path, keys)} if pinned else {}

    def ran(version: int) -> list[int]:
        grid = ordinary_app.grid(secure_mod, **config)
        for node in grid.nodes.values():
            node.app = released(node.app, version)  # type: ignore[assignment]
        strategy = secured(FedAvg(), secure_aggregation(identities=public if pinned else None))
        run(strategy, grid, rounds=1)
        return survivors(strategy)

    with pytest.raises(ConfigError, match="it speaks version 1 of the protocol and this party speaks version 2"):
        ran(2)
    assert ran(1) == [CLIENTS]  # positive control


def test_a_site_that_names_its_number_in_another_version_is_refused_by_name() -> None:
    with of_version(2):
        content = party_content(3)
    with pytest.raises(VersionRefused, match="SuperNode 100 speaks version 2") as refused:
        party_named(content, 100)
    assert refused.value.sender == 100
    assert party_named(party_content(3), 100) == 3  # positive control
