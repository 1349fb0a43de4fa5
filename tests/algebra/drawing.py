"""Small random layouts, pages and tracks from a seed: the same ones on every machine.

Half of what is drawn is near the truth (a dense page, a window in a fibre) and then bent once, since numbers drawn
freely are almost never right and would only test the refusals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlayout.algebra.affine import BLOCK_COUNT, Affine, Size, at
from kvlayout.algebra.claims import Pages, Track
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.units import raw
from tests.brute import bytes_of, make

if TYPE_CHECKING:
    from random import Random

__all__ = ["draw_layout", "draw_page", "draw_pair", "draw_symbolic", "draw_tracks", "draw_view"]

_STRIDES = (-8, -4, -2, -1, 0, 1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16, 24)


def draw_layout(random: Random, rank: int = 4, size: int = 4) -> Layout:
    """Return a layout of any strides."""
    shape = [random.randint(1, size) for _ in range(random.randint(0, rank))]
    strides = [random.choice(_STRIDES) for _ in shape]
    return make(shape, strides, random.randint(-4, 40), random.choice((1, 1, 2, 4)))


def draw_symbolic(random: Random) -> Layout:
    """Return a layout in which sizes, strides or the offset depend on the block count."""

    def some(constants: tuple[int, ...], slopes: tuple[int, ...]) -> Size:
        a, b = random.choice(constants), random.choice((*slopes, *[0] * 4))
        return Affine(a, b) if b else a

    shape = [some((1, 2, 3), (1, 2)) for _ in range(random.randint(1, 3))]
    if random.random() < 0.6:
        shape[0] = BLOCK_COUNT
    # A size and a stride that both depend on the count are rarely drawn: their reach is no affine number.
    slopes = [(-2, 1, 2, 4) if isinstance(extent, int) or random.random() < 0.1 else () for extent in shape]
    strides = [some(_STRIDES, slope) for slope in slopes]
    return make(shape, strides, some((-1, 0, 3), (-1, 2)), random.choice((1, 2)))


def _bend(random: Random, layout: Layout) -> Layout:
    """Return the layout, or it with one thing changed: an axis split, merged away, re-strided or shifted."""
    shape, strides, offset = list(layout.shape), [raw(stride) for stride in layout.strides], raw(layout.offset)
    i = random.randrange(len(shape)) if shape else 0
    match random.randrange(6) if shape else 5:
        case 0:
            shape.insert(i, 1)
            strides.insert(i, random.choice(_STRIDES))
        case 1:
            part = random.choice((2, 3))
            whole = shape[i]
            if isinstance(whole, int) and whole % part == 0:
                shape[i : i + 1] = [whole // part, part]
                strides[i : i + 1] = [strides[i] * part, strides[i]]
        case 2:
            strides[i] = strides[i] + random.choice((-1, 1, 2))
        case 3:
            shape[i] = shape[i] + 1
        case 4:
            offset = offset + random.choice((-1, 1))
        case _:
            pass
    return make(shape, strides, offset, layout.dtype.itemsize)


def draw_pair(random: Random, *, symbolic: bool) -> tuple[Layout, Layout]:
    """Return two layouts that are the same function about half of the time."""
    one = draw_symbolic(random) if symbolic else draw_layout(random)
    other = _bend(random, one)
    return (one, _bend(random, other)) if random.random() < 0.3 else (one, other)


def _inside(random: Random) -> tuple[list[int], list[int], int, int]:
    """Return sizes and strides of a dense page with its axes in any order and direction; its start and its size."""
    itemsize = random.choice((1, 2, 4))
    shape = [random.randint(1, 3) for _ in range(random.randint(0, 3))]
    order = list(range(len(shape)))
    random.shuffle(order)
    strides, step, start = [0] * len(shape), itemsize, 0
    for i in order:
        strides[i] = step if random.random() < 0.8 else -step
        start += 0 if strides[i] > 0 else (shape[i] - 1) * step
        step *= shape[i]
    for i, extent in enumerate(shape):
        strides[i] = random.choice(_STRIDES) if extent == 1 else strides[i]
    return shape, strides, start, itemsize


def draw_page(random: Random, *, symbolic: bool) -> tuple[Layout, Pages, Size]:
    """Return a view, its pages and the block count; about half of them fit."""
    blocks: Size = BLOCK_COUNT if symbolic else random.randint(1, 4)
    shape, strides, start, itemsize = _inside(random)
    covered = itemsize
    for extent in shape:
        covered *= extent
    stride: Size = covered + random.choice((0, 0, 3))
    if symbolic and random.random() < 0.1:
        stride = stride + 2 * (BLOCK_COUNT - 1)
    bases: tuple[Size, ...] = (random.choice((0, 5)),)
    if symbolic and random.random() < 0.2:
        bases = (BLOCK_COUNT * 7,)
    sizes: list[Size] = [blocks, *shape]
    steps: list[Size] = [stride, *strides]
    axes = [Axis.BLOCK, *[(Axis.HEAD, Axis.TOKEN, Axis.CHANNEL)[i] for i in range(len(shape))]]
    if random.random() < 0.3:
        apart = blocks * stride if isinstance(stride, int) and random.random() < 0.5 else 2 * covered
        bases = (bases[0], bases[0] + apart)
        at_ = random.randrange(2)
        sizes.insert(at_, 2)
        steps.insert(at_, apart)
        axes.insert(at_, Axis.PLANE)
    numbers = (sizes, steps, axes, [start, covered])
    _spoil(random, *numbers, symbolic=symbolic)
    start, covered = numbers[3]
    return make(sizes, steps, bases[0] + start, itemsize, axes), Pages(bases, stride, covered), blocks


def _spoil(
    random: Random,
    sizes: list[Size],
    steps: list[Size],
    axes: list[Axis],
    ends: list[int],
    *,
    symbolic: bool,
) -> None:
    """Change one number of a page, its start or its size, half of the time."""
    i = random.randrange(len(sizes))
    match random.randrange(12):
        case 0:
            steps[i] = steps[i] + random.choice((-1, 1, 2))
        case 1:
            sizes[i] = sizes[i] + random.choice((1, 2))
        case 2 | 3 as end:
            ends[end - 2] += random.choice((-1, 1))
        case 4:
            axes[i] = Axis.STATE
        case 5 if symbolic:
            steps[i] = steps[i] + BLOCK_COUNT - 2
        case 6:
            steps[i] = random.choice((0, 1, -1))
        case _:
            pass


def draw_view(random: Random, *, symbolic: bool) -> tuple[Layout, Size]:
    """Return a layout, and a storage size around its end."""
    view = draw_symbolic(random) if symbolic else draw_layout(random)
    ends = [max(bytes_of(view, n)) + 1 for n in (1, 2, 3)]
    slope = ends[1] - ends[0] if symbolic else 0
    storage: Size = ends[0] + random.choice((-1, 0, 0, 0, 1))
    storage = storage + (slope + random.choice((-1, 0, 0, 1))) * (BLOCK_COUNT - 1) if symbolic else storage
    lift = -min(0, *(min(bytes_of(view, n)) for n in (1, 2, 3))) * random.choice((0, 1, 1))
    lifted = make(view.shape, [raw(d) for d in view.strides], raw(view.offset) + lift, view.dtype.itemsize)
    return lifted, storage + lift


def draw_tracks(random: Random, *, symbolic: bool) -> tuple[list[Track], Size]:
    """Return a few tracks of one or two groups, most of them side by side in one fibre, and the block count."""
    blocks: Size = BLOCK_COUNT if symbolic else random.randint(1, 5)
    stride = random.choice((4, 6, 8, 12))
    tracks, cursor = [], random.randrange(3)
    for _ in range(random.randint(1, 4)):
        page = random.randint(1, stride // 2)
        base: Size = cursor
        step: Size = stride
        match random.randrange(12):
            case 0:
                base = cursor + random.randint(-2, 3) * stride
            case 1:
                base = blocks * stride + random.randint(-1, 1)
            case 2:
                step = stride + random.choice((-1, 1, 2))
            case 3:
                base = cursor - random.randint(1, 3)
            case 4:
                page = stride
            case 5 if symbolic:
                base = BLOCK_COUNT * random.choice((-stride, 1, stride, 2 * stride)) + random.randint(-3, 3)
            case _:
                cursor += page
        page = min(page, at(step, 1))
        groups = random.choice(({0}, {0}, {1}, {0, 1}))
        tracks.append(Track(base, step, page, frozenset(groups)))
    return tracks, blocks
