"""Read the rows' sums by class off the first gradient of a linear model: closed form, no search.

Before training, all rows x_k of logistic or softmax regression have the same predicted probabilities p, so that the
first gradient (`linear_model` has the formula) is linear in the numbers n_c of rows of class c and their sums s_c:

    bias       db_c = p_c sum_k n_k - n_c
    weights    dW_c = p_c sum_k s_k - s_c

The number of rows is public, so the bias gives every n_c. The weights leave one combination of the sums open, s ~ p; it
is taken from what is known of such rows. With a prior mean m_c of the rows of each class, and rows that scatter alike
about it, the most likely sums are

    s = n m + diag(n) A^T (A diag(n) A^T)^+ (dW - A n m),        A = p 1^T - I.

If all rows have one class, or their sum is known, as 0 of columns that were centred, nothing is open. Several local
steps show the same, with errors that grow with the steps.

Where clients come and go, the first gradient g_0 is over all, and a later one, g_1 at other parameters x_1, is over all
but some, whose rows are the target's alone or few. With a third one, g_2 over all at x_2, the step between the two is
undone to first order, since both gradients change alike with the parameters:

    g of those who stayed away, at x_0  =  g_0 - g_1 + (n_1 / n_0) a (g_2 - g_0)
    a  =  <x_1 - x_0, x_2 - x_0> / |x_2 - x_0|^2

Clients that store a gradient and send its changes (SCAFFOLD, LoSAC) send all of it in their first round only. Of one
that joins in a later round, x_1, that round's sum shows it at once, beside the small changes of those who were there
before; these are undone by a sum d_2 of theirs alone, with a = <x_1 - x_0, x_2 - x_1> / |x_2 - x_1|^2:

    stored gradient of those who join, at x_1  =  d_1 - a d_2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.attacks._base import Target, View
from securefed.attacks._fitting.label_counts import round_to_total
from securefed.attacks._gradient_inversion.gradient_rounds import (
    GradientEstimate,
    GradientRound,
    estimate_gradients,
    method_of,
    read_rounds,
    stores_gradients,
    why_not_invertible,
)
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class ClassSums:
    """Sums of a view's rows by class.

    Attributes:
        counts: (classes,) estimated number of rows of each class.
        sums: (classes, features) estimated sums of their rows.
        members: clients whose rows they are.
    """

    counts: Array
    sums: Array
    members: frozenset[ClientId] = frozenset()
    name: ClassVar[str] = "gradient_inversion/class_sums"

    @property
    def mean(self) -> Array:
        """The mean of all rows, (features,)."""
        return np.asarray(self.sums.sum(axis=0) / self.counts.sum())


def why_not_readable(target: Target, observed: View) -> str | None:
    """Return why sums by class cannot be read from this view, or `None` if they can."""
    if (reason := why_not_invertible(target, observed)) is not None:
        return reason
    model = LinearModel.of(target)
    assert model is not None  # `why_not_invertible` refuses other models
    return None if model.bias else "Without a bias the gradient does not show the numbers of rows by class."


def class_sums(observed: View, target: Target, prior: Array, total: Array | None = None) -> ClassSums:
    """Read the sums by class of the members' rows off the first round of a view.

    Where the members change, differences of rounds are read: they are of the clients that stay away with the target.

    Args:
        observed: the view.
        target: the algorithm and the public facts.
        prior: (classes, features) what is known of the mean row of each class.
        total: (features,) the sum of all rows where it is known.

    Raises:
        TranscriptError: the view shows no gradient of a linear model with a bias.
    """
    if (reason := why_not_readable(target, observed)) is not None:
        raise TranscriptError(reason)
    found = class_gradient(observed, target, prior.mean(axis=0))
    if found is None:
        raise TranscriptError("the first gradient is not finite")
    weight, bias, p, members = found.weight, found.bias, found.probabilities, found.members
    rows = sum(target.public.rows[client] for client in members)
    counts = round_to_total(p * rows - bias, rows).astype(np.float64)
    if total is not None:
        return ClassSums(counts, np.asarray(p[:, None] * total - weight), members)
    known = counts[:, None] * prior
    observe = p[:, None] - np.eye(len(p))
    spread = counts[:, None] * observe.T
    sums = known + spread @ np.linalg.pinv(observe @ spread, rcond=1e-9) @ (weight - observe @ known)
    return ClassSums(counts, np.asarray(sums), members)


@dataclass(frozen=True)
class ClassGradient:
    """The first gradient of a linear model, by class; logistic regression has two.

    Attributes:
        weight: (classes, features) gradient of the weights.
        bias: (classes,) gradient of the bias.
        probabilities: (classes,) predicted of every row.
        members: clients whose rows it sums over.
    """

    weight: Array
    bias: Array
    probabilities: Array
    members: frozenset[ClientId]


def class_gradient(observed: View, target: Target, mean: Array) -> ClassGradient | None:
    """Estimate the first gradient of a view that `why_not_readable` does not refuse; `None` where it is not finite.

    Args:
        observed: the view.
        target: the algorithm and the public facts.
        mean: (features,) a row like the members', at which probabilities are computed.
    """
    model = LinearModel.of(target)
    assert model is not None
    estimate, members = _first_gradient(observed, target, model)
    weight = model.weight(estimate.gradient)
    bias = np.asarray(model.offset(estimate.gradient))
    p = model.probabilities(mean @ model.weight(estimate.point).T + model.offset(estimate.point))
    if model.logistic:  # one output: that of class 1
        weight, bias, p = np.vstack([-weight, weight]), np.r_[-bias, bias], np.r_[1 - p, p]
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return None
    return ClassGradient(weight, bias, np.asarray(p), members)


def _first_gradient(observed: View, target: Target, model: LinearModel) -> tuple[GradientEstimate, frozenset[ClientId]]:
    """Estimate the first gradient of a view's members; of changing members, that of those who stay away first."""
    rounds = read_rounds(observed, target)
    everyone = frozenset(rounds[0].members)
    if observed.target not in everyone and stores_gradients(target.algorithm, target.public):
        return _of_joining(rounds, everyone, observed.target, target, model)
    without = _first_of(rounds, lambda members: members < everyone and observed.target not in members)
    places = [0]
    if observed.target in everyone and without is not None:
        again = _first_of(rounds[1:], lambda members: members == everyone)
        places += [without] if again is None else [without, again + 1]
    first, *later = (
        estimate_gradients(rounds[place : place + 1], method_of(target), target.public, model)[0] for place in places
    )
    if not later or without is None:
        return first, everyone
    gone, gradient = everyone - set(rounds[without].members), first.gradient - later[0].gradient
    if len(later) > 1:
        moved, whole = (one.point - first.point for one in later)
        held, staying = (sum(target.public.rows[client] for client in some) for some in (everyone, everyone - gone))
        step = float(moved @ whole) / (float(whole @ whole) or 1.0)
        gradient = gradient + staying / held * step * (later[1].gradient - first.gradient)
    return replace(first, gradient=gradient), gone


