"""One check a judgement: ask the kernel, enumerate the bytes, compare; what comes back is the kernel's answer.

For every check: a proof must hold at every block count tried; a refutation must carry a witness that is wrong at
its own block count and re-evaluates to what it says; "undecided" is allowed only where the check says so.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kvlayout.algebra import kernel
from kvlayout.algebra.affine import Affine, Size, at
from kvlayout.algebra.claims import Pages, Refuted, Track, Undecided, Witness
from kvlayout.algebra.kernel import Proved, Verdict
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.refuting import overlaps
from kvlayout.algebra.units import raw
from tests.brute import COUNTS, at_index, bytes_of, clashes, nested, pages_hold, pairs_of, span_of, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "check_fibre",
    "check_grain",
    "check_injective",
    "check_own",
    "check_page",
    "check_same",
    "check_within",
    "concrete",
]


def concrete(*layouts: Layout) -> bool:
    """Tell whether nothing in the layouts depends on the block count."""
    return not any(
        isinstance(number, Affine)
        for layout in layouts
        for number in (*layout.shape, *map(raw, layout.strides), raw(layout.offset))
    )


def _counts_for(*layouts: Layout) -> tuple[int, ...]:
    """Return the block counts to enumerate: any one, where nothing depends on it."""
    return (1,) if concrete(*layouts) else COUNTS


def counts_of(blocks: Size) -> tuple[int, ...]:
    return (blocks,) if isinstance(blocks, int) else COUNTS


def _named(verdict: Verdict, claim: str) -> Verdict:
    """Check that an answer is about the claim that was asked for, and return it."""
    names = [made.name for made in verdict.claims] if isinstance(verdict, Proved) else [verdict.claim]
    assert names == [claim]
    return verdict


def _witness(verdict: Refuted, claim: str) -> Witness:
    assert verdict.claim == claim
    assert verdict.witness.blocks >= 1
    assert verdict.witness.index >= 0
    assert verdict.witness.expected != verdict.witness.actual
    return verdict.witness


def check_same(expected: Layout, view: Layout) -> Verdict:
    verdict = _named(kernel.same(expected, view), "same")
    match verdict:
        case Proved():
            assert verdict.view is view
            assert all(bytes_of(expected, n) == bytes_of(view, n) for n in _counts_for(expected, view))
        case Refuted():
            seen = _witness(verdict, "same")
            assert at_index(bytes_of(expected, seen.blocks), seen.index) == seen.expected
            assert at_index(bytes_of(view, seen.blocks), seen.index) == seen.actual
        case Undecided():
            assert not concrete(expected, view)
            assert "is not affine" in verdict.reason
    return verdict


def _pages_undecidable(view: Layout, pages: Pages) -> bool:
    """Tell whether an axis is missing, or the inside of a page depends on the block count."""
    outer = [Axis.BLOCK, Axis.PLANE][: len(pages.bases)]
    if any(axis not in view.axes for axis in outer):
        return True
    inside = [i for i in range(len(view.axes)) if i not in [view.axes.index(axis) for axis in outer]]
    sizes = [(view.shape[i], raw(view.strides[i])) for i in inside]
    return any(isinstance(s, Affine) or (s != 1 and isinstance(d, Affine)) for s, d in sizes)


def check_page(view: Layout, pages: Pages, blocks: Size) -> Verdict:
    verdict = _named(kernel.page(view, pages, blocks), "page")
    counts = counts_of(blocks)
    match verdict:
        case Proved():
            assert verdict.view is view
            assert all(pages_hold(view, pages, n) for n in counts)
        case Refuted():
            seen = _witness(verdict, "page")
            assert seen.blocks in counts or isinstance(blocks, Affine)
            assert not pages_hold(view, pages, seen.blocks)
            _check_page_witness(verdict, view, pages)
        case Undecided():
            assert _pages_undecidable(view, pages), verdict
    return verdict


def _check_page_witness(verdict: Refuted, view: Layout, pages: Pages) -> None:
    """Evaluate again: distances of blocks or planes, numbers of bytes, or bytes of block 0 of plane 0."""
    seen = verdict.witness
    for axis, extent, stride in (
        (Axis.BLOCK, seen.blocks, pages.stride),
        (Axis.PLANE, len(pages.bases), pages.bases[-1] - pages.bases[0]),
    ):
        if verdict.reason == f"the {axis.value}s lie elsewhere":
            i = view.axes.index(axis)
            have = [k * at(raw(view.strides[i]), seen.blocks) for k in range(at(view.shape[i], seen.blocks))]
            assert at_index(have, seen.index) == seen.actual
            assert at_index([k * at(stride, seen.blocks) for k in range(extent)], seen.index) == seen.expected
            return
    outer = [view.axes.index(axis) for axis in (Axis.BLOCK, Axis.PLANE)[: len(pages.bases)]]
    block = [byte for index, byte in spread(view, seen.blocks) if not any(index[i] for i in outer)]
    if verdict.reason == "another number of bytes":
        assert at_index(range(len(block)), seen.index) == seen.actual
        assert at_index(range(pages.covered), seen.index) == seen.expected
    else:
        assert verdict.reason in {"the page starts elsewhere", "the page is no interval"}
        assert block[seen.index] == seen.actual


def _owns(pages: Pages, page_bytes: int, payload: int, blocks: int) -> bool:
    fitting = payload <= pages.covered <= page_bytes and (blocks == 1 or page_bytes <= at(pages.stride, blocks))
    planes = [Track(base, pages.stride, page_bytes, frozenset({0})) for base in pages.bases]
    return fitting and not pairs_of(planes, blocks)


def check_own(pages: Pages, page_bytes: int, payload: int, blocks: Size) -> Verdict:
    verdict = kernel.own(pages, page_bytes, payload, blocks)
    if len(pages.bases) == 1 or isinstance(verdict, Proved):  # of two planes, "fibre" may be what does not hold
        _named(verdict, "own")
    match verdict:
        case Proved():
            assert verdict.view is None
            assert all(_owns(pages, page_bytes, payload, n) for n in counts_of(blocks))
        case Refuted(claim="fibre"):
            _check_clash(verdict)
            assert not _owns(pages, page_bytes, payload, verdict.witness.blocks)
        case Refuted():
            seen = _witness(verdict, "own")
            assert not _owns(pages, page_bytes, payload, seen.blocks)
            base = at(pages.bases[0], seen.blocks)
            assert {seen.expected, seen.actual} == {base + seen.index, None}
        case Undecided():
            planes_drift = len(pages.bases) > 1 and isinstance(pages.bases[1] - pages.bases[0], Affine)
            assert isinstance(pages.stride, Affine) or (isinstance(blocks, Affine) and planes_drift)
    return verdict


def check_grain(view: Layout, blocks: Size, states: int | None) -> Verdict:
    verdict = _named(kernel.grain(view, blocks, states), "grain")
    have = next((s for s, axis in zip(view.shape, view.axes, strict=True) if axis is Axis.BLOCK), None)
    rows = [s for s, axis in zip(view.shape, view.axes, strict=True) if axis in (Axis.TOKEN, Axis.STATE)]
    assert len(rows) < 2, "the check does not know which axis is meant"
    right = have == blocks and (rows[0] if rows else None) == states
    assert isinstance(verdict, Proved) == right
    if isinstance(verdict, Refuted):
        seen = _witness(verdict, "grain")
        extents = [(blocks, have), (states, rows[0] if rows else None)]
        pairs = [[at_index(range(at(side or 0, seen.blocks)), seen.index) for side in pair] for pair in extents]
        assert [seen.expected, seen.actual] in pairs
    return verdict


def _turns(view: Layout) -> bool:
    """Tell whether an axis goes up at one block count and down at another, or its reach is not affine."""
    axes = [(s, raw(d)) for s, d in zip(view.shape, view.strides, strict=True) if s != 1]
    return any(isinstance(d, Affine) and (isinstance(s, Affine) or d.a * d.b < 0) for s, d in axes)


def check_within(view: Layout, storage: Size) -> Verdict:
    verdict = _named(kernel.within(view, storage), "within")
    fixed = concrete(view) and isinstance(storage, int)
    counts = (1,) if fixed else COUNTS
    match verdict:
        case Proved():
            assert verdict.view is view
            for n in counts:
                data = bytes_of(view, n)
                assert min(data) >= 0
                assert max(data) < at(storage, n)
        case Refuted():
            seen = _witness(verdict, "within")
            assert seen.expected is None
            assert seen.actual is not None
            assert bytes_of(view, seen.blocks)[seen.index] == seen.actual
            assert not 0 <= seen.actual < at(storage, seen.blocks)
        case Undecided():
            assert not fixed
            assert _turns(view), (view, storage, verdict)
    return verdict


def check_injective(view: Layout) -> Verdict:
    verdict = _named(kernel.injective(view), "injective")
    assert isinstance(verdict, Proved) == nested(view)
    match verdict:
        case Proved():
            for n in _counts_for(view):
                data = bytes_of(view, n)
                assert len(set(data)) == len(data)
        case Refuted():
            seen = _witness(verdict, "injective")
            assert seen.expected is None
            data = bytes_of(view, seen.blocks)
            assert data[seen.index] == seen.actual
            assert data.count(data[seen.index]) > 1
            other = int(verdict.reason.split()[1])
            assert other != seen.index
            assert data[other] == seen.actual
        case Undecided():
            assert "is not affine" in verdict.reason or verdict.reason == "the strides are not nested"
    return verdict


def _check_clash(verdict: Refuted) -> None:
    seen = _witness(verdict, "fibre")
    assert seen.actual is not None
    x, y = verdict.tracks
    assert clashes(x, y, seen.blocks)
    if verdict.reason == "two block strides on one stretch of storage":
        assert x.stride != y.stride
        assert seen.actual in span_of(x, seen.blocks)
        assert seen.actual in span_of(y, seen.blocks)
        return
    words = verdict.reason.split()
    i, j = int(words[1]), int(words[4])
    assert seen.index == i
    assert i != j or x.groups & y.groups
    for track, block in ((x, i), (y, j)):
        assert 0 <= block < seen.blocks
        start = at(track.base, seen.blocks) + block * at(track.stride, seen.blocks)
        assert start <= seen.actual < start + track.page


def check_fibre(tracks: Sequence[Track], blocks: Size) -> Verdict:
    verdict = _named(kernel.fibre(iter(tracks), blocks), "fibre")
    match verdict:
        case Proved():
            assert verdict.view is None
            assert not any(pairs_of(tracks, n) for n in counts_of(blocks))
        case Refuted():
            assert verdict.witness.blocks == blocks or isinstance(blocks, Affine)
            _check_clash(verdict)
        case Undecided():
            assert isinstance(blocks, Affine)
    if isinstance(blocks, int):
        found = [item for item in overlaps(tracks, blocks) if isinstance(item, Refuted)]
        ids = {id(track): i for i, track in enumerate(tracks)}
        assert {frozenset(ids[id(track)] for track in item.tracks) for item in found} == pairs_of(tracks, blocks)
        assert isinstance(verdict, Proved) == (not found)
        return verdict
    if not any(isinstance(x.base - y.base, Affine) for x, y in itertools.combinations(tracks, 2)):
        assert not isinstance(verdict, Undecided)
    return verdict
