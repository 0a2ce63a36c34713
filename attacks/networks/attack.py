"""The cascade on a recorded view of a gradient method that trains a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from securefed.algorithms.optimization.method import GradientMethod
from securefed.algorithms.optimization.model import Model
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.rounds import method_of
from securefed.attacks.requirements import too_long, untold
from securefed.errors import ConfigError, TranscriptError

_VECTORS = 16
"""Gradients and messages that a search holds at a time, beside its own."""
_WIDTHS = (0.3, 0.1, 0.03, 0.01, 0.001)
"""Of the smoothing of ReLUs: few, for few evaluations."""


@dataclass(frozen=True)
class NetworkInversion:
    """Rows and labels from the members' first round: exact shortcuts, then a fit of the simulated local steps.

    Labels are read off the last layer. Mini-batches are the clients' secret: batches in the rows' order stand in for
    them, and the residual shows what that costs. In a sum every member is simulated by itself.

    Attributes:
        restarts: random starts of each descent.      evaluations: of L-BFGS, each.
        fits: starts of the fit in coordinates, which cost less than the descent that follows where they fail.
        signed_steps: of signed Adam with total variation, where L-BFGS fails; 0 leaves it out.
        low: smallest entry of a row, `None` for -feature_bound; 0 for images.
        largest: rows beyond which nothing is searched for (the exact stages run).
    """

    restarts: int = 1
    evaluations: int = 300
    fits: int = 8
    signed_steps: int = 0
    low: float | None = None
    largest: int = 16

    name: ClassVar[str] = "networks/inversion"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Observed) -> str | None:
        method = target.algorithm
        if not isinstance(method, GradientMethod):
            return "It inverts gradients, and this algorithm sends none."
        if not hasattr(method.problem, "row_losses"):
            return "It inverts networks in torch; other attacks invert linear models."
        if not method.replayable:
            return "It replays local steps by additions and products, and these pass through a proximal operator."
        if (reason := untold(observed.rounds[:1])) is not None:  # it reads no other
            return reason
        rows = sum(target.public.rows[client] for client in observed.rounds[0].members)
        if rows > self.largest:
            return f"It looks for at most {self.largest} rows, and this sum holds {rows}; raise `largest`."
        return too_long(_VECTORS, Model(method.problem, target.public).layout.size)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        """As `Attack.run`. Raises `TranscriptError` also where the search would not fit into memory."""
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        import torch  # noqa: PLC0415 - loaded when a network is attacked

        from securefed.attacks.networks.first_layer import FirstLayer  # noqa: PLC0415
        from securefed.attacks.networks.inversion import Cascade, Effort  # noqa: PLC0415
        from securefed.attacks.networks.matching import Prior, Problem  # noqa: PLC0415
        from securefed.attacks.networks.modules import unlabelled  # noqa: PLC0415
        from securefed.attacks.networks.rounds import look  # noqa: PLC0415

        scene, public = look(observed, target), target.public
        rows = sum(scene.round.sizes)
        gradient = scene.gradient()
        aims = None if _labelled(method_of(target).problem) else _beside(method_of(target).problem, rows, rng)
        low = -public.feature_bound if self.low is None else self.low
        shape = getattr(method_of(target).problem, "image_shape", None)
        prior = Prior(low, public.feature_bound, image=tuple(shape) if shape and len(shape) == 3 else None)
        effort = Effort(
            restarts=self.restarts,
            evaluations=self.evaluations,
            widths=_WIDTHS,
            balance=0.0,
            signed_steps=self.signed_steps,
            fits=self.fits,
            counts=20,
        )
        cascade = Cascade(scene.network, scene.round, public.features, prior, effort)
        seen = (scene.network, scene.point, gradient)
        try:
            cascade.require_memory(rows, 1)
            probe = torch.zeros(1, dtype=torch.int64) if aims is None else aims[:1]
            first = FirstLayer.of(*seen, probe, rows, public.features, rng)
            if aims is None:
                found = unlabelled(cascade, scene.point, scene.message, gradient, first, rows, public.classes, rng)
            else:
                found = cascade([Problem(scene.point, scene.message, aims)], rng, [first])[0]
        except ConfigError as error:
            raise TranscriptError(str(error)) from error
        value = np.nan_to_num(found.rows)
        if not found.residual <= effort.solved:
            value = np.clip(value, -public.feature_bound, public.feature_bound)
        return Reconstruction(
            "samples",
            value,
            labels=found.targets if aims is None else None,
            residual=float(found.residual),
            unknowns=value.size,
            members=observed.rounds[0].members,
            diagnostics={"stage": found.stage, "evaluations": found.evaluations, "seconds": round(found.seconds, 3)},
        )


def _labelled(problem: Any) -> bool:
    """Whether the problem compares rows with labels."""
    return hasattr(problem, "predict") and getattr(problem, "compared_with", "labels") == "labels"


def _beside(problem: Any, rows: int, rng: np.random.Generator) -> Any:
    """What stands for targets where there are no labels: nothing, or codes of the problem's own distribution."""
    import torch  # noqa: PLC0415

    beside = problem.companions(rng.random((rows, 1)), np.empty((rows, 0)))
    return torch.as_tensor(np.asarray(beside), dtype=getattr(torch, problem.precision))
