"""Compute the local and personal models of consensus ADMM from what its clients send.

FLAME trains a personal model for each client and FedADMM one model for all, both by consensus ADMM; equation numbers
are those of FLAME's paper. w is the broadcast model, w_i and pi_i are client i's local model and dual variable of the
constraint w_i = w, rho > 0 is the penalty, and in FLAME theta_i is its personal model, lambda the attraction of theta_i
to w_i, and a_i the client's public weight. A client sends the change dz_i of z_i = w_i + pi_i / rho. All of them start
at public values, so that the clients' update rules give the server every later state (`recover_states`). The attack
`personal/recursion` reports the personal model; `flame_network_inversion` continues from the states to the rows. All
models are vectors of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.admm import ConsensusADMM
from securefed.algorithms._personalized.flame import FLAME
from securefed.algorithms._personalized.pfedme import PFedMe
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._personal.message_denoising import denoised, is_distorted, without_rows
from securefed.attacks._requirements import check_applies, too_long, why_incomplete
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class ADMMStates:
    """A client's state before the first and after each observed round, (rounds + 1, parameters) each.

    Attributes:
        local: w_i (FedADMM: x_i).
        dual: pi_i.
        personal: theta_i (FedADMM: x_i again).
    """

    local: Array
    dual: Array
    personal: Array


def recover_states(
    method: ConsensusADMM, share: float, received: Array, sent: Array, start: Array, dual: Array | float = 0.0
) -> ADMMStates:
    """Compute a client's states from its messages.

    z_i = w_i + pi_i / rho is its start plus the running sum of what is sent, and

        w_i+ = (z_i+ + w - pi_i / rho) / 2,      pi_i+ = pi_i + rho (w_i+ - w) = (pi_i + rho (z_i+ - w)) / 2,
        theta_i = w_i+ + pi_i+ / (lambda a_i)                                                          (Lemma 2)

    The second formula is the client's update (11); the first follows from it and z_i+ = w_i+ + pi_i+ / rho.

    It is linear: sums over clients of equal a_i give their means. The error of a wrong `dual` halves in each round;
    that of a wrong start of z stays.

    Args:
        method: the algorithm.
        share: a_i.
        received: w of each round, (rounds, parameters).
        sent: dz_i of each round, (rounds, parameters).
        start: w^0, the first model, at which w_i and theta_i start, (parameters,).
        dual: pi_i^0, 0 in both methods; z_i starts at w^0 + pi_i^0 / rho.
    """
    rho, z = method.penalty, start + np.asarray(dual) / method.penalty
    duals, locals_ = [np.zeros_like(start) + dual], [start]
    for w, dz in zip(received, sent, strict=True):
        z = z + dz
        locals_.append((z + w - duals[-1] / rho) / 2)
        duals.append((duals[-1] + rho * (z - w)) / 2)
    local, pi = np.stack(locals_), np.stack(duals)
    personal = local + pi / (method.attraction * share) if isinstance(method, FLAME) else local
    personal[0] = start
    return ADMMStates(local, pi, personal)


def states_of_view(observed: View, target: Target) -> ADMMStates:
    """Compute the states of the client of a view of FLAME or FedADMM, of the mean client where the view shows a sum.

    Raises:
        TranscriptError: the recursion cannot run on this view; the error gives the reason.
    """
    if (reason := why_no_states(observed, target)) is not None:
        raise TranscriptError(reason)
    observed, method, public = denoised(observed, target), target.algorithm, target.public
    assert isinstance(method, ConsensusADMM)
    model = Model(method.problem, public)
    count = len(observed.members)
    try:
        received = np.stack([model.vector("", item.broadcast) for item in observed.rounds])
        sent = np.stack([model.vector("dz", item.message) for item in observed.rounds]) / count
    except KeyError as error:
        raise TranscriptError(f"the view lacks tensor {error}: the recursion needs every broadcast and dz") from error
    share = float(np.mean([method.share(float(public.rows[client]), public) for client in observed.members]))
    return recover_states(method, share, received, sent, method.initial(model))


def why_no_states(observed: View, target: Target) -> str | None:
    """Return why the recursion cannot run on this view, or `None`."""
    method = target.algorithm
    if not isinstance(method, ConsensusADMM):
        return "It computes the duals of consensus ADMM, and this algorithm has none."
    if (reason := why_incomplete(observed.rounds)) is not None:
        return reason
    if len({item.members for item in observed.rounds}) > 1:
        return "It adds up what the same clients send, and here the clients change from round to round."
    if method.weighting == "rows" and len({target.public.rows[client] for client in observed.members}) > 1:
        return "Clients of different weights cannot be distinguished in a sum."
    return None


@dataclass(frozen=True)
class ADMMRecursion:
    """Compute the personal model theta_i after the last round.

    In the clear it is exact to rounding for one client of FLAME and, as x_i, of FedADMM; of a sum over clients it gives
    the mean theta_i. In pFedMe a client starts at w_i = w, updates w_i <- w_i - eta_w lambda (w_i - theta_i) and sends
    delta = w_i - w. With one such update a round (always under `local_epochs`, else with `local_steps=1`), theta_i =
    w + delta / (eta_w lambda).

    The recursion needs every broadcast, and every message from the first round on. Under clipping and noise it reads
    denoised messages (`message_denoising`), and `guess` is what follows from the broadcasts alone. It has no residual:
    with wrong hyper-parameters the result is wrong, and only a fit of rows (`gradient_inversion/fit`) shows that.
    """

    name: ClassVar[str] = "personal/recursion"
    secret: ClassVar[str] = "personal"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        if not isinstance(target.algorithm, PFedMe):
            return why_no_states(observed, target) or _too_long(observed, target)
        if target.algorithm.local_epochs is None and target.algorithm.local_steps > 1:
            return "Several updates of w_i a round hide theta_i in their sum; use personal/replay."
        return why_incomplete(observed.rounds) or _too_long(observed, target)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the personal model, (1, parameters).

        Raises:
            TranscriptError: the attack does not apply, the view lacks a tensor, or numbers are not finite.
        """
        check_applies(self.applies(target, observed))
        value = self._personal(denoised(observed, target), target)
        if not np.isfinite(value).all():
            raise TranscriptError("the view's messages lead to numbers that are not finite")
        return Reconstruction(
            self.secret,
            value[None],
            rank=value.size,
            unknowns=value.size,
            condition=1.0,
            members=observed.members,
            diagnostics={
                "method": "exact",
                "rounds": 1 if isinstance(target.algorithm, PFedMe) else len(observed.rounds),
            },
            guess=self._personal(without_rows(observed, target), target) if is_distorted(observed) else None,
        )

    def _personal(self, observed: View, target: Target) -> Array:
        """Return theta_i after the last round, (parameters,), from a view without clips and noise."""
        if isinstance(target.algorithm, PFedMe):
            return self._pfedme(target.algorithm, observed, target)
        return np.asarray(states_of_view(observed, target).personal[-1])

    @staticmethod
    def _pfedme(method: PFedMe, observed: View, target: Target) -> Array:
        """Return w + delta / (eta_w lambda) of the last round; of a sum, with the mean delta."""
        last = observed.rounds[-1]
        model = Model(method.problem, target.public)
        try:
            w, delta = model.vector("", last.broadcast), model.vector("delta", last.message)
        except KeyError as error:
            raise TranscriptError(f"the view lacks tensor {error}: theta_i needs both") from error
        value: Array = w + delta / (len(last.members) * method.model_rate * method.attraction)
        return value


def _too_long(observed: View, target: Target) -> str | None:
    """Return why the states of all rounds do not fit into memory, or `None`."""
    size = Model(target.algorithm.problem, target.public).layout.size  # type: ignore[attr-defined]
    return too_long(8 * (len(observed.rounds) + 1), size)
