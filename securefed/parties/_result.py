"""The result of one round of sums: means, totals, and bounds on their errors.

With W the largest weight of the terms, w_i the weights and x_i the updates of the clients that took part (survivors),
the released sums are s = sum_i (w_i / W) x_i and v = sum_i w_i / W. So total = W s, weight = W v, mean = s / v.
Without weights, W = 1, s = sum_i x_i, and v is a public number: of survivors, or under noise of the planned cohort.
Terms with noise are never weighted, since the size of the noise must not depend on a weight.

Fixed point rounds: s is off by at most e and v by at most u (the plan's errors). Then the mean is off by

    |s / v - s* / v*| <= (e + |s / v| u) / (v - u),     s*, v* exact,

since s* = s +- e and v* = v +- u >= v - u. `result_of` computes this times W above and below.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np

from securefed._messages import SERVER, ClientId
from securefed._persistence.file_errors import NO_NPZ, storage_errors
from securefed._persistence.packing import nest, unnest
from securefed._runtime.exchange_header import TRAIN, ExchangeHeader
from securefed._tensors import Array, Tensors, decode, encode, real_array
from securefed.defenses._base import Plan
from securefed.errors import ConfigError, DataError
from securefed.parties._envelope import check_key, check_signed
from securefed.parties._terms import SumTerms
from securefed.parties._terms_parts import METRIC, UPDATE, WEIGHT, is_local
from securefed.parties._update import like, without_wrapper

T = TypeVar("T")

_TEXTS: Final = 2**20
"""Bytes of the plan and of the reasons for void attempts and refusals in the file of a result."""
_NPY_HEADER: Final = 4096
"""Bytes before the entries of an array in an .npz file: type, order and shape, 128 bytes for a short one."""

_UNREADABLE: Final = (*NO_NPZ, TypeError, ArithmeticError)
"""Errors of json and np.load for bytes that they cannot read; RuntimeError is that of brackets nested too deep."""


@dataclass(frozen=True, eq=False)
class SumResult:
    """The result of one round at the server.

    Attributes:
        mean: by name, the weighted mean of the survivors' updates: float64, integers rounded to nearest (beyond 2^53,
            float64 does not hold every integer). Under noise the sum over a fixed divisor, the planned cohort, however
            many took part. Where differences are summed, the base plus the mean difference.
        total: by name, the sum of weight times update (of the differences, where these are summed).
        weight: total weight of the survivors; under noise the fixed divisor.
        metrics: by name, the sum of the survivors' metrics.
        error: by name, bound on the fixed-point error of an entry of `mean`, before integers are rounded; times
            `weight`, of an entry of `total`. It grows where weights are small against `terms.largest_weight`, and is
            zero in the clear.
        noise: by name, standard deviation of the noise in an entry of `total`; empty without noise.
        survivors: clients in the sum.
        round: number of rounds with a result before this one.
        plan: the defence's plan.
        void: why earlier attempts at this round were void.
        refusals: by party, why its message was refused, or why it refused the server's, in the last attempt.
        announced: where the terms verify, the opened sum and its proof, public bytes for the clients, each of which
            checks the result by them (`SumClient.check`); else empty, and no client can check the result.
        given_up: rounds before this one that were given up; clients number a round with them.
        _local: names (or patterns) of the tensors that each client keeps to itself, for `like`.
    """

    mean: Mapping[str, Array]
    total: Mapping[str, Array]
    weight: float
    metrics: Mapping[str, float]
    error: Mapping[str, float]
    noise: Mapping[str, float]
    survivors: tuple[ClientId, ...]
    round: int
    plan: Plan
    void: tuple[str, ...]
    refusals: Mapping[int, str]
    announced: bytes = b""
    given_up: int = 0
    _local: tuple[str, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path | str, terms: SumTerms, round: int = 1, *, server: bytes | None = None) -> Self:
        """Read a result that `securefed party sum` wrote into the folder of its messages.

        Not checked: that the server told the truth. Where the terms verify, a client that took part checks that
        (`SumClient.check`), as `securefed party contribute` does.

        Args:
            folder: of the messages.
            terms: the terms of the sum.
            round: number of the round, from 1 as in the files' names.
            server: the server's public key; a result that it did not sign is refused. Without one, any site that can
                write into the folder may have written the result.

        Raises:
            AuthenticationError: the server did not sign these files.
            StorageError: a file cannot be read; the round may not be complete.
            DataError: the files hold no such result, or one under other terms.
            ConfigError: the terms sum integers, or differences to a base, of which the files hold no total.
        """
        if terms.differences or any(tensor.integer for tensor in terms.tensors):
            raise ConfigError("the folder holds means, from which no total of integers or differences follows")
        stem = Path(folder) / f"round-{round}"
        with storage_errors(f"read {stem}-result.json and {stem}-mean.npz", "is the round complete?"):
            text, means = (_within(Path(f"{stem}-{end}"), terms) for end in ("result.json", "mean.npz"))
            proof = Path(f"{stem}-announced.safetensors")
            announced = _within(proof, terms) if proof.exists() else b""
            signature = Path(f"{stem}-result.signature")
            signed = _within(signature, terms) if signature.exists() else b""
        if (pinned := check_key("server", server)) is not None:
            check_signed(pinned, signed, SERVER, terms.digest, text, means, announced)
        try:
            mean = {name: value.astype(np.float64) for name, value in _read_mean(means, terms).items()}
            return cls._read(json.loads(text), mean, None, announced, terms)
        except _UNREADABLE as error:
            raise DataError(f"{stem}-result.json and {stem}-mean.npz hold no result of these terms: {error}") from error

    def to_bytes(self, terms: SumTerms) -> bytes:
        """Return this result as bytes, public, for the clients, each of which checks it (`SumClient.check`).

        Args:
            terms: the terms of the sum.
        """
        facts = {
            "terms": terms.digest.hex(),
            "weight": self.weight,
            "metrics": dict(self.metrics),
            "error": dict(self.error),
            "noise": dict(self.noise),
            "survivors": list(self.survivors),
            "round": self.round + 1,
            "given_up": self.given_up,
            "void": list(self.void),
            "refusals": {str(party): reason for party, reason in self.refusals.items()},
        }
        arrays = nest("mean", self.mean) | nest("total", self.total)
        return encode(arrays | {"announced": np.frombuffer(self.announced, np.uint8)}, facts)

    @classmethod
    def from_bytes(cls, data: bytes, terms: SumTerms) -> Self:
        """Read a result that `to_bytes` wrote. Nothing shows yet that it is true: `SumClient.check` it.

        Args:
            data: the bytes.
            terms: the terms of the sum.

        Raises:
            DataError: these bytes are no result, or one under other terms, or too long for one.
        """
        if len(data) > (most := 3 * terms.most_bytes + _TEXTS):
            raise DataError(f"{len(data)} bytes, and no result of these terms exceeds {most}")
        tensors, facts = decode(data)
        try:
            mean, total = (_arrays(unnest(name, tensors), terms) for name in ("mean", "total"))
            return cls._read(facts, mean, total, tensors["announced"].tobytes(), terms)
        except _UNREADABLE as error:
            raise DataError(f"these bytes are no result of these terms: {error!r}") from error

    @classmethod
    def _read(
        cls, facts: Any, mean: dict[str, Array], total: dict[str, Array] | None, announced: bytes, terms: SumTerms
    ) -> Self:
        """Read a result's JSON values; the total is the mean times the weight, if none is given.

        Raises:
            DataError: it is of other terms.
            KeyError, TypeError, ValueError, ArithmeticError, AttributeError: a value that no result has.
        """
        if (named := facts["terms"]) != terms.digest.hex():
            raise DataError(f"a result of other terms, with the digest {str(named)[:16]}; give those")
        weight = float(facts["weight"])
        return cls(
            mean=mean,
            total={name: value * weight for name, value in mean.items()} if total is None else total,
            weight=weight,
            metrics={str(name): float(value) for name, value in facts["metrics"].items()},
            error={str(name): float(value) for name, value in facts["error"].items()},
            noise={str(name): float(value) for name, value in facts["noise"].items()},
            survivors=tuple(int(client) for client in facts["survivors"]),
            round=int(facts["round"]) - 1,
            plan=terms.plan,
            void=tuple(map(str, facts["void"])),
            refusals={int(party): str(reason) for party, reason in facts["refusals"].items()},
            announced=announced,
            given_up=int(facts.get("given_up", 0)),  # release 0.1 did not write it
            _local=terms.local,
        )

    def like(self, example: Mapping[str, T]) -> dict[str, T]:
        """Return the mean in the types, dtypes and devices of an example, for `load_state_dict`; of booleans the share.

        Args:
            example: arrays or tensors by name, which are the names of the result; those that the terms keep local are
                taken from it as they are.

        Raises:
            DataError: the example holds a tensor that was neither summed nor kept local.
        """
        out = {}
        known = without_wrapper(example, self.mean)
        for (name, value), own in zip(example.items(), known, strict=True):
            if own in self.mean:
                out[name] = like(self.mean[own], value)
            elif is_local(own, self._local):
                out[name] = value
            else:
                raise DataError(
                    f"{name!r} was not summed, and the terms do not keep it local; give the model of the terms"
                )
        return out


@dataclass(frozen=True)
class CompletedSum:
    """The sum of one round, from which its result follows; the server's file keeps it.

    Attributes:
        released: by name, the sums after the defence's last step: decoded, with noise where the server adds some.
        survivors: clients in the sum.
        doublings: how often the declared bounds had been doubled.
        learned: public numbers of an adaptive defence.
        round: number of the round.
        void: why earlier attempts were void.
        refusals: by party, why its message was refused.
        announced: the opened sum and its proof, for the clients to check; empty where they check nothing.
        given_up: rounds before this one that were given up.
    """

    released: Tensors
    survivors: tuple[ClientId, ...]
    doublings: int
    learned: tuple[float, ...]
    round: int
    void: tuple[str, ...]
    refusals: Mapping[int, str]
    announced: Tensors = field(default_factory=dict)
    given_up: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the tensors, as JSON values. Inverse: `from_json`."""
        facts = {name: value for name, value in vars(self).items() if name not in ("released", "announced")}
        return facts | {"learned": [number.hex() for number in self.learned]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], released: Tensors, announced: Tensors) -> Self:
        """Read what `to_json` returned, with the tensors."""
        read = {
            "survivors": tuple(values["survivors"]),
            "learned": tuple(float.fromhex(number) for number in values["learned"]),
            "void": tuple(values["void"]),
            "refusals": {int(party): reason for party, reason in values["refusals"].items()},
        }
        return cls(**{**values, **read, "released": released, "announced": announced})


