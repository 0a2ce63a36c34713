"""Messages as they were before a defence clipped and noised them, as far as the algorithm and the evidence tell.

A client's steps are linear in what it received and in its gradients. With a gradient g_t that stays the same all round,

    message_t = known_t + sum_{s <= t} A_ts g_s,

known_t what a client without rows would send, and A numbers. The gradients of one client resemble each other: their
prior is normal, of mean 0, of one size within the public bound and of one correlation between rounds, averaged by how
well they explain the messages. Posterior means go to the messages themselves for small noise, and to `known` for large.

A clipped message has a known direction. Its length is that of `known` along it, where that is clipped too: noise in the
broadcast makes it so. Where it is not, nothing tells a clipped message from a short one, and it stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from securefed.algorithms.optimization.method import GradientMethod
from securefed.algorithms.optimization.model import Model, label
from securefed.algorithms.optimization.work import Memory, Vectors, Work
from securefed.attacks.base import Observed, Target
from securefed.errors import TranscriptError
from securefed.public import Public
from securefed.tensors import Array

_CORRELATIONS = (0.0, 0.5, 0.9, 0.99)
_SIZES = np.geomspace(1e-6, 1.0, 61)
"""Of what the gradients add to a message, relative to the public bound of its entries."""
_TURNS = 8
_SETTLED = 1e-9
_WHOLE = 1 - 1e-9
"""A single message shorter than so much of the norm was not clipped."""
_UNSURE = 0.1
"""Standard deviation of a clip's predicted factor, relative to it: gradients lengthen messages."""


def restored(observed: Observed, target: Target) -> Observed:
    """The view with messages of clients that nothing distorted; as it is where nothing was.

    Raises:
        TranscriptError: the view lacks a tensor of the method.
    """
    if not distorted(observed):
        return observed
    method, model, received, steps = _read(observed, target)
    try:
        arrived = Arrived.of(observed, method, model)
    except KeyError as error:
        raise TranscriptError(f"the view lacks tensor {error} of {type(method).__name__}") from error
    return _with(observed, method, model, arrived.restored(steps.known(received), steps.response(received)))


def rowless(observed: Observed, target: Target) -> Observed:
    """The view with messages of clients without rows: what an attack makes of it, anybody knows from the broadcasts.

    Raises:
        TranscriptError: the view lacks a broadcast of the method.
    """
    method, model, received, steps = _read(observed, target)
    return _with(observed, method, model, steps.known(received))


def distorted(observed: Observed) -> bool:
    """Whether a defence clipped or noised a message."""
    return any(item.clips or any(item.noise.values()) for item in observed.rounds)


def _read(observed: Observed, target: Target) -> tuple[GradientMethod, Model, list[Vectors], Steps]:
    method = target.algorithm
    assert isinstance(method, GradientMethod)
    model = Model(method.problem, target.public)
    try:
        received: list[Vectors] = [method.read(model, item.broadcast) for item in observed.rounds]
    except KeyError as error:
        raise TranscriptError(f"the view lacks tensor {error} of {type(method).__name__}") from error
    return method, model, received, Steps.of(method, model, target.public, observed)


def _with(observed: Observed, method: GradientMethod, model: Model, messages: Array) -> Observed:
    """The view with these messages (rounds, parameters) of the mean member, as they were before any defence."""
    (part,) = method.sent
    rounds = tuple(
        replace(item, message={**item.message, **model.name(part, len(item.members) * own)}, clips=(), noise={})
        for item, own in zip(observed.rounds, messages, strict=True)
    )
    return replace(observed, rounds=rounds)


@dataclass(frozen=True)
class Steps:
    """A client's rounds as a function of constant gradients.

    Attributes:
        rows: of the client.      count: its local steps.      start: what it remembers at first.
    """

    method: GradientMethod
    public: Public
    rows: float
    count: int
    start: Memory

    @classmethod
    def of(cls, method: GradientMethod, model: Model, public: Public, observed: Observed) -> Steps:
        rows = [public.rows[client] for client in sorted(observed.members)]
        count = len(method.draw(rows[0], np.random.default_rng(0)).parts)
        return cls(method, public, float(np.mean(rows)), count, method.memory(model))

    def __call__(self, received: Sequence[Vectors], memory: Memory, gradients: Array) -> Array:
        """(rounds, ...) messages; `gradients` (rounds, ...)."""
        out, part = [], self.method.sent[0]
        for vectors, own in zip(received, gradients, strict=True):

            def gradient(point: Array, _: int = 0, own: Array = own) -> Array:
                return np.asarray(own + 0 * point)

            sizes = (self.rows,) * self.count
            work = Work(gradient, gradient, self.public, self.rows, (0,) * self.count, sizes)
            sent, memory = self.method.steps(vectors, memory, work)
            out.append(sent[part])
        stacked: Array = np.stack(out)
        return stacked

    def known(self, received: Sequence[Vectors]) -> Array:
        """(rounds, parameters) of a client without rows."""
        return self(received, self.start, np.zeros(len(received)))

    def response(self, received: Sequence[Vectors]) -> Array:
        """A, (rounds, rounds), lower triangular."""
        count, nothing = len(received), np.zeros(len(received))
        blank = [dict.fromkeys(vectors, nothing) for vectors in received]
        return self(blank, tuple(nothing for _ in self.start), np.eye(count))