def _of_joining(
    rounds: tuple[GradientRound, ...],
    before: frozenset[ClientId],
    client: ClientId | None,
    target: Target,
    model: LinearModel,
) -> tuple[GradientEstimate, frozenset[ClientId]]:
    """Estimate the stored gradient of the clients that join with one, from the first sum that holds it.

    Args:
        rounds: the rounds.
        before: members of the first round.
        client: the client that joins.
        target: the algorithm and the public facts.
        model: the linear model.
    """
    method = method_of(target)
    joined = _first_of(rounds, lambda members: client in members)
    if joined is None:
        return estimate_gradients(rounds[:1], method, target.public, model)[0], before
    first, own, part = rounds[0], rounds[joined], method.sent[-1]
    again = _first_of(rounds[joined + 1 :], lambda members: members == before)
    total = own.total[part]
    if again is not None:
        later = rounds[joined + 1 + again]
        moved, next_ = own.received["x"] - first.received["x"], later.received["x"] - own.received["x"]
        total = total - float(moved @ next_) / (float(next_ @ next_) or 1.0) * later.total[part]
    new = frozenset(own.members) - before
    alone = replace(own, total={**own.total, part: total}, members=tuple(sorted(new)))
    return estimate_gradients((alone,), method, target.public, model)[0], new


def _first_of(rounds: Sequence[GradientRound], fits: Callable[[frozenset[ClientId]], bool]) -> int | None:
    """Return the place of the first round whose members fit; `None` for none."""
    return next((place for place, one in enumerate(rounds) if fits(frozenset(one.members))), None)
