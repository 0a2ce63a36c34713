"""The plain sum: float32 contributions of networks are summed in float64, other types are refused."""

from __future__ import annotations

import numpy as np
import pytest

from securefed import SERVER, Layout, Message, identity
from securefed.defenses import Plain, Session
from securefed.errors import MalformedError


def replies(values: list[np.ndarray]) -> dict[int, Message]:
    return {i: Message("run", 0, "upload", i, SERVER, {"w": value}) for i, value in enumerate(values)}


def opened(shape: tuple[int, ...], clients: int):
    plan = identity().plan(Layout.of({"w": np.zeros(shape)}), clients)
    return Plain().server_open(Session("run", 0, tuple(range(clients)), plan))[0]


def test_float32_contributions_are_summed_in_float64() -> None:
    values = [np.full(3, 1.0, np.float32), np.full(3, 2.0**-30, np.float32)]
    found = Plain().server_step(opened((3,), 2), replies(values)).total["w"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, 1.0 + 2.0**-30)  # float32 would have lost the second term
    assert np.float32(1.0) + np.float32(2.0**-30) == 1.0


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.complex128])
def test_other_types_are_refused(dtype) -> None:
    with pytest.raises(MalformedError, match="'w' is"):
        Plain().server_step(opened((3,), 1), replies([np.ones(3, dtype)]))