def result_of(terms: SumTerms, summed: CompletedSum, base: Mapping[str, Array] | None) -> SumResult:
    """Compute means from the released sums.

    Args:
        terms: the terms.
        summed: the completed sum.
        base: the model that the updates were computed from; `None` without one.

    Raises:
        DataError: the survivors' total weight is zero, or not more than its rounding error.
    """
    released, survivors = summed.released, summed.survivors
    plan = terms.core.plan(ExchangeHeader(survivors, TRAIN, summed.doublings, summed.learned))
    scale = terms.largest_weight if terms.weighted else 1.0
    distortion = terms.defense.distortion(plan, len(survivors))
    # The plan's errors are those of the decoded sum, the release multiplies it by these factors.
    units = {tensor.name: distortion.units.get(tensor.name, 1.0) / plan.sampling_rate for tensor in plan.tensors}
    errors = {tensor.name: tensor.error * scale * units[tensor.name] for tensor in plan.tensors}
    # An unweighted sum is divided by the number of survivors, or under a clip or noise by the planned cohort; under
    # Poisson sampling too, as the release divided the sum by the sampling rate.
    count = float(len(survivors) if terms.plan.privacy is None else terms.cohort)
    weight = float(released[WEIGHT]) * scale if terms.weighted else count
    uncertain = errors[WEIGHT] if terms.weighted else 0.0  # u W of the module's docstring
    if not weight > uncertain:
        raise DataError(
            f"the survivors' weights sum to {weight:.3g}, which rounding alone may be ({uncertain:.3g}), so that there "
            "is no mean; give weights that are not all 0, and a largest_weight near the largest of them"
        )
    total = {t.name: np.asarray(released[f"{UPDATE}{t.name}"]) * scale for t in terms.tensors}
    mean = {name: np.asarray(value / weight) for name, value in total.items()}
    error = {
        name: (errors[f"{UPDATE}{name}"] + float(np.abs(value).max(initial=0)) * uncertain) / (weight - uncertain)
        for name, value in mean.items()
    }
    if terms.differences and base is not None:
        mean = {name: np.asarray(value + base[name]) for name, value in mean.items()}
    for tensor in terms.tensors:
        if tensor.integer:
            mean[tensor.name] = np.asarray(np.rint(mean[tensor.name]))
    metrics = {name: float(released[f"{METRIC}{name}"]) for name, _ in terms.metrics}
    deviations = distortion.released
    noise = {t.name: deviations[f"{UPDATE}{t.name}"] for t in terms.tensors if f"{UPDATE}{t.name}" in deviations}
    return SumResult(
        mean=mean,
        total=total,
        weight=weight,
        metrics=metrics,
        error=error,
        noise=noise,
        survivors=survivors,
        round=summed.round,
        given_up=summed.given_up,
        plan=plan,
        void=summed.void,
        refusals=dict(summed.refusals),
        announced=encode(summed.announced) if summed.announced else b"",
        _local=terms.local,
    )


