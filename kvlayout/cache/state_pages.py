"""The pages of recurrent layers: a row a block, or the states of one page as a list of tensors."""

from __future__ import annotations

from itertools import pairwise

from attrs import evolve

from kvlayout.algebra.affine import Size, nonneg
from kvlayout.algebra.claims import Pages
from kvlayout.algebra.layout import HEAD, Layout
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.units import raw
from kvlayout.cache.owning import CacheLayout, counted, fitting_stride, interval, refuse
from kvlayout.cache.registration import RegisteredTensor
from kvlayout.cache.spec import StateSpec
from kvlayout.errors import Code, LayoutError

__all__ = ["state_list", "state_row"]


def state_row(spec: StateSpec, row: Layout, blocks: Size) -> Result[CacheLayout, LayoutError]:
    """Hold the row of a state against its page: at least the state, at most the page."""
    held = counted(row, 1, blocks)
    if isinstance(held, Err):
        return held
    pages = interval(held, blocks)
    if isinstance(pages, Err):
        return pages
    if not spec.content_bytes <= pages.covered <= spec.page_bytes:
        expected = f"a row of {spec.content_bytes} to {spec.page_bytes} bytes"
        return refuse(Code.PAGE_BYTES_MISMATCH, expected, f"{pages.covered} bytes")
    stride = fitting_stride(pages.stride, spec.page_bytes, blocks)
    if stride != pages.stride:
        pages = Pages(pages.bases, stride, pages.covered)
    return _state_cache(spec, (row,), pages, blocks, spec.content_bytes)


def state_list(  # noqa: C901 - one check after the other, in the order of the contract
    spec: StateSpec,
    entry: tuple[RegisteredTensor, ...],
    parts: tuple[Layout, ...],
    blocks: Size,
) -> Result[CacheLayout, LayoutError]:
    """Hold the states of one page against it: each an interval of its own, all in one page, the first at its base."""
    ends: list[tuple[int, int]] = []
    for part in parts:
        held = counted(part, 1, blocks)
        if isinstance(held, Err):
            return held
    for part in parts:
        found = interval(evolve(part, offset=parts[0].offset), blocks)
        if isinstance(found, Err):
            return found
        start = raw(part.offset)
        if isinstance(start, int):
            ends.append((start, start + found.covered))
    if len({tensor.storage for tensor in entry}) > 1:
        return refuse(Code.STORAGES_DIFFER, "one storage", f"storages {sorted({t.storage for t in entry})}")
    if len(ends) < len(parts):
        starts = ", ".join(str(part.offset) for part in parts)
        return refuse(Code.STATE_NOT_AT_PAGE_BASE, "states at fixed distances in their page", f"states at {starts}")
    spans = sorted(ends)
    if spans[-1][1] > spec.page_bytes:
        return refuse(
            Code.PAGE_BYTES_MISMATCH, f"states inside a page of {spec.page_bytes} bytes", f"one ends at {spans[-1][1]}"
        )
    if any(left[1] > right[0] for left, right in pairwise(spans)):
        return refuse(Code.PAGE_BYTES_MISMATCH, "states apart from each other", f"states at {spans}")
    strides = [raw(part.strides[0]) for part in parts]
    if blocks != 1 and len({str(stride) for stride in strides}) > 1:
        return refuse(Code.STATE_STRIDE_MISMATCH, "one block stride", f"{', '.join(map(str, strides))} bytes")
    if spans[0][0] < 0:
        return refuse(
            Code.STATE_NOT_AT_PAGE_BASE, "the first state at the base of its page", f"one {-spans[0][0]} bytes below it"
        )
    stride = fitting_stride(strides[0], spec.page_bytes, blocks)
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
        return refuse(Code.STATE_STRIDE_MISMATCH, expected, f"{pages.stride} bytes")
    return Ok(
        CacheLayout(
            parts=parts,
            listed=len(parts) > 1 or HEAD not in parts[0].axes,
            blocks=blocks,
            states=spec.block_size,
            kernel_pages=1,
            pages=pages,
            page_bytes=spec.page_bytes,
            payload=payload,
            untouched=False,
        ),
    )
