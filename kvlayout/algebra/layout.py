"""A layout: which byte each index of a tensor addresses, and what each axis means.

Strides and offsets are **bytes**, as in numpy. Element strides exist at two doors only: where a tensor
is read, and at the one ``as_strided``.

>>> from kvlayout.algebra.dtype import DTYPES
>>> kv = Layout(
...     shape=(4096, 2, 128, 128),
...     strides=(Bytes(65536), Bytes(32768), Bytes(256), Bytes(2)),
...     offset=Bytes(0),
...     dtype=DTYPES["bfloat16"],
...     page_bytes=Bytes(65536),
...     axes=(Axis.BLOCK, Axis.HEAD, Axis.TOKEN, Axis.CHANNEL),
... )
>>> kv.where(Axis.TOKEN), kv.inner_bytes
(2, 65536)
"""

from __future__ import annotations

import enum
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, final

from attrs import frozen

from kvlayout.algebra.affine import Size, at, divide, nonneg
from kvlayout.algebra.units import Bytes, all_raw, raw

if TYPE_CHECKING:
    from kvlayout.algebra.dtype import DType

__all__ = [
    "BLOCK",
    "BYTES",
    "CHANNEL",
    "HEAD",
    "KERNEL_PAGE",
    "PLANE",
    "STATE",
    "TOKEN",
    "Axis",
    "Layout",
    "dense_strides",
]


class Axis(enum.Enum):
    """What one dimension of a cache tensor is."""

    BLOCK = "block"
    PLANE = "plane"
    HEAD = "head"
    TOKEN = "token"
    STATE = "state"
    CHANNEL = "channel"
    KERNEL_PAGE = "kernel page"
    BYTES = "bytes"


#: The same, by name: to get a member from its class takes Python 3.11 as long as to call a function.
BLOCK, PLANE, HEAD, TOKEN, STATE, CHANNEL, KERNEL_PAGE, BYTES = Axis


@final
@frozen
class Layout:
    """The address function of one paged tensor.

    Attributes:
        shape: sizes in elements; the block axis may depend on the block count.
        strides: bytes between neighbours, one an axis.
        offset: bytes from the storage's base to index 0.
        dtype: the element type.
        page_bytes: bytes that the engine reserves for one block of this layer.
        axes: what each dimension is.

    Raises:
        ValueError: lengths differ, or a size is below 1 for some block count.
    """

    shape: tuple[Size, ...]
    strides: tuple[Bytes, ...]
    offset: Bytes
    dtype: DType
    page_bytes: Bytes
    axes: tuple[Axis, ...]

    def __attrs_post_init__(self) -> None:
        if not len(self.shape) == len(self.strides) == len(self.axes):
            message = f"{len(self.shape)} sizes, {len(self.strides)} strides and {len(self.axes)} axes"
            raise ValueError(message)
        for extent in self.shape:
            if extent < 1 if type(extent) is int else not nonneg(extent - 1):
                message = f"an axis of size {extent} addresses nothing"
                raise ValueError(message)

    @property
    def inner_bytes(self) -> Size:
        """Bytes addressed by one index of the first BLOCK axis (all of them where there is none)."""
        total: Size = self.dtype.itemsize
        block = self.where(BLOCK)
        for position, extent in enumerate(self.shape):
            if position != block:
                total = total * extent
        return total

    def where(self, axis: Axis) -> int | None:
        """Return the position of the first axis of a kind, or ``None``."""
        return self.axes.index(axis) if axis in self.axes else None

    def bind(self, blocks: int) -> Layout:
        """Return the layout at a concrete block count of 1 or more."""
        return Layout(
            tuple(at(extent, blocks) for extent in self.shape),
            tuple(Bytes(at(raw(stride), blocks)) for stride in self.strides),
            Bytes(at(raw(self.offset), blocks)),
            self.dtype,
            self.page_bytes,
            self.axes,
        )

    def shifted(self, distance: Bytes) -> Layout:
        """Return the same layout, ``distance`` bytes further on in the storage."""
        return Layout(self.shape, self.strides, self.offset + distance, self.dtype, self.page_bytes, self.axes)

    def arranged(self, shape: tuple[Size, ...], strides: tuple[Bytes, ...], axes: tuple[Axis, ...]) -> Layout:
        """Return a layout with other axes over the same page; quicker than ``attrs.evolve``."""
        return Layout(shape, strides, self.offset, self.dtype, self.page_bytes, axes)

    def element_strides(self) -> tuple[Size, ...] | None:
        """Return the strides in elements, or ``None`` where the item size does not divide one."""
        itemsize = self.dtype.itemsize
        found: list[Size] = []
        for stride in all_raw(self.strides):
            quotient = divide(stride, itemsize)
            if quotient is None:
                return None
            found.append(quotient)
        return tuple(found)


def dense_strides(shape: tuple[Size, ...], itemsize: int) -> tuple[Bytes, ...]:
    """Return row-major strides in bytes, size-1 axes included (the canonical ones).

    >>> dense_strides((544, 1, 512), 2)
    (1024, 1024, 2)
    """
    return tuple(accumulate(shape[:0:-1], mul, initial=Bytes(itemsize)))[::-1] if shape else ()
