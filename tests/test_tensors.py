from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from securefed import Layout, TensorSpec
from securefed._tensors import add, decode, encode, subtract
from securefed.errors import DataError

ARRAYS = st.dictionaries(
    st.text("abcdef.", min_size=1, max_size=5),
    hnp.arrays(st.sampled_from([np.float64, np.int64, np.uint8]), hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)),
    max_size=4,
)


@given(ARRAYS)
def test_the_codec_is_exact_in_values_types_and_shapes(tensors) -> None:
    out, header = decode(encode(tensors, {"round": 3, "stage": "ü"}))
    assert header == {"round": 3, "stage": "ü"}
    assert list(out) == sorted(tensors)
    for name, value in tensors.items():
        assert out[name].dtype == value.dtype
        assert out[name].shape == value.shape
        assert out[name].tobytes() == value.tobytes()


@given(ARRAYS)
def test_the_bytes_are_those_of_the_safetensors_library(tensors) -> None:
    metadata = {"securefed": json.dumps({"stage": "ü"})}
    assert encode(tensors, {"stage": "ü"}) == save(
        {name: np.asarray(v, order="C") for name, v in tensors.items()}, metadata
    )


def test_arrays_that_cannot_be_encoded_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="'a' of type complex128"):
        encode({"a": np.zeros(2, complex)})
    with pytest.raises(DataError, match="__metadata__"):
        encode({"__metadata__": np.zeros(2)})


def test_what_is_decoded_can_be_encoded_again() -> None:
    """States keep messages as they came: a type that is read and not written would end the process that keeps it."""
    assert decode(save({"a": np.ones(2, np.float32)}))[0]["a"].dtype == np.float32  # the control
    with pytest.raises(DataError, match="'a' is of type complex64"):
        decode(save({"a": np.ones(2, np.complex64)}))


@given(ARRAYS, st.data())
def test_a_truncated_message_is_refused_by_name(tensors, data) -> None:
    whole = encode(tensors, {})
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DataError, match="safetensors"):
        decode(whole[:cut])


def test_flatten_and_unflatten_are_inverse_and_share_memory() -> None:
    layout = Layout((TensorSpec("a", (2, 3)), TensorSpec("b", ()), TensorSpec("c", (0,))))
    tensors = {"c": np.zeros(0), "b": np.asarray(5.0), "a": np.arange(6.0).reshape(2, 3)}
    vector = layout.flatten(tensors)
    np.testing.assert_array_equal(vector, [0, 1, 2, 3, 4, 5, 5])
    back = layout.unflatten(vector)
    assert all(np.shares_memory(back[name], vector) for name in ("a", "b"))
    layout.check(back)
    several = layout.unflatten(np.stack([vector, 2 * vector]))
    assert {name: value.shape for name, value in several.items()} == {"a": (2, 2, 3), "b": (2,), "c": (2, 0)}
    np.testing.assert_array_equal(several["a"][1], 2 * tensors["a"])
    single = Layout((TensorSpec("a", (2, 3)),))
    assert np.shares_memory(single.flatten(tensors), tensors["a"])


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, "missing tensors"),
        ({"a": np.zeros(3), "b": np.zeros(1)}, "unexpected"),
        ({"a": np.zeros(4)}, "shape"),
        ({"a": np.array([0, np.nan, 0])}, "NaN"),
    ],
)
def test_a_layout_refuses_what_does_not_fit(tensors, says) -> None:
    layout = Layout((TensorSpec("a", (3,)),))
    layout.check({"a": np.zeros(3)})
    with pytest.raises(DataError, match=says):
        layout.check(tensors)


def test_specs_refuse_impossible_bounds_and_layouts_repeated_names() -> None:
    with pytest.raises(DataError, match="bound"):
        TensorSpec("a", (3,), 0.0)
    with pytest.raises(DataError, match="once"):
        Layout((TensorSpec("a", ()), TensorSpec("a", ())))
    with pytest.raises(DataError, match="entries"):
        Layout((TensorSpec("a", (3,)),)).unflatten(np.zeros(4))


def test_subtract_undoes_add_on_integers() -> None:
    a, b = {"x": np.array([2**62, -5])}, {"x": np.array([7, 2**62])}
    np.testing.assert_array_equal(subtract(add(a, b), b)["x"], a["x"])
