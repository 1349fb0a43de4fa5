"""From named axes to pages: which bytes of its storage a layer owns for each block.

The checks come in a fixed order, so that a layer gets the first refusal that explains the rest: divisibility
and grain, contiguity, page bytes, strides and base.
"""

from __future__ import annotations

from kvlayout.algebra.affine import Size, divide, nonneg
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.layout import BLOCK, STATE, TOKEN, Layout
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.units import raw
from kvlayout.cache.axes import name_axes
from kvlayout.cache.owning import CacheLayout, counted, interval, refuse
from kvlayout.cache.registration import Entry, RegisteredTensor
from kvlayout.cache.spec import AttentionSpec, LatentSpec, StateSpec
from kvlayout.cache.state_pages import state_list, state_row
from kvlayout.errors import Code, LayoutError

__all__ = ["CacheLayout", "block_rows", "own_pages"]


def _rows(layout: Layout) -> Size:
    """Return the size of the axis of stored rows."""
    position = layout.where(TOKEN)
    position = layout.where(STATE) if position is None else position
    return layout.shape[position] if position is not None else 1


def _kernel_pages(spec: AttentionSpec | LatentSpec, layout: Layout) -> int | Err[LayoutError]:
    """Return how many kernel pages make a block of the group."""
    rows = _rows(layout)
    if spec.slots and rows != spec.states:
        return refuse(Code.GRANULARITY_MISMATCH, f"{spec.states} states a block", f"{rows} in a slot cache, left alone")
    if not isinstance(rows, int):
        return refuse(Code.GRANULARITY_MISMATCH, f"{spec.states} states a block", f"{rows} states")
    if spec.states % rows:
        return refuse(
            Code.NOT_DIVISIBLE, f"a divisor of the {spec.states} states a block", f"kernel pages of {rows} states"
        )
    return spec.states // rows


def block_rows(spec: AttentionSpec | LatentSpec | StateSpec, entry: Entry) -> Size | None:
    """Return the block count that a layer's own tensors make, for want of one in the registration."""
    readings = name_axes(spec, entry)
    if isinstance(readings, Err):
        return None
    layout = readings.value[0][0]
    kernel_pages = 1 if isinstance(spec, StateSpec) else _kernel_pages(spec, layout)
    block = layout.where(BLOCK)
    return None if block is None or isinstance(kernel_pages, Err) else divide(layout.shape[block], kernel_pages)


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
            return refuse(Code.UNKNOWN_DTYPE, "an element type of torch", part.dtype.name)
    return found


def _read_pages(
    spec: AttentionSpec | LatentSpec | StateSpec, entry: Entry, blocks: Size, block_stride: Size | None
) -> Result[CacheLayout, LayoutError]:
    readings = name_axes(spec, entry)
    if isinstance(readings, Err):
        return readings
    if isinstance(spec, StateSpec):
        if isinstance(entry, RegisteredTensor):
            return state_row(spec, readings.value[0][0], blocks)
        return state_list(spec, entry, readings.value[0], blocks)
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
        return refuse(Code.AXES_AMBIGUOUS, f"one reading of [{shape}]", f"({first}) and ({second}) both fit")
    return fits[0] if fits else results[0]


def _rows_cache(spec: AttentionSpec | LatentSpec, layout: Layout, blocks: Size) -> Result[CacheLayout, LayoutError]:
    count = _kernel_pages(spec, layout)
    if isinstance(count, Err):
        return count
    source = counted(layout, count, blocks)
    if isinstance(source, Err):
        return source
    pages = interval(source, blocks)
    if isinstance(pages, Err):
        return pages
    share = len(pages.bases)
    page_bytes, payload = divide(spec.page_bytes, share), spec.payload_bytes // share
    if page_bytes is None or not isinstance(page_bytes, int) or payload != pages.covered or payload > page_bytes:
        return refuse(
            Code.PAGE_BYTES_MISMATCH, f"a page of {spec.page_bytes} bytes", f"{pages.covered * share} bytes a block"
        )
    if count > 1 and page_bytes != payload:
        expected = f"a page of {spec.page_bytes} bytes"
        return refuse(Code.PAGE_BYTES_MISMATCH, expected, f"{count} kernel pages of {payload * share // count} bytes")
    if blocks != 1 and not nonneg(pages.stride - page_bytes):
        return refuse(Code.PAGE_BYTES_MISMATCH, f"blocks at least {page_bytes} bytes apart", f"{pages.stride} bytes")
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
        ),
    )
