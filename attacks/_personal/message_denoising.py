"""Estimate the messages before a defence clipped them and added noise.

The attacks on personalised methods (pFedMe, Ditto, FLAME, FedADMM) call `denoised` before they read the messages, and
`without_rows` for what can be guessed without the messages. A client's local steps are linear in what it received and
in its gradients. If the gradient g_t is constant within round t,

    message_t = known_t + sum_{s <= t} A_ts g_s,

where known_t is what a client without rows would send, and the A_ts are numbers that the learning rate and the number
of local steps determine; A_ts with s < t is not zero where the client carries a model from round to round. The
gradients of one client resemble each other. Their prior is normal with mean 0, a size within the public bound and a
correlation between rounds. Size and correlation are averaged over a grid, weighted by the likelihood of the messages.
The posterior mean tends to the message itself for little noise, and to `known` for much.

A clipped message keeps its direction. Its length is estimated where the message that is predicted from `known` and the
gradients of earlier rounds exceeds the clipping norm, as noise in the broadcast makes it do. Elsewhere a clipped
message cannot be distinguished from a short one, and stays as it is.

A view shows in each round the sum over its members; everything here is for their mean, which is treated as one client.
Messages and gradients are vectors of the model's parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model, label
from securefed.attacks._base import Target, View
from securefed.errors import TranscriptError

_CORRELATIONS = (0.0, 0.5, 0.9, 0.99)
"""Grid of correlations between the gradients of two rounds."""
_SIZES = np.geomspace(1e-6, 1.0, 61)
"""Grid of sizes of what the gradients add to a message, relative to the public bound of its entries: ten a decade."""
_MOST_ALTERNATIONS, _CONVERGED = 8, 1e-9
"""Most alternations between factors of clips and gradients, and the change of the factors at which they end."""
_UNCLIPPED = 1 - 1e-9
"""A single message shorter than this share of the clipping norm was not clipped."""
_UNSURE = 0.1
"""Relative standard deviation of a clip's predicted factor: the unknown gradients lengthen messages, too."""


def denoised(observed: View, target: Target) -> View:
    """Return the view with estimates of the messages before clipping and noise; the view itself without a defence.

    Raises:
        TranscriptError: the view lacks a tensor of the method.
    """
    if not is_distorted(observed):
        return observed
    method, model, received, steps = _read(observed, target)
    try:
        messages = DistortedMessages.of(observed, method, model)
    except KeyError as error:
        raise TranscriptError(f"the view lacks tensor {error} of {type(method).__name__}") from error
    return _with(observed, method, model, messages.denoised(steps.known(received), steps.response(received)))


def without_rows(observed: View, target: Target) -> View:
    """Return the view with the messages of clients without rows, which follow from the broadcasts alone.

    Raises:
        TranscriptError: the view lacks a broadcast of the method.
    """
    method, model, received, steps = _read(observed, target)
    return _with(observed, method, model, steps.known(received))


def is_distorted(observed: View) -> bool:
    """Return whether a defence clipped a message or added noise to it."""
    return any(item.clips or any(item.noise.values()) for item in observed.rounds)


def _read(observed: View, target: Target) -> tuple[GradientMethod, Model, list[Vectors], ConstantGradientModel]:
    """Return the method, its model, what the members received in each round, and the simulation of the mean member."""
    method = target.algorithm
    assert isinstance(method, GradientMethod)
    model = Model(method.problem, target.public)
    try:
        received: list[Vectors] = [method.read(model, item.broadcast) for item in observed.rounds]
    except KeyError as error:
        raise TranscriptError(f"the view lacks tensor {error} of {type(method).__name__}") from error
    return method, model, received, ConstantGradientModel.of(method, model, target.public, observed)


def _with(observed: View, method: GradientMethod, model: Model, messages: Array) -> View:
    """Return the view with these messages (rounds, parameters) of the mean member, and without a defence."""
    (part,) = method.sent  # the methods attacked here send one copy of the parameters, under this name
    rounds = tuple(
        replace(item, message={**item.message, **model.name(part, len(item.members) * own)}, clips=(), noise={})
        for item, own in zip(observed.rounds, messages, strict=True)
    )
    return replace(observed, rounds=rounds)


