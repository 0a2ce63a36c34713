"""Profiles of hypothesis, and generators that no two tests share.

`pytest --hypothesis-profile nightly tests/...` draws many more cases.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("nightly", max_examples=10_000, deadline=None)


@pytest.fixture(autouse=True)
def _own_draws(request, monkeypatch):
    """A module's `RNG` stands in each of its tests where the import left it.

    Whatever else ran before in the same process: with several workers that hangs on their speed.
    """
    shared = getattr(request.module, "RNG", None)
    if isinstance(shared, np.random.Generator):
        monkeypatch.setattr(request.module, "RNG", copy.deepcopy(shared))
