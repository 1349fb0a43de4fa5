"""From named axes to pages: which bytes of its storage a layer owns for each block.

The checks come in a fixed order, so that a layer gets the first refusal that explains the rest: divisibility
and grain, contiguity, page bytes, strides and base.
"""

from __future__ import annotations

from itertools import pairwise
from typing import final

from attrs import evolve, frozen

from kvlayout.algebra.affine import Size, divide, nonneg
from kvlayout.algebra.claims import Pages, Refuted
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.kernel import Proved, Verdict, page
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.transforms import coalesce_kernel_pages
from kvlayout.algebra.units import raw
from kvlayout.cache.axes import name_axes
from kvlayout.cache.registration import Entry, RegisteredTensor
from kvlayout.cache.spec import AttentionSpec, LatentSpec, StateSpec
from kvlayout.errors import Code, LayoutError

__all__ = ["CacheLayout", "block_rows", "own_pages"]


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
        opaque: the channels are not what the spec's head sizes say.
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
    opaque: bool

    @property
    def source(self) -> Layout:
        """The layer's tensor; the first of a list."""
        return self.parts[0]

    @property
    def apart(self) -> bool:
        """Whether K and V of a block are two intervals."""
        return len(self.pages.bases) > 1


def _error(code: Code, expected: object, actual: object, verdict: Verdict | None = None) -> Err[LayoutError]:
    witness = verdict.witness if isinstance(verdict, Refuted) else None
    return Err(LayoutError(code, expected=str(expected), actual=str(actual), witness=witness))


def _rows(layout: Layout) -> Size:
    """Return the size of the axis of stored rows."""
    position = layout.where(Axis.TOKEN)
    position = layout.where(Axis.STATE) if position is None else position
    return layout.shape[position] if position is not None else 1


