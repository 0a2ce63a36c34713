"""Read the arrays of a Flower record, which another program wrote."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from securefed._tensors import Array
from securefed.errors import DataError


def arrays_of(record: ArrayRecord) -> dict[str, Array]:
    """Return the arrays of a record by name.

    Raises:
        DataError: bytes that are no NumPy array, such as another serialisation, a header without its entries, or an
            archive of several.
    """
    out: dict[str, Array] = {}
    for name, given in record.items():
        try:
            value = given.numpy()
        except Exception as error:  # NumPy raises errors of many types for a header that is no header
            raise DataError(_wrong(name, f"{type(error).__name__}: {error}")) from error
        if not isinstance(value, np.ndarray):
            raise DataError(_wrong(name, f"they are a {type(value).__name__}"))
        out[name] = value
    return out


def _wrong(name: str, why: str) -> str:
    return (
        f"the bytes of the array {name[:100]!r} are no NumPy array ({why[:200]}); make the record from arrays or "
        "tensors, as ArrayRecord(model.state_dict()) does"
    )
