"""The moves on layouts and the transforms that rules use.

A move gives a new layout or says why not: which move, which axis, which numbers. Moves compose over a
:class:`~kvlayout.algebra.result.Result`, and the first refusal ends the pipeline. A move never proves
anything: what a pipeline made is proved afterwards by the kernel.

>>> from kvlayout.algebra.dtype import DTYPES
>>> latent = Layout(
...     (84, 64, 576),
...     (Bytes(73728), Bytes(1152), Bytes(2)),
...     Bytes(0),
...     DTYPES["bfloat16"],
...     Bytes(884736),
...     (Axis.BLOCK, Axis.TOKEN, Axis.CHANNEL),
... )
>>> merge_mla_tiles(latent, 12).unwrap().shape
(7, 768, 576)
>>> merge_mla_tiles(latent, 11).error
Refusal(move='split', axis='block', expected='a multiple of 11', actual='84')
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from kvlayout.algebra.affine import Size, divide, nonneg, pair
from kvlayout.algebra.dtype import DType
from kvlayout.algebra.layout import BLOCK, BYTES, KERNEL_PAGE, STATE, TOKEN, Axis, Layout, dense_strides
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.units import Bytes, raw

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Refusal",
    "beside_rows",
    "coalesce_kernel_pages",
    "extend",
    "flatten_page",
    "join_rows",
    "merge",
    "merge_mla_tiles",
    "permute",
    "reinterpret_page",
    "retype",
    "settle",
    "split",
]


class Refusal(NamedTuple):
    """Why a move can't be made: its name, the axis, and the numbers."""

    move: str
    axis: str
    expected: str
    actual: str


def _replace(  # noqa: PLR0913, PLR0917 - three of each axis
    layout: Layout,
    position: int,
    removed: int,
    axes: tuple[Axis, ...],
    sizes: tuple[Size, ...],
    strides: tuple[Bytes, ...],
) -> Layout:
    """Put axes in the place of ``removed`` ones."""
    end = position + removed
    return layout.arranged(
        (*layout.shape[:position], *sizes, *layout.shape[end:]),
        (*layout.strides[:position], *strides, *layout.strides[end:]),
        (*layout.axes[:position], *axes, *layout.axes[end:]),
    )


def split(layout: Layout, position: int, inner: int, axes: tuple[Axis, Axis]) -> Result[Layout, Refusal]:
    """Split an axis of size s into ``(s / inner, inner)``; ``inner`` must divide s for every block count."""
    outer = divide(layout.shape[position], inner)
    if outer is None:
        return Err(Refusal("split", layout.axes[position].value, f"a multiple of {inner}", str(layout.shape[position])))
    stride = layout.strides[position]
    return Ok(_replace(layout, position, 1, axes, (outer, inner), (stride * inner, stride)))


def merge(layout: Layout, position: int, axis: Axis) -> Result[Layout, Refusal]:
    """Merge an axis with the next: the next one, counted out, must end where the first takes its next step."""
    outer, inner = layout.shape[position : position + 2]
    far, near = layout.strides[position : position + 2]
    if inner == 1:
        near = far
    elif outer != 1 and far != near * inner:
        return Err(Refusal("merge", layout.axes[position].value, f"a stride of {near * inner} bytes", str(far)))
    return Ok(_replace(layout, position, 2, (axis,), (outer * inner,), (near,)))


def permute(layout: Layout, order: Sequence[int]) -> Result[Layout, Refusal]:
    """Put the axes in another order: positions in the old layout, each once."""
    if sorted(order) != list(range(len(layout.shape))):
        return Err(Refusal("permute", "all", f"each of 0 to {len(layout.shape) - 1} once", str(tuple(order))))
    return Ok(_picked(layout, order))


def _picked(layout: Layout, order: Sequence[int]) -> Layout:
    return layout.arranged(
        tuple([layout.shape[i] for i in order]),
        tuple([layout.strides[i] for i in order]),
        tuple([layout.axes[i] for i in order]),
    )


