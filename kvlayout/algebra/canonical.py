"""The unique normal form of an address function, and torch's view rule as one function of it.

Everything is bytes: a layout of items of e bytes gets one more, innermost mode ``(e, 1)``, and element
types are gone. A *mode* is a size and a stride; both are pairs ``(a, b)`` for ``a + b*m`` (N = m + 1), kept
flat as ``(size a, size b, stride a, stride b)``, since this is the hot loop of every proof.

Two layouts address the same bytes in the same order, for every block count, exactly when offsets and
canonical forms are equal (docs/proofs.md, T1 and T1').
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvlayout.algebra.affine import Affine, NotAffineError, pair
from kvlayout.algebra.units import all_raw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvlayout.algebra.layout import Layout

__all__ = ["Mode", "address", "bind_modes", "canonical", "count", "modes_of", "refine"]

Mode: TypeAlias = tuple[int, int, int, int]


def modes_of(layout: Layout) -> list[Mode]:
    """Return the modes of a layout in bytes, slowest first, the item's own bytes last."""
    modes = [
        (extent, 0, stride, 0)
        if type(extent) is int and type(stride) is int
        else (extent.a, extent.b, stride, 0)  # the axis of blocks, of which there is any number
        if type(extent) is Affine and type(stride) is int
        else pair(extent) + pair(stride)
        for extent, stride in zip(layout.shape, all_raw(layout.strides))  # noqa: B905 - a layout has checked it
    ]
    modes.append((layout.dtype.itemsize, 0, 1, 0))
    return modes


def canonical(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    """Return the canonical form, **fastest first**, of modes given slowest first.

    Size-1 modes are dropped, and a mode joins its faster neighbour where it continues it:

    >>> canonical([(4096, 0, 64, 0), (2, 0, 32, 0), (16, 0, 2, 0), (2, 0, 1, 0)])
    ((262144, 0, 1, 0),)

    Raises:
        NotAffineError: two sizes that both depend on the block count would merge.
    """
    form: list[Mode] = []
    for sa, sb, da, db in reversed(modes):
        if sa == 1 and not sb:
            continue
        if form:
            ta, tb, ea, eb = form[-1]
            if da == ta * ea and db == ta * eb + tb * ea and not (tb and eb):
                if sb and tb:
                    message = f"sizes {sa}+{sb}m and {ta}+{tb}m merge, and their product is not affine"
                    raise NotAffineError(message)
                form[-1] = (sa * ta, sa * tb + sb * ta, ea, eb)
                continue
        form.append((sa, sb, da, db))
    return tuple(form)


def bind_modes(modes: Iterable[Mode], blocks: int) -> list[Mode]:
    """Return the modes at a concrete block count."""
    m = blocks - 1
    return [(sa + sb * m, 0, da + db * m, 0) for sa, sb, da, db in modes]


def count(modes: Iterable[Mode]) -> int:
    """Return how many bytes concrete modes address, repeats included."""
    total = 1
    for sa, _, _, _ in modes:
        total *= sa
    return total


def address(offset: int, modes: Sequence[Mode], index: int) -> int | None:
    """Return the byte at a flat row-major index of concrete modes; ``None`` beyond their end.

    >>> address(100, [(3, 0, 64, 0), (16, 0, 1, 0)], 17), address(0, [(3, 0, 64, 0)], 3)
    (165, None)
    """
    for sa, _, da, _ in reversed(modes):
        if sa < 1:
            return None
        index, digit = divmod(index, sa)
        offset += digit * da
    return None if index else offset


def refine(form: Sequence[Mode], sizes: Sequence[int]) -> tuple[int, ...] | int:
    """Return the strides that give ``sizes`` over a canonical form, or where it can't be done.

    This is torch's view rule (docs/proofs.md, T2): from the fastest on, the sizes must subdivide each
    canonical size exactly. The strides are then forced; a size-1 axis gets the canonical one.

    Args:
        form: a concrete canonical form, fastest first.
        sizes: the shape wanted in bytes, slowest first, its product that of the form.

    Returns:
        Strides, slowest first; or the position in ``sizes`` of the first axis that is no subdivision.

    >>> refine(((1114112, 0, 1, 0),), (544, 1, 2048))
    (2048, 2048, 1)
    >>> refine(((96, 0, 1, 0), (2, 0, 128, 0)), (3, 64))
    1
    """
    strides: list[int] = []
    modes = iter(form)
    left, step = 1, 1
    for position in reversed(range(len(sizes))):
        extent = sizes[position]
        if left == 1 and extent != 1:
            left, step = next(((sa, da) for sa, _, da, _ in modes), (1, step))
        if left % extent:
            return position
        strides.append(step)
        left //= extent
        step *= extent
    return tuple(reversed(strides))
