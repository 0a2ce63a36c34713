"""FLAME's rows behind a network: what its first layer learned from them, round after round."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from securefed.algorithms.optimization.model import Model
from securefed.algorithms.personalized.flame import FLAME
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.gradient_rounds import stochastic
from securefed.attacks.levenberg import levenberg
from securefed.attacks.personal.path import Pull
from securefed.attacks.personal.patterns import tell_apart
from securefed.attacks.personal.recursion import Opened, read_opened, why_not_opened
from securefed.attacks.requirements import too_long
from securefed.errors import ConfigError, TranscriptError
from securefed.tensors import Array

_SINGLE, _DOUBLE = 1e-3, 1e-8
"""Relative misfits at which rows count as found, of networks in float32 and in float64."""
_NEAR, _POLISH = 0.1, 12
"""Misfit from which on rows are almost right, and Jacobians that are spent on them then."""


@dataclass(frozen=True)
class Behind:
    """The personal models by recursion; between two of them the mean gradient of a known path; of its first layer the
    rows, exactly, wherever ReLU units tell them apart (`patterns`, `networks/exact`): no local step is simulated for
    that, and neither labels nor batches need be known. Labels follow by least squares on the last layer, and the misfit
    of simulated steps says whether rows and labels are right. Where units do not tell, rows are fitted in the span of
    the first layer's gradients, and then on their entries, with labels as the last layer counts them.

    Batches are the client's secret, so of mini-batches the misfit stays large even where the rows are exact.

    Attributes:
        fits: starts of the fit in the span.      evaluations: of L-BFGS on the entries after it.
        largest: rows beyond which nothing is looked for.
    """

    fits: int = 4
    evaluations: int = 40
    largest: int = 16

    name: ClassVar[str] = "personal/network"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Observed) -> str | None:
        method, public = target.algorithm, target.public
        if not isinstance(method, FLAME):
            return "It follows the personal models of FLAME, and this is another algorithm."
        if not hasattr(method.problem, "row_losses") or not hasattr(method.problem, "predict"):
            return "It looks behind classifiers that are networks; personal/path inverts linear models."
        if len(observed.members) > 1:
            return "It follows one client's personal model, and the view shows a sum of several."
        if (reason := why_not_opened(observed, target)) is not None:
            return reason
        rows = sum(public.rows[client] for client in observed.members)
        if rows > self.largest:
            return f"It looks for at most {self.largest} rows, and this client has {rows}; raise `largest`."
        vectors = 16 * len(observed.rounds) + rows * public.classes
        return too_long(vectors, Model(method.problem, public).layout.size)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        """As `Attack.run`. Raises `TranscriptError` also where no linear layer meets the rows or gives the logits."""
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        states, public = read_opened(observed, target), target.public
        if not all(np.isfinite(part).all() for part in (states.local, states.personal)):
            raise TranscriptError("the view's messages lead to numbers that are not finite")
        method = target.algorithm
        assert isinstance(method, FLAME)  # `applies` refuses others
        rows = sum(public.rows[client] for client in observed.members)
        try:
            found, labels, residual, how = _Look.at(observed, target, states, rows).find(self, rng)
        except ConfigError as error:
            raise TranscriptError(str(error)) from error
        drawn = stochastic(method, (rows,))
        if not (residual <= _SINGLE or (drawn and how == "patterns")):
            found = np.clip(np.nan_to_num(found), -public.feature_bound, public.feature_bound)
        return Reconstruction(
            self.secret,
            found,
            labels=labels,
            residual=residual,
            unknowns=found.size,
            members=observed.members,
            diagnostics={"stage": how, "rounds": len(observed.rounds), "batches assumed": drawn},
        )


@dataclass(frozen=True)
class _Look:
    """One client's paths as torch sees them.

    Attributes:
        bare: the network without a penalty, whose gradients are all data.
        seen: (rounds, parameters) mean gradients along the paths.      entrance, exit: layers of the network.
    """

    target: Target
    paths: Any
    network: Any
    bare: Any
    seen: Any
    rows: int
    entrance: Any
    exit: Any

    @classmethod
    def at(cls, observed: Observed, target: Target, states: Opened, rows: int) -> _Look:
        import torch  # noqa: PLC0415 - loaded when a network is attacked

        from securefed.attacks.networks.rounds import network_of  # noqa: PLC0415
        from securefed.attacks.personal.replayed import Paths  # noqa: PLC0415

        method, public = target.algorithm, target.public
        assert isinstance(method, FLAME)
        network: Any = network_of(method.problem, public)  # type: ignore[arg-type]
        anchors = states.local[:-1]
        if method.anchor == "global":
            model = Model(method.problem, public)
            anchors = np.stack([model.vector("", item.broadcast) for item in observed.rounds])
        starts, ends, held = (
            torch.as_tensor(np.ascontiguousarray(value), dtype=network.dtype)
            for value in (states.personal[:-1], states.personal[1:], anchors)
        )
        steps = len(method.draw(rows, np.random.default_rng(0)).parts)
        paths = Paths(Pull(method), public, starts, held, steps)
        seen = paths.mean_gradients(network, ends - starts)
        aim = torch.zeros(1, dtype=torch.int64)
        bare: Any = network_of(replace(method.problem, l2=0.0), public)  # type: ignore[arg-type, type-var]
        layers = (
            bare.entrance(starts[0], public.features, aim),
            bare.exit(starts[0], public.features, public.classes),
        )
        if None in layers:
            raise TranscriptError("the network has no linear layer that the rows enter, or none that gives the logits")
        return cls(target, paths, network, bare, seen, rows, *layers)

    def find(self, attack: Behind, rng: np.random.Generator) -> tuple[Array, Array, float, str]:
        """Rows, labels, misfit, and how they were found."""
        from securefed.attacks.networks.exact import Entering, ratio  # noqa: PLC0415

        weight = np.stack([self.network.split(g)[self.entrance.weight].double().numpy() for g in self.seen])
        bias = None
        if self.entrance.bias is not None:
            bias = np.stack([self.network.split(g)[self.entrance.bias].double().numpy() for g in self.seen])
        entering = Entering(weight.reshape(-1, weight.shape[-1]), None if bias is None else bias.reshape(-1))
        best: tuple[Array, Array, float, str] | None = None
        if bias is not None:
            alone = self.rows == 1
            exact = ratio(entering) if alone else tell_apart(weight, bias, self.rows)
            if exact is not None and np.isfinite(exact).all():
                labels = self._labels(exact)
                best = exact, labels, self._misfit(exact, labels), "ratio" if alone else "patterns"
                if self._fitted and self._solved < best[2] < _NEAR:
                    best = self._polished(entering, exact, labels)
                if best[2] <= self._solved or not self._fitted:
                    return best
        fitted = self._fit(entering, attack, rng)
        return fitted if best is None or fitted[2] < best[2] else best

    @property
    def _solved(self) -> float:
        import torch  # noqa: PLC0415

        return _DOUBLE if self.network.dtype == torch.float64 else _SINGLE

    @property
    def _fitted(self) -> bool:
        """Whether a fit of simulated steps can do better than an exact stage: not where batches are unknown."""
        return not stochastic(self.target.algorithm, (self.rows,))  # type: ignore[arg-type]

    def _labels(self, found: Array) -> Array:
        """(rows,) of rows that are known: the mean gradient of the last layer is the sum of each row's own under its
        label, so that the weights of all rows under all labels follow by least squares, at the paths' starts."""
        import torch  # noqa: PLC0415

        public, network = self.target.public, self.bare
        x = torch.as_tensor(found, dtype=network.dtype).repeat_interleave(public.classes, dim=0)[:, None]
        y = torch.arange(public.classes).repeat(self.rows)[:, None]
        one, left, right = torch.ones(1, dtype=network.dtype), [], []
        parts = [network.places[name] for name in (self.exit.weight, self.exit.bias) if name is not None]
        for start, seen in zip(self.paths.starts, self.seen, strict=True):
            each = torch.func.vmap(lambda a, b, at=start: network.gradient(at, a, b, one))(x, y)
            left.append(torch.cat([each[:, part] for part in parts], dim=1).T)
            right.append(torch.cat([seen[part] for part in parts]))
        system, aim = torch.cat(left).double().numpy() / self.rows, torch.cat(right).double().numpy()
        shares = np.linalg.lstsq(system, aim, rcond=1e-6)[0].reshape(self.rows, public.classes)
        return np.asarray(shares.argmax(axis=1))

    def _misfit(self, found: Array, labels: Array) -> float:
        """Of simulated steps, relative."""
        import torch  # noqa: PLC0415

        x, y = torch.as_tensor(found, dtype=self.network.dtype), torch.as_tensor(labels)
        gap = self.paths(self.network, self.paths.starts[0], x, y) - self.seen.reshape(-1)
        value = float(gap.double().norm() / self.seen.double().norm().clamp_min(1e-150))
        return value if np.isfinite(value) else float("inf")

    def _polished(self, entering: Any, found: Array, labels: Array) -> tuple[Array, Array, float, str]:
        """Rows that are almost right, fitted in their span: a penalty weighs weights and biases differently along a
        path, which costs the exact stages a few digits."""
        import torch  # noqa: PLC0415

        from securefed.attacks.networks.exact import span  # noqa: PLC0415

        basis = torch.as_tensor(span(entering, self.rows), dtype=self.network.dtype)
        aims, start, scale = torch.as_tensor(labels), self.paths.starts[0], float(self.seen.norm())

        def gap(flat: Any) -> Any:
            sent = self.paths(self.network, start, flat.reshape(self.rows, -1) @ basis, aims)
            return (sent - self.seen.reshape(-1)) / scale

        def linearised(flat: Array) -> tuple[Array, Array]:
            at = torch.as_tensor(flat, dtype=self.network.dtype)
            return gap(at).double().numpy(), torch.func.jacfwd(gap)(at).double().numpy()

        inside = (found @ basis.double().numpy().T).reshape(-1)
        fit = levenberg(linearised, inside, steps=_POLISH, goal=1e-6 * self._solved)
        rows = fit.point.reshape(self.rows, -1) @ basis.double().numpy()
        return rows, labels, self._misfit(rows, labels), "patterns, fitted"

    def _fit(self, entering: Any, attack: Behind, rng: np.random.Generator) -> tuple[Array, Array, float, str]:
        """By the cascade of `networks/inversion`, on all rounds at once."""
        import torch  # noqa: PLC0415

        from securefed.attacks.networks.first_layer import FirstLayer  # noqa: PLC0415
        from securefed.attacks.networks.inversion import Cascade, Effort  # noqa: PLC0415
        from securefed.attacks.networks.matching import Prior, Problem  # noqa: PLC0415
        from securefed.attacks.networks.modules import restored  # noqa: PLC0415

        public, network = self.target.public, self.network
        counted = Counter(
            tuple(next(restored(self.bare, start, seen, self.rows, public.features, public.classes)).tolist())
            for start, seen in zip(self.paths.starts, self.seen, strict=True)
        )
        labels = np.array(counted.most_common(1)[0][0])
        effort = Effort(
            restarts=1, evaluations=attack.evaluations, widths=(), signed_steps=0, fits=attack.fits, solved=self._solved
        )
        start = self.paths.starts[0]
        problem = Problem(start, self.seen.reshape(-1), torch.as_tensor(labels))
        first = FirstLayer(self.bare, start, self.entrance, entering, self.rows, rng)
        prior = Prior(-public.feature_bound, public.feature_bound)
        found = Cascade(network, self.paths, public.features, prior, effort)([problem], rng, [first])[0]
        return found.rows, labels, float(found.residual), found.stage