@dataclass(frozen=True)
class Arrived:
    """What the view shows of the mean member.

    Attributes:
        seen: (rounds, parameters) messages.      noise: (rounds, tensors) standard deviation of theirs.
        tensors: places in a message.      bounds: of their entries.
        clips: of each round: numbers of tensors, and the L2 norm of them together.
        alone: whether there is one member.
    """

    seen: Array
    noise: Array
    tensors: tuple[slice, ...]
    bounds: tuple[float, ...]
    clips: tuple[tuple[tuple[list[int], float], ...], ...]
    alone: bool

    @classmethod
    def of(cls, observed: Observed, method: GradientMethod, model: Model) -> Arrived:
        """Raises `KeyError` where a message lacks a tensor."""
        (part,), bounds = method.sent, {spec.name: spec.bound for spec in method.layout(model.public)}
        names, ends = [label(part, spec.name) for spec in model.layout], [0]
        for spec in model.layout:
            ends.append(ends[-1] + spec.size)
        rounds = observed.rounds
        counts = np.array([[float(len(item.members))] for item in rounds])
        return cls(
            np.stack([model.vector(part, item.message) for item in rounds]) / counts,
            np.array([[item.noise.get(name, 0.0) for name in names] for item in rounds]) / counts,
            tuple(slice(*ends[k : k + 2]) for k in range(len(names))),
            tuple(bounds[name] or 1.0 for name in names),
            tuple(
                tuple(([names.index(name) for name in own], norm) for own, norm in item.clips if {*own} <= {*names})
                for item in rounds
            ),
            len(observed.members) == 1,
        )

    def restored(self, known: Array, response: Array) -> Array:
        """(rounds, parameters) messages as they were; `known` and `response` as `Steps` gives them."""
        found, factors, earlier = known, np.ones(self.noise.shape), np.tril(response, -1)
        for _ in range(min(_TURNS, len(known)) if any(self.clips) else 1):
            gradients = solve_triangular(response, found - known, lower=True)
            old, factors = factors, self._factors(known + earlier @ gradients)
            found = np.empty_like(self.seen)
            for k, places in enumerate(self.tensors):
                scale = factors[:, k]
                apart = self.seen[:, places] / scale[:, None] - known[:, places]
                mended = denoised(apart, response, self.noise[:, k] / scale, self.bounds[k])
                found[:, places] = known[:, places] + mended
            if np.max(np.abs(factors - old)) < _SETTLED:
                break
        return found

    def _factors(self, expected: Array) -> Array:
        """(rounds, tensors) what the clips multiplied messages by: from their length along the expected ones, and from
        the length of these, each as far as it is to be trusted."""
        out = np.ones(self.noise.shape)
        for t, together in enumerate(self.clips):
            for chosen, norm in together:
                places = np.concatenate([np.r_[self.tensors[k]] for k in chosen])
                own, loud = self.seen[t, places], float(self.noise[t, chosen].max())
                length = float(np.linalg.norm(expected[t, places]))
                whole = self.alone and not loud and float(np.linalg.norm(own)) < _WHOLE * norm
                if length <= norm or whole:
                    continue
                predicted, along = norm / length, float(own @ expected[t, places]) / length**2
                unsure = (_UNSURE * predicted) ** 2
                mixed = predicted + unsure / (unsure + (loud / length) ** 2) * (along - predicted)
                out[t, chosen] = np.clip(mixed, predicted / 2, 1.0)
        return out


def denoised(seen: Array, response: Array, noise: Array, most: float) -> Array:
    """Posterior mean of response @ gradients from their sum with noise.

    Args:
        seen: (rounds, entries).      response: (rounds, rounds).      noise: (rounds,) standard deviations.
        most: root mean square of the result, as far as anybody knows before.
    """
    if not noise.all():  # exact rounds have nothing to mend
        return seen
    white, entries = seen / noise[:, None], seen.shape[1]
    sizes = _SIZES * most * np.sqrt(np.mean(noise**-2.0))
    logs, means = [], []
    for correlation in _CORRELATIONS:
        prior = (1 - correlation) * np.eye(len(seen)) + correlation
        signal = response @ prior @ response.T / np.outer(noise, noise)
        values, vectors = np.linalg.eigh(signal / np.trace(signal) * len(seen))
        turned = vectors.T @ white
        larger = 1 + sizes[:, None] ** 2 * np.maximum(values, 0.0)  # (sizes, rounds), the variance with the signal's
        logs.append(-0.5 * np.sum(entries * np.log(larger) + np.sum(turned**2, axis=1) / larger, axis=1))
        means.append((vectors, turned, 1 - 1 / larger))
    likely = np.exp(np.array(logs) - np.max(logs))
    likely /= likely.sum()
    mean = sum(
        vectors @ ((weights @ shrunk)[:, None] * turned)
        for weights, (vectors, turned, shrunk) in zip(likely, means, strict=True)
    )
    return np.asarray(mean * noise[:, None])