def _kernel_pages(spec: AttentionSpec | LatentSpec, layout: Layout) -> Result[int, LayoutError]:
    """Return how many kernel pages make a block of the group."""
    rows = _rows(layout)
    if spec.slots and rows != spec.states:
        return _error(Code.GRANULARITY_MISMATCH, f"{spec.states} states a block", f"{rows} in a slot cache, left alone")
    if not isinstance(rows, int):
        return _error(Code.GRANULARITY_MISMATCH, f"{spec.states} states a block", f"{rows} states")
    if spec.states % rows:
        return _error(
            Code.NOT_DIVISIBLE, f"a divisor of the {spec.states} states a block", f"kernel pages of {rows} states"
        )
    return Ok(spec.states // rows)


def block_rows(spec: AttentionSpec | LatentSpec | StateSpec, entry: Entry) -> Size | None:
    """Return the block count that a layer's own tensors make, for want of one in the registration."""
    readings = name_axes(spec, entry)
    if isinstance(readings, Err):
        return None
    layout = readings.value[0][0]
    kernel_pages = Ok(1) if isinstance(spec, StateSpec) else _kernel_pages(spec, layout)
    block = layout.where(Axis.BLOCK)
    return (
        divide(layout.shape[block], kernel_pages.value) if block is not None and isinstance(kernel_pages, Ok) else None
    )


def own_pages(
    spec: AttentionSpec | LatentSpec | StateSpec,
    entry: Entry,
    blocks: Size,
    block_stride: Size | None = None,
) -> Result[CacheLayout, LayoutError]:
    """Return a layer's tensors with named axes and the pages they own, or the first refusal.

    Args:
        spec: the layer's own spec.
        entry: its registered tensor or tensors.
        blocks: the block count N.
        block_stride: bytes between blocks where the engine's placement says so; decides between two readings.

    Errors, in this order: ``axes-mismatch``, ``axes-ambiguous``, ``not-divisible`` and ``granularity-mismatch``,
    ``page-not-contiguous``, ``storages-differ``, ``page-bytes-mismatch``, ``state-stride-mismatch``,
    ``state-not-at-page-base``, ``unknown-dtype``.
    """
    found = _read_pages(spec, entry, blocks, block_stride)
    if isinstance(found, Err):
        return found
    for part in found.value.parts:
        if part.dtype.name not in DTYPES:
            return _error(Code.UNKNOWN_DTYPE, "an element type of torch", part.dtype.name)
    return found


def _read_pages(
    spec: AttentionSpec | LatentSpec | StateSpec, entry: Entry, blocks: Size, block_stride: Size | None
) -> Result[CacheLayout, LayoutError]:
    readings = name_axes(spec, entry)
    if isinstance(readings, Err):
        return readings
    if isinstance(spec, StateSpec):
        if isinstance(entry, RegisteredTensor):
            return _state_row(spec, readings.value[0][0], blocks)
        return _state_list(spec, entry, readings.value[0], blocks)
    candidates = [layout for (layout,) in readings.value]
    if len(candidates) > 1 and raw(candidates[0].strides[0]) != raw(candidates[0].strides[1]):
        inside = not nonneg(raw(candidates[0].strides[0]) - raw(candidates[0].strides[1]))
        candidates = candidates[1:] if inside else candidates  # planes inside the block: one page a block
    results = [_rows_cache(spec, layout, blocks) for layout in candidates]
    fits = [result for result in results if isinstance(result, Ok)]
    if block_stride is not None:
        fits = [result for result in fits if result.value.pages.stride == block_stride] or fits
    if len(fits) > 1:
        first, second = (" ".join(axis.value for axis in layout.axes) for layout in candidates)
        shape = ", ".join(map(str, candidates[0].shape))
        return _error(Code.AXES_AMBIGUOUS, f"one reading of [{shape}]", f"({first}) and ({second}) both fit")
    return fits[0] if fits else results[0]


def _counted(layout: Layout, kernel_pages: int, blocks: Size) -> Result[Layout, LayoutError]:
    """Count blocks instead of kernel pages, and hold the count against the group's."""
    position = layout.axes.index(Axis.BLOCK)
    rows = layout.shape[position]
    if divide(rows, kernel_pages) is None:
        return _error(Code.NOT_DIVISIBLE, f"a multiple of {kernel_pages} kernel pages a block", f"{rows} kernel pages")
    if rows != blocks * kernel_pages:
        expected = f"{blocks} blocks" + (f" of {kernel_pages} kernel pages" if kernel_pages > 1 else "")
        return _error(Code.GRANULARITY_MISMATCH, expected, f"{rows} on the block axis")
    if kernel_pages == 1:
        return Ok(layout)
    split = coalesce_kernel_pages(layout, kernel_pages)
    if isinstance(split, Err):  # pragma: no cover - the division above succeeded
        return _error(Code.NOT_DIVISIBLE, split.error.expected, split.error.actual)
    return split


def _rows_cache(spec: AttentionSpec | LatentSpec, layout: Layout, blocks: Size) -> Result[CacheLayout, LayoutError]:
    kernel_pages = _kernel_pages(spec, layout)
    if isinstance(kernel_pages, Err):
        return kernel_pages
    count = kernel_pages.value
    counted = _counted(layout, count, blocks)
    if isinstance(counted, Err):
        return counted
    source = counted.value
    found = _interval(source, blocks)
    if isinstance(found, Err):
        return found
    pages, share = found.value, len(found.value.bases)
    page_bytes, payload = divide(spec.page_bytes, share), spec.payload_bytes // share
    if page_bytes is None or not isinstance(page_bytes, int) or payload != pages.covered or payload > page_bytes:
        return _error(
            Code.PAGE_BYTES_MISMATCH, f"a page of {spec.page_bytes} bytes", f"{pages.covered * share} bytes a block"
        )
    if count > 1 and page_bytes != payload:
        expected = f"a page of {spec.page_bytes} bytes"
        return _error(Code.PAGE_BYTES_MISMATCH, expected, f"{count} kernel pages of {payload * share // count} bytes")
    if blocks != 1 and not nonneg(pages.stride - page_bytes):
        return _error(Code.PAGE_BYTES_MISMATCH, f"blocks at least {page_bytes} bytes apart", f"{pages.stride} bytes")
    return Ok(
        CacheLayout(
            parts=(source,),
            listed=False,
            blocks=blocks,
            states=spec.states,
            kernel_pages=count,
            pages=pages,
            page_bytes=page_bytes,
            payload=payload,
            untouched=spec.slots,
            opaque=not spec.proves_reading,
        ),
    )


def _step(stride: Size, page: int, blocks: Size) -> Size:
    """Return the block stride; one block has any that an engine leaves there, which counts if a page fits in it."""
    return page if blocks == 1 and not nonneg(stride - page) else stride


def _interval(source: Layout, blocks: Size) -> Result[Pages, LayoutError]:
    """Prove what block i of a tensor is: one interval, or one a plane where the planes lie outside the blocks."""
    block, plane = source.axes.index(Axis.BLOCK), source.where(Axis.PLANE)
    stride, total = raw(source.strides[block]), source.inner_bytes
    if not isinstance(total, int):
        return _error(Code.PAGE_NOT_CONTIGUOUS, "pages of one size", f"{total} bytes a page")
    pages = Pages((0,), _step(stride, total, blocks), total)
    verdict = page(source, pages, blocks)
    if plane is not None:
        distance = raw(source.strides[plane])
        if nonneg(distance - stride) and (plane < block or not isinstance(verdict, Proved)):
            half = total // 2
            pages = Pages((0, distance), _step(stride, half, blocks), half)
            verdict = page(source, pages, blocks)
    if not isinstance(verdict, Proved):
        strides = ", ".join(map(str, source.strides))
        return _error(
            Code.PAGE_NOT_CONTIGUOUS, f"one interval of {total} bytes a block", f"strides of {strides} bytes", verdict
        )
    return Ok(pages)


def _state_row(spec: StateSpec, row: Layout, blocks: Size) -> Result[CacheLayout, LayoutError]:
    counted = _counted(row, 1, blocks)
    if isinstance(counted, Err):
        return counted
    found = _interval(row, blocks)
    if isinstance(found, Err):
        return found
    pages = found.value
    if not spec.content_bytes <= pages.covered <= spec.page_bytes:
        expected = f"a row of {spec.content_bytes} to {spec.page_bytes} bytes"
        return _error(Code.PAGE_BYTES_MISMATCH, expected, f"{pages.covered} bytes")
    pages = Pages(pages.bases, _step(pages.stride, spec.page_bytes, blocks), pages.covered)
    return _state_cache(spec, (row,), pages, blocks, spec.content_bytes)


def _state_list(  # noqa: C901 - one check after the other, in the order of the contract
    spec: StateSpec,
    entry: tuple[RegisteredTensor, ...],
    parts: tuple[Layout, ...],
    blocks: Size,
) -> Result[CacheLayout, LayoutError]:
    """Hold the states of one page against it: each an interval of its own, all in one page, the first at its base."""
    ends: list[tuple[int, int]] = []
    for part in parts:
        counted = _counted(part, 1, blocks)
        if isinstance(counted, Err):
            return counted
    for part in parts:
        found = _interval(evolve(part, offset=parts[0].offset), blocks)
        if isinstance(found, Err):
            return found
        start = raw(part.offset)
        if isinstance(start, int):
            ends.append((start, start + found.value.covered))
    if len({tensor.storage for tensor in entry}) > 1:
        return _error(Code.STORAGES_DIFFER, "one storage", f"storages {sorted({t.storage for t in entry})}")
    if len(ends) < len(parts):
        starts = ", ".join(str(part.offset) for part in parts)
        return _error(Code.STATE_NOT_AT_PAGE_BASE, "states at fixed distances in their page", f"states at {starts}")
    spans = sorted(ends)
    if spans[-1][1] > spec.page_bytes:
        return _error(
            Code.PAGE_BYTES_MISMATCH, f"states inside a page of {spec.page_bytes} bytes", f"one ends at {spans[-1][1]}"
        )
    if any(left[1] > right[0] for left, right in pairwise(spans)):
        return _error(Code.PAGE_BYTES_MISMATCH, "states apart from each other", f"states at {spans}")
    strides = [raw(part.strides[0]) for part in parts]
    if blocks != 1 and len({str(stride) for stride in strides}) > 1:
        return _error(Code.STATE_STRIDE_MISMATCH, "one block stride", f"{', '.join(map(str, strides))} bytes")
    if spans[0][0] < 0:
        return _error(
            Code.STATE_NOT_AT_PAGE_BASE, "the first state at the base of its page", f"one {-spans[0][0]} bytes below it"
        )
    stride = _step(strides[0], spec.page_bytes, blocks)
    return _state_cache(spec, parts, Pages((0,), stride, spec.page_bytes), blocks, spans[-1][1])


def _state_cache(
    spec: StateSpec,
    parts: tuple[Layout, ...],
    pages: Pages,
    blocks: Size,
    payload: int,
) -> Result[CacheLayout, LayoutError]:
    if blocks != 1 and not nonneg(pages.stride - spec.page_bytes):
        expected = f"blocks at least a page of {spec.page_bytes} bytes apart"
        return _error(Code.STATE_STRIDE_MISMATCH, expected, f"{pages.stride} bytes")
    return Ok(
        CacheLayout(
            parts=parts,
            listed=len(parts) > 1 or Axis.HEAD not in parts[0].axes,
            blocks=blocks,
            states=spec.block_size,
            kernel_pages=1,
            pages=pages,
            page_bytes=spec.page_bytes,
            payload=payload,
            untouched=False,
            opaque=True,
        ),
    )
