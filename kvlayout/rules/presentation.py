"""The forms in which a page is shown, and the one door from a view to its proof.

``lmcache`` shows pages the way LMCache reads them: rank 5 ``(N, 2, T, 1, w)`` only where it reads rank 5 right
(NHD, and not two blocks), else rank 4 with tokens outside or inside the head slot, as the layout hint says.
``bytes`` shows ``(N, page bytes)``: what NIXL, Mooncake or a file wants.

>>> Presentation("lmcache", "HND").heads_first, Presentation("lmcache", None).heads_first
(True, None)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from attrs import frozen

from kvlayout.algebra.claims import Pages, Refuted, Undecided
from kvlayout.algebra.dtype import INT8, DType
from kvlayout.algebra.kernel import Proved, Verdict, prove
from kvlayout.algebra.layout import BLOCK, BYTES, CHANNEL, HEAD, PLANE, TOKEN, Axis, Layout
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.transforms import Refusal, permute, reinterpret_page, retype, settle
from kvlayout.algebra.units import raw
from kvlayout.errors import Code, LayoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvlayout.cache.paging import CacheLayout

__all__ = [
    "Form",
    "Presentation",
    "bytes_page",
    "missing_hint",
    "opaque_page",
    "planes_first",
    "prove_view",
    "refused",
    "token_page",
    "unviewable",
    "verdict_on",
]

Form: TypeAlias = Literal["lmcache", "bytes"]

_HEADS_FIRST: Final = {"NHD": False, "BLNHC": False, "HND": True, "BLHNC": True, "LBNHC": False, "LBHNC": True}
_TWO: Final = 2


@final
@frozen
class Presentation:
    """How a view is to look: the form, and the layout hint (else the engine's layout name)."""

    form: Form
    hint: str | None

    @property
    def heads_first(self) -> bool | None:
        """Whether the head slot lies outside the tokens; ``None`` where nothing says so."""
        return None if self.hint is None else _HEADS_FIRST.get(self.hint)

    def splits(self, cache: CacheLayout) -> bool:
        """Whether a page may be shown at rank 5: LMCache misreads it under HND, padded, and with two blocks."""
        dense = cache.pages.stride == cache.page_bytes
        return self.hint in ("NHD", "LBNHC") and cache.blocks != _TWO and dense


_CODES: Final = {
    "page": Code.PAGE_NOT_CONTIGUOUS,
    "own": Code.PAGE_BYTES_MISMATCH,
    "grain": Code.GRANULARITY_MISMATCH,
    "within": Code.STORAGE_OVERRUN,
    "fibre": Code.PAGE_OVERLAP,
    "same": Code.RULE_NOT_PROVED,
    "split": Code.NOT_DIVISIBLE,
    "merge": Code.PAGE_NOT_CONTIGUOUS,
    "extend": Code.PAGE_BYTES_MISMATCH,
    "retype": Code.DTYPE_MISALIGNED,
}


def refused(why: Verdict | Refusal) -> LayoutError:
    """Return what a refused move, or a view that is not proved, means for the layer."""
    if isinstance(why, Refusal):
        return LayoutError(_CODES.get(why.move, Code.RULE_NOT_PROVED), expected=why.expected, actual=why.actual)
    if isinstance(why, Proved):
        return LayoutError(Code.RULE_NOT_PROVED, expected="a proof of the view", actual="a proof of something else")
    if isinstance(why, Refuted):
        code = _CODES.get(why.claim, Code.RULE_NOT_PROVED)
        return LayoutError(code, expected=f"the claim {why.claim!r}", actual=why.reason, witness=why.witness)
    return LayoutError(Code.RULE_NOT_PROVED, expected=f"the claim {why.claim!r}", actual=f"undecided: {why.reason}")


def missing_hint() -> Err[LayoutError]:
    """Refuse a form that nothing decides."""
    return Err(LayoutError(Code.MISSING_LAYOUT_HINT, expected="a layout hint or a layout name", actual="neither"))


def verdict_on(view: Layout, cache: CacheLayout, source: Layout | None = None) -> Verdict:
    """Return what the kernel says of a view of a layer's pages; with a source, also of the order that it reads in."""
    covered, pages = view.inner_bytes, cache.pages
    if not isinstance(covered, int):
        return Undecided("page", f"pages of {covered} bytes")
    bases, stride, known = pages
    covered //= len(bases)
    if covered != known:
        pages = Pages(bases, stride, covered)
    rows = None if BYTES in view.axes else cache.states
    return prove(view, pages, cache.page_bytes, cache.payload, cache.blocks, rows, source)


def prove_view(
    view: Layout, cache: CacheLayout, source: Layout | None = None, order: Sequence[int] | None = None
) -> Result[Proved, LayoutError]:
    """Prove a view of a layer's pages; with a source, also that it reads the same bytes in the same order.

    The order of axes, outermost first, is the one that axes of size 1 get their strides by: as they stand, by default.
    """
    return _proved(settle(view, order), cache, source)


def _proved(view: Layout, cache: CacheLayout, source: Layout | None = None) -> Result[Proved, LayoutError]:
    verdict = verdict_on(view, cache, source)
    if not isinstance(verdict, Proved):
        return Err(refused(verdict))
    error = unviewable(view.dtype, cache.source)
    return Ok(verdict) if error is None else Err(error)


def unviewable(dtype: DType, source: Layout) -> LayoutError | None:
    """Return why torch can't view the registered tensor as another element type, which it does before ``as_strided``.

    The view is of the last axis, so an axis that lies dense is put there first.

    Errors: ``dtype-misaligned``.
    """
    item = source.dtype.itemsize
    if dtype.itemsize == item:
        return None
    dense = [i for i, step in enumerate(source.strides) if raw(step) == item and source.shape[i] != 1]
    last = dense[-1] if dense else len(source.axes) - 1
    typed = permute(source, [*(i for i in range(len(source.axes)) if i != last), last]).then(
        lambda moved: retype(moved, dtype)
    )
    return refused(typed.error) if isinstance(typed, Err) else None


def _outer(cache: CacheLayout) -> tuple[Axis, ...]:
    return (PLANE, BLOCK) if cache.apart else (BLOCK,)


def planes_first(view: Layout) -> Result[Layout, Refusal]:
    """Put the axis of planes first, where K and V lie apart."""
    plane = view.axes.index(PLANE)
    return permute(view, [plane, *(i for i in range(len(view.axes)) if i != plane)])


def _shown(
    cache: CacheLayout, shape: tuple[int, ...], axes: tuple[Axis, ...], dtype: DType
) -> Result[Proved, LayoutError]:
    view = reinterpret_page(cache.source, shape, axes, dtype, _outer(cache))
    if cache.apart:
        view = view.then(planes_first)
    if isinstance(view, Err):
        return Err(refused(view.error))
    # A page that is read anew has its strides of size 1 from its shape; one block may still have any.
    return _proved(view.value if cache.blocks != 1 else settle(view.value), cache)


def bytes_page(cache: CacheLayout) -> Result[Proved, LayoutError]:
    """Show pages as bytes: ``(N, page bytes)``, or ``(2, N, bytes)`` where K and V lie apart."""
    return _shown(cache, (cache.page_bytes,), (BYTES,), INT8)


def token_page(cache: CacheLayout, width: int, *, heads_first: bool) -> Result[Proved, LayoutError]:
    """Show pages as T rows of ``width`` bytes: ``(N, T, 1, w)`` or ``(N, 1, T, w)``; planes ``(2, N, T, 1, w)``."""
    dtype = cache.source.dtype
    rows, wide = cache.states, width // dtype.itemsize
    if heads_first:
        return _shown(cache, (1, rows, wide), (HEAD, TOKEN, CHANNEL), dtype)
    return _shown(cache, (rows, 1, wide), (TOKEN, HEAD, CHANNEL), dtype)


def opaque_page(cache: CacheLayout, goal: Presentation, *, planes: bool) -> Result[Proved, LayoutError]:
    """Show whole pages under axes that only address bytes, in the form that its consumer reads.

    Args:
        cache: the layer.
        goal: the presentation wanted.
        planes: the rank-5 form ``(N, 2, T, 1, w)`` is wanted where it is read right.

    Errors: ``not-divisible``, ``missing-layout-hint``.
    """
    dtype, rows = cache.source.dtype, cache.states
    split = planes and not cache.apart and goal.splits(cache)
    unit = rows * dtype.itemsize * (_TWO if split else 1)
    heads_first = False if cache.apart else goal.heads_first
    if heads_first is None:
        return missing_hint()
    if cache.page_bytes % unit:
        expected = (
            f"a page of a multiple of {unit} bytes ({rows} rows{' in two halves' if split else ''} of {dtype.name})"
        )
        return Err(LayoutError(Code.NOT_DIVISIBLE, expected=expected, actual=f"{cache.page_bytes} bytes"))
    width = cache.page_bytes // rows
    if split:
        shape = (_TWO, rows, 1, width // _TWO // dtype.itemsize)
        return _shown(cache, shape, (PLANE, TOKEN, HEAD, CHANNEL), dtype)
    return token_page(cache, width, heads_first=heads_first)
