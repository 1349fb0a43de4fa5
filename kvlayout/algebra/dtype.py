"""Element types, as far as bytes go: a name and an item size.

>>> DTYPES["bfloat16"]
DType(name='bfloat16', itemsize=2)
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

__all__ = ["DTYPES", "INT8", "DType"]


class DType(NamedTuple):
    """A tensor element type: torch's name for it and its size in bytes."""

    name: str
    itemsize: int


_ITEM_SIZES = {
    1: "bool uint8 int8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "uint16 int16 float16 bfloat16",
    4: "uint32 int32 float32",
    8: "uint64 int64 float64 complex64",
    16: "complex128",
}

#: Every type a cache tensor can have, by torch's name. An unknown name is refused, never guessed.
DTYPES: MappingProxyType[str, DType] = MappingProxyType(
    {name: DType(name, itemsize) for itemsize, names in _ITEM_SIZES.items() for name in names.split()},
)

#: The type of a bare byte view.
INT8: DType = DTYPES["int8"]
