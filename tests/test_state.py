from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed import local
from securefed._persistence.packing import nest, pack, restore, stored_as, unnest
from securefed.errors import DataError

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.integers(0, 99), inner, max_size=3),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)


@dataclass(frozen=True)
class Box:
    value: Any = None
    mine: Any = local(default="stays")


@given(VALUES)
def test_restore_undoes_pack(value) -> None:
    packed = pack(Box(value, "secret"))
    assert "secret" not in str(packed)
    again = restore(Box(mine="kept"), packed)
    assert repr(again.value) == repr(value) or again.value == value
    assert type(again.value) is type(value)
    assert again.mine == "kept"


def test_arrays_keep_dtype_and_shape() -> None:
    value = np.arange(6, dtype=np.uint32).reshape(2, 3)
    again = restore(Box(), pack(Box(value))).value
    np.testing.assert_array_equal(again, value)
    assert again.dtype == value.dtype


@pytest.mark.parametrize("value", [{1, 2}, object(), {"a/b": 1}, {"a:b": 1}])
def test_what_cannot_be_packed_is_refused(value) -> None:
    with pytest.raises(DataError):
        pack(Box(value))


def test_unnest_undoes_nest_and_leaves_others_out() -> None:
    inner = {"x/y": np.zeros(1), "z": np.ones(2)}
    nested = nest("part", inner) | {"partial/x": np.zeros(3)}
    assert set(unnest("part", nested)) == set(inner)


@dataclass(frozen=True)
class Renamed:
    new_name: Any = stored_as("old_name", default=None)


def test_a_renamed_field_keeps_its_name_in_files() -> None:
    assert set(pack(Renamed(3))) == {"old_name:i"}
    assert restore(Renamed(), pack(Renamed(3))).new_name == 3


@pytest.mark.parametrize("key", [True, 1.5, None, b"x", (1, 2)])
def test_keys_that_would_come_back_as_texts_are_refused(key: Any) -> None:
    with pytest.raises(DataError, match=f"is of type {type(key).__name__}; keys are integers or texts"):
        pack(Box({key: 1}))


def test_numpy_integers_are_keys_like_others() -> None:
    assert restore(Box(), pack(Box({np.int64(3): 1, 4: 2}))).value == {3: 1, 4: 2}


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_integers_beyond_int64_are_refused_by_name(value: int) -> None:
    with pytest.raises(DataError, match=r"'value' holds .* beyond int64"):
        pack(Box(value))


@pytest.mark.parametrize("count", [2**40, 3, -1])
def test_a_tuple_of_more_entries_than_there_are_tensors_is_refused_before_it_is_made(count: int) -> None:
    packed = pack(Box(value=(1, 2))) | {"value:t": np.asarray(count, np.int64)}
    with pytest.raises(DataError):
        restore(Box(value=()), packed)
