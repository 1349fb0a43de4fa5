"""The search for counter-examples: what the prover says no with. Nothing here can make a proof.

Every witness is found by evaluating addresses at a concrete block count, so an error message can't be
wrong about where bytes are.
"""

from __future__ import annotations

import itertools
from math import gcd
from typing import TYPE_CHECKING, TypeAlias

from kvlayout.algebra.affine import BLOCK_COUNT, Size, at, nonneg, pair, size
from kvlayout.algebra.canonical import Mode, address, bind_modes, canonical, count, modes_of
from kvlayout.algebra.claims import Refuted, Track, Undecided, Witness
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.units import raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "blocks_of",
    "collision",
    "elsewhere",
    "miscounted",
    "misfit",
    "no_interval",
    "outside",
    "overlaps",
    "strung",
    "tried",
    "unlike",
]

_Side: TypeAlias = tuple[Size, "Sequence[Mode]"]


def _extent(value: Size) -> _Side:
    """Return ``value`` things in a row, counted from 0: the side of a claim about how many there are."""
    return (0, [(*pair(value), 1, 0)])


def _refute(
    why: tuple[str, str], index: int, expected: _Side, actual: _Side, counts: Iterable[int]
) -> Refuted | Undecided:
    """Evaluate both sides: a witness on which they agree, at every block count tried, does not leave the kernel."""
    for n in counts:
        left, right = (address(at(offset, n), bind_modes(modes, n), index) for offset, modes in (expected, actual))
        if left != right:
            return Refuted(*why, Witness(n, index, left, right))
    claim, reason = why
    return Undecided(claim, f"{reason}, but no witness at index {index} re-evaluates")


def tried(blocks: Size) -> Iterable[int]:
    """Return the block counts to look for a witness at: the one there is, or the first few."""
    return (blocks,) if isinstance(blocks, int) else range(1, 9)


def blocks_of(view: Layout) -> Size:
    """Return the block count of a view; any, where its numbers depend on it in another way."""
    fixed = all(isinstance(number, int) for number in (*view.shape, *view.strides, view.offset))
    block = view.where(Axis.BLOCK)
    return BLOCK_COUNT if not fixed else 1 if block is None else view.shape[block]


def unlike(expected: Layout, view: Layout) -> Refuted | Undecided:
    """Find an index that two layouts send to two bytes (T3); they differ at almost all counts, or are the same."""
    sides = (raw(expected.offset), modes_of(expected)), (raw(view.offset), modes_of(view))
    known = blocks_of(view) if blocks_of(view) == blocks_of(expected) else BLOCK_COUNT
    for n in (known,) if isinstance(known, int) else itertools.count(1):
        (x, f), (y, g) = ((at(offset, n), canonical(bind_modes(modes, n))) for offset, modes in sides)
        if x != y:
            return _refute(("same", "the offsets differ"), 0, *sides, (n,))
        for k, (s, t) in enumerate(itertools.zip_longest(f, g)):
            if s != t:
                steps = min(s[0], t[0]) if s and t and s[2] == t[2] else 1
                return _refute(("same", f"the canonical forms differ at mode {k}"), count(f[:k]) * steps, *sides, (n,))
    return Undecided("same", "no block count tells the layouts apart")


def elsewhere(axis: Axis, wanted: Sequence[Size], have: Sequence[Size], blocks: Size) -> Refuted | Undecided:
    """Find the first block, or plane, that a view has somewhere else or not at all; of each its size and stride."""
    index = 1 if wanted[1] != have[1] else min(sum(pair(wanted[0])), sum(pair(have[0])))
    expected, actual = ((0, [(*pair(extent), *pair(step))]) for extent, step in (wanted, have))
    return _refute(("page", f"the {axis.value}s lie elsewhere"), index, expected, actual, tried(blocks))


