"""Axes by name: what each dimension of a registered tensor is, read from the spec and never guessed.

A reading is a list of axes that the spec's own numbers (heads, content bytes, state fields) bear out. Rank 5
may have two, ``[B, 2, N, H, D]`` and ``[2, B, N, H, D]``; which one holds is decided later, by what is proved
of their pages, and where both hold the answer is ``axes-ambiguous``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from kvlayout.algebra.affine import Affine, Size, nonneg
from kvlayout.algebra.dtype import DTYPES, DType
from kvlayout.algebra.layout import BLOCK, CHANNEL, HEAD, PLANE, STATE, TOKEN, Axis, Layout
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.units import Bytes, all_in_bytes
from kvlayout.cache.registration import Entry, RegisteredTensor
from kvlayout.cache.spec import AttentionSpec, LatentSpec, StateSpec
from kvlayout.errors import Code, LayoutError

__all__ = ["Readings", "name_axes", "paged_layout", "row_axis"]

#: The possible readings of one layer; each is a layout for every tensor of the layer.
Readings: TypeAlias = tuple[tuple[Layout, ...], ...]

_Axes: TypeAlias = tuple[Axis, ...]
_ROW: Final[_Axes] = (BLOCK, HEAD, STATE, CHANNEL)
_PLANES = 2
_ITEM_SIZES: Final = (1, 2, 4, 8, 16)


def row_axis(spec: AttentionSpec | LatentSpec) -> Axis:
    """Return what a stored row is: a token, or a state of several (or a part of one)."""
    return TOKEN if spec.tokens_per_state == (1, 1) else STATE


def paged_layout(tensor: RegisteredTensor, axes: tuple[Axis, ...], page_bytes: int, base: Size, dtype: DType) -> Layout:
    """Return a tensor as a layout in bytes, its offset counted from ``base``."""
    sizes, strides, offset, *_ = tensor
    item = dtype.itemsize
    return Layout(
        tuple(sizes), all_in_bytes(strides, item), Bytes(offset * item - base), dtype, Bytes(page_bytes), axes
    )


def _mismatch(expected: str, shape: tuple[Size, ...], dtype: DType) -> Err[LayoutError]:
    actual = f"[{', '.join(map(str, shape))}] of {dtype.name}"
    return Err(LayoutError(Code.AXES_MISMATCH, expected=expected, actual=actual))


def name_axes(spec: AttentionSpec | LatentSpec | StateSpec, entry: Entry) -> Result[Readings, LayoutError]:
    """Return every reading of a layer's tensors that its spec bears out.

    Offsets are in bytes from the first tensor's; a state list has one layout a state. An element type that nobody
    knows gets the item size that the spec's numbers ask for, so that other faults are found first; it is refused later.

    Errors: ``axes-mismatch``.
    """
    if not isinstance(entry, RegisteredTensor):
        return _name_list(spec, entry)
    if not _numbered(entry):
        return _unnumbered(entry)
    shape = entry.shape
    dtype = DTYPES.get(entry.dtype) or _assumed(spec, entry, None)
    if isinstance(spec, StateSpec):
        if len(shape) != len(_ROW) or shape[1:3] != (1, 1):
            return _mismatch("a state row [B, 1, 1, row], or a list of states", shape, dtype)
        found: list[_Axes] = [_ROW]
    elif isinstance(spec, LatentSpec):
        found = _latent(spec, shape, dtype)
    else:
        found = _attention(spec, shape, dtype)
    if not found:
        return _mismatch(_wanted(spec), shape, dtype)
    base = entry.offset * dtype.itemsize
    return Ok(tuple([(paged_layout(entry, axes, spec.page_bytes, base, dtype),) for axes in found]))


def _name_list(
    spec: AttentionSpec | LatentSpec | StateSpec, entry: tuple[RegisteredTensor, ...]
) -> Result[Readings, LayoutError]:
    """Name the axes of the states of one page."""
    if not entry:
        return Err(LayoutError(Code.AXES_MISMATCH, expected="a tensor, or a list of them", actual="an empty list"))
    for part in entry:
        if not _numbered(part):
            return _unnumbered(part)
    known = [DTYPES.get(part.dtype) or _assumed(spec, part, i) for i, part in enumerate(entry)]
    return (
        _state_list(spec, entry, known)
        if isinstance(spec, StateSpec)
        else _mismatch("one tensor", (len(entry),), known[0])
    )


def _unnumbered(part: RegisteredTensor) -> Err[LayoutError]:
    expected, actual = "a size of 1 or more and a stride for each axis", f"[{', '.join(map(str, part.shape))}]"
    return Err(LayoutError(Code.AXES_MISMATCH, expected=expected, actual=actual))


def _numbered(part: RegisteredTensor) -> bool:
    """Tell whether a tensor's numbers are numbers, and address something; a compiler's symbols are none."""
    sizes, strides, offset, *_ = part
    for extent in sizes:
        if extent < 1 if type(extent) is int else not isinstance(extent, Affine) or not nonneg(extent - 1):
            return False
    for number in (offset, *strides):
        if type(number) is not int and not isinstance(number, Affine):
            return False
    return len(strides) == len(sizes)


def _assumed(spec: AttentionSpec | LatentSpec | StateSpec, part: RegisteredTensor, field: int | None) -> DType:
    """Return an unknown element type with the item size that makes it fit the spec, or 1; ``field``: of a list."""
    if not isinstance(spec, StateSpec):
        least = most = spec.content_bytes // (_PLANES if len(part.shape) == len(_ROW) + 1 else 1)
    elif field is None:
        least, most = spec.content_bytes, spec.page_bytes
    else:
        shape, name = spec.fields[field] if field < len(spec.fields) else ((), "")
        least = most = shape[-1] * DTYPES[name].itemsize if shape and name in DTYPES else 0
    extent = part.shape[-1] if part.shape else 1
    fits = (size for size in _ITEM_SIZES if nonneg(extent * size - least) and nonneg(most - extent * size))
    return DType(part.dtype, next(fits, 1))


def _wanted(spec: AttentionSpec | LatentSpec | StateSpec) -> str:
    if isinstance(spec, StateSpec):
        return "a state row [B, 1, 1, row]"
    if isinstance(spec, LatentSpec):
        return f"[B, N, C] or [B, {spec.heads}, N, C] with C of {spec.content_bytes} bytes"
    return (
        f"[B, {spec.heads}, N, C] with C of {spec.content_bytes} bytes, or [B, 2, N, {spec.heads}, D] "
        f"or [2, B, N, {spec.heads}, D] with D of {spec.content_bytes // _PLANES} bytes"
    )


def _attention(spec: AttentionSpec, shape: tuple[Size, ...], dtype: DType) -> list[_Axes]:
    """Rank 4 is ``[B, H, N, C]``, slots also ``[B, N, H, C]``; rank 5 has planes of K and V in either place."""
    rows = row_axis(spec)
    channel = shape[-1] * dtype.itemsize if shape else 0
    if len(shape) == len(_ROW) and channel == spec.content_bytes:
        fused: _Axes = (BLOCK, HEAD, rows, CHANNEL)
        found: list[_Axes] = [fused] if shape[1] == spec.heads else []
        if spec.slots and shape[2] == spec.heads:
            found.insert(0 if shape[1] == spec.states else len(found), (BLOCK, rows, HEAD, CHANNEL))
        return found[:1]
    alike = spec.head_size == spec.head_size_v  # else K and V are no two planes of one size
    if alike and len(shape) == len(_ROW) + 1 and channel * _PLANES == spec.content_bytes and shape[3] == spec.heads:
        inner = (rows, HEAD, CHANNEL)
        planes: list[_Axes] = [(BLOCK, PLANE, *inner)] if shape[1] == _PLANES else []
        return [*planes, (PLANE, BLOCK, *inner)] if shape[0] == _PLANES else planes
    return []


def _latent(spec: LatentSpec, shape: tuple[Size, ...], dtype: DType) -> list[_Axes]:
    """Rank 3 is ``[B, N, C]``; rank 4 has its one head slot before the rows, or behind more than one row."""
    rows = row_axis(spec)
    if not shape or shape[-1] * dtype.itemsize != spec.content_bytes:
        return []
    if len(shape) == len(_ROW) - 1 and spec.heads == 1:
        return [(BLOCK, rows, CHANNEL)]
    if len(shape) == len(_ROW) and shape[1] == spec.heads:
        return [(BLOCK, HEAD, rows, CHANNEL)]
    if len(shape) == len(_ROW) and shape[2] == spec.heads == 1:
        return [(BLOCK, rows, HEAD, CHANNEL)]
    return []


def _state_list(
    spec: StateSpec, parts: tuple[RegisteredTensor, ...], dtypes: list[DType]
) -> Result[Readings, LayoutError]:
    """Hold each tensor of a list against the field of the spec that it is."""
    wanted = [(field.shape, DTYPES.get(field.dtype)) for field in spec.fields]
    found = [(tuple(part.shape[1:]), dtype) for part, dtype in zip(parts, dtypes, strict=True)]
    alike = len(wanted) == len(found) and all(
        shape == other and (dtype is None or dtype.itemsize == actual.itemsize)
        for (shape, dtype), (other, actual) in zip(wanted, found, strict=True)
    )
    if not alike:
        expected = " and ".join(f"[B, {', '.join(map(str, field.shape))}] of {field.dtype}" for field in spec.fields)
        shown = " and ".join(f"[{', '.join(map(str, p.shape))}] of {p.dtype}" for p in parts)
        return Err(LayoutError(Code.AXES_MISMATCH, expected=expected, actual=shown))
    base = parts[0].offset * dtypes[0].itemsize
    return Ok(
        (
            tuple(
                paged_layout(part, (BLOCK, *(CHANNEL for _ in part.shape[1:])), spec.page_bytes, base, dtype)
                for part, dtype in zip(parts, dtypes, strict=True)
            ),
        ),
    )
