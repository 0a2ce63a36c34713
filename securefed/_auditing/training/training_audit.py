"""Audit a torch training loop: the caller's model, loss and local step, or a recording of them.

The step is run as it stands: any layers, optimiser, number of epochs, shuffling and dropout. A client sends the change
of the state dict, buffers of batch normalisation included. A server sees it in the clear (view `server`), or sees the
sum of all clients' changes under secure aggregation (view `sum only`). A run is one round and one target.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from securefed._auditing.alerts import TableFacts, facts_of_clients
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.clear_runs import VIEWS, audit_in_the_clear, chosen_views
from securefed._auditing.engine.pace import logged_lines
from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.statistics import INCONCLUSIVE, NOT_DETECTED
from securefed._auditing.training.local_training import LocalStep, LossFunction, TorchTraining, TrainedRows
from securefed._auditing.training.model_inputs import InputLayout, returns_object
from securefed._auditing.training.observed_runs import ObservedRuns, RecordedRuns, SimulatedRuns
from securefed._auditing.training.training_secrets import labels_of
from securefed._auditing.training.training_seed_run import SHADOW
from securefed._auditing.training.training_subject import TrainingSubject, cut_to_budget
from securefed._hyperparameters import check_integer
from securefed._messages import Transcript
from securefed._public import require
from securefed._tensors import Array, real_array
from securefed.datasets._base import Dataset
from securefed.errors import DataError, SecureFedError

Clients = Sequence[tuple[Any, Any]]
"""Each client's rows: a pair (x, y) of tensors or arrays with as many rows; x may be a dict of them."""
_NEEDED = (
    ". Whatever the model needs to run is an entry of the dict x: of an encoder with a decoder the `labels` too, or "
    "the `decoder_input_ids`"
)
"""End of the error where a model with named inputs cannot be called."""