def imprecise(result: SumResult) -> list[str]:
    """Describe the tensors and metrics of a result whose stated error is larger than itself; exact zeros are none."""
    largest = {name: float(np.abs(total).max(initial=0)) for name, total in result.total.items()}
    stated = {name: (size / result.weight, result.error[name]) for name, size in largest.items()}
    errors = {tensor.name: tensor.error for tensor in result.plan.tensors}
    stated |= {
        f"metric {name}": (abs(value), errors.get(f"{METRIC}{name}", 0.0)) for name, value in result.metrics.items()
    }
    less = {name: pair for name, pair in stated.items() if 0 < pair[0] < pair[1]}
    return [f"{name} (at most {size:.2g}, error {error:.2g})" for name, (size, error) in less.items()]


def _within(path: Path, terms: SumTerms) -> bytes:
    """Read a file of a result, which is no longer than a message of these terms and its texts.

    Raises:
        DataError: it is longer.
        OSError: it cannot be read.
    """
    if (found := path.stat().st_size) > (most := terms.most_bytes + _TEXTS):
        raise DataError(f"{path} has {found} bytes, and no result of these terms exceeds {most}")
    return path.read_bytes()


def _read_mean(data: bytes, terms: SumTerms) -> dict[str, Array]:
    """Read the means in an .npz file; nothing is unpacked before its size and shape are those of the terms.

    Raises:
        ValueError, KeyError, zipfile.BadZipFile: they are not, or the bytes are no such file.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for tensor in terms.tensors:
            most = 8 * math.prod(tensor.shape) + _NPY_HEADER
            if (found := archive.getinfo(f"{tensor.name}.npy").file_size) > most:
                raise ValueError(f"{tensor.name!r} unpacks to {found} bytes, and the terms' tensor to at most {most}")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return _arrays({tensor.name: archive[tensor.name] for tensor in terms.tensors}, terms)


def _arrays(given: Mapping[str, Array], terms: SumTerms) -> dict[str, Array]:
    """Return one array of real numbers for each tensor of the terms; raise `ValueError`, `KeyError` or `DataError`."""
    out = {tensor.name: real_array(given[tensor.name], tensor.name) for tensor in terms.tensors}
    for tensor in terms.tensors:
        if out[tensor.name].shape != tensor.shape:
            raise ValueError(f"{tensor.name!r} has shape {out[tensor.name].shape}, and not {tensor.shape}")
    return out
