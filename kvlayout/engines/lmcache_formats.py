"""How LMCache 0.5.6 reads what it is given: facts and arithmetic, without LMCache and without torch.

LMCache is told no axes. It puts the axes of a tensor in the order of their strides, takes the format from the rank,
from sizes of 2 and from the layout hint, and addresses all layers of a group that look alike by the block stride of
the first one. The numbers here are those that its own detection gives; the tests hold the two together.

>>> tensor = Tensor((4, 2, 96, 1, 32), (6144, 3072, 32, 32, 1), "bfloat16", 2)
>>> reading = detect([tensor], "NHD")[0]
>>> reading.format, reading.slots, reading.blocks
('NL_X_NB_TWO_BS_NH_HS', 96, 4)
>>> detect([tensor], "HND")[0].slots  # the same pages, taken for one slot a block
1
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = ["HINTS", "UNSUPPORTED_LAYOUTS", "VERSION", "Block", "Identity", "Reading", "Tensor", "detect", "layout_hint"]

#: The release whose detection this is.
VERSION: Final = "0.5.6"

#: Layout names that LMCache takes for its hint: the engine's word, and its own.
HINTS: Final = {
    "NHD": "NHD",
    "HND": "HND",
    "LBNHC": "NHD",
    "LBHNC": "HND",
    "BLNHC": "BLNHC",
    "BLHNC": "BLHNC",
}

#: Layout names at which its connector raises ``NotImplementedError``: the heads of a block lie apart.
UNSUPPORTED_LAYOUTS: Final = ("LHBNC", "BHLNC")

_Word: TypeAlias = Literal["planes", "blocks", "heads", "slots", "width"]


class _Format(NamedTuple):
    """What the axes of a format are, and whether its kernels are told a block stride."""

    name: str
    axes: tuple[_Word, ...]
    strided: bool


_LATENT: Final = _Format("NL_X_NB_BS_HS", ("blocks", "slots", "width"), strided=True)
#: Values of all rows of a block, then their scales.
_INDEXER: Final = _Format("NL_X_NB_BSV_BSS", ("blocks", "slots", "width"), strided=True)
#: By rank, and whether the hint puts heads outside tokens; rank 5 also by which of the first two axes has size 2.
_FUSED: Final = {
    True: _Format("NL_X_NB_NH_BS_CS", ("blocks", "heads", "slots", "width"), strided=True),
    False: _Format("NL_X_NB_BS_NH_CS", ("blocks", "slots", "heads", "width"), strided=True),
}
_PLANES_FIRST: Final = {
    True: _Format("NL_X_TWO_NB_NH_BS_HS", ("planes", "blocks", "heads", "slots", "width"), strided=False),
    False: _Format("NL_X_TWO_NB_BS_NH_HS", ("planes", "blocks", "slots", "heads", "width"), strided=False),
}
_BLOCKS_FIRST: Final = {
    True: _Format("NL_X_NB_TWO_NH_BS_HS", ("blocks", "planes", "heads", "slots", "width"), strided=False),
    False: _Format("NL_X_NB_TWO_BS_NH_HS", ("blocks", "planes", "slots", "heads", "width"), strided=False),
}
_HEADS_FIRST: Final = ("HND", "BLHNC")
_INDEXER_ROW: Final = ("uint8", 132)


class Tensor(NamedTuple):
    """A tensor: sizes and strides in elements, the name of its element type and the bytes of one element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int


#: Intervals of one block, in bytes from the tensor's first byte.
Block: TypeAlias = tuple[tuple[int, int], ...]


class Identity(NamedTuple):
    """What LMCache tells layers of one group apart by: of equal layers, the first one's numbers serve all."""

    format: str
    planes: int
    heads: int
    width: int
    slots: int
    dtype: str


class Reading(NamedTuple):
    """What LMCache takes a tensor for.

    Attributes:
        format: its name of the format.
        planes: 2 where it sees K and V apart, else 1.
        blocks: block count.
        slots: rows a block.
        slot_stride: bytes between them.
        heads: heads a row.
        width: elements of a head of a row.
        dtype: element type.
        itemsize: bytes of an element.
        block_stride: elements between blocks, where the format has such a number, else 0: blocks lie dense.
        planes_first: K of all blocks, then V.
        padding: elements a block that the kernels would skip, in a format that can't.
    """

    format: str
    planes: int
    blocks: int
    slots: int
    slot_stride: int
    heads: int
    width: int
    dtype: str
    itemsize: int
    block_stride: int
    planes_first: bool
    padding: int

    @property
    def identity(self) -> Identity:
        """What it is told apart by."""
        return Identity(self.format, self.planes, self.heads, self.width, self.slots, self.dtype)

    def block(self, index: int) -> Block:
        """Return the bytes that its kernels copy for a block id."""
        plane = self.slots * self.heads * self.width
        tight = plane * (1 if self.planes_first else self.planes)
        start = index * (self.block_stride or tight)
        starts = (start, start + self.blocks * plane) if self.planes_first else (start,)
        return tuple((at * self.itemsize, (at + tight) * self.itemsize) for at in starts)


