"""Where the pages and rows of layers are, for every layout name from vLLM 0.29; distances in bytes.

>>> spec = LayerSpec("full", 64, 8, 256, 64, 64, "bfloat16")
>>> str(strides(spec, 64, 2, "LBNHC", BLOCK_COUNT)[0]), strides(spec, 64, 2, "LBNHC", BLOCK_COUNT)[1:]
('131072n', (131072, 256, 2048, 1))
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Final

from kvlayout.algebra.affine import BLOCK_COUNT, Size, pair
from kvlayout.errors import Code
from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.policy.values import LayerSpec, refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvlayout.offline.deployment import LayoutName

__all__ = ["BLOCK_COUNT", "apart", "check_rows", "is_compact", "is_outermost", "strides"]

_AXES: Final = "LBHNC"


def is_outermost(layout: LayoutName) -> bool:
    """Return whether a block holds the pages of all layers."""
    return layout[0] == "B"


def is_compact(layout: LayoutName) -> bool:
    """Return whether a page is one run of bytes."""
    return "H" not in layout[:2]


def check_rows(specs: Iterable[LayerSpec], layout: LayoutName) -> None:
    """Refuse a layout that puts heads outside blocks or layers where layers differ in heads, rows or pages.

    Raises:
        RefusedError: the layout is such a one.
    """
    shapes = {(spec.heads, spec.rows, spec.page) for spec in specs}
    if len(shapes) > 1 and not is_compact(layout):
        raise refused(
            "layout",
            "a layout that keeps a page together, for layers of different shapes",
            layout,
            "set --layout LBNHC, LBHNC, BLNHC or BLHNC",
            Code.UNSUPPORTED_LAYOUT,
        )


def apart(spec: LayerSpec) -> int:
    """Return the bytes that the distance of two blocks must be a multiple of."""
    if not isinstance(spec.align, KernelSize):
        return spec.align or 1
    kernel = gcd(spec.align.tokens, spec.block)
    return 1 if kernel == spec.block else spec._replace(block=kernel).page


def strides(  # noqa: PLR0913, PLR0917 - all that an address depends on
    spec: LayerSpec,
    kernel: int,
    layers: int,
    layout: LayoutName,
    blocks: Size,
    fixed: tuple[Size | None, Size | None] = (None, None),
) -> tuple[Size, Size, Size, Size, Size]:
    """Return the distances of layers, blocks, heads, rows and bytes.

    Args:
        spec: what each layer keeps.
        kernel: tokens of a kernel block.
        layers: how many layers lie together.
        layout: the order of the axes in memory.
        blocks: how many kernel blocks a layer has.
        fixed: the distances of layers and of blocks, where they are decided already.

    Raises:
        RefusedError: the layout can't express padding inside its pages.
    """
    rows = 1 if spec.kind == "state" else kernel
    shape: dict[str, Size] = {"L": layers, "B": blocks, "H": spec.heads, "N": rows, "C": spec.content}
    inner = max(layout.index("L"), layout.index("B"))
    if spec.padded is not None and "H" in layout[:inner] and spec.heads != 1:
        raise refused(
            "layout",
            "a layout that keeps a page together, as LBNHC, where pages are padded",
            layout,
            "set --layout LBNHC, LBHNC, BLNHC or BLHNC",
            Code.UNSUPPORTED_LAYOUT,
        )
    known: dict[str, Size | None] = {"L": fixed[0], "B": fixed[1]}
    made: dict[str, Size] = {}
    distance: Size = 1
    for place in range(4, -1, -1):
        axis = layout[place]
        if spec.padded is not None and place == inner:
            distance = max(pair(distance)[0], spec.padded)
        own = known.get(axis)
        made[axis] = distance if own is None else own
        distance = made[axis] * shape[axis]
    return made["L"], made["B"], made["H"], made["N"], made["C"]