def audit_training(
    model: nn.Module,
    loss: LossFunction,
    local_step: LocalStep | None,
    clients: Clients,
    *,
    recording: Transcript | None = None,
    population: tuple[Any, Any] | None = None,
    classes: int | None = None,
    seeds: int = 10,
    view: Sequence[str] = VIEWS,
    seconds: float = 240.0,
) -> Report:
    """Run a torch loop's local step on each client's rows, or read a recording of it, and attack what a server sees.

    Args:
        model: the module with the weights that the clients receive. For a later round give the model of that round. It
            returns a tensor of scores, or an object that has them as `logits`.
        loss: (scores, target) -> one number for a batch, or one a row; as `torch.nn.CrossEntropyLoss()`.
        local_step: `local_step(model, x, y)` trains the model in place on one client's rows, as your clients do; or
            returns the trained model. `None` with a recording whose step is not known: attacks that simulate clients
            are then left out by name.
        clients: each client's rows, a pair (x, y); at least 2 clients. A dict x, as tokenizers return it, holds the
            inputs of a model that is called as `model(**x)`. Of a recording they are the rows that its clients trained
            on, in their order, which the report is scored with.
        recording: a transcript of `securefed.torch.record` or `FlowerRecording`, whose entries have the names of the
            model's state dict. Each pair of a round and a client is then a run, in place of simulated ones.
        population: rows like the clients' that none of them has, a pair (x, y). The attacker knows them. Without them
            the other clients' rows stand in, and membership in sums is left out.
        classes: number of classes; by default the number of the model's outputs, 2 of a single output whose targets
            are 0 and 1, and 0 where targets are no classes.
        seeds: number of runs, whose targets take turns among the clients; verdicts to rely on need 10.
        view: "server" (one client's change in the clear), "sum only" (what secure aggregation leaves).
        seconds: target for all attacks together, checked between parts of the work: an audit ends some time later,
            by a third where steps are slow. A step that is too slow for it is audited at fewer rows a client than they
            hold; the report's first sentence then says how many.

    Returns:
        The report: one cell for each view, secret and attack, and the share of rows recovered as a curve over rows a
        client and repetitions of the step. What did not run stands in `skipped` with its reason.

    Raises:
        ConfigError: arguments contradict each other.
        DataError: clients cannot be trained on, or the step fails; the message says on what.
    """
    began = time.perf_counter()
    chosen = chosen_views(view)
    check_integer("seeds", seeds, 1)
    require(seconds > 0, f"seconds must be positive; got {seconds}")
    require(
        local_step is not None or recording is not None,
        "give local_step, the function that trains a model on one client's rows, or the recording of a run",
    )
    _check_types(model, loss, local_step)
    require(len(clients) >= 2, f"an audit needs at least 2 clients, not {len(clients)}; the others are the baseline")
    pairs = [_pair(f"client {index}", pair) for index, pair in enumerate(clients)]
    first = pairs[0][0]
    named_rows = [x for x, _ in pairs if not isinstance(x, Tensor)]
    layout = None if isinstance(first, Tensor) else InputLayout.of(first).covering(named_rows)
    rows = [_rows(f"client {index}", pair, layout) for index, pair in enumerate(pairs)]
    held_out = None if population is None else _rows("population", _pair("population", population), layout)
    _check_shapes(rows, held_out)
    named_scores = returns_object(model, rows[0].x[:1], layout)
    training = TorchTraining(model, loss, local_step, layout=layout, named_scores=named_scores)
    _check_model(training, rows[0])
    given = rows
    notes, slower, asked = list[str](), 1.0, list[float]()
    held = max(len(own) for own in rows)
    if local_step is not None and recording is None:
        rows, notes, slower, asked = cut_to_budget(training, rows, seeds, seconds)
    runs: ObservedRuns = (
        SimulatedRuns(training, rows, seeds)
        if recording is None
        else RecordedRuns(recording, training, _recorded_rows(recording, rows), seeds)
    )
    named = _classes(training, rows, classes)
    subject = TrainingSubject(
        training, runs, rows, held_out, named, chosen, seconds, slower, asked=asked, notes=notes, most=held
    )
    subject.table = _facts(given, layout, text=subject.text is not None)
    if local_step is not None:
        subject.measure_sizes()
    curves = (subject.curve.chart(subject.name),) if subject.curve.shares else ()
    with logged_lines("audit_training") as note:
        report = audit_in_the_clear(subject, runs.count, chosen, note, word="runs", curves=curves)
    return replace(_without_shadow(report), seconds=time.perf_counter() - began)


def _facts(rows: Sequence[TrainedRows], layout: InputLayout | None, *, text: bool) -> TableFacts:
    """Collect the facts of the clients' rows, where a row is a row of a table: a few numbers, and codes of categories.

    Args:
        rows: each client's rows.
        layout: of the model's named inputs; `None` where it takes one tensor.
        text: whether the rows are tokens.
    """
    x = rows[0].x
    if text or x.ndim != 2 or (layout is not None and any(len(shape) > 1 for shape in layout.shapes.values())):
        return TableFacts(())
    names, codes = list[str](), list[str]()
    for name, place in ({"column": slice(0, x.shape[1])} if layout is None else layout.columns).items():
        many = place.stop - place.start
        own = [f"{name} {number}" for number in range(many)] if many > 1 or layout is None else [name]
        kind = x.dtype if layout is None else layout.types[name]
        names, codes = names + own, codes if kind.is_floating_point else codes + own
    classes = [_classes_of(own.y) for own in rows]
    held = classes if all(y is not None for y in classes) else [None] * len(rows)
    data = [Dataset(own.x.double().numpy(), y) for own, y in zip(rows, held, strict=True)]
    return facts_of_clients(data, names, codes)


def _classes_of(y: Tensor) -> Array | None:
    """Return labels that are classes, those of one logit, 0.0 and 1.0, among them; `None` for quantities."""
    flat = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y
    whole = not y.is_floating_point() or bool(((y == 0) | (y == 1)).all())
    return flat.long().numpy() if flat.ndim == 1 and whole else None


