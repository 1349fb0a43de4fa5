"""What each byte of a page is, and a fingerprint of it that two ends of a transfer can compare.

Bytes that arrive where they belong can still mean something else: a planar indexer page and an interleaved one
have the same size, and a dense page has tokens outside heads or heads outside tokens. So the fingerprint covers the
canonical layout of every axis inside the page *and* what changes its meaning (element types, spec kind, states,
content tag); not names, offsets, block strides or block counts, which may differ between two ends that hold the
same pages.
"""

from __future__ import annotations

import hashlib
import json
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple, final

from attrs import frozen

from kvlayout.algebra.affine import at
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.layout import Axis, Layout, dense_strides
from kvlayout.algebra.units import raw
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec, StateSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PageField", "PageMap", "page_map"]

_VERSION: Final = "kvlayout/page-1"


class PageField(NamedTuple):
    """One part of a page: its name, where it is in bytes, its element type and its axes inside the page.

    ``modes`` has what each axis of more than one index is, its size and its stride in bytes; a row axis says how many
    tokens a stored row is, and kernel pages that lie like further rows are part of it.
    """

    name: str
    start: int
    length: int
    dtype: str
    modes: tuple[tuple[str, int, int], ...]


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


def _inner(spec: Spec, layout: Layout, *, planes: bool) -> tuple[tuple[str, int, int], ...]:
    """Return what each axis inside one page is, its size and its stride, in the order of their meaning."""
    outer = {Axis.BLOCK, Axis.PLANE} if planes else {Axis.BLOCK}
    found = {
        axis: (at(extent, 1), at(raw(stride), 1))
        for axis, extent, stride in zip(layout.axes, layout.shape, layout.strides, strict=True)
        if axis not in outer
    }
    row = Axis.TOKEN if Axis.TOKEN in found else Axis.STATE
    extent, stride = found.get(row, (1, 0))
    tiles, step = found.get(Axis.KERNEL_PAGE, (1, 0))
    if tiles > 1 and (extent == 1 or step == extent * stride):
        found[row] = (tiles * extent, step if extent == 1 else stride)
        del found[Axis.KERNEL_PAGE]
    ratio = spec.tokens_per_state if isinstance(spec, AttentionSpec | LatentSpec) else (1, 1)
    words = {row: "{} tokens in {} rows".format(*ratio)}
    modes = [(words.get(axis, axis.value), *found[axis]) for axis in Axis if found.get(axis, (1, 0))[0] > 1]
    return tuple(modes)


def _dense(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[str, int, int], ...]:
    """Return the modes of a state that lies dense."""
    strides = dense_strides(shape, itemsize)
    return _axes(shape, [at(raw(stride), 1) for stride in strides])


def _axes(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[str, int, int], ...]:
    return tuple((f"axis {i}", *mode) for i, mode in enumerate(zip(shape, strides, strict=True)) if mode[0] > 1)


def page_map(spec: Spec, cache: CacheLayout, content: str) -> PageMap:
    """Return the page of one layer, from its spec and the layout that it registered.

    Args:
        spec: the layer's spec.
        cache: its tensors, with the pages that they own.
        content: ``semantic``, or how the engine packs what looks like channels.
    """
    fields: list[PageField] = []
    end = 0
    for field in sorted(_fields(spec, cache), key=lambda field: field.start):
        if field.start > end:
            fields.append(PageField("pad", end, field.start - end, "", ()))
        fields.append(field)
        end = field.start + field.length
    if end < cache.page_bytes:
        fields.append(PageField("pad", end, cache.page_bytes - end, "", ()))
    packed = f"{content}, {cache.kernel_pages} kernel pages" if content != "semantic" else content
    return PageMap(spec.kind, cache.states, cache.page_bytes, len(cache.pages.bases), tuple(fields), packed)


def _fields(spec: Spec, cache: CacheLayout) -> list[PageField]:
    """Return the parts of a page that carry something. A state row is the states of its spec, one behind the other."""
    if not isinstance(spec, StateSpec):
        modes = _inner(spec, cache.source, planes=cache.apart)
        return [PageField("rows", 0, cache.payload, cache.source.dtype.name, modes)]
    if cache.listed:
        return [_state(i, part) for i, part in enumerate(cache.parts)]
    fields: list[PageField] = []
    end = 0
    for i, (shape, name) in enumerate(spec.fields):
        item = DTYPES[name].itemsize if name in DTYPES else 0
        length = prod(shape) * item
        fields.append(PageField(f"state{i}", end, length, name, _dense(shape, item)))
        end += length
    known = end == spec.content_bytes and all(field.length for field in fields)
    return fields if known else [PageField("state", 0, spec.content_bytes, cache.source.dtype.name, ())]


def _state(index: int, part: Layout) -> PageField:
    shape, strides = ([at(size, 1) for size in sizes] for sizes in (part.shape[1:], map(raw, part.strides[1:])))
    return PageField(
        f"state{index}", at(raw(part.offset), 1), at(part.inner_bytes, 1), part.dtype.name, _axes(shape, strides)
    )
