"""What each byte of a page is, and a fingerprint of it that two ends of a transfer can compare.

Bytes that arrive where they belong can still mean something else: a planar indexer page and an interleaved one
have the same size. So the fingerprint covers the canonical layout inside the page *and* what changes its meaning
(element types, spec kind, states, content tag); not names, offsets, block strides or block counts, which may
differ between two ends that hold the same pages.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final, NamedTuple, final

from attrs import frozen

from kvlayout.algebra.affine import at
from kvlayout.algebra.canonical import canonical, modes_of
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.units import raw
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.spec import Spec, StateSpec

__all__ = ["PageField", "PageMap", "page_map"]

_VERSION: Final = "kvlayout/page-1"


class PageField(NamedTuple):
    """One part of a page: its name, where it is in bytes, its element type and its canonical layout inside the page."""

    name: str
    start: int
    length: int
    dtype: str
    modes: tuple[tuple[int, int], ...]


@final
@frozen
class PageMap:
    """A page, byte by byte.

    Attributes:
        kind: the spec's own word for its kind of attention.
        states: stored rows a block.
        page_bytes: bytes of the page in one interval.
        intervals: 1, or 2 where K and V lie apart.
        fields: its parts in order, the padding named ``pad``; they are adjacent and fill the page.
        content: what the bytes are known to be: ``semantic``, or a tag that says how they are packed.
    """

    kind: str
    states: int
    page_bytes: int
    intervals: int
    fields: tuple[PageField, ...]
    content: str

    @property
    def padding_bytes(self) -> int:
        """Bytes of a page that carry nothing, over all intervals."""
        return self.intervals * sum(field.length for field in self.fields if field.name == "pad")

    @property
    def fingerprint(self) -> str:
        """A stable hash, 32 hexadecimal digits; equal pages have equal ones on every machine."""
        text = json.dumps(
            [_VERSION, self.kind, self.states, self.page_bytes, self.intervals, self.fields, self.content]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def _inner(layout: Layout, *, planes: bool) -> tuple[tuple[int, int], ...]:
    """Return the canonical modes inside one page, fastest first, as (bytes, stride)."""
    outer = {Axis.BLOCK, Axis.PLANE} if planes else {Axis.BLOCK}
    modes = [m for m, axis in zip(modes_of(layout), (*layout.axes, None), strict=True) if axis not in outer]
    return tuple((size, stride) for size, _, stride, _ in canonical(modes))


def page_map(spec: Spec, cache: CacheLayout, content: str) -> PageMap:
    """Return the page of one layer, from its spec and the layout that it registered.

    Args:
        spec: the layer's spec.
        cache: its tensors, with the pages that they own.
        content: ``semantic``, or how the engine packs what looks like channels.
    """
    fields = []
    end = 0
    for name, start, size, part in sorted(_spans(spec, cache), key=lambda span: span[1]):
        if start > end:
            fields.append(PageField("pad", end, start - end, "", ()))
        fields.append(PageField(name, start, size, part.dtype.name, _inner(part, planes=cache.apart)))
        end = start + size
    if end < cache.page_bytes:
        fields.append(PageField("pad", end, cache.page_bytes - end, "", ()))
    packed = f"{content}, {cache.kernel_pages} kernel pages" if content != "semantic" else content
    return PageMap(spec.kind, cache.states, cache.page_bytes, len(cache.pages.bases), tuple(fields), packed)


def _spans(spec: Spec, cache: CacheLayout) -> list[tuple[str, int, int, Layout]]:
    """Return name, start, bytes and layout of each part; a state row is one part, padding within the row is not."""
    if not isinstance(spec, StateSpec):
        return [("rows", 0, cache.payload, cache.source)]
    if not cache.listed:
        return [("state", 0, spec.content_bytes, cache.source)]
    starts = [at(raw(part.offset), 1) for part in cache.parts]
    sizes = [at(part.inner_bytes, 1) for part in cache.parts]
    return [(f"state{i}", starts[i], sizes[i], part) for i, part in enumerate(cache.parts)]