def no_interval(
    start: Size, offset: Size, inner: tuple[Sequence[Size], Sequence[Size]], covered: int, blocks: Size
) -> Refuted | Undecided:
    """Find the first byte of block 0 that is not where a dense page has it; its own numbers are constants."""
    modes: list[Mode] = [(*pair(extent), *pair(step)) for extent, step in zip(*inner, strict=True)]
    actual = (offset, modes)
    dense, total = list(modes), 1
    for _, extent, i, stride in sorted([(abs(da), sa, i, da) for i, (sa, _, da, _) in enumerate(modes)]):
        dense[i] = (extent, 0, total, 0)
        if stride < 0:
            start, dense[i] = start + (extent - 1) * total, (extent, 0, -total, 0)
        total *= extent
    if total != covered:
        index = min(total, covered)
        return _refute(("page", "another number of bytes"), index, _extent(covered), _extent(total), tried(blocks))
    if start != actual[0]:
        return _refute(("page", "the page starts elsewhere"), 0, (start, dense), actual, tried(blocks))
    i = next((i for i, (x, y) in enumerate(zip(modes, dense, strict=True)) if x != y and x[0] != 1), len(modes))
    return _refute(("page", "the page is no interval"), count(modes[i + 1 :]), (start, dense), actual, tried(blocks))


def misfit(base: Size, chain: tuple[int, int, int, int], blocks: Size) -> Refuted | Undecided:
    """Find the first byte that is left out, or one too many, where payload <= covered <= page <= room is false."""
    payload, covered, page, room = chain
    reason, wanted, have = (
        ("payload is left out", payload, covered)
        if payload > covered
        else ("more than the page", page, covered)
        if covered > page
        else ("the page runs into the next block", room, page)
    )
    index = max(min(wanted, have), 0)
    sides = (base, [(wanted, 0, 1, 0)]), (base, [(have, 0, 1, 0)])
    return _refute(("own", reason), index, *sides, (at(blocks, 2),))  # with one block nothing is next


def miscounted(axis: Axis, extent: Size | None, have: Size | None, blocks: Size) -> Refuted | Undecided:
    """Find the first block or state that is missing, or one too many."""
    wanted, found, n = extent or 0, have or 0, at(blocks, 2)
    why = ("grain", f"{have} {axis.value}s, not {extent}")
    return _refute(why, min(at(wanted, n), at(found, n)), _extent(wanted), _extent(found), tried(blocks))


