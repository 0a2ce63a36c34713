"""Set the global random generators for one simulated client step, and restore them afterwards."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np

from securefed._process_lock import PROCESS_LOCK


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Set the global generators to a seed, and restore them afterwards.

    NumPy's legacy global generator is included, since a user's function may draw from it. Nothing secret depends on
    these draws; they only make a simulated client step repeatable. torch is left alone if it is not loaded. It seeds
    the generators of all CUDA devices too, so that these are restored where CUDA is in use. Other threads that want a
    seed wait; a thread of the caller's that draws from these generators meanwhile is not kept from it.
    """
    with PROCESS_LOCK:
        torch = sys.modules.get("torch")
        states = random.getstate(), np.random.get_state()  # noqa: NPY002 - see above
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - see above
        devices = range(torch.cuda.device_count()) if torch is not None and torch.cuda.is_initialized() else ()
        try:
            with nullcontext() if torch is None else torch.random.fork_rng(devices=devices):
                if torch is not None and (devices or torch.backends.mps.is_available()):
                    torch.manual_seed(seed)
                elif torch is not None:  # the other would note the caller's stack for devices that are not in use
                    torch.default_generator.manual_seed(seed)
                yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002 - see above
