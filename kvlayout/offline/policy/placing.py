"""Where pages and tensors are, from vLLM 0.29: one allocation for all layers, and groups that overlay each other.

>>> spec = LayerSpec("full", 64, 8, 256, 64, 64, "bfloat16")
>>> bunches = [Bunch(("a", "b"), spec, {})]
>>> placed = placements(bunches, "LBNHC")
>>> [str(size) for size in placed[0].placement[1:]]
['262144n', '0', '131072n', '131072']
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from kvlayout.algebra.affine import BLOCK_COUNT, Size, divide, pair
from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.registration import Placement, RegisteredTensor
from kvlayout.errors import Code
from kvlayout.offline.policy.request import kernel_block
from kvlayout.offline.policy.strides import apart, is_compact, is_outermost, strides
from kvlayout.offline.policy.values import Bunch, LayerSpec, refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvlayout.offline.deployment import LayoutName
    from kvlayout.offline.policy.request import Request

__all__ = ["Placed", "block_bytes", "kernel_blocks", "placements", "tensors"]


class Placed(NamedTuple):
    """Layers of one spec that lie together: their placement, their spec and the group that they belong to."""

    placement: Placement
    spec: LayerSpec
    group: int


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def block_bytes(bunches: Sequence[Bunch], request: Request) -> int:
    """Return the bytes of the device that one block id costs: those of the largest group."""
    return _block_bytes(bunches, request.layout)


def _block_bytes(bunches: Sequence[Bunch], layout: LayoutName) -> int:
    if not is_outermost(layout):
        return max(sum(_round_up(spec.page, apart(spec)) for spec in bunch.specs) for bunch in bunches)
    widest = max(sum(spec.page for spec in bunch.specs) for bunch in bunches)
    return _round_up(widest, lcm(*{apart(spec) for bunch in bunches for spec in bunch.specs}))


def _check(bunches: Sequence[Bunch], layout: LayoutName) -> None:
    """Refuse a layout that can't hold pages of different sizes."""
    pages = {spec.page for bunch in bunches for spec in set(bunch.specs)}
    if len(pages) > 1 and (not is_compact(layout) or (len(bunches) > 1 and not is_outermost(layout))):
        raise refused(
            "layout",
            f"a layout that holds pages of {', '.join(map(str, sorted(pages)))} bytes",
            layout,
            "set --layout BLHNC",
            Code.UNSUPPORTED_LAYOUT,
        )


def placements(bunches: Sequence[Bunch], layout: LayoutName) -> list[Placed]:
    """Return where the layers of each group are; every group starts at byte 0.

    Raises:
        RefusedError: the layout can't express the pages of these layers.
    """
    _check(bunches, layout)
    each = _block_bytes(bunches, layout)
    size = each * BLOCK_COUNT
    placed: list[Placed] = []
    for index, bunch in enumerate(bunches):
        alike: dict[LayerSpec, list[str]] = {}
        for layer, spec in zip(bunch.layers, bunch.specs, strict=True):
            alike.setdefault(spec, []).append(layer)
        offset: Size = 0
        for spec, layers in alike.items():
            fixed: Size | None = each if is_outermost(layout) else None
            padded = _round_up(spec.page, apart(spec))
            if fixed is None and padded != spec.page:
                if not is_compact(layout):
                    raise refused("layout", "a layout that can pad pages", layout, "set --layout LBNHC")
                fixed = padded
            across, apart_by, *_ = strides(spec, spec.block, len(layers), layout, BLOCK_COUNT, (None, fixed))
            placed.append(Placed(Placement(tuple(layers), size, offset, across, apart_by), spec, index))
            offset = offset + len(layers) * (spec.page if is_outermost(layout) else across)
    return placed


def kernel_blocks(bunches: Sequence[Bunch], placed: Sequence[Placed], request: Request) -> tuple[int | None, ...]:
    """Return the kernel block of each group in tokens, ``None`` for states; blocks of several layers stay whole.

    Raises:
        RefusedError: no kernel block serves all backends of a group.
    """
    whole = {item.group for item in placed if request.facts.whole_when_packed and _packed(item.placement)}
    return tuple(
        bunch.spec.block if index in whole and bunch.spec.kind != "state" else kernel_block(bunch, request)
        for index, bunch in enumerate(bunches)
    )


def _packed(placement: Placement) -> bool:
    """Return whether blocks lie farther apart than layers, for every block count."""
    return _beyond(placement.block_stride or 0, placement.layer_stride or 0)


def _beyond(block: Size, layer: Size) -> bool:
    (a, b), (c, d) = pair(block), pair(layer)
    return (a, b) != (c, d) and a >= c and b >= d


def tensors(
    placed: Sequence[Placed], kernels: Sequence[int | None], layout: LayoutName
) -> Iterator[tuple[str, RegisteredTensor]]:
    """Yield the tensor of each layer: rows of its kernel blocks, in the axes (block, head, row, channel).

    Raises:
        RefusedError: a block can't be split, or an element type does not fit its place.
    """
    for placement, spec, group in placed:
        kernel = kernels[group] or spec.block
        parts = spec.block // kernel
        block = placement.block_stride or 0
        if parts > 1:
            if block != spec.payload:
                _unsplittable(spec, kernel, layout)
            block = spec.payload // parts
        blocks = BLOCK_COUNT * parts
        _, *inner = strides(spec, kernel, len(placement.layers), layout, blocks, (placement.layer_stride, block))
        item = DTYPES[spec.dtype].itemsize
        rows = 1 if spec.kind == "state" else kernel
        shape = (blocks, spec.heads, rows, _whole(spec.content, item, spec))
        steps = (*(_whole(distance, item, spec) for distance in inner[:3]), 1)
        for index, layer in enumerate(placement.layers):
            offset = _whole((placement.offset or 0) + index * (placement.layer_stride or 0), item, spec)
            yield layer, RegisteredTensor(shape, steps, offset, spec.dtype, 0, placement.size)


def _unsplittable(spec: LayerSpec, kernel: int, layout: str) -> None:
    raise refused(
        "block_size",
        f"blocks that are dense pages, to be split into kernel blocks of {kernel} tokens",
        f"{spec.block} tokens under {layout}, padded or beside other layers",
        f"set --block-size {kernel}, or --layout LBNHC",
        Code.NOT_DIVISIBLE,
    )


def _whole(size: Size, item: int, spec: LayerSpec) -> Size:
    elements = divide(size, item)
    if elements is None:
        raise refused(
            "layout", f"distances in whole elements of {spec.dtype}", f"{size} bytes", code=Code.DTYPE_MISALIGNED
        )
    return elements
