"""Run tests of numerics under an OpenBLAS kernel that is not this machine's own: `python -m tests.other_kernel`.

OpenBLAS picks its kernels by the processor, and each rounds the last digits in its own way. A test that holds under one
kernel alone is wrong; this finds it on the machine on which it was written. Arguments go to pytest. `make test-all`
runs the tests that are not marked `exhaustive`, `make nightly` all of them under two kernels with one and two threads.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from threadpoolctl import threadpool_info

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("tests/algorithms", "tests/attacks", "tests/auditing")
KERNELS: Final = {"x86_64": ("Haswell", "Sandybridge"), "AMD64": ("Haswell", "Sandybridge"), "arm64": ("ARMV8",)}
"""By machine, kernels that nearly all of its processors run, the newest first."""
_SHOWN = (
    "import numpy, threadpoolctl; "
    "print(*{str(one.get('architecture')) for one in threadpoolctl.threadpool_info() if one['user_api'] == 'blas'})"
)


def kernels() -> tuple[str, ...]:
    """Return the kernels of `KERNELS` for this machine."""
    machine = platform.machine()
    return KERNELS.get("arm64" if machine == "aarch64" else machine, ())


def own_kernel() -> str | None:
    """Return the kernel that NumPy's OpenBLAS took; `None` where NumPy calls another library."""
    import numpy as np  # noqa: F401, PLC0415 # it loads the library that is asked

    found = [one.get("architecture") for one in threadpool_info() if one.get("internal_api") == "openblas"]
    return str(found[0]) if found else None


def environment(kernel: str, threads: int) -> dict[str, str]:
    """Return the environment of a process under a kernel."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return os.environ | counts | {"OPENBLAS_CORETYPE": kernel}


def takes_effect(kernel: str) -> bool:
    """Return whether a process that asks for the kernel gets it; OpenBLAS ignores one that the processor lacks."""
    done = subprocess.run(
        [sys.executable, "-c", _SHOWN], env=environment(kernel, 1), capture_output=True, text=True, check=True
    )
    return done.stdout.split() == [kernel]


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs pytest on the folders."""
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, *FOLDERS]


def main(arguments: Sequence[str]) -> int:
    """Run the folders under the first kernel that is not the machine's own; return pytest's exit code."""
    own = own_kernel()
    if own is None:
        print("NumPy calls no OpenBLAS here: there is no other kernel to run under")
        return 0
    other = next((kernel for kernel in kernels() if kernel != own and takes_effect(kernel)), None)
    if other is None:
        print(f"no kernel of {', '.join(kernels()) or 'this machine'} runs here beside its own, {own}")
        return 1
    print(f"under the OpenBLAS kernel {other}; this machine's own is {own}", flush=True)
    return subprocess.run(command(arguments), cwd=ROOT, env=environment(other, 1), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
