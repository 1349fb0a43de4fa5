"""The prover: the only module that makes a ``Proved``. The mathematics is in docs/proofs.md.

Three answers, ``Proved``, ``Refuted`` with a witness, ``Undecided``; a claim holds for **every** block count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias, final

from kvlayout.algebra import refuting
from kvlayout.algebra.affine import NotAffineError, Size, fits, nonneg, size
from kvlayout.algebra.canonical import canonical, modes_of
from kvlayout.algebra.claims import Claim, Pages, Refuted, Track, Undecided
from kvlayout.algebra.layout import BLOCK, PLANE, STATE, TOKEN, Layout
from kvlayout.algebra.units import all_raw, raw

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Proved", "Verdict", "fibre", "grain", "injective", "own", "page", "prove", "same", "within"]


@final
class _Seal:
    """What only this module holds."""


_SEAL, _set = _Seal(), object.__setattr__


@final
class Proved:
    """Claims that hold of ``view`` (None: of bare pages) for every block count. Made by the kernel, and only there."""

    __slots__ = ("claims", "view")
    view: Layout | None
    claims: tuple[Claim, ...]

    def __init__(self, view: Layout | None, claims: tuple[Claim, ...], seal: _Seal) -> None:
        if seal is not _SEAL:
            raise TypeError("only the kernel makes a Proved")
        _set(self, "view", view)
        _set(self, "claims", claims)

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a Proved is not changed, copied or stored: prove it again")

    __setattr__ = __delattr__ = __reduce__ = _refuse

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("a Proved has no subclass")


Verdict: TypeAlias = Proved | Refuted | Undecided
_Finding: TypeAlias = Claim | Refuted | Undecided


def _sealed(view: Layout | None, found: _Finding) -> Verdict:
    return Proved(view, (found,), _SEAL) if isinstance(found, Claim) else found


def same(expected: Layout, view: Layout) -> Verdict:
    """Prove that two layouts address the same bytes in the same order (T1, T1')."""
    return _sealed(view, _same(expected, view))


def _same(expected: Layout, view: Layout) -> _Finding:
    try:
        form, other = canonical(modes_of(view)), canonical(modes_of(expected))
    except NotAffineError as error:
        return Undecided("same", str(error))
    if view.offset == expected.offset and form == other:
        return Claim("same", (("offset", view.offset), ("canonical", form)))
    return refuting.unlike(expected, view)


def page(view: Layout, pages: Pages, blocks: Size) -> Verdict:
    """Prove that block i of the view is block i of the pages, each byte once (T4); two intervals: one a plane."""
    return _sealed(view, _page(view, pages, blocks))


def _page(view: Layout, pages: Pages, blocks: Size) -> _Finding:
    (start, *others), stride, covered = pages
    wanted = [(BLOCK, blocks, stride)]
    if others:
        (other,) = others  # K and V: there is no third plane
        wanted.append((PLANE, 2, other - start))
    sizes, steps, axes = [*view.shape, view.dtype.itemsize], [*all_raw(view.strides), 1], [*view.axes]
    for axis, extent, step in wanted:
        if axis not in axes:
            return Undecided("page", f"the view has no {axis.value} axis")
        at = axes.index(axis)
        del axes[at]
        have = sizes.pop(at), steps.pop(at)
        if have != (extent, step) and not have[0] == extent == 1:  # one block has no stride
            return refuting.elsewhere(axis, (extent, step), have, blocks)
    inner: list[tuple[int, int, int]] = []
    for extent, step in zip(sizes, steps):  # noqa: B905 - a layout has checked it
        if extent != 1:  # one item has no stride
            if type(extent) is not int or type(step) is not int:
                return Undecided("page", "an axis inside the page depends on the block count")
            inner.append((abs(step), extent, step))
    low, total, dense = start, 1, True
    for reach, items, step in sorted(inner):
        dense = dense and reach == total  # each starts where the ones inside it end
        low, total = low + (items - 1) * total if step < 0 else low, total * items
    if total != covered or low != raw(view.offset) or not dense:
        return refuting.no_interval(start, raw(view.offset), (sizes, steps), covered, blocks)
    return Claim("page", (("bases", pages.bases), ("stride", stride), ("covered", total)))


def own(pages: Pages, page_bytes: int, payload: int, blocks: Size) -> Verdict:
    """Prove payload <= covered <= page <= stride: all that matters is there, and nothing of another block or plane."""
    return _sealed(None, _own(pages, page_bytes, payload, blocks))


def _own(pages: Pages, page_bytes: int, payload: int, blocks: Size) -> _Finding:
    room, covered = page_bytes if type(blocks) is int and blocks == 1 else pages.stride, pages.covered
    if not isinstance(room, int):
        return Undecided("own", "the block stride depends on the block count")
    if not payload <= covered <= page_bytes <= room:
        return refuting.misfit(pages.bases[0], (payload, covered, page_bytes, room), blocks)
    if len(pages.bases) > 1:
        planes = fibre((Track(base, room, page_bytes, frozenset({0})) for base in pages.bases), blocks)
        if not isinstance(planes, Proved):
            return planes
    return Claim("own", (("payload", payload), ("covered", covered), ("page", page_bytes), ("stride", pages.stride)))


def grain(view: Layout, blocks: Size, states: int | None) -> Verdict:
    """Prove that the block axis is N and, where the view keeps one, the state axis T."""
    return _sealed(view, _grain(view, blocks, states))


def _grain(view: Layout, blocks: Size, states: int | None) -> _Finding:
    axes, row = view.axes, TOKEN if TOKEN in view.axes else STATE
    for axis, name, extent in ((BLOCK, BLOCK, blocks), (row, STATE, states)):
        have = view.shape[axes.index(axis)] if axis in axes else None
        if have is not extent and have != extent:
            return refuting.miscounted(name, extent, have, blocks)
    return Claim("grain", (("blocks", blocks), ("states", states)))


def within(view: Layout, storage: Size) -> Verdict:
    """Prove that every address of the view lies in ``[0, storage)``; both corners are attained, so this is exact."""
    low = high = raw(view.offset)
    modes = modes_of(view)
    try:
        for sa, sb, da, db in modes:
            reach = size(sa - 1, sb) * size(da, db)
            if not nonneg(reach) and not nonneg(-reach):
                return Undecided("within", "an axis changes direction with the block count")
            low, high = (low, high + reach) if nonneg(reach) else (low + reach, high)
    except NotAffineError as error:
        return Undecided("within", str(error))
    if fits(low, high - low + 1, storage):
        return _sealed(view, Claim("within", (("low", low), ("high", high), ("storage", storage))))
    return refuting.outside(view, storage, storage - high - 1 if nonneg(low) else low)


def injective(view: Layout) -> Verdict:
    """Prove that no two indices share a byte: nested strides (T5); refuted by two axes that meet; else undecided."""
    modes, span, slacks = modes_of(view), size(0, 0), []
    try:
        for sa, sb, da, db in sorted(modes, key=lambda mode: (abs(mode[3]), abs(mode[2]))):
            step = size(da, db) if nonneg(size(da, db)) else -size(da, db)
            if (sa, sb) != (1, 0):
                slacks.append(step - span)
            span = span + size(sa - 1, sb) * step
    except NotAffineError as error:
        return Undecided("injective", str(error))
    if all(nonneg(slack - 1) for slack in slacks):
        return _sealed(view, Claim("injective", (("slacks", tuple(slacks)),)))
    return refuting.collision(view) or Undecided("injective", "the strides are not nested")


def fibre(tracks: Iterable[Track], blocks: Size) -> Verdict:
    """Prove that no block of a layer meets another block id, nor any block of a layer of its own group."""
    parts = tuple(tracks)
    found = next(refuting.overlaps(parts, blocks), None)
    return _sealed(None, Claim("fibre", (("tracks", parts),)) if found is None else found)


def prove(  # noqa: PLR0913, PLR0917 - what a view must be is this many facts
    view: Layout,
    pages: Pages,
    page_bytes: int,
    payload: int,
    blocks: Size,
    states: int | None,
    source: Layout | None = None,
) -> Verdict:
    """Prove all that a view must be: exact pages, its own, of the right grain, in the order of a source if given."""
    claims: list[Claim] = []
    findings = [_page(view, pages, blocks), _own(pages, page_bytes, payload, blocks), _grain(view, blocks, states)]
    for found in findings if source is None else [*findings, _same(source, view)]:
        if not isinstance(found, Claim):
            return found
        claims.append(found)
    return Proved(view, tuple(claims), _SEAL)
