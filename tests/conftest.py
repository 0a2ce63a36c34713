"""Profiles of hypothesis: `pytest --hypothesis-profile nightly tests/...` draws many more cases."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("nightly", max_examples=10_000, deadline=None)
