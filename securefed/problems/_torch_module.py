"""Train any `torch.nn.Module` with a loss as a problem.

Gradient methods (securefed.algorithms) exchange parameters as arrays by name and ask a problem for gradients at given
parameters. So the module here is only a function of its parameters (`torch.func.functional_call`): one instance, the
stand-in, is built and kept, and each call puts other parameters in its place, one thread at a time. `TorchProblem`
computes the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import nn

from securefed._hyperparameters import check_choice
from securefed._process_lock import PROCESS_LOCK
from securefed._public import Public, require
from securefed._tensors import Array, Tensors
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError
from securefed.problems._base import check_classes
from securefed.problems._module_calls import call_with
from securefed.problems._torch_problem import TorchProblem, TorchTensors, tensor

Build = Callable[[], nn.Module]
"""Makes the module, called without arguments."""
RowLosses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Computes the (rows,) losses from the module's outputs and the targets."""
Criterion = Literal["cross_entropy", "squared_error"]
Target = Literal["labels", "responses", "rows"]
TARGETS = get_args(Target)
ESCAPED = {"%": "%25", "/": "%2F", ":": "%3A"}
"""Characters in parameters' names and what stands for them in messages and checkpoints, which reserve '/' and ':'."""
REMEDY = "use GroupNorm or LayerNorm"
"""Text of errors on modules that keep statistics of batches."""
MAKER = (
    "pass a function that makes the module when called without arguments: its class, or functools.partial(Net, 784, 10)"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class TorchModule(TorchProblem):
    """A problem made of a `torch.nn.Module`. Parameters that need no gradient stay at their initial values.

    Parameters keep their names, in which '/' and ':' become %2F and %3A.

    Refused (`ConfigError`): batch normalisation and whatever else has buffers that training changes (each client would
    keep its own, and padded rows would count), layers that draw at random, such as dropout (no two runs would agree), a
    module that does not take the rows.

    Threads may share a problem: one thread at a time builds or evaluates a module. A thread of the caller's that draws
    from torch's global generator while a module is built changes what that module draws.

    NOT checked: that `forward` draws nothing by itself, and that an output depends on its own row alone. It must, since
    several clients are computed in one batch: clients with fewer rows are filled up with copies of a row, whose losses
    get weight 0.

    Attributes:
        module: builds the module, called without arguments; must build the same each time but for what it draws from
            torch's global generator. `functools.partial(Net, 784, 10)` passes arguments.
        criterion: "cross_entropy" of logits and labels, "squared_error" averaged over a row's entries, or a function
            (output, target) -> (rows,) in torch.
        compared_with: the target: "labels", real "responses", or the "rows" themselves, flat.
        input_shape: shape in which the module wants a row; `None` leaves it flat.
    """

    name: ClassVar[str] = "torch"

    module: Build
    criterion: Criterion | RowLosses = "cross_entropy"
    compared_with: Target = "labels"
    input_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        made = isinstance(self.module, nn.Module)  # callable too, but calling it does not make a module
        require(not made, f"module is an instance of {type(self.module).__name__}; {MAKER}")
        require(callable(self.module), f"module must be a function; got {self.module!r}; {MAKER}")
        known = (*_CRITERIA, "a function")
        require(
            callable(self.criterion) or self.criterion in _CRITERIA,
            f"criterion must be one of {known}; got {self.criterion!r}",
        )
        check_choice("compared_with", self.compared_with, TARGETS)
        labelled = self.criterion != "cross_entropy" or self.compared_with == "labels"
        require(labelled, f"cross entropy compares with labels, not {self.compared_with}; choose another criterion")
        with self._in_use() as module:
            _check(module)

    @cached_property
    def _stand_in(self) -> nn.Module:
        """Return the module whose parameters are replaced by those passed in; none can be made within `vmap`."""
        return _built(self.module, self.precision)

    @contextmanager
    def _in_use(self) -> Iterator[nn.Module]:
        """Give the module to one thread at a time: meanwhile it may hold the parameters of a computation."""
        with PROCESS_LOCK:
            yield self._stand_in

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the built module, which each process builds anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_stand_in"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the settings and build the module."""
        self.__dict__.update(state)
        with self._in_use() as module:
            _check(module)

    def __repr__(self) -> str:
        """Describe the problem, equally for equal problems, also in another process.

        Transcripts hold this text. Functions go by their names, the module by a hash of its layers and of its
        parameters' names and shapes.
        """
        with self._in_use() as module:
            parts = [str(module)] + [f"{name} {tuple(value.shape)}" for name, value in module.named_parameters()]
        digest = blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
        settings = {
            "module": _called(self.module),
            "architecture": digest,
            "criterion": self.criterion if isinstance(self.criterion, str) else _called(self.criterion),
            "compared_with": self.compared_with,
            "input_shape": self.input_shape,
            "precision": self.precision,
            "gradient_bound": self.gradient_bound,
            "l2": self.l2,
        }
        return f"TorchModule({', '.join(f'{key}={value}' for key, value in settings.items())})"

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        with self._in_use() as module:
            output = self._tried(module, public)
            found = {_safe(name): tuple(value.shape) for name, value in _trained(module).items()}
        if self.criterion == "cross_entropy":
            check_classes(public)
            require(
                output.ndim == 2 and output.shape[1] >= public.classes,
                f"{public.classes} classes need as many logits a row, the module gives {tuple(output.shape[1:])}",
            )
        return found

    def initial(self, public: Public, rng: np.random.Generator) -> dict[str, Array]:
        """Draw the parameters as the module does, from a seed of `rng`; torch's generator is left as found."""
        module = _build(self.module, self.precision, int(rng.integers(2**63)))
        return {_safe(name): value.detach().numpy().copy() for name, value in _trained(module).items()}

    def targets(self, data: Dataset) -> Array:
        """Return the targets of the rows; raise `DataError` where there are none."""
        match self.compared_with:
            case "labels":
                return data.labels()
            case "responses":
                return data.responses()
            case _:
                return np.empty((data.rows, 0))  # `row_losses` has the rows themselves

    def row_losses(self, parameters: TorchTensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Compute the (rows,) losses of the rows `x`."""
        return self.compared(self.output(parameters, x), x, y)

    def compared(self, output: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Compute the (rows,) losses from the module's outputs for the rows `x`, and their targets y."""
        if self.compared_with == "rows":
            y = x
        elif y.is_floating_point():
            y = y.to(x.dtype)
        criterion = _CRITERIA[self.criterion] if isinstance(self.criterion, str) else self.criterion
        return criterion(output, y)

    def output(self, parameters: TorchTensors, x: torch.Tensor) -> torch.Tensor:
        """Compute the module's outputs for the rows `x` (rows, features)."""
        own = {_own(name): value for name, value in parameters.items()}
        with self._in_use() as module:
            return call_with(module, own, self.shaped(x))

    def shaped(self, x: torch.Tensor) -> torch.Tensor:
        """Reshape the rows as the module takes them."""
        return x if self.input_shape is None else x.reshape(len(x), *self.input_shape)

    def instance(self, parameters: TorchTensors) -> nn.Module:
        """Make a module that holds copies of these parameters, for training code that needs one."""
        module = _build(self.module, self.precision, 0)
        module.load_state_dict({_own(name): value for name, value in parameters.items()}, strict=False)
        return module

    def parameters_of(self, module: nn.Module) -> dict[str, Array]:
        """Read the parameters of a module made by `instance`, also wrapped by another library (opacus: `_module.`)."""
        found = {name.removeprefix("_module."): value for name, value in _trained(module).items()}
        return {_safe(name): value.detach().numpy().copy() for name, value in found.items()}

    def predict(self, parameters: Tensors, x: Array) -> Array:
        """Predict the (rows,) int64 labels, those of the largest outputs."""
        with torch.no_grad():
            outputs = self.output(self.tensors(parameters), tensor(np.asarray(x, self.dtype)))
            return np.asarray(outputs.argmax(dim=1).numpy())

    def measures(self, public: Public) -> dict[str, float]:
        """Return the names of the sums that `measure` computes, and the largest value of one row."""
        more = {"correct": 1.0} if self.criterion == "cross_entropy" else {}
        return super().measures(public) | more

    def measure(self, parameters: Tensors, x: Array, y: Array) -> dict[str, float]:
        """Compute sums over the rows, as in `Problem.measure`."""
        found = super().measure(parameters, x, y)
        if self.criterion == "cross_entropy":
            found["correct"] = float(np.sum(self.predict(parameters, x) == y))
        return found

    def score(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Return the accuracy for cross entropy, else minus the loss."""
        if self.criterion == "cross_entropy":
            return float(np.mean(self.predict(parameters, x) == y))
        return super().score(parameters, x, y)

    def _tried(self, module: nn.Module, public: Public) -> torch.Tensor:
        """Compute the output for two rows of zeros; refuse a module that fails or changes its buffers."""
        before = {name: value.clone() for name, value in module.named_buffers()}
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                rows = torch.zeros(2, public.features, dtype=getattr(torch, self.precision))
                output = self.output({_safe(name): value for name, value in _trained(module).items()}, rows)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            wanted = self.input_shape or (public.features,)
            raise ConfigError(
                f"the module does not take rows of shape {wanted}: {error}; fit its first layer, or set input_shape"
            ) from error
        for name, value in module.named_buffers():
            require(torch.equal(value, before[name]), f"training changes the module's buffer {name!r}; {REMEDY}")
        return output


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compute each row's cross entropy of logits (rows, classes) and labels (rows,)."""
    return nn.functional.cross_entropy(output, target, reduction="none")


def _squared_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compute each row's squared error, averaged over its entries."""
    return (output - target.reshape(output.shape)).square().flatten(1).mean(dim=1)


_CRITERIA: dict[str, RowLosses] = {"cross_entropy": _cross_entropy, "squared_error": _squared_error}


def _build(make: Build, precision: str, seed: int) -> nn.Module:
    """Make the module with torch's generator seeded; the generator is left as found."""
    with PROCESS_LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            made = make()
        except TypeError as error:
            raise ConfigError(f"module failed when called without arguments ({error}); {MAKER}") from error
        require(isinstance(made, nn.Module), f"module makes {type(made).__name__}, not a torch.nn.Module; {MAKER}")
        return made.to(getattr(torch, precision))


@lru_cache(maxsize=32)
def _built(make: Build, precision: str) -> nn.Module:
    """Build the module once for all problems that share it."""
    return _build(make, precision, 0)


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def _check(module: nn.Module) -> None:
    """Raise `ConfigError` for modules that clients cannot train apart from each other."""
    require(len(_trained(module)) > 0, "the module has no parameters to train")
    for name, part in module.named_modules():
        at = f"the module's part {name!r} ({type(part).__name__})"
        batch = isinstance(part, nn.modules.batchnorm._BatchNorm) or getattr(part, "track_running_stats", False)
        require(not batch, f"{at} keeps statistics of batches, which clients cannot share; {REMEDY}")
        remedy = "set p=0, or dropout=0 of attention and recurrent layers; LeakyReLU replaces RReLU"
        require(not _draws(part), f"{at} draws at random in every step, so no two runs would agree; {remedy}")


def _draws(part: nn.Module) -> bool:
    """Whether a layer draws at random in training mode."""
    if isinstance(part, nn.RReLU):
        return part.lower < part.upper
    if isinstance(part, nn.RNNBase):  # between its layers
        return part.dropout > 0 and part.num_layers > 1
    if isinstance(part, nn.MultiheadAttention):
        return bool(part.dropout > 0)
    return isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0


def _called(function: Callable[..., Any]) -> str:
    """Return a function's name and the arguments bound to it, equal in every process."""
    if isinstance(function, partial):
        bound = [repr(value) for value in function.args]
        bound += [f"{key}={value!r}" for key, value in sorted(function.keywords.items())]
        return f"{_called(function.func)}({', '.join(bound)})"
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    return repr(function)


def _safe(name: str) -> str:
    """Return a parameter's name on the wire."""
    for character, code in ESCAPED.items():
        name = name.replace(character, code)
    return name


def _own(name: str) -> str:
    """Return a parameter's name in the module, the inverse of `_safe`."""
    for character, code in reversed(ESCAPED.items()):
        name = name.replace(code, character)
    return name