@dataclass(frozen=True)
class ConstantGradientModel:
    """Compute a client's messages if its gradient is constant within each round.

    Attributes:
        method: the algorithm.
        public: facts that every party knows.
        rows: number of the client's rows.
        count: number of its local steps in a round.
        start: its memory (the vectors that it keeps from round to round) before the first round.
    """

    method: GradientMethod
    public: Public
    rows: float
    count: int
    start: Memory

    @classmethod
    def of(cls, method: GradientMethod, model: Model, public: Public, observed: View) -> ConstantGradientModel:
        """Return the simulation of the mean member of a view: with the mean number of rows, and one member's steps."""
        rows = [public.rows[client] for client in sorted(observed.members)]
        count = len(method.draw(rows[0], np.random.default_rng(0)).parts)
        return cls(method, public, float(np.mean(rows)), count, method.memory(model))

    def __call__(self, received: Sequence[Vectors], memory: Memory, gradients: Array) -> Array:
        """Return the messages, (rounds, parameters).

        Args:
            received: what the client receives in each round, vectors by name.
            memory: its memory before the first round.
            gradients: its gradient in each round, (rounds, parameters), or (rounds,) for one number in all entries.
        """
        out, part = [], self.method.sent[0]
        for vectors, own in zip(received, gradients, strict=True):

            def gradient(point: Array, _: int = 0, own: Array = own) -> Array:
                """Return the round's gradient, in the shape of the point."""
                return np.asarray(own + 0 * point)

            sizes = (self.rows,) * self.count
            # full batches: all rows in every step, and one block of rows for methods that remember gradients by block
            work = LocalTraining(
                gradient=gradient, anchor=gradient, public=self.public, rows=self.rows,
                blocks=(0,) * self.count, sizes=sizes,
            )  # fmt: skip
            sent, memory = self.method.steps(vectors, memory, work)
            out.append(sent[part])
        stacked: Array = np.stack(out)
        return stacked

    def known(self, received: Sequence[Vectors]) -> Array:
        """Return the messages (rounds, parameters) of a client without rows."""
        return self(received, self.start, np.zeros(len(received)))

    def response(self, received: Sequence[Vectors]) -> Array:
        """Return A (rounds, rounds), lower triangular.

        All entries of a message depend in the same way on those of the gradients, so a model with `rounds` parameters
        is run from zeros, parameter s with the gradient 1 in round s and 0 elsewhere: its messages are the A_ts.
        """
        count, nothing = len(received), np.zeros(len(received))
        blank = [dict.fromkeys(vectors, nothing) for vectors in received]
        return self(blank, tuple(nothing for _ in self.start), np.eye(count))


