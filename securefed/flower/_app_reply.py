"""Read the app's reply, and check its structure: which records it holds, and their names, shapes and kinds.

The terms of a sum say what a reply must hold. A reply that holds something else cannot be summed. Its structure may
depend on the data, as of an app that leaves out a metric where a site has no rows of a class; so by default the client
sits out as for any failure, and its own log says why. The server reads it in two cases, in words of the public terms
alone: the app declares its structure in its code (`AppReply`), which is compared with the terms before the app is
called; or the site lets its SuperNode announce failures (`SitePolicy.announce_errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.errors import ConfigError, DataError
from securefed.flower._reply_numbers import VALUES, packed
from securefed.flower._sum_messages import ARRAY, EVALUATE, METRIC, QUERY, TRAIN, arrays_of
from securefed.parties._terms import SumTerms
from securefed.parties._terms_parts import is_local
from securefed.parties._update import unwrap_hint, without_wrapper

_DP_SGD, _TRAINING = "dp-sgd", "training"


class WrongStructure(DataError):
    """A reply of the app that is not of the structure that the terms state.

    Attributes:
        public: what is wrong in words of the terms alone, which the server may read where the site announces failures.
    """

    def __init__(self, public: str, found: str = "") -> None:
        self.public = public
        super().__init__(public + found)


@dataclass(frozen=True)
class AppReply:
    """The structure of an app's replies, declared in the app's code: `secure_mod(reply=AppReply(...))`.

        reply = AppReply(arrays=lambda: Net().state_dict(), train_metrics=("num-examples", "train_loss"))
        app = ClientApp(mods=[secure_mod(reply=reply)])

    A SuperNode refuses terms that do not fit it, by name and before anything is trained. It must not depend on the
    site's data, since the server reads the refusal. Each part may be left out, and is then not compared.

    Args:
        arrays: arrays or tensors by name, as `@app.train` returns them, or a function that makes them; only names and
            shapes are read.
        train_metrics: names of the single numbers in the MetricRecord of `@app.train`, the weight among them.
        evaluate_metrics: the same of `@app.evaluate`.

    Raises:
        ConfigError: an argument of another type.
    """

    arrays: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None
    train_metrics: Iterable[str] | None = None
    evaluate_metrics: Iterable[str] | None = None

    def __post_init__(self) -> None:
        if self.arrays is not None and not isinstance(self.arrays, Mapping) and not callable(self.arrays):
            raise ConfigError(f"arrays must be arrays by name, or a function; got {type(self.arrays).__name__}")
        for name in ("train_metrics", "evaluate_metrics"):
            given = getattr(self, name)
            if given is None:
                continue
            if isinstance(given, str) or not all(isinstance(entry, str) for entry in given):
                raise ConfigError(f"{name} must be a tuple of names, such as ('loss',); got {given!r}")
            object.__setattr__(self, name, tuple(given))

    def check(self, terms: SumTerms, phase: str, weighted_by: str) -> None:
        """Raise `ConfigError`, which the server may read, unless replies of this structure can be summed.

        Args:
            terms: the terms of the phase.
            phase: `train` or `evaluate`.
            weighted_by: name of the metric that weights updates.
        """
        declared = {TRAIN: self.train_metrics, EVALUATE: self.evaluate_metrics}.get(phase)
        try:
            if declared is not None:
                has = tuple(declared)
                for name in _wanted_metrics(terms, weighted_by):
                    if name not in has:
                        raise WrongStructure(f"{_lacks(name, phase)}; the app declares {', '.join(has) or 'none'}")
            if phase == TRAIN and self.arrays is not None:
                given = self.arrays() if callable(self.arrays) else self.arrays
                check_arrays({name: np.shape(value) for name, value in given.items()}, terms)
        except WrongStructure as error:
            raise ConfigError(f"the app's replies, as it declares them, do not fit the terms: {error}") from error


def summed(content: Any, terms: SumTerms, phase: str, weighted_by: str) -> tuple[dict[str, Any], float, list[str]]:
    """Read what the terms sum of an app's reply.

    Args:
        content: the reply's records.
        terms: the terms of the phase.
        phase: `train` or `evaluate`.
        weighted_by: name of the metric that weights updates.

    Returns:
        Tensors by the names of the terms; the weight, 1 where none is summed; names of metrics that are not summed.

    Raises:
        WrongStructure: the reply is not of the structure that the terms state.
    """
    out: dict[str, Any] = {}
    if phase == TRAIN:
        record = _only(content.array_records, "ArrayRecord, the updated model")
        arrays = without_wrapper(arrays_of(record), _arrays(terms))
        check_arrays({name: value.shape for name, value in arrays.items()}, terms)
        out = {f"{ARRAY}{name}": value for name, value in arrays.items()}
    if phase.startswith(QUERY):
        return packed(content, terms), 1.0, []
    wanted = _wanted_metrics(terms, weighted_by)
    if not wanted:
        return out, 1.0, []
    found = _only(content.metric_records, f"MetricRecord, with {', '.join(wanted)}")
    numbers = {name: _numbers(found, name, phase, terms.shapes.get(f"{METRIC}{name}", ())) for name in wanted}
    weight = float(numbers[weighted_by]) if terms.weighted else 1.0
    out |= {f"{METRIC}{name}": numbers[name] for name in metrics_of(terms)}
    others = sorted(set(found) - set(wanted))
    if VALUES in terms.shapes:
        return out | packed({"metrics": {name: found[name] for name in others}}, terms), weight, []
    return out, weight, others


def training_of(content: Any) -> int:
    """Return the number of the training by DP-SGD that the app's reply names.

    Raises:
        WrongStructure: it names none.
    """
    number = dict(content.config_records.get(_DP_SGD, {})).get(_TRAINING)
    if type(number) is not int:
        raise WrongStructure(
            "the app's reply names no training by DP-SGD, which the ledger of its site counts; let @app.train return "
            f'"{_DP_SGD}": ConfigRecord({{"{_TRAINING}": training.number}}) beside the model'
        )
    return number


def metrics_of(terms: SumTerms) -> list[str]:
    """Return the names of the metrics that terms sum."""
    return [name.removeprefix(METRIC) for name in terms.shapes if name.startswith(METRIC)]


def check_arrays(given: Mapping[str, tuple[int, ...]], terms: SumTerms) -> None:
    """Raise `WrongStructure` unless arrays, given by their shapes, are those of the terms."""
    wanted = _arrays(terms)
    given = without_wrapper(given, wanted)
    for name, shape in wanted.items():
        if name not in given:
            raise WrongStructure(
                f"the reply's ArrayRecord lacks the array {name!r}, {len(wanted)} of which the terms name; let "
                "@app.train return the arrays that the server's model has",
                f" (it holds {sorted(given)[:6]}{unwrap_hint(name, given)})",
            )
        if tuple(given[name]) != shape:
            raise WrongStructure(
                f"the reply's array {name!r} must have the shape {shape} of the server's model",
                f" (it has {tuple(given[name])})",
            )
    local = [pattern.removeprefix(ARRAY) for pattern in terms.local]
    if more := sorted(name for name in given if name not in wanted and not is_local(name, local)):
        raise WrongStructure(
            "the reply's ArrayRecord holds arrays that the terms neither sum nor keep local; leave them out, or let "
            "SecureStrategy keep them local", f" ({more[:6]})",
        )  # fmt: skip


def _arrays(terms: SumTerms) -> dict[str, tuple[int, ...]]:
    return {name.removeprefix(ARRAY): shape for name, shape in terms.shapes.items() if name.startswith(ARRAY)}


def _wanted_metrics(terms: SumTerms, weighted_by: str) -> list[str]:
    return [*([weighted_by] if terms.weighted else []), *(name for name in metrics_of(terms) if name != weighted_by)]


def _lacks(name: str, phase: str) -> str:
    return (
        f"the MetricRecord of @app.{phase} lacks {name!r}, which the terms name; return it there, or leave it out of "
        f"SecureStrategy's {phase}_metrics"
    )


def _only(records: Mapping[str, Any], what: str) -> Any:
    """Return the one value of a mapping; raise `WrongStructure` unless it holds exactly one."""
    if len(records) != 1:
        raise WrongStructure(f"the app's reply must hold one {what}", f"; it holds {len(records)}")
    return next(iter(records.values()))


def _numbers(metrics: Mapping[str, Any], name: str, phase: str, shape: tuple[int, ...]) -> Array:
    """Return a metric of the app's reply; raise `WrongStructure` where it is missing, or of another length."""
    if name not in metrics:
        raise WrongStructure(_lacks(name, phase), f" (it holds {sorted(metrics)})")
    value = np.asarray(metrics[name], np.float64)
    if value.shape == shape:
        return value
    found = f"a list of {len(value)}" if value.shape else f"of type {type(metrics[name]).__name__}"
    if not shape:
        raise WrongStructure(
            f"the metric {name!r} of @app.{phase} must be one number, and is a list; give SecureStrategy its length, "
            f"{phase}_metrics={{{name!r}: 10}}, or leave {phase}_metrics out, which sums all numbers",
            f" (it is {found})",
        )
    raise WrongStructure(
        f"the metric {name!r} of @app.{phase} must be a list of {shape[0]} numbers, as SecureStrategy's "
        f"{phase}_metrics says",
        f" (it is {found})",
    )
