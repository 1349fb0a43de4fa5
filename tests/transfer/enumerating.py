"""Ground truth: the bytes of blocks one by one, from sizes and strides alone, and layouts to draw."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Every element type that torch has in one, two, four or eight bytes, and can be asked for by name.
DTYPES = sorted(
    {
        found
        for name in dir(torch)
        if isinstance(found := getattr(torch, name), torch.dtype)
        and found.itemsize in (1, 2, 4, 8)
        and not name.startswith(("q", "bits", "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1"))
        and not name.startswith(("int2", "int3", "int4", "int5", "int6", "int7", "float4"))
    }
    | {torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64},
    key=str,
)
DEVICES = ["cpu", *([f"cuda:{torch.cuda.current_device()}"] if torch.cuda.is_available() else [])]


class Drawn(NamedTuple):
    """A strided view to be made over a pool of bytes: sizes, byte strides and offset, and the pool's size."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    pool: int

    def over(self, pool: torch.Tensor) -> torch.Tensor:
        """Return the view over a pool of uint8."""
        item = self.dtype.itemsize
        elements = pool.view(self.dtype)
        return elements.as_strided(self.shape, [stride // item for stride in self.strides], self.offset // item)

    def addresses(self, block: int, axis: int = 0) -> list[int]:
        """Return the byte addresses of a block, in the order in which the view is read."""
        ranges = [range(block, block + 1) if i == axis else range(size) for i, size in enumerate(self.shape)]
        starts = (
            self.offset + sum(i * step for i, step in zip(index, self.strides, strict=True))
            for index in itertools.product(*ranges)
        )
        return [start + byte for start in starts for byte in range(self.dtype.itemsize)]


@st.composite
def drawn(draw: st.DrawFn, dtypes: Sequence[torch.dtype] = tuple(DTYPES)) -> Drawn:
    """Draw a view whose elements are apart: any rank, any order of axes in memory, padding behind any axis."""
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    if len(shape) > 2 and shape[0] == 2:
        shape = (3, *shape[1:])
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step = step * shape[axis] + draw(st.integers(0, 3))
    offset = draw(st.integers(0, 9))
    item = dtype.itemsize
    end = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    pool = (end + draw(st.integers(0, 5))) * item
    return Drawn(shape, tuple(stride * item for stride in strides), offset * item, dtype, pool)


def random_pool(size: int, seed: int = 0) -> torch.Tensor:
    """Return a pool of bytes of which hardly two neighbours are equal."""
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def listed(pool: torch.Tensor) -> list[int]:
    values: list[int] = pool.cpu().tolist()
    return values
