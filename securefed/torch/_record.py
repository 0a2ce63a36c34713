"""Record an existing torch loop as a transcript: a few calls beside the loop, which stays as it is.

    with securefed.torch.record("run.transcript", rows=[100, 80, 120], features=64, classes=10) as recording:
        for _ in range(rounds):
            recording.broadcast(model)                     # what every client receives
            for client, loader in enumerate(loaders):
                local = train(copy.deepcopy(model), loader)
                recording.update(client, local)            # the model, or state dict, that comes back
            average(model, ...)
        recording.broadcast(model)                         # the result; optional

    audit_transcript(recording.transcript, FedAvg(...))

The transcript holds what a server sees of this run without any defence: attacks and audits read it like a run of this
package. Of a loop under secure aggregation or `masked_allreduce`, record the means alone (`mean_gradient`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from securefed._hyperparameters import check_choice
from securefed._messages import ClientId, Transcript
from securefed._tensors import Array, is_torch, real_array
from securefed.errors import DataError, TranscriptError
from securefed.recording._recording import Form, Recording, contribution, named, relative_weights

Model = nn.Module | Mapping[str, Any]


class LoopRecording:
    """Take a loop's models and updates, round by round; `record` makes one.

    Names and types are those of the module's trained parameters, or of a state dict's floating-point entries: integer
    counters, as BatchNorm has, are left out. Values are copied, so that the loop may go on changing its tensors.

    Args:
        recording: collects the rounds.
        form: as in `record`.
        weights: the weights of each client's update in the server's mean.
        names: as in `record`.

    Attributes:
        transcript: the run; there once the `with` block has ended.
    """

    def __init__(self, recording: Recording, form: Form, weights: Array, names: Sequence[str] | None) -> None:
        self._recording, self._form, self._weights, self._names = recording, form, weights, names
        self._sent: dict[str, Array] | None = None
        self._updates: dict[ClientId, dict[str, Array]] = {}
        self._output: dict[str, Array] = {}
        self._transcript: Transcript | None = None

    @property
    def clients(self) -> int:
        """Number of clients of the run."""
        return len(self._weights)

    @property
    def transcript(self) -> Transcript:
        """The recorded run; `TranscriptError` before the `with` block has ended."""
        if self._transcript is None:
            raise TranscriptError("the transcript is there once the `with` block has ended without an error")
        return self._transcript

    def broadcast(self, model: Model) -> None:
        """Begin a round: `model` is what its clients receive. After the last round: the result."""
        self._close_round()
        self._sent = self._read(model)
        self._output = self._sent

    def update(self, client: ClientId, model: Model) -> None:
        """Record the model that a client sends back, after training it from the round's broadcast.

        Raises:
            DataError: no round was begun, the client sent something in this round already, or other names or shapes
                than the broadcast's.
        """
        received, trained = self._received(client), self._read(model)
        if {name: value.shape for name, value in trained.items()} != {n: v.shape for n, v in received.items()}:
            raise DataError(f"client {client}'s model has other names or shapes than the model that it received")
        self._updates[client] = contribution(received, trained, self._form, float(self._weights[client]))

    def check_received(self, client: ClientId, model: Model) -> None:
        """Check that a client begins from the round's broadcast.

        Raises:
            DataError: no round was begun, the client sent something in this round already, or its model is another.
        """
        received, own = self._received(client), self._read(model)
        if set(own) != set(received) or any(not np.array_equal(own[name], received[name]) for name in own):
            raise DataError(
                f"client {client} begins from another model than the round's broadcast; train from what "
                "broadcast(model) was given"
            )

    def gradient(self, client: ClientId, model: Model) -> None:
        """Record the mean gradient over a client's rows, which it sends; a module's is read from `.grad`.

        It is recorded times the client's number of rows, which is what `optimization/dsgd` sends.
        """
        self._received(client)
        self._updates[client] = self._gradients(model, self._recording.public.rows[client])

    def mean_gradient(self, model: Model) -> None:
        """Record a round of which only the mean gradient of all clients is known, as after `masked_allreduce`.

        Raises:
            DataError: no round was begun, or the clients' numbers of rows differ, so that the mean of their gradients
                is not that of their rows.
        """
        public = self._recording.public
        if len(set(public.rows)) > 1:
            raise DataError(f"the mean of gradients weights all clients alike, and they have {list(public.rows)} rows")
        if self._sent is None or self._updates:
            raise DataError("call broadcast(model) before mean_gradient, and no update or gradient in the same round")
        self._recording.sums(self._sent, self._gradients(model, sum(public.rows)), range(public.clients))
        self._sent = None

    def finish(self) -> Transcript:
        """End the last round and return the transcript; the `with` block of `record` does it."""
        self._close_round()
        self._transcript = self._recording.finish(self._output)
        return self._transcript

    def _close_round(self) -> None:
        if self._sent is not None and self._updates:
            self._recording.round(self._sent, self._updates)
        self._sent, self._updates = None, {}

    def _received(self, client: ClientId) -> dict[str, Array]:
        if self._sent is None:
            raise DataError("call broadcast(model) first: it begins a round")
        if client not in range(len(self._weights)) or client in self._updates:
            raise DataError(
                f"clients are numbered 0 to {len(self._weights) - 1} and send once in a round; got {client!r}"
            )
        return self._sent

    def _gradients(self, model: Model, rows: int) -> dict[str, Array]:
        if isinstance(model, nn.Module):
            missing = [name for name, value in _trained(model).items() if value.grad is None]
            if missing:
                raise DataError(f"{missing[0]!r} has no gradient; call this after backward, before zero_grad")
            model = {name: value.grad for name, value in _trained(model).items()}
        found = self._read(model)
        return {f"gradient.{name}": np.asarray(rows * value, value.dtype) for name, value in found.items()}

    def _read(self, model: Model) -> dict[str, Array]:
        tensors = _trained(model) if isinstance(model, nn.Module) else dict(model)
        arrays = {name: np.array(real_array(value, repr(name))) for name, value in tensors.items() if _floats(value)}
        if not arrays:
            raise DataError("no floating-point tensors to record; give a module, or its state dict")
        return arrays if self._names is None else named(list(arrays.values()), self._names)


@contextmanager
def record(
    path: Path | str | None = None,
    *,
    rows: Sequence[int],
    features: int,
    classes: int = 0,
    feature_bound: float = 1.0,
    form: Form = "updates",
    weighted: bool = True,
    names: Sequence[str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[LoopRecording]:
    """Record a training loop as a transcript; nothing is written where the block ends with an error.

    Args:
        path: file to save the transcript to; `None` keeps it in memory.
        rows: number of rows of each client, by its number.
        features: width of the rows.
        classes: number of label classes; 0 without labels.
        feature_bound: declared largest absolute value of the rows' entries.
        form: what `update` records: "updates" as `optimization/fedavg` sends them, `delta.NAME` = n_i / mean(n) (y_i -
            x) for a model x trained to y_i, or "models", `NAME` = y_i.
        weighted: whether the server weights updates by numbers of rows.
        names: names of the tensors as the attacked problem calls them, in the model's order; its own by default.
        facts: further facts to store in the transcript (JSON).

    Yields:
        The recording.

    Raises:
        ConfigError: another form.
        DataError: facts that no run can have.
        TranscriptError: no round was recorded.
        StorageError: the file cannot be written.
    """
    check_choice("form", form, get_args(Form))
    recording = Recording(
        rows=rows,
        features=features,
        classes=classes,
        feature_bound=feature_bound,
        facts={"framework": "torch", "form": form, "weighted": weighted, **(facts or {})},
    )
    loop = LoopRecording(recording, form, relative_weights(rows, weighted=weighted), names)
    yield loop
    transcript = loop.finish()
    if path is not None:
        transcript.save(path)


def _trained(module: nn.Module) -> dict[str, Any]:
    own: nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
    return {name: value for name, value in own.named_parameters() if value.requires_grad}


def _floats(value: Any) -> bool:
    return value.is_floating_point() if is_torch(value) else np.asarray(value).dtype.kind == "f"