def outside(view: Layout, storage: Size, slack: Size) -> Refuted | Undecided:
    """Evaluate the lowest and the highest index where a slack is negative: one of them is outside the storage."""
    a, b = pair(slack)
    known = blocks_of(view) if isinstance(storage, int) else BLOCK_COUNT
    n = known if isinstance(known, int) else max(a // -b + 2, 1) if b < 0 else 1
    bound, offset = bind_modes(modes_of(view), n), at(raw(view.offset), n)
    for low in (True, False):
        index = 0
        for sa, _, da, _ in bound:
            index = index * sa + (sa - 1 if (da < 0) is low else 0)
        byte = address(offset, bound, index)
        if byte is not None and not 0 <= byte < at(storage, n):
            return Refuted("within", "an address outside the storage", Witness(n, index, None, byte))
    return Undecided("within", "no corner re-evaluates to an address outside the storage")


def collision(view: Layout) -> Refuted | None:
    """Find two indices with one byte, where two axes alone make them."""
    for n in tried(blocks_of(view)):
        bound, start = bind_modes(modes_of(view), n), at(raw(view.offset), n)
        for i, k in itertools.combinations(range(len(bound)), 2):
            dx, dy = bound[i][2], bound[k][2]
            common = max(gcd(dx, dy), 1)
            p, q = abs(dy) // common, abs(dx) // common  # p steps of one axis reach as far as q of the other
            far, near = p * count(bound[i + 1 :]), q * count(bound[k + 1 :])
            one, two = (far, near) if dx * dy >= 0 else (far + near, 0)
            byte = address(start, bound, one)
            if one != two and byte is not None and byte == address(start, bound, two):
                return Refuted("injective", f"index {two} has the same byte", Witness(n, one, None, byte))
    return None


def _regular(track: Track, blocks: Size) -> bool:
    """Tell whether a track is what ``own`` proves of pages, and its base is known where the block count is."""
    room = track.page if blocks == 1 else track.stride
    known = isinstance(track.base, int) or not isinstance(blocks, int)
    return known and isinstance(room, int) and 0 < track.page <= room


def _end(track: Track, blocks: Size) -> Size:
    return track.base + (blocks - 1) * track.stride + track.page


def _clash(x: Track, y: Track, n: int) -> Refuted | None:
    """Find a byte in block i of one track and block j of the other, of n blocks; i = j counts within one group only."""
    a, b, s, t = (at(number, n) for number in (x.base, y.base, x.stride, y.stride))
    if n > 1 and s != t:
        reason = "two block strides on one stretch of storage"
        meet = a < at(_end(y, n), n) and b < at(_end(x, n), n)
        return Refuted("fibre", reason, Witness(n, 0, None, max(a, b)), (x, y)) if meet else None
    step = s if n > 1 else x.page + y.page  # one block has no stride
    for k in range((b - a - x.page) // step + 1, -(-(b - a + y.page) // step)):
        if abs(k) < n and (k or x.groups & y.groups):
            i, j = max(k, 0), max(-k, 0)
            byte = max(a + i * s, b + j * s)
            return Refuted("fibre", f"block {i} meets block {j} of another layer", Witness(n, i, None, byte), (x, y))
    return None


def _meet(x: Track, y: Track, blocks: Size) -> Refuted | Undecided | None:
    """Compare two tracks, in order of their bases, at the block counts that decide it; ``None``: they never meet."""
    if nonneg(y.base - _end(x, blocks)):
        return None
    apart, counts, exact = y.base - x.base, tried(blocks), isinstance(blocks, int)
    if not exact and isinstance(x.stride, int) and isinstance(apart, int):
        counts, exact = (apart // x.stride + 2,), True  # x has passed the base of y: at more blocks nothing else meets
    found = next(filter(None, (_clash(x, y, n) for n in counts)), None)
    return found if found or exact else Undecided("fibre", "the distance depends on the block count", (x, y))


def _crowded(cluster: Sequence[Track], blocks: Size) -> Iterator[Refuted | Undecided]:
    """Compare tracks whose stretches may meet: in one fibre ``[base, + stride)`` a group's windows must be disjoint."""
    first, *others = cluster
    if not others:
        return
    limit = first.base + first.stride
    free: dict[int, Size] = {}
    for track in cluster:
        apart = all(nonneg(track.base - free.get(group, track.base)) for group in track.groups)
        if not apart or track.stride != first.stride or not nonneg(limit - track.base - track.page):
            break
        free.update(dict.fromkeys(track.groups, track.base + track.page))
    else:
        return
    yield from filter(None, (_meet(x, y, blocks) for x, y in itertools.combinations(cluster, 2)))


def overlaps(tracks: Iterable[Track], blocks: Size) -> Iterator[Refuted | Undecided]:
    """Find the pairs of tracks that meet: stretches of storage first, windows in one stride next, pairs last."""
    cluster: list[Track] = []
    end: Size = 0
    for track in sorted(tracks, key=lambda track: pair(track.base)[::-1]):
        if not _regular(track, blocks):
            yield Undecided("fibre", "a page that its block stride does not hold", (track, track))
            continue
        if cluster and nonneg(track.base - end):
            yield from _crowded(cluster, blocks)
            cluster = []
        reach = _end(track, blocks)
        end = size(*map(max, pair(end), pair(reach))) if cluster else reach
        cluster.append(track)
    if cluster:
        yield from _crowded(cluster, blocks)


def strung(windows: Sequence[tuple[int, Size, Size, int]], blocks: Size) -> bool:
    """Tell at a glance that pages (storage, base, stride, bytes) are stretches, each ending before the next begins.

    What :func:`overlaps` finds out for any tracks, without comparing groups: of stretches that are apart, none meet.
    """
    if not isinstance(blocks, int):
        return False
    stretches = [
        (storage, base, base + (blocks - 1) * stride + page)
        for storage, base, stride, page in windows
        if isinstance(base, int) and isinstance(stride, int)
    ]
    pairs = itertools.pairwise(sorted(stretches))
    apart = [one != other or end <= start for (one, _, end), (other, start, _) in pairs]
    return len(stretches) == len(windows) and all(apart)
