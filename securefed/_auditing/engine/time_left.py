"""Estimate how long the parts of a task that are left will take, from those of the same kind that have ended."""

from __future__ import annotations

from collections.abc import Mapping


class PlannedParts:
    """The parts of a task that are left, each of a kind; parts of a kind take about as long.

    Parts begin in their order, as soon as one of those that run ends.

    Args:
        kinds: by part its kind, in the order in which they begin.
        parallel: most parts that run at once.
        now: the time in seconds.
    """

    def __init__(self, kinds: Mapping[str, str], parallel: int, now: float) -> None:
        self._kinds, self._parallel = dict(kinds), max(parallel, 1)
        self._waiting = list(kinds)
        self._running = dict[str, float]()  # when each began
        self._costs = dict[str, float]()  # seconds of a kind's last part that ended
        self._begin(now)

    def ended(self, part: str, now: float) -> None:
        """Take note that a part has ended; others than the planned ones do not count."""
        if part not in self._running:
            return
        self._costs[self._kinds[part]] = now - self._running.pop(part)
        self._begin(now)

    def left(self, now: float) -> tuple[float, bool]:
        """Return the seconds that the rest takes, and whether they are known: whether a part of every kind has ended.

        A part of a kind of which none has ended counts as long as the longest part so far, whether that has ended or
        still runs. So one dear kind among cheap ones is seen as soon as it runs for longer than they did.
        """
        lasted = {part: now - began for part, began in self._running.items()}
        longest = max((*self._costs.values(), *lasted.values()), default=0.0)
        seconds, whole = 0.0, True
        for part in (*lasted, *self._waiting):
            cost = self._costs.get(self._kinds[part])
            whole = whole and cost is not None
            seconds += max((longest if cost is None else cost) - lasted.get(part, 0.0), 0.0)
        return seconds / self._parallel, whole

    def _begin(self, now: float) -> None:
        while self._waiting and len(self._running) < self._parallel:
            self._running[self._waiting.pop(0)] = now
