"""One layer's own place: the checks that its bytes, and not only its layout, must pass; and its shape's proof."""

from __future__ import annotations

from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from attrs import evolve

from kvlayout.algebra.affine import Affine, Size, divide, fits
from kvlayout.algebra.claims import Pages
from kvlayout.algebra.kernel import Proved, same, within
from kvlayout.algebra.layout import KERNEL_PAGE, STATE, TOKEN, Layout
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.transforms import beside_rows, permute
from kvlayout.algebra.units import Bytes
from kvlayout.cache.paging import CacheLayout, own_pages
from kvlayout.cache.registration import Engine, Entry, Placement, Registration
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec, StateSpec
from kvlayout.errors import Code, LayoutError
from kvlayout.plans import Content, Opaque, Semantic, Shape, packing
from kvlayout.rules.presentation import Presentation, bytes_page, refused, verdict_on
from kvlayout.rules.rule import NoMatch, Registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Place", "Places", "faultless", "misplaced", "misplaced_by", "places_of", "shape_of"]

#: What is shown to address bytes, and for nothing else.
_ANY_ORDER: Final = Opaque("page")

#: Layouts that put the blocks of one head together.
_HEADS_OUTSIDE = ("LHBNC", "BHLNC")


#: Where a placement says that one layer's pages are, in bytes: size, offset and block stride; ``None`` is unknown.
Place: TypeAlias = tuple[Size | None, Size | None, Size | None]


class Places(NamedTuple):
    """What placements say of each layer: what the first one that names it says, and the others."""

    first: dict[str, Place]
    further: dict[str, list[Place]]


def places_of(registration: Registration) -> Places:
    """Return what the engine's placements say of each layer."""
    places = Places({}, {})
    first, further = places
    for placement in registration.placements:
        fresh = dict(_said(placement))
        if len(fresh) == len(placement.layers) and first.keys().isdisjoint(fresh):
            first.update(fresh)
            continue
        for layer, place in _said(placement):
            if first.setdefault(layer, place) is not place:
                further.setdefault(layer, []).append(place)
    return places


def _said(placement: Placement) -> Iterator[tuple[str, Place]]:
    layers, size, offset, layer_stride, block_stride = placement
    starts: Iterable[Size | None] = chain((offset,), repeat(None))
    if offset is not None and layer_stride is not None:
        starts = accumulate(repeat(layer_stride), initial=offset)
    return zip(layers, zip(repeat(size), starts, repeat(block_stride)))  # noqa: B905 - the places are endless


def faultless(
    shape: Shape, bases: tuple[Size, ...], storage: Size | None, blocks: Size, places: Sequence[Place]
) -> bool:
    """Tell, all at once, that layers of one shape have nothing that :func:`misplaced_by` or :func:`misplaced` finds.

    Where only the fit in a storage is to be judged, the first and the last layer in it decide for those between.

    Args:
        shape: what they have in common.
        bases: the byte of its storage at which each starts.
        storage: the bytes of each storage.
        blocks: the block count N.
        places: what placements say of each, if anything: one a layer, all with one block stride.

    Returns:
        ``False`` where one of them is misplaced, or where it takes a look at each to know.
    """
    ends = {*bases}
    if shape.simple and len(ends) > 1 and {*map(type, ends)} == {int}:
        ends = {min(bases), max(bases)}
    sizes: Iterable[Size | None] = ()
    if places:
        sizes, starts, (stride, *_) = zip(*places, strict=True)
        if starts != bases or (blocks != 1 and stride != shape.cache.pages.stride):
            return False
        sizes = {*sizes}
    for base in ends:
        if misplaced(shape, base, storage, blocks) is not None:
            return False
        for size in sizes:
            if size is not None and not fits(base, shape.reach, size):
                return False
    return True


def misplaced_by(place: Place, shape: Shape, base: Size, blocks: Size) -> LayoutError | None:
    """Hold one layer's own place against what a placement says of it; ``placement-mismatch``, or nothing."""
    size, start, stride = place
    own = shape.cache.pages.stride
    if start is not None and start != base:
        return _misplaced(f"offset {start} bytes", f"{base} bytes")
    if stride is not None and stride != own and blocks != 1:
        return _misplaced(f"block stride {stride} bytes", f"{own} bytes")
    if size is not None and not fits(base, shape.reach, size):
        return _misplaced(f"pages inside {size} bytes", f"pages up to byte {base + shape.reach}")
    return None