def layout_hint(hint: str | None, layout: str | None, platform: str) -> str:
    """Return the hint that decides: the given one, that of the engine's layout name, or LMCache's own guess.

    >>> layout_hint(None, "LBHNC", "cuda"), layout_hint(None, None, "cuda"), layout_hint(None, None, "cpu")
    ('HND', 'NHD', 'HND')
    """
    found = HINTS.get(hint or layout or "")
    if found is not None:
        return found
    return "HND" if platform == "cpu" else "NHD"


def detect(tensors: Sequence[Tensor], hint: str) -> tuple[Reading | str, ...]:
    """Return what LMCache takes each of some tensors for, or why it refuses it.

    Args:
        tensors: those of one engine group with one shape and one element type, in the order of the group: the first
            one decides for all.
        hint: one of the values of :data:`HINTS`.
    """
    settled = [_settle(tensor) for tensor in tensors]
    first = next((one for one in settled if isinstance(one, Tensor)), None)
    if first is None:
        return tuple(one if isinstance(one, str) else "" for one in settled)
    form, squeezed = _format(first, hint)
    if form is None:
        return tuple(f"no format has the sizes {_sizes(first)}" for _ in settled)
    return tuple(one if isinstance(one, str) else _reading(form, _without(one, squeezed)) for one in settled)


def _settle(tensor: Tensor) -> Tensor | str:
    """Put axes in the order of their strides, and take sizes anew from these where the tensor is dense."""
    order = sorted(range(len(tensor.shape)), key=lambda i: (-tensor.strides[i], tensor.shape[i] == 1))
    shape = tuple(tensor.shape[i] for i in order)
    strides = tuple(tensor.strides[i] for i in order)
    tight = _tight(shape)
    if all(size == 1 or step == dense for size, step, dense in zip(shape, strides, tight, strict=True)):
        return _resized(tensor, shape, strides)
    if strides[1:] != tight[1:]:
        return f"sizes {_numbers(shape)} with strides of {_numbers(strides)} elements are not dense inside a block"
    if strides[0] < tight[0]:
        return f"blocks of {tight[0]} elements overlap, {strides[0]} apart"
    return tensor._replace(shape=shape, strides=strides)


def _resized(tensor: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor | str:
    """Take sizes from strides: an axis of size 1 with a stride of its own makes these differ."""
    if 0 in strides:
        return f"a stride of 0 among {_numbers(strides)}"
    count = prod(shape)
    sizes = (count // strides[0], *(outer // inner for outer, inner in pairwise(strides)))
    if prod(sizes) != count:
        return f"the strides of {_numbers(strides)} elements make sizes {_numbers(sizes)} of {_numbers(shape)}"
    return tensor._replace(shape=sizes, strides=_tight(sizes))


def _tight(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _format(first: Tensor, hint: str) -> tuple[_Format | None, int | None]:
    """Return the format that the first tensor's sizes have, and an axis that is dropped before."""
    heads_first = hint in _HEADS_FIRST
    indexer = (first.dtype, first.shape[-1]) == _INDEXER_ROW
    rank = len(first.shape)
    if rank == 4:
        head = 1 if heads_first else 2
        return (_INDEXER, head) if indexer and first.shape[head] == 1 else (_FUSED[heads_first], None)
    if rank == 5 and 2 in first.shape[:2]:
        return (_PLANES_FIRST if first.shape[0] == 2 else _BLOCKS_FIRST)[heads_first], None
    if rank == 3:
        return (_INDEXER if indexer else _LATENT), None
    return None, None


def _without(tensor: Tensor, axis: int | None) -> Tensor:
    if axis is None or tensor.shape[axis] != 1:
        return tensor
    shape, strides = (tuple(v for i, v in enumerate(values) if i != axis) for values in tensor[:2])
    return tensor._replace(shape=shape, strides=strides)


def _reading(form: _Format, tensor: Tensor) -> Reading | str:
    if len(form.axes) != len(tensor.shape):
        return f"no format has the sizes {_sizes(tensor)} beside the first layer's"
    sizes = dict(zip(form.axes, tensor.shape, strict=True))
    return Reading(
        format=form.name,
        planes=2 if "planes" in form.axes else 1,
        blocks=sizes["blocks"],
        slots=sizes["slots"],
        slot_stride=tensor.strides[form.axes.index("slots")] * tensor.itemsize,
        heads=sizes.get("heads", 1),
        width=sizes["width"],
        dtype=tensor.dtype,
        itemsize=tensor.itemsize,
        block_stride=tensor.strides[0] if form.strided else 0,
        planes_first=form.axes[0] == "planes",
        padding=0 if form.strided else tensor.strides[0] - prod(tensor.shape[1:]),
    )


def _numbers(values: Sequence[int]) -> str:
    return f"({', '.join(map(str, values))})"


def _sizes(tensor: Tensor) -> str:
    return f"{_numbers(tensor.shape)} of {tensor.dtype}"
