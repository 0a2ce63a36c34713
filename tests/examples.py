"""Number of examples that hypothesis draws for tests that do not take the profile's own number."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Examples for each test in the profile `gate`."""


def examples(count: int, least: int = 1) -> int:
    """Scale the number of examples of a test to the loaded profile.

    Args:
        count: the number in the profile `gate`, and in profiles that draw more.
        least: the smallest number, however few the profile asks for.

    Returns:
        In the profile `quick`, fewer than `count`, in the same proportion as for other tests.
    """
    return max(least, count * min(settings.default.max_examples, USUAL) // USUAL)