@dataclass(frozen=True)
class DistortedMessages:
    """The mean member's messages in a view, and what is known about the defence.

    Attributes:
        messages: means over the members, (rounds, parameters).
        noise: standard deviations of the noise in their entries, (rounds, tensors).
        tensors: slice of each tensor of the model in a message.
        bounds: public bound of each tensor's entries.
        clips: for each round its clips, each as the places in `tensors` of those clipped together, and the L2 norm to
            which they were clipped.
        alone: whether there is one member.
    """

    messages: Array
    noise: Array
    tensors: tuple[slice, ...]
    bounds: tuple[float, ...]
    clips: tuple[tuple[tuple[list[int], float], ...], ...]
    alone: bool

    @classmethod
    def of(cls, observed: View, method: GradientMethod, model: Model) -> DistortedMessages:
        """Read the messages of a view.

        Raises:
            KeyError: a message lacks a tensor.
        """
        (part,), bounds = method.sent, {spec.name: spec.bound for spec in method.layout(model.public)}
        names, ends = [label(part, spec.name) for spec in model.layout], [0]
        for spec in model.layout:
            ends.append(ends[-1] + spec.size)
        rounds = observed.rounds
        counts = np.array([[float(len(item.members))] for item in rounds])
        return cls(
            messages=np.stack([model.vector(part, item.message) for item in rounds]) / counts,
            noise=np.array([[item.noise.get(name, 0.0) for name in names] for item in rounds]) / counts,
            tensors=tuple(slice(*ends[k : k + 2]) for k in range(len(names))),
            bounds=tuple(bounds[name] or 1.0 for name in names),
            clips=tuple(
                tuple(([names.index(name) for name in own], norm) for own, norm in item.clips if {*own} <= {*names})
                for item in rounds
            ),
            alone=len(observed.members) == 1,
        )

    def denoised(self, known: Array, response: Array) -> Array:
        """Return estimates of the messages (rounds, parameters) before clipping and noise.

        With clips, it alternates between the factors of the clips, from what the current gradients predict, and the
        gradients. A round is predicted from the gradients of earlier rounds only.

        Args:
            known: messages of a client without rows, (rounds, parameters).
            response: A, (rounds, rounds).
        """
        found, factors, earlier = known, np.ones(self.noise.shape), np.tril(response, -1)
        for _ in range(min(_MOST_ALTERNATIONS, len(known)) if any(self.clips) else 1):
            # the g_s of the current estimate; known + sum_{s < t} A_ts g_s predicts message t
            gradients = solve_triangular(response, found - known, lower=True)
            old, factors = factors, self._factors(known + earlier @ gradients)
            found = np.empty_like(self.messages)
            for k, places in enumerate(self.tensors):
                scale = factors[:, k]
                excess = self.messages[:, places] / scale[:, None] - known[:, places]
                cleaned = posterior_mean(excess, response, self.noise[:, k] / scale, self.bounds[k])
                found[:, places] = known[:, places] + cleaned
            if np.max(np.abs(factors - old)) < _CONVERGED:
                break
        return found

    def _factors(self, expected: Array) -> Array:
        """Return the factors (rounds, tensors) by which messages were clipped; 1 where none is recognised.

        There are two estimates of a factor: (message . expected) / ||expected||^2, with the variance of the noise over
        ||expected||^2, and norm / ||expected||, with the relative error `_UNSURE`. They are combined with weights that
        are inverse to their variances.

        Args:
            expected: predicted messages before clipping, (rounds, parameters).
        """
        out = np.ones(self.noise.shape)
        for t, together in enumerate(self.clips):
            for chosen, norm in together:
                places = np.concatenate([np.r_[self.tensors[k]] for k in chosen])
                message, noise = self.messages[t, places], float(self.noise[t, chosen].max())
                length = float(np.linalg.norm(expected[t, places]))
                unclipped = self.alone and not noise and float(np.linalg.norm(message)) < _UNCLIPPED * norm
                if length <= norm or unclipped:
                    continue
                predicted, along = norm / length, float(message @ expected[t, places]) / length**2
                unsure = (_UNSURE * predicted) ** 2
                mixed = predicted + unsure / (unsure + (noise / length) ** 2) * (along - predicted)
                out[t, chosen] = np.clip(mixed, predicted / 2, 1.0)  # noise may make `along` small, or negative
        return out


def posterior_mean(observed: Array, response: Array, noise: Array, most: float) -> Array:
    """Return the posterior mean of response @ gradients, given their sum with noise, (rounds, entries).

    For each entry by itself the gradients of all rounds are normal with covariance size^2 C, where C = (1 - c) I + c 1
    1^T with the correlation c. The whitened sum then has the covariance

        size^2 W + I,    W = N^-1 A C A^T N^-1,    N = diag(noise).

    In the eigenbasis of W, with eigenvalues l, the posterior mean shrinks each component by 1 - 1 / (1 + size^2 l). The
    results for all c and sizes are averaged with their likelihoods over all entries.

    Args:
        observed: the sum, (rounds, entries).
        response: A, (rounds, rounds).
        noise: standard deviations of the noise, (rounds,).
        most: largest root mean square of an entry of the result under the prior, which bounds the sizes.
    """
    if not noise.all():  # rounds without noise are exact
        return observed
    white, entries = observed / noise[:, None], observed.shape[1]
    sizes = _SIZES * most * np.sqrt(np.mean(noise**-2.0))  # in units of the noise
    logs, means = [], []
    for correlation in _CORRELATIONS:
        prior = (1 - correlation) * np.eye(len(observed)) + correlation
        # W, scaled to the mean eigenvalue 1, so that `size` is the signal's root mean square over the noise's
        signal = response @ prior @ response.T / np.outer(noise, noise)
        values, vectors = np.linalg.eigh(signal / np.trace(signal) * len(observed))
        rotated = vectors.T @ white
        larger = 1 + sizes[:, None] ** 2 * np.maximum(values, 0.0)  # (sizes, rounds), the variance with the signal's
        logs.append(-0.5 * np.sum(entries * np.log(larger) + np.sum(rotated**2, axis=1) / larger, axis=1))
        means.append((vectors, rotated, 1 - 1 / larger))
    likely = np.exp(np.array(logs) - np.max(logs))
    likely /= likely.sum()
    mean = sum(
        vectors @ ((weights @ shrinkage)[:, None] * rotated)
        for weights, (vectors, rotated, shrinkage) in zip(likely, means, strict=True)
    )
    return np.asarray(mean * noise[:, None])
