"""Ground truth by enumeration: what every judgement of the kernel is held against.

Nothing here uses the canonical form or any shortcut of the library: a layout is the list of its bytes, a page
is a set of bytes, and every pair of blocks is compared. Layouts are small, so this is quick enough for
hundreds of thousands of them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kvlayout.algebra.affine import Size, at
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.units import Bytes, raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvlayout.algebra.claims import Pages, Track

__all__ = [
    "COUNTS",
    "at_index",
    "bytes_of",
    "clashes",
    "make",
    "nested",
    "pages_hold",
    "pairs_of",
    "span_of",
    "spread",
    "steps_of",
]

#: The block counts that stand for "every N" in a symbolic check.
COUNTS = (1, 2, 3, 4, 5, 6)

_DTYPES = {
    1: DTYPES["int8"],
    2: DTYPES["bfloat16"],
    4: DTYPES["float32"],
    8: DTYPES["float64"],
    16: DTYPES["complex128"],
}
_INNER = (Axis.HEAD, Axis.CHANNEL, Axis.BYTES)


def make(
    shape: Sequence[Size],
    strides: Sequence[Size],
    offset: Size = 0,
    itemsize: int = 1,
    axes: Sequence[Axis] | None = None,
) -> Layout:
    """Return a layout of bare numbers; without ``axes``, blocks come first and the rest mean nothing."""
    if axes is None:
        axes = [Axis.BLOCK if i == 0 else _INNER[i % 3] for i in range(len(shape))]
    bytes_ = tuple(Bytes(stride) for stride in strides)
    return Layout(tuple(shape), bytes_, Bytes(offset), _DTYPES[itemsize], Bytes(1 << 20), tuple(axes))


def steps_of(layout: Layout) -> tuple[Size, ...]:
    """Return the strides of a layout as bare numbers."""
    return tuple(map(raw, layout.strides))


def bytes_of(layout: Layout, blocks: int = 1) -> list[int]:
    """Return every byte of a layout at a block count, in row-major order."""
    return [byte for _, byte in spread(layout, blocks)]


def spread(layout: Layout, blocks: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Return every index of a layout at a block count, with each of its bytes, in row-major order."""
    shape = [at(extent, blocks) for extent in layout.shape]
    strides = [at(raw(stride), blocks) for stride in layout.strides]
    start = at(raw(layout.offset), blocks)
    for index in itertools.product(*map(range, shape)):
        first = start + sum(digit * stride for digit, stride in zip(index, strides, strict=True))
        for byte in range(first, first + layout.dtype.itemsize):
            yield index, byte


def at_index(data: Sequence[int], index: int) -> int | None:
    """Return the byte at an index, ``None`` beyond the end."""
    return data[index] if index < len(data) else None


def pages_hold(view: Layout, pages: Pages, blocks: int) -> bool:
    """Tell whether block i of the view is block i of the pages, each byte once, at a block count."""
    block = view.axes.index(Axis.BLOCK)
    plane = view.axes.index(Axis.PLANE) if len(pages.bases) > 1 else None
    planes = 1 if plane is None else at(view.shape[plane], blocks)
    if at(view.shape[block], blocks) != blocks or planes != len(pages.bases):
        return False
    found: dict[tuple[int, int], list[int]] = {}
    for index, byte in spread(view, blocks):
        found.setdefault((index[block], 0 if plane is None else index[plane]), []).append(byte)
    for (i, p), data in found.items():
        start = at(pages.bases[p], blocks) + i * at(pages.stride, blocks)
        if sorted(data) != list(range(start, start + pages.covered)):
            return False
    return True


def span_of(track: Track, blocks: int) -> range:
    """Return the stretch of storage from the first byte of a track to its last."""
    base = at(track.base, blocks)
    return range(base, base + (blocks - 1) * at(track.stride, blocks) + track.page)


def _intersect(x: range, y: range) -> bool:
    return x.start < y.stop and y.start < x.stop


def _block(track: Track, i: int, blocks: int) -> range:
    start = at(track.base, blocks) + i * at(track.stride, blocks)
    return range(start, start + track.page)


def clashes(x: Track, y: Track, blocks: int) -> bool:
    """Tell whether two tracks may not share a storage, at a block count: every pair of blocks is looked at.

    Two strides on one stretch are a clash by rule, whether a byte is shared or not.
    """
    if blocks > 1 and x.stride != y.stride and _intersect(span_of(x, blocks), span_of(y, blocks)):
        return True
    return any(
        _intersect(_block(x, i, blocks), _block(y, j, blocks))
        for i in range(blocks)
        for j in range(blocks)
        if i != j or x.groups & y.groups
    )


def pairs_of(tracks: Iterable[Track], blocks: int) -> set[frozenset[int]]:
    """Return the positions of all pairs of tracks that clash at a block count."""
    numbered = list(enumerate(tracks))
    return {frozenset((i, k)) for (i, x), (k, y) in itertools.combinations(numbered, 2) if clashes(x, y, blocks)}


def _above(value: Size, least: Size) -> bool:
    """Tell whether ``value >= least`` for all counts, as two comparisons of coefficients; both are affine."""
    slack = value - least
    return at(slack, 1) >= 0 and at(slack, 2) >= at(slack, 1)


def nested(layout: Layout) -> bool:
    """Tell whether some order of the axes makes their strides superincreasing for every block count (T5)."""
    modes = [*zip(layout.shape, layout.strides, strict=True), (layout.dtype.itemsize, Bytes(1))]
    steps = []
    for extent, stride in modes:
        step = raw(stride) if _above(raw(stride), 0) else -raw(stride)
        if extent != 1:
            steps.append((extent, step))

    def chain(order: Iterable[tuple[Size, Size]]) -> bool:
        reach: Size = 0
        for extent, step in order:
            if not _above(step, reach + 1):
                return False
            if not isinstance(extent, int) and not isinstance(step, int):
                return False
            reach = reach + (extent - 1) * step
        return True

    return any(chain(order) for order in itertools.permutations(steps))
