"""Reconstruct clients' rows and labels from the first round of a federated gradient method that trains a torch network.

The attack reads the broadcast parameters and the sum of the members' messages from a recorded view; members are the
clients in that sum. It simulates the members' local steps on candidate rows, and searches for the rows that send the
observed sum: closed forms from the first layer's gradient first, then fits (`staged_inversion`, with the sources).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from securefed._public import Public
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.gradient_rounds import method_of
from securefed.attacks._requirements import check_applies, has_labels, too_long, why_incomplete
from securefed.errors import ConfigError, TranscriptError

if TYPE_CHECKING:  # these load torch
    from securefed.attacks._networks.first_round import FirstRoundView
    from securefed.attacks._networks.gradient_matching import RowPrior
    from securefed.attacks._networks.staged_inversion import InversionEffort, RecoveredRows, StagedInversion

_LOG = logging.getLogger("securefed.attacks")
_VECTORS = 16
"""Vectors of the network's size that a search holds at a time, for the estimate of its memory."""
_WIDTHS = (0.3, 0.1, 0.03, 0.01, 0.001)
"""Widths of the smoothed ReLUs (`smoothed_relu`). `invert`, which inverts one message of a torch module, has thirteen;
the 300 evaluations of this attack, shared by thirteen, would be too few for each. These five found all of 20 single
digits behind LeNet with 2000 evaluations."""
_COUNTS = 20
"""Label counts that are tried, a third of `invert`'s: an audit runs this attack once for each seed and view."""