def _typed(layout: Layout, dtype: DType) -> Layout:
    return Layout(layout.shape, layout.strides, layout.offset, dtype, layout.page_bytes, layout.axes)


def retype(layout: Layout, dtype: DType) -> Result[Layout, Refusal]:
    """Read the same bytes as another element type: torch's ``view(dtype)``, with its conditions.

    The last axis must be dense, and the new item size must divide its bytes, the offset and all other strides.
    """
    old, new = layout.dtype.itemsize, dtype.itemsize
    if old == new:
        return Ok(_typed(layout, dtype))
    last = layout.axes[-1].value if layout.axes else "none"
    if not layout.shape or raw(layout.strides[-1]) != old:
        stride = str(layout.strides[-1]) if layout.shape else "no axis"
        return Err(Refusal("retype", last, f"a last stride of {old} bytes", stride))
    extent = divide(layout.shape[-1] * old, new)
    if extent is None:
        return Err(Refusal("retype", last, f"a multiple of {new} bytes", str(layout.shape[-1] * old)))
    for name, number in (
        ("offset", layout.offset),
        *((axis.value, stride) for axis, stride in zip(layout.axes[:-1], layout.strides[:-1], strict=True)),
    ):
        if divide(raw(number), new) is None:
            return Err(Refusal("retype", name, f"a multiple of {new} bytes", str(number)))
    shape, strides = (*layout.shape[:-1], extent), (*layout.strides[:-1], Bytes(new))
    return Ok(Layout(shape, strides, layout.offset, dtype, layout.page_bytes, layout.axes))


def extend(layout: Layout, position: int, extent: int) -> Result[Layout, Refusal]:
    """Grow an axis into the page's own padding; never beyond the page."""
    axis, have, stride = layout.axes[position], layout.shape[position], layout.strides[position]
    refusal = _outgrown(axis, have, extent, stride, layout.page_bytes)
    if refusal is not None:
        return Err(refusal)
    if extent == layout.shape[position]:
        return Ok(layout)
    shape = (*layout.shape[:position], extent, *layout.shape[position + 1 :])
    return Ok(layout.arranged(shape, layout.strides, layout.axes))


def _outgrown(axis: Axis, have: Size, wanted: int, stride: Bytes, page_bytes: Bytes) -> Refusal | None:
    if not nonneg(wanted - have):
        return Refusal("extend", axis.value, f"at least {have}", str(wanted))
    reach = stride * wanted
    if not nonneg(raw(page_bytes) - raw(reach)):
        return Refusal("extend", axis.value, f"at most the page of {page_bytes} bytes", str(reach))
    return None


def coalesce_kernel_pages(layout: Layout, kernel_pages: int) -> Result[Layout, Refusal]:
    """Count blocks instead of kernel pages: ``(N*k, ...)`` becomes ``(N, k, ...)``."""
    block = layout.axes.index(BLOCK)
    return split(layout, block, kernel_pages, (BLOCK, KERNEL_PAGE))


def flatten_page(layout: Layout, outer: tuple[Axis, ...]) -> Result[Layout, Refusal]:
    """Read what lies inside the ``outer`` axes in memory order, as one axis of elements: all its axes merged."""
    found = _merged(layout, outer)
    if isinstance(found, Refusal):
        return Err(found)
    (sizes, strides, axes), total = found
    return Ok(layout.arranged((*sizes, total), (*strides, Bytes(layout.dtype.itemsize)), (*axes, BYTES)))


