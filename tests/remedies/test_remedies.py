"""Follow the remedy of each error on the input that raised it: it must work.

A remedy is taken from the message where that can be done: the expression is evaluated, the option given, the command
run. A test reads the sources for errors with remedies, and fails for one that no table of `tests/remedies` holds and
whose file is not in `NOT_YET`, which may only shrink.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from securefed.errors import SecureFedError
from tests.remedies import (
    of_algorithms,
    of_attacks,
    of_audits,
    of_cases,
    of_commands,
    of_data,
    of_defenses,
    of_flower,
    of_parties,
    of_party_commands,
    of_statistics,
    of_testing,
    of_torch,
    of_training,
)
from tests.remedies.followed import Followed
from tests.remedies.sites import sites

AREAS = (
    of_algorithms,
    of_attacks,
    of_audits,
    of_cases,
    of_commands,
    of_data,
    of_defenses,
    of_flower,
    of_parties,
    of_statistics,
    of_party_commands,
    of_testing,
    of_torch,
    of_training,
)
TABLE: dict[str, Followed] = {name: item for area in AREAS for name, item in area.TABLE.items()}
NOT_YET: dict[str, int] = {
    "attacks/_active/trap_weights.py": 1,
    "securefed/_auditing/training/membership_scores.py": 1,
    "securefed/_auditing/training/training_audit.py": 1,
    "securefed/_class_names.py": 1,
    "securefed/_runtime/terms.py": 2,
    "securefed/datasets/_loaders.py": 1,
    "securefed/datasets/_row_tables.py": 1,
    "securefed/datasets/_tables/roles.py": 1,
    "securefed/flower/_client.py": 1,
    "securefed/flower/_cohorts.py": 1,
    "securefed/flower/_mod.py": 2,
    "securefed/flower/_outcome.py": 1,
    "securefed/flower/_server.py": 1,
    "securefed/parties/_client.py": 2,
    "securefed/parties/_guards.py": 1,
    "securefed/torch/_state.py": 1,
}
"""By file, the errors whose remedy is not followed yet."""


@pytest.mark.parametrize("name", TABLE)
def test_the_remedy_of_an_error_works_on_what_raised_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    item = TABLE[name]
    with pytest.raises((SecureFedError, AssertionError)) as raised:
        item.raises(tmp_path)
    message = str(raised.value)
    assert item.piece in message
    outcome = item.remedy(message, tmp_path)
    assert not isinstance(outcome, bool | np.bool_) or outcome


def test_names_of_entries_are_given_once() -> None:
    assert len(TABLE) == sum(len(area.TABLE) for area in AREAS)


def test_every_error_with_a_remedy_is_followed_or_listed() -> None:
    found = list(sites())
    for item in TABLE.values():
        assert any(site.file == item.file and item.piece in site.text for site in found), item.piece
    open_ = Counter(
        site.file
        for site in found
        if not any(item.file == site.file and item.piece in site.text for item in TABLE.values())
    )
    new = {file: count for file, count in open_.items() if count > NOT_YET.get(file, 0)}
    assert not new, "add an entry to a table of tests/remedies for these errors, or mend their words"
    assert {file: open_[file] for file in NOT_YET} == NOT_YET, "followed by now: lower or remove the entry in NOT_YET"