def _without_shadow(report: Report) -> Report:
    """Note beside membership in which views its strongest attack, which simulates clients, did not run in any run.

    The silence of the weaker attacks is then no finding: such a cell is inconclusive, and the report says "not tested".
    """
    ran = {cell.view for cell in report.cells if cell.attack == SHADOW}

    def noted(cell: Cell) -> Cell:
        if cell.secret != "membership" or cell.view in ran:
            return cell
        quiet = cell.verdict.word == NOT_DETECTED
        judged = replace(cell.verdict, word=INCONCLUSIVE) if quiet else cell.verdict
        return replace(cell, verdict=judged, reach=replace(cell.reach, without=SHADOW))

    return replace(report, cells=tuple(noted(cell) for cell in report.cells))


def _check_types(model: object, loss: object, local_step: object) -> None:
    """Raise `ConfigError` unless model, loss and step are a module and functions."""
    require(
        isinstance(model, nn.Module), f"model must be a torch.nn.Module, an object and no function; got {model!r:.80}"
    )
    require(
        callable(loss), f"loss must be a function of (output, target), such as CrossEntropyLoss(); got {loss!r:.80}"
    )
    require(
        local_step is None or (callable(local_step) and not isinstance(local_step, nn.Module)),
        f"local_step must be a function local_step(model, x, y) that trains the model; got {local_step!r:.80}",
    )


def _check_shapes(rows: Sequence[TrainedRows], held_out: TrainedRows | None) -> None:
    """Raise `ConfigError` unless all rows, those of the population too, have the shapes of the first client's."""
    for place, own in enumerate([*rows, *([] if held_out is None else [held_out])]):
        where = f"client {place}" if place < len(rows) else "population"
        require(
            own.x.shape[1:] == rows[0].x.shape[1:] and own.y.shape[1:] == rows[0].y.shape[1:],
            f"{where} has rows of the shapes {tuple(own.x.shape[1:])} and {tuple(own.y.shape[1:])}, and client 0 of "
            f"{tuple(rows[0].x.shape[1:])} and {tuple(rows[0].y.shape[1:])}; give all of them alike",
        )


def _check_model(training: TorchTraining, rows: TrainedRows) -> None:
    """Check that the model trains real parameters, and gives one tensor for a row as the rows are.

    Raises:
        DataError: it does not; the message says what to do.
    """
    trained = {name: value for name, value in training.model.named_parameters() if name in training.parameters}
    if not trained:
        raise DataError("the model trains no parameter: requires_grad is False for all; give the model that you train")
    if odd := [name for name, value in trained.items() if not value.is_floating_point()]:
        raise DataError(f"parameter {odd[0]!r} is of type {trained[odd[0]].dtype}; only real parameters are audited")
    model = training.received(training.state).eval()
    try:
        with torch.no_grad():
            value = training.loss(model(rows.x[:1]), rows.y[:1])
    except SecureFedError:
        raise
    except Exception as error:
        raise DataError(
            f"loss(model(x), y), called with one row as it is given, raised {type(error).__name__}: {error}; give rows "
            "of the type and shape that they take, or a loss that does to the output (of an object, to its `logits`) "
            f"what the step does{_NEEDED if training.layout is not None else ''}"
        ) from error
    if not torch.is_tensor(value):
        raise DataError(f"the loss returns {type(value).__name__}; attacks need a tensor that they can differentiate")


def _recorded_rows(recording: Transcript, rows: Sequence[TrainedRows]) -> list[int]:
    """Return the recorded numbers of rows; refuse other clients than the recording's."""
    recorded = list(recording.meta.get("rows", []))
    given = [len(own) for own in rows]
    require(
        recorded == given,
        f"the recording's clients have {recorded} rows, the given ones {given}; give the rows that they trained on, in "
        "the recording's order",
    )
    return recorded


