"""The tensors of a layer before vLLM 0.29: planes or rows of keys and values, latent rows, states.

>>> from kvlayout.offline.policy.pools import Spot
>>> from kvlayout.offline.policy.values import LayerSpec
>>> spot = Spot(LayerSpec("full", 128, 2, 256, 64, 64, "bfloat16"), kernel=32, storage=0, nbytes=65536 * BLOCK_COUNT)
>>> [planes(spot, hint).strides for hint in ("NHD", "HND")]
[(8192, 4096, 128, 64, 1), (8192, 4096, 64, 2048, 1)]
>>> fused(spot, "NHD").strides, fused(spot, "HND").strides
((8192, 128, 256, 1), (8192, 4096, 128, 1))
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from operator import mul
from typing import TYPE_CHECKING

from kvlayout.algebra.affine import BLOCK_COUNT
from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.registration import RegisteredTensor
from kvlayout.errors import Code
from kvlayout.offline.policy.values import refused

if TYPE_CHECKING:
    from kvlayout.offline.policy.pools import Spot

__all__ = ["fused", "latent", "planes", "state_parts", "state_row"]


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a page whose axes lie in this order, in elements."""
    return tuple(accumulate(shape[:0:-1], mul, initial=1))[::-1]


def _attention(spot: Spot, shape: tuple[int, ...], order: tuple[int, ...]) -> RegisteredTensor:
    """Return a tensor of kernel blocks of this shape, whose axes lie in memory in this order."""
    spec, parts = spot.spec, spot.spec.block // spot.kernel
    item = DTYPES[spec.dtype].itemsize
    distance = prod(shape)
    if spec.padded is not None:
        if parts > 1:
            raise refused("block_size", "pages without padding, to be split into kernel blocks", f"{spec.page} bytes")
        distance = spec.page // item
    steps = dict(zip(order, _dense(tuple(shape[axis] for axis in order)), strict=True))
    strides = (distance, *(steps[axis] for axis in range(len(shape))))
    return RegisteredTensor((BLOCK_COUNT * parts, *shape), strides, 0, spec.dtype, spot.storage, spot.nbytes)


def planes(spot: Spot, hint: str) -> RegisteredTensor:
    """Return keys in one plane of a block and values in another: axes (block, plane, token, head, channel).

    Raises:
        RefusedError: keys and values are not equally wide.
    """
    spec = spot.spec
    if spec.head_size != spec.head_size_v:
        sizes = f"{spec.head_size} and {spec.head_size_v}"
        raise refused(
            "layers", "keys and values of one width, in this engine version", sizes, code=Code.UNSUPPORTED_SPEC
        )
    shape = (2, spot.kernel, spec.heads, spec.head_size)
    return _attention(spot, shape, (0, 1, 2, 3) if hint == "NHD" else (0, 2, 1, 3))


def fused(spot: Spot, hint: str) -> RegisteredTensor:
    """Return keys and values side by side: axes (block, head, token, channel)."""
    shape = (spot.spec.heads, spot.kernel, spot.spec.content // DTYPES[spot.spec.dtype].itemsize)
    return _attention(spot, shape, (0, 1, 2) if hint == "HND" else (1, 0, 2))


def latent(spot: Spot) -> RegisteredTensor:
    """Return latent rows: axes (block, token, channel)."""
    shape = (spot.kernel, spot.spec.content // DTYPES[spot.spec.dtype].itemsize)
    return _attention(spot, shape, (0, 1))


def state_parts(spot: Spot) -> tuple[RegisteredTensor, ...]:
    """Return each state of a layer in an element type of its own, one behind the other in a page.

    Raises:
        RefusedError: a state does not start at a whole element.
    """
    parts: list[RegisteredTensor] = []
    offset = 0
    for shape, dtype in spot.spec.fields:
        item = DTYPES[dtype].itemsize
        if offset % item:
            raise refused(
                "layers", f"a state at whole elements of {dtype}", f"byte {offset}", code=Code.DTYPE_MISALIGNED
            )
        strides = (spot.spec.page // item, *_dense(shape))
        parts.append(RegisteredTensor((BLOCK_COUNT, *shape), strides, offset // item, dtype, spot.storage, spot.nbytes))
        offset += prod(shape) * item
    return tuple(parts)


def state_row(spot: Spot) -> RegisteredTensor:
    """Return all states of a layer, and the padding behind them, as one row of bytes."""
    page = spot.spec.page
    return RegisteredTensor((BLOCK_COUNT, 1, 1, page), (page, page, page, 1), 0, "int8", spot.storage, spot.nbytes)
