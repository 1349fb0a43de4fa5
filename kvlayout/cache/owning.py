"""What a layer owns, and the judgements that rows and recurrent states share on the way there."""

from __future__ import annotations

from typing import final

from attrs import frozen

from kvlayout.algebra.affine import Size, nonneg
from kvlayout.algebra.claims import Pages, Refuted
from kvlayout.algebra.kernel import Proved, Verdict, page
from kvlayout.algebra.layout import BLOCK, PLANE, Layout
from kvlayout.algebra.result import Err
from kvlayout.algebra.transforms import coalesce_kernel_pages
from kvlayout.algebra.units import raw
from kvlayout.errors import Code, LayoutError

__all__ = ["CacheLayout", "counted", "fitting_stride", "interval", "refuse"]


@final
@frozen
class CacheLayout:
    """One layer's tensors with named axes, and the bytes that it owns; what a rule reads.

    All offsets count from the layer's first tensor, so that one proof serves every layer of the same shape.

    Attributes:
        parts: the registered tensors with blocks as their block axis (and ``KERNEL_PAGE`` behind it where the
            engine pages finer): one, or one a state of a list.
        listed: the layer registered a list of states.
        blocks: the block count N.
        states: rows a block that a view shows: tokens for recurrent state, stored states for all others.
        kernel_pages: kernel pages a block; 1 where the tensor is paged by the block.
        pages: the intervals of block i: one, or one a plane where K and V lie apart.
        page_bytes: bytes that the layer owns in each of them.
        payload: bytes of each that carry state, counted from its start.
        untouched: the engine packs this cache in a way that no rule may re-page.
    """

    parts: tuple[Layout, ...]
    listed: bool
    blocks: Size
    states: int
    kernel_pages: int
    pages: Pages
    page_bytes: int
    payload: int
    untouched: bool

    @property
    def source(self) -> Layout:
        """The layer's tensor; the first of a list."""
        return self.parts[0]

    @property
    def apart(self) -> bool:
        """Whether K and V of a block are two intervals."""
        return len(self.pages.bases) > 1


def refuse(code: Code, expected: object, actual: object, verdict: Verdict | None = None) -> Err[LayoutError]:
    """Refuse, with the witness of a verdict where it has one."""
    witness = verdict.witness if isinstance(verdict, Refuted) else None
    return Err(LayoutError(code, expected=str(expected), actual=str(actual), witness=witness))


def counted(layout: Layout, kernel_pages: int, blocks: Size) -> Layout | Err[LayoutError]:
    """Count blocks instead of kernel pages, and hold the count against the group's."""
    rows, found = layout.shape[layout.axes.index(BLOCK)], layout
    if kernel_pages > 1:
        split = coalesce_kernel_pages(layout, kernel_pages)
        if isinstance(split, Err):
            return refuse(Code.NOT_DIVISIBLE, f"{split.error.expected} kernel pages a block", f"{rows} kernel pages")
        found = split.value
    if rows != blocks * kernel_pages:
        expected = f"{blocks} blocks" + (f" of {kernel_pages} kernel pages" if kernel_pages > 1 else "")
        return refuse(Code.GRANULARITY_MISMATCH, expected, f"{rows} on the block axis")
    return found


def fitting_stride(stride: Size, page: int, blocks: Size) -> Size:
    """Return the block stride; one block has any that an engine leaves there, which counts if a page fits in it."""
    return page if blocks == 1 and not nonneg(stride - page) else stride


def interval(source: Layout, blocks: Size) -> Pages | Err[LayoutError]:
    """Prove what block i of a tensor is: one interval, or one a plane where the planes lie outside the blocks."""
    block, plane = source.axes.index(BLOCK), source.where(PLANE)
    stride, total = raw(source.strides[block]), source.inner_bytes
    if not isinstance(total, int):
        return refuse(Code.PAGE_NOT_CONTIGUOUS, "pages of one size", f"{total} bytes a page")
    pages = Pages((0,), fitting_stride(stride, total, blocks), total)
    verdict = page(source, pages, blocks)
    if plane is not None:
        distance = raw(source.strides[plane])
        if nonneg(distance - stride) and (plane < block or not isinstance(verdict, Proved)):
            half = total // 2
            pages = Pages((0, distance), fitting_stride(stride, half, blocks), half)
            verdict = page(source, pages, blocks)
    if not isinstance(verdict, Proved):
        strides = ", ".join(map(str, source.strides))
        return refuse(
            Code.PAGE_NOT_CONTIGUOUS, f"one interval of {total} bytes a block", f"strides of {strides} bytes", verdict
        )
    return pages