@dataclass(frozen=True)
class NetworkInversion:
    """Reconstruct rows and labels from the members' first round: closed forms, then fits of simulated local steps.

    Labels are recovered with the rows from the first layer, or counted from the last layer's gradient. The attacker
    does not know the clients' mini-batches and takes batches in the rows' order instead; the residual shows what that
    costs. Behind a sum each member's steps are simulated.

    A closed form takes seconds or less. Where searches follow, seconds grow steeply with the rows and with the network:
    a sum of ten digits behind one layer of 50 ReLUs took two minutes (the page "Gradient inversion for networks",
    section "What a search costs"). `seconds` bounds them, and `progress` shows how far a search is.

    Attributes:
        restarts: random starts of each descent.
        evaluations: most evaluations of each start of L-BFGS.
        fits: starts of the fit in the row space, of 150 Jacobians each at most. They take most of the time where a
            Jacobian, with rows^2 columns and a line for each number of the message, stays within 32 MiB; L-BFGS takes
            their place beyond.
        low: smallest entry of a row; `None` stands for -feature_bound, 0 is right for images.
        largest: most rows that are searched for; sums of more are declined. It allocates nothing by itself. Memory
            grows with the rows of the sum, and the time of the fit in the row space faster than with their square.
            Beyond 24 rows no closed form separates them, and a search that needs more than 2 GiB is refused before it
            begins.
        seconds: most seconds of the search, looked at between evaluations. Where they run out the attack returns what
            it has reached, says so in the diagnostics under "stopped", and logs a warning.
        progress: called between evaluations with how many a search has made, the most that it may make (`None` for
            fits), and words with its stage and residual.
    """

    restarts: int = 1
    evaluations: int = 300
    fits: int = 8
    low: float | None = None
    largest: int = 16
    seconds: float = 600.0
    progress: Callable[[int, int | None, str], None] | None = None

    name: ClassVar[str] = "networks/inversion"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        method = target.algorithm
        if not isinstance(method, GradientMethod):
            return "It inverts gradients, and this algorithm sends none."
        if not hasattr(method.problem, "row_losses"):
            return "It inverts networks in torch; other attacks invert linear models."
        if not method.replayable:
            return "It simulates local steps by additions and products, and these pass through a proximal operator."
        if (reason := why_incomplete(observed.rounds[:1])) is not None:  # it reads only the first round
            return reason
        rows = sum(target.public.rows[client] for client in observed.rounds[0].members)
        if rows > self.largest:
            return f"It looks for at most {self.largest} rows, and this sum holds {rows}; raise `largest`."
        return too_long(_VECTORS, Model(method.problem, target.public).layout.size)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Run the attack, as `Attack.run`.

        Raises:
            TranscriptError: the attack does not apply, or the search would not fit into memory.
        """
        check_applies(self.applies(target, observed))
        from securefed.attacks._networks.first_round import read_first_round  # noqa: PLC0415 - loads torch
        from securefed.attacks._networks.staged_inversion import StagedInversion  # noqa: PLC0415

        first_round, public, problem = read_first_round(observed, target), target.public, method_of(target).problem
        known_targets = None if has_labels(problem) else _companions(problem, sum(first_round.simulation.sizes), rng)
        effort = self._effort()
        inversion = StagedInversion(
            first_round.network, first_round.simulation, public.features, self._prior(problem, public), effort
        )
        try:
            recovered = _recovered(inversion, first_round, known_targets, public, rng)
        except ConfigError as error:
            raise TranscriptError(str(error)) from error
        stopped = {"stopped": self._expired(recovered)} if recovered.stopped else {}
        value = np.nan_to_num(recovered.rows)
        if not recovered.residual <= effort.solved:  # a failed search can end anywhere; solved rows stand as they are
            value = np.clip(value, -public.feature_bound, public.feature_bound)
        return Reconstruction(
            "samples",
            value,
            labels=recovered.targets if known_targets is None else None,
            residual=float(recovered.residual),
            unknowns=value.size,
            members=observed.rounds[0].members,
            diagnostics={
                "stage": recovered.stage,
                "evaluations": recovered.evaluations,
                "seconds": round(recovered.seconds, 3),
            }
            | stopped,
        )

    def _expired(self, recovered: RecoveredRows) -> str:
        """Say, and log, that the time ran out and what was reached."""
        said = (
            f"{self.name} ended after its {self.seconds:g} s with a residual of {recovered.residual:.2g} (0 is solved) "
            f"reached in the stage {recovered.stage!r} after {recovered.evaluations} evaluations; allow more `seconds`"
        )
        _LOG.warning("%s", said)
        return said

    def _prior(self, problem: Any, public: Public) -> RowPrior:
        """Return what is known of a row before the attack: its range, and its shape if it is an image."""
        from securefed.attacks._networks.gradient_matching import RowPrior  # noqa: PLC0415

        low = -public.feature_bound if self.low is None else self.low
        shape = getattr(problem, "image_shape", None)
        return RowPrior(low, public.feature_bound, image=tuple(shape) if shape and len(shape) == 3 else None)

    def _effort(self) -> InversionEffort:
        """Return the limits of the search."""
        from securefed.attacks._networks.staged_inversion import InversionEffort  # noqa: PLC0415

        return InversionEffort(
            restarts=self.restarts,
            evaluations=self.evaluations,
            widths=_WIDTHS,
            balance=0.0,  # small tensors of the message gain no weight
            fits=self.fits,
            counts=_COUNTS,
            seconds=self.seconds,
            progress=self.progress,
        )


def _recovered(
    inversion: StagedInversion,
    first_round: FirstRoundView,
    known_targets: Any,
    public: Public,
    rng: np.random.Generator,
) -> RecoveredRows:
    """Invert the first round: closed forms of the first layer, then the search.

    Args:
        inversion: the search.
        first_round: the network, the parameters that were broadcast, and the message.
        known_targets: targets of the rows; `None` where their labels are to be recovered too.
        public: the public facts.
        rng: the generator of the search.

    Raises:
        ConfigError: the search would not fit into memory.
    """
    import torch  # noqa: PLC0415

    from securefed.attacks._networks.first_layer import FirstLayerEvidence  # noqa: PLC0415
    from securefed.attacks._networks.gradient_matching import InversionProblem  # noqa: PLC0415
    from securefed.attacks._networks.module_inversion import invert_unlabelled  # noqa: PLC0415

    network, point, message = first_round.network, first_round.point, first_round.message
    rows, gradient, scaled = sum(first_round.simulation.sizes), first_round.gradient(), first_round.scaled()
    inversion.require_memory(rows)
    # a valid target, with which `FirstLayerEvidence` looks for the first layer
    probe = torch.zeros(1, dtype=torch.int64) if known_targets is None else known_targets[:1]
    first = FirstLayerEvidence.of(network, point, gradient, probe, rows, public.features, rng, scaled=scaled)
    if known_targets is not None:
        return inversion(InversionProblem(point, message, known_targets), rng, first)
    return invert_unlabelled(inversion, point, message, gradient, first, rows, public.classes, rng, scaled=scaled)


def _companions(problem: Any, rows: int, rng: np.random.Generator) -> Any:
    """Return the targets of a problem without labels, such as an autoencoder: (rows, 0), or its own random numbers.

    A BiGAN compares rows with latent codes that the client draws; the attacker draws codes from the same distribution.
    `companions` draws them by a seed that it hashes from the rows, which the attacker does not have: random numbers in
    their place give a random seed.
    """
    import torch  # noqa: PLC0415

    companions = problem.companions(rng.random((rows, 1)), np.empty((rows, 0)))
    return torch.as_tensor(np.asarray(companions), dtype=getattr(torch, problem.precision))
