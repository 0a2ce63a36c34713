"""Run the caller's local step on copies of the model, and compute what a server sees of it: the change of the state.

The state is the model's state dict: parameters, and buffers such as the running statistics of batch normalisation. Both
the audited clients and those that attacks simulate are run here. The caller's code is run as it is. Its draws come from
the global generators, which are set for each run and restored afterwards, so that a run can be repeated and two runs
can differ in their draws alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from securefed._auditing.own.global_seed import global_seed
from securefed._auditing.training.model_inputs import InputLayout, present_as_tensors
from securefed._tensors import Array
from securefed.attacks._generic import clock
from securefed.errors import DataError, SecureFedError

LocalStep = Callable[[nn.Module, Any, Tensor], Any]
"""`local_step(model, x, y)` trains the model in place on one client's rows, or returns the trained model."""
LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(output, target) -> the loss: one number for the batch, or one a row."""
State = Mapping[str, Tensor]
"""A state dict: parameters and buffers by name."""
_COUNTER = "num_batches_tracked"
"""End of the names under which layers of batch normalisation count their batches."""


@dataclass(frozen=True)
class TrainedRows:
    """The rows of one client.

    Attributes:
        x: (rows, ...) inputs; named inputs are packed into one tensor (`InputLayout`).
        y: (rows, ...) targets.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def part(self, places: Any) -> TrainedRows:
        """Select rows, by a slice or by their numbers."""
        return TrainedRows(self.x[places], self.y[places])

    @staticmethod
    def joined(parts: list[TrainedRows]) -> TrainedRows:
        """Return the rows of several clients as those of one."""
        return TrainedRows(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))

    @property
    def flat(self) -> Array:
        """(rows, features) inputs in double precision, each as one vector."""
        return np.asarray(self.x.reshape(len(self.x), -1).double().numpy())


class TorchTraining:
    """The model, its loss and the caller's step.

    Args:
        model: the model with the weights that every client receives.
        loss: see `LossFunction`.
        step: see `LocalStep`; `None` where only a recording of it is known, so that no attack can simulate it.
        layout: of the model's named inputs; `None` where it takes one tensor.
        named_scores: whether the model returns an object that holds its scores as `logits`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        step: LocalStep | None,
        *,
        layout: InputLayout | None = None,
        named_scores: bool = False,
    ) -> None:
        self.model, self.loss, self.step, self.times = deepcopy(model).cpu(), loss, step, 1
        self.layout, self._adapted = layout, layout is not None or named_scores
        self.parameters = tuple(name for name, value in self.model.named_parameters() if value.requires_grad)
        self._modes: dict[str, bool] | None = None

    @property
    def state(self) -> dict[str, Tensor]:
        """The state dict of the model, copied."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def repeated(self, times: int) -> TorchTraining:
        """Return the same training with the step run several times, one after the other, in a client's turn."""
        out = copy(self)
        out.times = times
        return out

    def with_model(self, model: nn.Module) -> TorchTraining:
        """Return the same training of another module with the same parameters."""
        out = copy(self)
        out.model = model
        return out

    def received(self, state: State) -> nn.Module:
        """Return a copy of the model with a state, which takes rows as `TrainedRows` holds them and returns scores.

        Entries that the state lacks are the model's own.
        """
        module = self._copy(state)
        return present_as_tensors(module, self.layout) if self._adapted else module

    def _copy(self, state: State) -> nn.Module:
        """Return a copy of the caller's model with a state."""
        module = deepcopy(self.model)
        module.load_state_dict(dict(state), strict=False)
        return module

    def change(self, state: State, rows: TrainedRows, seed: int) -> dict[str, Array]:
        """Train a copy on some rows.

        Args:
            state: the state that the client receives.
            rows: the rows of the client.
            seed: the seed of the global random generators during the step.

        Returns:
            By name, the trained state less the received one, in double precision; counters of batches included.

        Raises:
            DataError: the step fails, changes nothing or buffers alone, or ends in numbers that are not finite.
        """
        if self.step is None:
            raise DataError("the recording comes without a local step, so that no client can be simulated; give one")
        module = self._copy(state)
        before = {name: value.detach().clone() for name, value in module.state_dict().items()}
        with global_seed(seed), _Modes(module) as modes:
            try:
                for _ in range(self.times):
                    clock().count(len(rows))
                    x = rows.x.clone()
                    given = x if self.layout is None else self.layout.unpack(x)
                    returned = self.step(module, given, rows.y.clone())
                    module = returned if isinstance(returned, nn.Module) else module
            except SecureFedError:
                raise
            except Exception as error:
                raise DataError(f"local_step raised {type(error).__name__} on {len(rows)} rows: {error}") from error
        self._modes = self._modes or modes.seen
        change = _difference(before, module.state_dict(), len(rows))
        _check_parameters(module, change)
        return change

    @property
    def modes(self) -> Mapping[str, bool]:
        """By name of a part of the model, whether it was in training mode when the step first called it.

        Parts that the step never called are left out; before any step all parts are named, in the mode they are in.
        Attacks set their copy of the model likewise: batch normalisation computes something else in each mode.
        """
        return self._modes or {name: part.training for name, part in self.model.named_modules()}


class _Modes:
    """Record in which mode, training or evaluation, each part of a module is called first.

    Attributes:
        seen: by the part's name, whether it was in training mode.
    """

    def __init__(self, module: nn.Module) -> None:
        self.seen: dict[str, bool] = {}
        self._module, self._hooks = module, list[Any]()

    def __enter__(self) -> _Modes:
        for name, part in self._module.named_modules():

            def note(called: nn.Module, _: Any, name: str = name) -> None:
                self.seen.setdefault(name, called.training)

            self._hooks.append(part.register_forward_pre_hook(note))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


def _difference(before: State, after: State, rows: int) -> dict[str, Array]:
    """Compute after - before by name; `DataError` where it is nothing, or not finite."""
    if set(before) != set(after):
        raise DataError("local_step returned a model with other entries in its state dict than the model it was given")
    if odd := [name for name in before if before[name].shape != after[name].shape]:
        raise DataError(f"local_step returned {odd[0]!r} in another shape than that of the model it was given")
    # `before` is on the CPU; the step may have moved the model to another device, one without double precision even
    change = {
        name: (after[name].detach().cpu().double() - before[name].double()).numpy()
        for name in before
        if before[name].is_floating_point() or name.endswith(_COUNTER)
    }
    if not all(np.isfinite(value).all() for value in change.values()):
        raise DataError(f"local_step on {rows} rows ends in numbers that are not finite; lower its learning rate")
    if not any(value.any() for value in change.values()):
        raise DataError(
            "local_step left the model as it was; it must train the model that it is given in place, or return the "
            "trained one"
        )
    return change


def _check_parameters(model: nn.Module, change: Mapping[str, Array]) -> None:
    """Refuse a step that moved buffers alone; raise `DataError`."""
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    if trained and not any(change[name].any() for name in trained if name in change):
        raise DataError(
            "local_step moved no parameter of the model that it was given, only buffers such as running statistics; "
            "make the optimiser inside local_step, of model.parameters()"
        )


def counted_batches(change: Mapping[str, Array]) -> int | None:
    """Return how many batches passed during the step, as layers of batch normalisation count; `None` where none counts.

    The server sees this counter as part of the state.
    """
    counts = [int(value) for name, value in change.items() if name.endswith(_COUNTER)]
    return max(counts) if counts else None


def as_vector(change: Mapping[str, Array], names: tuple[str, ...]) -> Array:
    """Return some entries of a change as one vector."""
    return np.concatenate([np.ravel(change[name]) for name in names])
