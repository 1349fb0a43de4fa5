"""z3, a theorem prover, agrees: no N and no index is a counter-example, and where there is one it finds it too.

Here N is a free integer, and products of N and an index are allowed, so strides may depend on the block count:
the planes of a ``(2, N, ...)`` tensor.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from kvlayout.algebra import kernel
from kvlayout.algebra.affine import BLOCK_COUNT, Size, pair
from kvlayout.algebra.claims import Pages, Refuted
from kvlayout.algebra.kernel import Proved
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.transforms import coalesce_kernel_pages, merge_mla_tiles, split
from kvlayout.algebra.units import raw
from tests.brute import make
from tests.oracles.drawing import draw_blocks, split_of

if TYPE_CHECKING:
    from collections.abc import Sequence

z3: Any = pytest.importorskip("z3")
pytestmark = pytest.mark.oracles

N = BLOCK_COUNT
B, P, H, T, C = Axis.BLOCK, Axis.PLANE, Axis.HEAD, Axis.TOKEN, Axis.CHANNEL

NHD = make((N, 2, 16, 8, 128), (65536, 32768, 2048, 256, 2), 0, 2, (B, P, T, H, C))
HND = make((N, 2, 16, 8, 128), (65536, 32768, 256, 4096, 2), 0, 2, (B, P, T, H, C))
PADDED = make((N, 2, 16, 8, 128), (66048, 32768, 2048, 256, 2), 512, 2, (B, P, T, H, C))
PLANES = make((2, N, 16, 128), (N * 4096, 4096, 256, 2), 0, 2, (P, B, T, C))
KERNEL = make((N * 17, 2, 32, 128), (16384, 8192, 256, 2), 64, 2, (B, P, T, C))
LATENT = make((N * 12, 64, 576), (73728, 1152, 2), 0, 2, (B, T, C))


def number(value: Size, n: Any) -> Any:
    a, b = pair(value)
    return a + b * (n - 1)


def digits(layout: Layout, name: str, n: Any) -> tuple[list[Any], list[Any]]:
    """Return a free index of a layout, item bytes last, and what keeps it inside."""
    shape = [*layout.shape, layout.dtype.itemsize]
    index = [z3.Int(f"{name}{k}") for k in range(len(shape))]
    return index, [z3.And(i >= 0, i < number(s, n)) for i, s in zip(index, shape, strict=True)]


def byte(layout: Layout, index: Sequence[Any], n: Any) -> Any:
    strides = [*map(raw, layout.strides), 1]
    return number(raw(layout.offset), n) + sum(number(d, n) * i for d, i in zip(strides, index, strict=True))


def has_counter_example(*conditions: Any) -> bool:
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(*conditions)
    answer = solver.check()
    assert answer != z3.unknown
    return bool(answer == z3.sat)


def positions(layout: Layout, index: Sequence[Any], n: Any) -> Any:
    """Return the flat row-major position of an index."""
    shape = [*layout.shape, layout.dtype.itemsize]
    flat: Any = 0
    for i, extent in zip(index, shape, strict=True):
        flat = flat * number(extent, n) + i
    return flat


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (KERNEL, coalesce_kernel_pages(KERNEL, 17).unwrap()),
        (LATENT, merge_mla_tiles(LATENT, 12).unwrap()),
        (NHD, split(NHD, 2, 4, (T, T)).unwrap()),
        (NHD, PADDED),
        (make((N, 4, 3, 8), (96, 24, 8, 1)), make((N, 4, 3, 8), (96, 8, 32, 1))),
        (KERNEL, make((N, 17, 2, 32, 128), (278528, 16384, 8192, 256, 4), 64, 2)),
    ],
    ids=["kernel pages", "latent tiles", "split", "padded", "heads first", "one stride wrong"],
)
def test_view_equality_for_every_block_count(one: Layout, other: Layout) -> None:
    assert isinstance(kernel.same(one, other), Refuted if differ(one, other) else Proved)


def differ(one: Layout, other: Layout) -> bool:
    """Tell whether at some block count and position two layouts have two bytes."""
    n = z3.Int("n")
    x, inside_x = digits(one, "x", n)
    y, inside_y = digits(other, "y", n)
    # Two indices at one flat position: all but the digits of blocks are bounded, so the products are linear.
    return has_counter_example(
        n >= 1,
        *inside_x,
        *inside_y,
        positions(one, x, n) == positions(other, y, n),
        byte(one, x, n) != byte(other, y, n),
    )


def test_view_equality_of_random_layouts_for_every_block_count() -> None:
    random, answers = Random("z3 same"), set()
    for _ in range(40):
        one = draw_blocks(random)
        other = split_of(random, one)
        answer = kernel.same(one, other)
        assert isinstance(answer, Refuted if differ(one, other) else Proved), (one, other)
        answers.add(type(answer))
    assert answers == {Proved, Refuted}


@pytest.mark.parametrize(
    "layout",
    [NHD, HND, PADDED, PLANES, KERNEL, make((N, 2, 4), (6, 4, 1)), make((N, 2, 4), (8, 0, 1)), make((2, N), (N, 1))],
    ids=["nhd", "hnd", "padded", "planes", "kernel", "short page", "broadcast", "planes of bytes"],
)
def test_injectivity_for_every_block_count(layout: Layout) -> None:
    n = z3.Int("n")
    x, inside_x = digits(layout, "x", n)
    y, inside_y = digits(layout, "y", n)
    meets = has_counter_example(
        n >= 1,
        *inside_x,
        *inside_y,
        z3.Or(*[i != j for i, j in zip(x, y, strict=True)]),
        byte(layout, x, n) == byte(layout, y, n),
    )
    assert isinstance(kernel.injective(layout), Refuted if meets else Proved)


@pytest.mark.parametrize(
    ("view", "pages"),
    [
        (NHD, Pages((0,), 65536, 65536)),
        (HND, Pages((0,), 65536, 65536)),
        (PADDED, Pages((512,), 66048, 65536)),
        (PADDED, Pages((0,), 66048, 65536)),
        (PADDED, Pages((512,), 66048, 65535)),
        (PLANES, Pages((0, N * 4096), 4096, 4096)),
        (PLANES, Pages((0, N * 4096 + 1), 4096, 4096)),
        (make((N, 2, 3), (8, 4, 1)), Pages((0,), 8, 6)),
    ],
    ids=["nhd", "hnd", "padded", "start", "bytes", "planes", "plane elsewhere", "hole"],
)
def test_page_exactness_for_every_block_count(view: Layout, pages: Pages) -> None:
    """As many bytes as the page has, none outside it and no two alike: then it is the page."""
    n, total = z3.Int("n"), 1
    x, inside_x = digits(view, "x", n)
    y, inside_y = digits(view, "y", n)
    outer = [view.axes.index(B), *([view.axes.index(P)] if len(pages.bases) > 1 else [])]
    for i, extent in enumerate((*view.shape, view.dtype.itemsize)):
        if i not in outer:
            assert isinstance(extent, int)
            total *= extent
    base = number(pages.bases[0], n)
    if len(outer) > 1:
        base = z3.If(x[outer[1]] == 0, base, number(pages.bases[1], n))
    start = base + number(pages.stride, n) * x[outer[0]]
    strays = has_counter_example(
        n >= 1,
        *inside_x,
        z3.Or(byte(view, x, n) < start, byte(view, x, n) >= start + pages.covered),
    )
    twice = has_counter_example(
        n >= 1,
        *inside_x,
        *inside_y,
        *[x[i] == y[i] for i in outer],
        z3.Or(*[i != j for i, j in zip(x, y, strict=True)]),
        byte(view, x, n) == byte(view, y, n),
    )
    exact = total == pages.covered and not strays and not twice
    assert isinstance(kernel.page(view, pages, N), Proved if exact else Refuted)