def _merged(
    layout: Layout, outer: tuple[Axis, ...]
) -> tuple[tuple[list[Size], list[Bytes], list[Axis]], Size] | Refusal:
    """Return the ``outer`` axes, and how many elements the others have, merged from the fastest on."""
    sizes, strides, axes = [], [], []
    inside: dict[Bytes, tuple[Size, Axis]] = {}
    for size, stride, axis in zip(layout.shape, layout.strides, layout.axes):  # noqa: B905 - a layout has checked it
        if axis in outer:
            sizes.append(size)
            strides.append(stride)
            axes.append(axis)
        elif size != 1:
            if stride in inside:
                return Refusal("merge", axis.value, "a stride of its own", str(stride))
            inside[stride] = size, axis
    reach = Bytes(layout.dtype.itemsize)
    total: Size = 1
    while reach in inside:  # each must start where the ones inside it end
        size, _ = inside.pop(reach)
        total, reach = total * size, reach * size
    if inside:
        stride = min(inside, key=lambda stride: pair(raw(stride))[::-1])
        return Refusal("merge", inside[stride][1].value, f"a stride of {reach} bytes", str(stride))
    return (sizes, strides, axes), total


def reinterpret_page(
    layout: Layout,
    shape: tuple[int, ...],
    axes: tuple[Axis, ...],
    dtype: DType,
    outer: tuple[Axis, ...] = (BLOCK,),
) -> Result[Layout, Refusal]:
    """Read each page as ``shape`` of ``dtype``, growing into its padding where the shape asks for it.

    Args:
        layout: a paged layout whose axes inside ``outer`` are one interval of memory.
        shape: the new inner shape, in elements.
        axes: what the new inner axes are.
        dtype: the new element type.
        outer: the axes that stay: blocks, and planes where K and V lie apart.
    """
    if dtype != layout.dtype:
        typed = flatten_page(layout, outer).then(lambda page: retype(page, dtype))
        if isinstance(typed, Err):
            return typed
        layout = typed.value
    found = _merged(layout, outer)
    if isinstance(found, Refusal):
        return Err(found)
    (sizes, strides, kept), total = found
    items = prod(shape)
    refusal = _outgrown(BYTES, total, items, Bytes(dtype.itemsize), layout.page_bytes) if items != total else None
    if refusal is not None:
        return Err(refusal)
    inner = dense_strides(shape, dtype.itemsize)
    return Ok(Layout((*sizes, *shape), (*strides, *inner), layout.offset, dtype, layout.page_bytes, (*kept, *axes)))


def beside_rows(paged: Layout) -> Result[Layout, Refusal]:
    """Put the axis of kernel pages in front of the axis of rows; the order in which bytes are read becomes by row."""
    tile = paged.axes.index(KERNEL_PAGE)
    row = next(i for i, axis in enumerate(paged.axes) if axis in (TOKEN, STATE))
    order = [i for i in range(len(paged.axes)) if i != tile]
    order.insert(order.index(row), tile)
    return permute(paged, order)


def join_rows(paged: Layout) -> Result[Layout, Refusal]:
    """Merge the axis of kernel pages with the axis of rows behind it."""
    tile = paged.axes.index(KERNEL_PAGE)
    return merge(paged, tile, paged.axes[tile + 1])


def merge_mla_tiles(layout: Layout, kernel_pages: int) -> Result[Layout, Refusal]:
    """Join the kernel pages of latent rows: ``[N*12, 64, 576]`` becomes ``[N, 768, 576]``, rows as they were."""
    return coalesce_kernel_pages(layout, kernel_pages).then(beside_rows).then(join_rows)


def settle(layout: Layout, order: Sequence[int] | None = None) -> Layout:
    """Give each axis of size 1 its canonical stride: what lies inside it, counted out.

    Engines leave these strides arbitrary, and consumers that read them go wrong.

    Args:
        layout: any layout.
        order: positions of its axes, outermost first, as the consumer takes them; by default as they stand.
    """
    if 1 not in layout.shape:
        return layout
    strides = list(layout.strides)
    step = Bytes(layout.dtype.itemsize)
    for i in reversed(range(len(strides)) if order is None else order):
        if layout.shape[i] == 1:
            strides[i] = step
        else:
            step = strides[i] * layout.shape[i] if isinstance(layout.shape[i], int) else step
    settled = tuple(strides)
    return layout if settled == layout.strides else layout.arranged(layout.shape, settled, layout.axes)
