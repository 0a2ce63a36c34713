"""Everything that is registered: importing this module fills the registries of algorithms, defences and attacks."""

from __future__ import annotations

import securefed.algorithms.graph
import securefed.algorithms.optimization
import securefed.algorithms.pca
import securefed.algorithms.personalized
import securefed.attacks.distances
import securefed.attacks.duals
import securefed.attacks.gradient_inversion
import securefed.attacks.gram
import securefed.attacks.networks
import securefed.attacks.personal
import securefed.defenses.named
import securefed.detection.baselines  # noqa: F401 - registers on import, like the others
from securefed.algorithms.base import algorithms
from securefed.attacks.base import attacks
from securefed.defenses.base import defenses

__all__ = ["algorithms", "attacks", "defenses"]