def _classes(training: TorchTraining, rows: Sequence[TrainedRows], classes: int | None) -> int:
    """Return the number of classes: as given, or the model's outputs where labels are integers; 0 for other targets."""
    if classes is not None:
        check_integer("classes", classes, 0)
        most = max((int(own.y.max()) for own in rows if labels_of(own) is not None), default=-1)
        require(not 0 < classes <= most, f"classes is {classes}, and the rows hold the label {most}; give {most + 1}")
        return classes
    if any(labels_of(own) is None for own in rows):
        return 0
    with torch.no_grad():
        outputs = training.received(training.state).eval()(rows[0].x[:1])
    seen = max(int(own.y.max()) for own in rows) + 1
    return int(outputs.shape[1]) if outputs.ndim == 2 and outputs.shape[1] >= seen else seen


def _pair(name: str, pair: Any) -> tuple[Tensor | dict[str, Tensor], Tensor]:
    """Check that one client's rows are a pair, and return its parts as tensors, or x as a dict of them."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"{name} must be a pair (x, y) of tensors or arrays; got {_shown(pair)}")
    x, y = pair
    if _is_data_set(x):
        raise DataError(f"{name}: x must be a tensor, an array or a dict of them; got {_shown(x)}")
    if not isinstance(x, Mapping):
        return _tensor(name, x), _tensor(name, y)
    require(len(x) > 0 and all(isinstance(key, str) for key in x), f"{name}: x must name the model's inputs by strings")
    return {key: _tensor(f"{name}, {key}", value) for key, value in x.items()}, _tensor(name, y)


def _is_data_set(given: Any) -> bool:
    """Whether rows come as a data set of torch, or as a loader of one."""
    return isinstance(given, torch.utils.data.Dataset | torch.utils.data.DataLoader)


def _shown(given: Any) -> str:
    """Name the type of what should be rows, and say how they are taken out of a data set or a dict."""
    kind = type(given).__name__
    if isinstance(given, torch.utils.data.DataLoader):
        return f"the loader {kind}: give its data set as one batch, `default_collate(list(loader.dataset))`"
    if _is_data_set(given):
        return f"the data set {kind}: `torch.utils.data.default_collate(list(data))` makes one batch of it"
    if isinstance(given, Mapping) and "labels" in given:
        return f'{kind}: take the targets out of it, `(x, x.pop("labels"))`'
    return kind


def _padded(own: InputLayout | None, layout: InputLayout | None) -> str:
    """Say how texts of clients get one length, where named inputs differ in that alone; else nothing."""
    if own is None or layout is None or own.types != layout.types:
        return ""
    return ', texts padded to one length: `tokenizer(texts, padding="max_length", max_length=...)`'


def _tensor(name: str, values: Any) -> Tensor:
    """Return numbers as a tensor on the CPU; `DataError` unless they are finite and one row at least."""
    found = values.detach().cpu() if torch.is_tensor(values) else torch.as_tensor(np.array(real_array(values, name)))
    if not found.ndim or not len(found):
        raise DataError(f"{name} needs one row at least; got the shape {tuple(found.shape)}")
    if not bool(torch.isfinite(found.double()).all()):
        raise DataError(f"{name} holds NaN or infinity; drop those rows")
    return found


def _rows(name: str, pair: tuple[Tensor | dict[str, Tensor], Tensor], layout: InputLayout | None) -> TrainedRows:
    """Pack named inputs into one tensor; `DataError` unless x and y have as many rows, and x the inputs of `layout`."""
    x, y = pair
    own = None if isinstance(x, Tensor) else InputLayout.of(x)
    if own != layout:
        given, wanted = ("one tensor" if one is None else f"a dict of {one}" for one in (own, layout))
        raise DataError(f"{name} has as x {given}, and client 0 {wanted}; give all of them alike{_padded(own, layout)}")
    named = {"x": x} if isinstance(x, Tensor) else x
    lengths = {key: len(value) for key, value in named.items()} | {"y": len(y)}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(f"{name}: x and y need as many rows; got {shown}")
    return TrainedRows(named["x"] if layout is None else layout.pack(named), y)
