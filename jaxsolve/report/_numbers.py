"""Arrays and other data as JSON for a page."""

import base64
import json
from typing import Any

import numpy as np
from jaxtyping import Num


def kind_of(values: Num[np.ndarray, "..."]) -> str:
    """The type in which an array is packed: int8 codes unchanged, numbers as float32.

    An array with a number that float32 would round to zero or infinity stays float64.
    """
    if values.dtype == np.int8:
        return "i1"
    size = np.abs(values[np.isfinite(values) & (values != 0)])
    limits = np.finfo(np.float32)
    return "f8" if np.any((size < limits.tiny) | (size > limits.max)) else "f4"


def packed_bytes(values: Num[np.ndarray, "..."]) -> float:
    """The number of characters of a packed array."""
    return values.size * int(kind_of(values)[1]) * 4 / 3


def pack(values: Num[np.ndarray, "..."]) -> dict[str, str]:
    """An array as little-endian base64, in the type of `kind_of`."""
    kind = kind_of(values)
    data = np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()
    return {"type": kind, "base64": base64.b64encode(data).decode("ascii")}


def embed(value: Any) -> str:
    """JSON for an HTML script element; no text in it can close the element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
