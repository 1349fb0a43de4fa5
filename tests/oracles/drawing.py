"""Small random blocks, for any number of them, that both oracles are asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlayout.algebra.affine import BLOCK_COUNT
from kvlayout.algebra.units import raw
from tests.brute import make

if TYPE_CHECKING:
    from random import Random

    from kvlayout.algebra.layout import Layout

__all__ = ["draw_blocks", "split_of"]


def draw_blocks(random: Random) -> Layout:
    """Return blocks of two axes, of strides that often continue each other."""
    shape = [random.choice((1, 2, 3, 4)) for _ in range(2)]
    item = random.choice((1, 2))
    near = [item, item * shape[1], item * shape[0] * shape[1]]
    strides = [
        random.choice((near[2], near[2] + 2, 8)),
        random.choice((near[1], near[1], 4)),
        random.choice((item, item, 3)),
    ]
    blocks = BLOCK_COUNT * random.choice((1, 1, 2))
    return make([blocks, *shape], strides, random.choice((0, 0, BLOCK_COUNT, 3)), item)


def split_of(random: Random, layout: Layout) -> Layout:
    """Return the same layout with an axis split, or with a stride bent."""
    shape, strides = list(layout.shape), [raw(d) for d in layout.strides]
    i = random.randrange(1, 3)
    extent = shape[i]
    if isinstance(extent, int) and extent % 2 == 0:
        shape[i : i + 1] = [extent // 2, 2]
        strides[i : i + 1] = [strides[i] * 2, strides[i]]
    if random.random() < 0.5:
        strides[random.randrange(len(strides))] += random.choice((1, 2))
    return make(shape, strides, raw(layout.offset), layout.dtype.itemsize)
