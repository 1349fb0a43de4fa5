"""islpy, a library of integer sets, agrees: the same questions asked of sets in which N is a real parameter.

A layout becomes the relation from its indices to its bytes, for every N >= 1 at once. Nothing of kvlayout is used
to build it, and what isl decides holds for all N, not for a few that were tried.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from kvlayout.algebra import kernel
from kvlayout.algebra.affine import BLOCK_COUNT, Size, pair
from kvlayout.algebra.claims import Pages, Refuted, Undecided
from kvlayout.algebra.kernel import Proved
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.units import raw
from tests.algebra.drawing import draw_page
from tests.brute import make
from tests.oracles.drawing import draw_blocks, split_of

if TYPE_CHECKING:
    from collections.abc import Sequence

isl: Any = pytest.importorskip("islpy")
pytestmark = pytest.mark.oracles


def term(value: Size) -> str:
    """Write a size in isl: N is the block count."""
    a, b = pair(value)
    return f"({a} + {b} * (N - 1))" if b else f"({a})"


def relation(layout: Layout, *, flat: bool) -> Any:
    """Return index -> byte; the index is one tuple of digits, or the flat row-major position (sizes constant)."""
    shape = [*layout.shape, layout.dtype.itemsize]
    strides = [*map(raw, layout.strides), 1]
    digits = [f"i{k}" for k in range(len(shape))]
    byte = " + ".join(
        [term(raw(layout.offset)), *(f"{_coefficient(d)} * {i}" for d, i in zip(strides, digits, strict=True))]
    )
    inside = " and ".join(f"0 <= {i} < {term(s)}" for i, s in zip(digits, shape, strict=True))
    if not flat:
        return isl.Map(f"[N] -> {{ [{', '.join(digits)}] -> [{byte}] : N >= 1 and {inside} }}")
    position, inner = [], 1
    for i, extent in zip(reversed(digits), reversed(shape), strict=True):
        position.append(f"{inner} * {i}")
        inner = inner * extent if isinstance(extent, int) else 0
    return isl.Map(
        f"[N] -> {{ [p] -> [y] : N >= 1 and exists {', '.join(digits)} : "
        f"p = {' + '.join(position)} and y = {byte} and {inside} }}",
    )


def _coefficient(stride: Size) -> int:
    """Return a constant stride; isl has no product of N and an index."""
    assert isinstance(stride, int)
    return stride


def linear(layout: Layout) -> bool:
    """Tell whether a layout can be written for isl: constant strides, and only the slowest size depends on N."""
    return all(isinstance(raw(d), int) for d in layout.strides) and all(isinstance(s, int) for s in layout.shape[1:])


def test_view_equality_for_every_block_count() -> None:
    random, answers = Random("isl same"), set()
    for _ in range(150):
        one = draw_blocks(random)
        other = split_of(random, one)
        equal = relation(one, flat=True).is_equal(relation(other, flat=True))
        answer = kernel.same(one, other)
        assert isinstance(answer, Proved if equal else Refuted), (one, other)
        answers.add(type(answer))
    assert answers == {Proved, Refuted}


def test_injectivity_for_every_block_count() -> None:
    random, answers = Random("isl injective"), set()
    for _ in range(200):
        layout = draw_blocks(random)
        injective = relation(layout, flat=False).is_injective()
        answer = kernel.injective(layout)
        if isinstance(answer, Undecided):
            continue
        assert isinstance(answer, Proved) == injective, layout
        answers.add(type(answer))
    assert answers == {Proved, Refuted}


def page_set(pages: Pages, planes: Sequence[str]) -> Any:
    """Return the bytes of block i of plane p, as a relation from (p, i) to bytes."""
    parts = [
        f"[{p}, i] -> [y] : N >= 1 and 0 <= i < N and {start} + {_coefficient(pages.stride)} * i <= y < "
        f"{start} + {_coefficient(pages.stride)} * i + {pages.covered}"
        for p, start in enumerate(planes)
    ]
    return isl.Map(f"[N] -> {{ {'; '.join(parts)} }}")


def view_set(view: Layout, planes: int) -> tuple[Any, Any]:
    """Return (p, i) -> bytes of a view, and (p, i, other digits) -> bytes, to see whether a byte is met twice."""
    digits = [f"i{k}" for k in range(len(view.shape) + 1)]
    shape, strides = [*view.shape, view.dtype.itemsize], [*map(raw, view.strides), 1]
    block = view.axes.index(Axis.BLOCK)
    plane = view.axes.index(Axis.PLANE) if planes > 1 else None
    inside = " and ".join(f"0 <= {i} < {term(s)}" for i, s in zip(digits, shape, strict=True))
    body, offset = [], term(raw(view.offset))
    for p in range(planes):
        # The distance of two planes may depend on N, so their stride is a sum and not a product.
        far = " + ".join([term(raw(view.strides[plane]))] * p) if plane is not None and p else "0"
        steps = " + ".join(
            f"{_coefficient(d)} * {i}" for k, (d, i) in enumerate(zip(strides, digits, strict=True)) if k != plane
        )
        fixed = f" and {digits[plane]} = {p}" if plane is not None else ""
        body.append((p, f"{offset} + {far} + {steps}", inside + fixed))
    names, i = ", ".join(digits), digits[block]
    owned = "; ".join(f"[{p}, i] -> [y] : exists {names} : i = {i} and y = {y} and {c}" for p, y, c in body)
    every = "; ".join(f"[{p}, {names}] -> [{p}, {i}, {y}] : {c}" for p, y, c in body)
    found, each = isl.Map(f"[N] -> {{ {owned} }}"), isl.Map(f"[N] -> {{ {every} }}")
    positive = isl.Set("[N] -> { : N >= 1 }").params()
    return found.intersect_params(positive), each.intersect_params(positive)


def test_page_exactness_for_every_block_count() -> None:
    random, answers = Random("isl page"), set()
    checked = 0
    while checked < 150:
        view, pages, blocks = draw_page(random, symbolic=True)
        assert blocks is BLOCK_COUNT
        answer = kernel.page(view, pages, blocks)
        strides = [d for d, axis in zip(view.strides, view.axes, strict=True) if axis is not Axis.PLANE]
        if isinstance(answer, Undecided) or not all(isinstance(d, int) for d in (*strides, pages.stride)):
            continue
        planes = [s for s, axis in zip(view.shape, view.axes, strict=True) if axis is Axis.PLANE]
        if len(pages.bases) > 1 and planes != [2]:
            continue
        if any(axis is Axis.PLANE and not isinstance(s, int) for s, axis in zip(view.shape, view.axes, strict=True)):
            continue
        found, each = view_set(view, len(pages.bases))
        exact = found.is_equal(page_set(pages, [term(base) for base in pages.bases])) and each.is_injective()
        assert isinstance(answer, Proved) == exact, (view, pages)
        answers.add(type(answer))
        checked += 1
    assert answers == {Proved, Refuted}


@pytest.mark.parametrize("storage", [BLOCK_COUNT * 16, BLOCK_COUNT * 16 - 8, BLOCK_COUNT * 16 - 9, 1000])
def test_containment_for_every_block_count(storage: Size) -> None:
    view = make((BLOCK_COUNT, 2, 4), (16, 4, 1))
    inside = isl.Set(f"[N] -> {{ [y] : N >= 1 and 0 <= y < {term(storage)} }}")
    contained = relation(view, flat=False).range().is_subset(inside)
    assert isinstance(kernel.within(view, storage), Proved) == contained
