"""The prover: the only module that makes a ``Proved``. The mathematics is in docs/proofs.md.

Three answers, ``Proved``, ``Refuted`` with a witness, ``Undecided``; a claim holds for **every** block count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias, final

from kvlayout.algebra import refuting
from kvlayout.algebra.affine import NotAffineError, Size, nonneg, pair, size
from kvlayout.algebra.canonical import canonical, modes_of
from kvlayout.algebra.claims import Claim, Pages, Refuted, Track, Undecided
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.units import raw

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Proved", "Verdict", "fibre", "fits", "grain", "injective", "own", "page", "prove", "same", "within"]


@final
class _Seal:
    """What only this module holds."""


_SEAL = _Seal()


@final
class Proved:
    """Claims that hold of ``view`` (None: of bare pages) for every block count. Made by the kernel, and only there."""

    __slots__ = ("claims", "view")
    view: Layout | None
    claims: tuple[Claim, ...]

    def __init__(self, view: Layout | None, claims: tuple[Claim, ...], seal: _Seal) -> None:
        if seal is not _SEAL:
            raise TypeError("only the kernel makes a Proved")
        object.__setattr__(self, "view", view)
        object.__setattr__(self, "claims", claims)

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a Proved is not changed, copied or stored: prove it again")

    __setattr__ = __delattr__ = __reduce__ = _refuse

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("a Proved has no subclass")


Verdict: TypeAlias = Proved | Refuted | Undecided


def _proved(view: Layout | None, claim: str, *reasons: tuple[str, object]) -> Proved:
    return Proved(view, (Claim(claim, reasons),), _SEAL)


def same(expected: Layout, view: Layout) -> Verdict:
    """Prove that two layouts address the same bytes in the same order (T1, T1')."""
    try:
        form, other = canonical(modes_of(view)), canonical(modes_of(expected))
    except NotAffineError as error:
        return Undecided("same", str(error))
    if view.offset == expected.offset and form == other:
        return _proved(view, "same", ("offset", view.offset), ("canonical", form))
    return refuting.unlike(expected, view)


def page(view: Layout, pages: Pages, blocks: Size) -> Verdict:
    """Prove that block i of the view is block i of the pages, each byte once (T4); two intervals: one a plane."""
    modes, axes, offset = modes_of(view), [*view.axes, None], raw(view.offset)
    start, *others = pages.bases
    outer = [(Axis.BLOCK, blocks, pages.stride)]
    if others:
        (other,) = others  # K and V: there is no third plane
        outer.append((Axis.PLANE, 2, other - start))
    for axis, extent, stride in outer:
        if axis not in axes:
            return Undecided("page", f"the view has no {axis.value} axis")
        mode = modes.pop(axes.index(axis))
        axes.remove(axis)
        wanted = (*pair(extent), *pair(stride))
        if mode != wanted and (*mode[:2], *wanted[:2]) != (1, 0, 1, 0):  # one block has no stride
            return refuting.elsewhere(axis, wanted, mode, blocks)
    if any([sb or (db and sa != 1) for sa, sb, _, db in modes]):  # noqa: C419 - quicker; one item has no stride
        return Undecided("page", "an axis inside the page depends on the block count")
    dense, total = list(modes), 1
    for _, extent, i, stride in sorted([(abs(da), sa, i, da) for i, (sa, _, da, _) in enumerate(modes)]):
        dense[i] = (extent, 0, total, 0)
        if stride < 0:
            start, dense[i] = start + (extent - 1) * total, (extent, 0, -total, 0)
        total *= extent
    loose = dense != modes and any(x != y and x[0] != 1 for x, y in zip(modes, dense, strict=True))
    if total != pages.covered or start != offset or loose:
        return refuting.no_interval((start, dense), (offset, modes), pages.covered, blocks)
    return _proved(view, "page", ("bases", pages.bases), ("stride", pages.stride), ("covered", total))


def own(pages: Pages, page_bytes: int, payload: int, blocks: Size) -> Verdict:
    """Prove payload <= covered <= page <= stride: all that matters is there, and nothing of another block or plane."""
    room = pages.stride if blocks != 1 else page_bytes
    if not isinstance(room, int):
        return Undecided("own", "the block stride depends on the block count")
    if not payload <= pages.covered <= page_bytes <= room:
        return refuting.misfit(pages.bases[0], (payload, pages.covered, page_bytes, room), blocks)
    if len(pages.bases) > 1:
        planes = fibre((Track(base, room, page_bytes, frozenset({0})) for base in pages.bases), blocks)
        if not isinstance(planes, Proved):
            return planes
    sizes = ("payload", payload), ("covered", pages.covered), ("page", page_bytes)
    return _proved(None, "own", *sizes, ("stride", pages.stride))


def grain(view: Layout, blocks: Size, states: int | None) -> Verdict:
    """Prove that the block axis is N and, where the view keeps one, the state axis T."""
    row = view.where(Axis.TOKEN)
    for axis, at, extent in (
        (Axis.BLOCK, view.where(Axis.BLOCK), blocks),
        (Axis.STATE, view.where(Axis.STATE) if row is None else row, states),
    ):
        have = None if at is None else view.shape[at]
        if have is not extent and have != extent:
            return refuting.miscounted(axis, extent, have, blocks)
    return _proved(view, "grain", ("blocks", blocks), ("states", states))


def fits(start: Size, extent: Size, storage: Size) -> bool:
    """Tell whether ``[start, + extent)`` lies in ``[0, storage)`` for every block count."""
    left = storage - start - extent
    if type(start) is type(left) is int:  # the path of every layer
        return start >= 0 and left >= 0
    return nonneg(start) and nonneg(left)


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
        return _proved(view, "within", ("low", low), ("high", high), ("storage", storage))
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
        return _proved(view, "injective", ("slacks", tuple(slacks)))
    return refuting.collision(view) or Undecided("injective", "the strides are not nested")


def fibre(tracks: Iterable[Track], blocks: Size) -> Verdict:
    """Prove that no block of a layer meets another block id, nor any block of a layer of its own group."""
    parts = tuple(tracks)
    found = next(refuting.overlaps(parts, blocks), None)
    return _proved(None, "fibre", ("tracks", parts)) if found is None else found


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
    verdicts: list[Verdict] = [
        page(view, pages, blocks),
        own(pages, page_bytes, payload, blocks),
        grain(view, blocks, states),
    ]
    if source is not None:
        verdicts.append(same(source, view))
    claims: tuple[Claim, ...] = ()
    for verdict in verdicts:
        if not isinstance(verdict, Proved):
            return verdict
        claims += verdict.claims
    return Proved(view, claims, _SEAL)
