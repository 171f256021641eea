"""Named arrays in one blob, each as small as it goes: what a block of reports says besides its metrics.

Columns of int64 are stored as differences in the narrowest type that holds them, bytes of one significance stand
together, and what shrinks by a quarter is deflated. Reading gives back the same values in the same types.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_HEADER_LENGTH = struct.Struct("<I")
_DEFLATE_LEVEL = 1
"""Higher levels take several times as long for some percent."""


def pack(arrays: Mapping[str, Array]) -> bytes:
    """All arrays in one blob. They are of numbers or fixed-width bytes, of any shape."""
    entries, bodies = [], []
    for name, given in arrays.items():
        array = np.ascontiguousarray(given)
        stored, differs = _narrowed(array)
        body, deflated = deflate(stored)
        entries.append([name, array.dtype.str, stored.dtype.str, list(array.shape), differs, deflated, len(body)])
        bodies.append(body)
    header = json.dumps(entries, separators=(",", ":")).encode()
    return b"".join((_HEADER_LENGTH.pack(len(header)), header, *bodies))


def unpack(packed: bytes) -> dict[str, Array]:
    """The arrays of `pack`, by name."""
    (length,) = _HEADER_LENGTH.unpack_from(packed)
    place = _HEADER_LENGTH.size + length
    arrays: dict[str, Array] = {}
    for name, dtype, stored_dtype, shape, differs, deflated, size in json.loads(packed[_HEADER_LENGTH.size : place]):
        body = packed[place : place + size]
        stored = inflate(body, np.dtype(stored_dtype)) if deflated else np.frombuffer(body, dtype=stored_dtype)
        whole = np.cumsum(stored, dtype=np.int64) if differs else stored
        arrays[name] = whole.astype(dtype, copy=False).reshape(shape)
        place += size
    return arrays


def deflate(array: Array) -> tuple[bytes, bool]:
    """The bytes of an array, deflated where that saves a quarter; and whether it did."""
    plain = array.tobytes()
    small = zlib.compress(_bytes_by_significance(plain, array.dtype.itemsize), _DEFLATE_LEVEL)
    return (small, True) if len(small) <= len(plain) * 3 // 4 else (plain, False)


def inflate(body: bytes, dtype: np.dtype[Any]) -> Array:
    """The flat array that `deflate` deflated."""
    by_significance = np.frombuffer(zlib.decompress(body), dtype=np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(by_significance.T).reshape(-1).view(dtype)


def narrowest(array: Array) -> Array:
    """The same whole numbers in the smallest type that holds them all."""
    if array.size == 0:
        return array
    low, high = int(array.min()), int(array.max())
    # A negative number beside a large one asks for a signed type that holds both.
    return array.astype(np.min_scalar_type(high) if low >= 0 else np.min_scalar_type(min(low, -high - 1)))


def _narrowed(array: Array) -> tuple[Array, bool]:
    """What to store for an array, and whether that is the differences of neighbours."""
    if array.dtype != np.int64 or array.ndim != 1:
        return array, False
    # Differences of far apart numbers wrap around, and back again when they are summed.
    return narrowest(np.diff(array, prepend=0)), True


def _bytes_by_significance(plain: bytes, width: int) -> bytes:
    if width == 1:
        return plain
    return np.ascontiguousarray(np.frombuffer(plain, dtype=np.uint8).reshape(-1, width).T).tobytes()
