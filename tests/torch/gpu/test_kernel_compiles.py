"""Triton compiles the kernel for cards, which takes no card: its compiler reads code that its interpreter does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from securefed.torch._chacha_kernel import LANES, add_streams
types = dict(out=WORD, keys="*i32", signs="*i32", masks="i32", size="i64", before="i32", block="i64")
chosen = dict(WIDE=WORD == "*i64", BLOCKS=LANES) | FEW
types = types | dict.fromkeys(chosen, "constexpr")
made = compile(ASTSource(fn=add_streams, signature=types, constexprs=chosen), target=GPUTarget("cuda", 90, 32))
print(len(made.asm["cubin"]))
"""


@pytest.mark.parametrize(("word", "few"), [("*i32", {}), ("*i64", {}), ("*i32", {"masks": 1, "size": 1})])
def test_the_kernel_compiles_for_an_h100(word: str, few: dict[str, int]) -> None:
    """`few`: arguments of value 1, which Triton compiles in."""
    outside = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    code = CODE.replace("WORD", repr(word)).replace("FEW", repr(few))
    done = subprocess.run([sys.executable, "-c", code], env=outside, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000