def misplaced(shape: Shape, base: Size, storage: Size | None, blocks: Size) -> LayoutError | None:
    """Hold a place against page base, element type and storage; the first fault of them.

    Args:
        shape: the layer's shape.
        base: the byte of its storage at which it starts.
        storage: the bytes of that storage, where known.
        blocks: the block count N.

    Errors: ``state-not-at-page-base``, ``dtype-misaligned``, ``storage-overrun``.
    """
    cache, pages = shape.cache, shape.cache.pages
    if cache.listed and blocks != 1 and not _at_base(base, pages, cache.page_bytes):
        expected = f"a page of {cache.page_bytes} bytes that ends within its block stride of {pages.stride}"
        return LayoutError(Code.STATE_NOT_AT_PAGE_BASE, expected=expected, actual=f"a page that starts at byte {base}")
    if not shape.simple and divide(base, shape.view.dtype.itemsize) is None:
        expected = f"a multiple of {shape.view.dtype.itemsize} bytes"
        return LayoutError(Code.DTYPE_MISALIGNED, expected=expected, actual=f"an offset of {base} bytes")
    if storage is not None and not fits(base, shape.reach, storage):
        verdict = within(shape.view.shifted(Bytes(base)), storage)
        error = refused(verdict) if not isinstance(verdict, Proved) else LayoutError(Code.STORAGE_OVERRUN)
        return evolve(
            error,
            code=Code.STORAGE_OVERRUN,
            expected=f"at most {storage} bytes",
            actual=f"a view up to byte {base + shape.reach}",
        )
    return None


def _misplaced(expected: str, actual: str) -> LayoutError:
    return LayoutError(Code.PLACEMENT_MISMATCH, expected=expected, actual=actual)


def _at_base(base: Size, pages: Pages, page: int) -> bool:
    """Tell whether a page that starts at ``base`` ends within its block stride, counted from the storage's base."""
    if not isinstance(pages.stride, int):
        return False
    a, b = (base.a, base.b) if isinstance(base, Affine) else (base, 0)
    return b % pages.stride == 0 and a % pages.stride + page <= pages.stride


def shape_of(  # noqa: PLR0913, PLR0917 - what a layer is proved from
    spec: Spec,
    entry: Entry,
    blocks: Size,
    goal: Presentation,
    registry: Registry,
    registration: Registration,
    stride: Size | None = None,
) -> Shape | LayoutError:
    """Prove the view of all layers with this spec and this layout up to its offset, or say why not."""
    if not isinstance(spec, (AttentionSpec, LatentSpec, StateSpec)):
        return LayoutError(Code.UNSUPPORTED_SPEC, expected="a spec that is served", actual=spec.type)
    owned = own_pages(spec, entry, blocks, stride)
    if isinstance(owned, Err):
        return _named(owned.error, registration)
    cache = owned.value
    found = registry.consider(spec, cache, goal)
    if isinstance(found, NoMatch):
        name, outcome = None, bytes_page(cache) if goal.form == "bytes" else _left(cache)
    else:
        name, outcome = found
    if isinstance(outcome, Err):
        return _named(outcome.error, registration)
    proof = outcome.value
    view = proof.view if proof.view is not None else cache.source
    left = name is None and goal.form == "lmcache"
    content = _meaning(spec, registration.engine, ordered=left or _keeps_order(proof, view, cache))
    (bases, stride, covered), inner, page = cache.pages, view.inner_bytes, cache.page_bytes
    shown = inner // len(bases) if type(inner) is int else page
    reach = bases[-1] + (blocks - 1) * stride + max(shown, covered)
    item, simple = cache.source.dtype.itemsize, not cache.listed and view.dtype.itemsize <= cache.source.dtype.itemsize
    windows = tuple([(start, stride, page) for start in bases])
    return Shape(spec, cache, name, proof, view, left, content, reach, item, simple, windows)


def _keeps_order(proof: Proved, view: Layout, cache: CacheLayout) -> bool:
    """Tell whether the axes of a view read what the registered axes of the same names do.

    That a rule proved "the same" is not enough: it chose the layout that its view is the same as.
    """
    if proof.claims[-1].name != "same" or not set(view.axes) <= set(cache.source.axes):
        return False
    ordered = beside_rows(cache.source).unwrap() if KERNEL_PAGE in cache.source.axes else cache.source
    sizes = dict(zip(cache.source.axes, cache.source.shape, strict=True))
    order = []
    for axis, size in zip(view.axes, view.shape, strict=True):
        position = ordered.axes.index(axis)
        rows = axis in (TOKEN, STATE)
        if size != (cache.states if rows else sizes[axis]):
            return False
        order += [position - 1, position] if rows and ordered is not cache.source else [position]
    expected = permute(ordered, order)
    return isinstance(expected, Ok) and isinstance(same(expected.value, view), Proved)


def _meaning(spec: Spec, engine: Engine, *, ordered: bool) -> Content:
    """Return what the axes of a view mean: what the spec proves, if bytes are read in the registered order."""
    if not ordered:
        return _ANY_ORDER
    meant = packing(spec, engine)
    return Semantic() if meant == "semantic" else Opaque(meant)


def _left(cache: CacheLayout) -> Result[Proved, LayoutError]:
    """Prove that a tensor can stay as it is."""
    verdict = verdict_on(cache.source, cache)
    return Ok(verdict) if isinstance(verdict, Proved) else Err(refused(verdict))


def _named(error: LayoutError, registration: Registration) -> LayoutError:
    """Blame the layout where it is one that puts the blocks of a head together."""
    name = registration.kv_cache_layout
    if name in _HEADS_OUTSIDE and error.code in (Code.PAGE_NOT_CONTIGUOUS, Code.MISSING_LAYOUT_HINT):
        return evolve(error, code=Code.UNSUPPORTED_LAYOUT, expected="LBNHC, LBHNC, BLNHC or BLHNC", actual=str(name))
    return error
