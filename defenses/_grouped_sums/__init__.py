"""Grouped sums: one secure sum for each of G public groups, and a robust mean of the group means.

In reading order:

    grouped     the public class: what it guarantees, its plan, and the methods that the runtime calls
    drawing     which client is in which group
    sums        the G sums of an exchange at the server, side by side; which of them count
    robust      median, trimmed mean, Krum and geometric median of the group means
"""

from __future__ import annotations

from securefed.defenses._grouped_sums.grouped import Grouped, check_cohort, grouped, masking_in, with_masking

__all__ = ["Grouped", "check_cohort", "grouped", "masking_in", "with_masking"]
