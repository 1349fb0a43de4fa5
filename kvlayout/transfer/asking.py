"""What is asked for, held against the view: block ids, the axis that counts them, and the bytes that come in."""

from __future__ import annotations

from collections import Counter
from math import gcd
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kvlayout.algebra.affine import Size
from kvlayout.algebra.layout import Axis
from kvlayout.algebra.units import raw
from kvlayout.errors import Code, LayoutError, LayoutErrors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from kvlayout.summaries import LayerPlan

__all__ = ["Asked", "asked", "received"]


class Asked(NamedTuple):
    """A request of blocks that exist.

    Attributes:
        blocks: the view with blocks first, its bytes as integers.
        ids: the block ids.
        nbytes: bytes of all of them.
        name: the layer's name, where it is known.
    """

    blocks: Tensor
    ids: list[int]
    nbytes: int
    name: str | None


def asked(view: Tensor, block_ids: Sequence[int], layer: LayerPlan | None, null_block: int | None) -> Asked:
    """Check a view and block ids.

    Raises:
        LayoutErrors, TypeError: see :func:`kvlayout.transfer.store`.
    """
    if not hasattr(view, "untyped_storage"):
        raise TypeError(f"the view is to be one tensor, a plan's view, and not of type {type(view).__name__}")
    if layer is not None and not hasattr(layer, "verdict"):
        raise TypeError(f"the layer is to be a value of plan.layers, and not of type {type(layer).__name__}")
    name = None if layer is None else layer.layer
    axis = _first_axis(view) if layer is None else _planned_axis(view, layer)
    blocks = _as_integers(view, axis, name).movedim(axis, 0)
    ids = _checked(block_ids, blocks.shape[0], null_block, name)
    each = blocks.shape[1:].numel() * blocks.element_size()
    return Asked(blocks, ids, len(ids) * each, name)


def received(request: Asked, data: bytes | bytearray | memoryview) -> bytearray | memoryview:
    """Return data that belong to a request, in a buffer that torch shares without a copy where it can.

    Raises:
        LayoutErrors: a block is given twice, or the data have another length.
    """
    if len(set(request.ids)) < len(request.ids):
        twice = [block for block, count in Counter(request.ids).items() if count > 1]
        _bad("each block once", f"{_some(twice)} more than once", request.name)
    view = memoryview(data)
    if view.nbytes != request.nbytes:
        expected = f"{request.nbytes} bytes for {len(request.ids)} blocks"
        _bad(expected, f"{view.nbytes} bytes", request.name, fix="pass the bytes of exactly these blocks")
    if view.readonly or not view.c_contiguous:  # torch shares no memory that it must not write
        return bytearray(view)
    return view.cast("B") if view.nbytes else view


def _first_axis(view: Tensor) -> int:
    """Return 0, unless the first axis may be planes: an axis of planes has size 2."""
    if view.dim() == 0:
        _bad("a view with a block axis", "a single element", None, fix="pass a plan's view of the layer")
    if view.dim() > 2 and view.shape[0] == 2:
        _refuse(
            Code.AXES_AMBIGUOUS,
            "a block axis that can be told from planes",
            f"shape {list(view.shape)}: two blocks, or keys and values",
            fix="pass layer=plan.layers[name]",
        )
    return 0


def _planned_axis(view: Tensor, layer: LayerPlan) -> int:
    """Return the position of the block axis in the plan of a view, after holding the one against the other."""
    planned = layer.view
    axis = None if planned is None else planned.where(Axis.BLOCK)
    if planned is None or axis is None:
        _refuse(Code.STALE_PLAN, "a layer that has a view", f"the layer is {layer.verdict}", layer.layer)
    blocks = view.shape[axis] if axis < view.dim() else 1
    bound, item = planned.bind(max(blocks, 1)), view.element_size()
    expected = _facts(bound.shape, map(raw, bound.strides), raw(bound.offset), bound.dtype.itemsize)
    strides, offset = [step * item for step in view.stride()], int(view.storage_offset()) * item
    actual = _facts(view.shape, strides, offset, item)
    if actual != expected:
        _refuse(Code.STALE_PLAN, expected, actual, layer.layer, "pass the view that this plan made of the layer")
    return axis


def _facts(shape: Iterable[Size], strides: Iterable[Size], offset: Size, item: int) -> str:
    """Return what a view is, in words; an axis of one element has no stride to speak of."""
    steps = zip(shape, strides, strict=True)
    sized = ", ".join(f"{size}" if size == 1 else f"{size} every {stride}" for size, stride in steps)
    return f"[{sized}] bytes from byte {offset}, elements of {item}"


def _as_integers(view: Tensor, axis: int, name: str | None) -> Tensor:
    """Return a tensor over the same bytes as integers, which every device gathers and scatters: few and wide ones."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    item = view.element_size()
    if item not in integers:
        _refuse(Code.UNKNOWN_DTYPE, "elements of 1, 2, 4 or 8 bytes", f"{view.dtype}", name)
    if axis == view.dim() - 1 or view.stride(-1) != 1:
        return view.detach().view(integers[item])
    steps = (view.shape[-1], int(view.storage_offset()), *view.stride()[:-1])
    return view.detach().view(integers[gcd(max(integers), view.data_ptr(), *(step * item for step in steps))])


def _checked(block_ids: Iterable[object], blocks: int, null_block: int | None, name: str | None) -> list[int]:
    """Return ids as Python's integers, refusing those that are no blocks; a tensor or an array of them will do."""
    listed: list[object] = block_ids.tolist() if hasattr(block_ids, "tolist") else list(block_ids)
    given = [block.item() if hasattr(block, "item") else block for block in listed]
    ids = [block for block in given if type(block) is int]  # True is an int to isinstance
    if len(ids) < len(given):
        wrong = next(block for block in given if type(block) is not int)
        _bad("block ids as ints", f"{wrong!r} of type {type(wrong).__name__}", name, fix="pass whole numbers")
    if ids and (min(ids) < 0 or max(ids) >= blocks):
        wrong_ids = [block for block in ids if not 0 <= block < blocks]
        _bad(f"blocks 0 to {blocks - 1}", _some(wrong_ids), name)
    if null_block is not None and null_block in ids:
        _bad(f"no null block, which is {null_block}", _some([null_block]), name, fix="leave the null block out")
    return ids


def _some(blocks: Sequence[int]) -> str:
    """Return at most four block ids, in words."""
    more = f" and {len(blocks) - 4} more" if len(blocks) > 4 else ""
    return f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, blocks[:4]))}{more}"


def _bad(expected: str, actual: str, name: str | None, fix: str = "") -> NoReturn:
    _refuse(Code.BAD_BLOCK_IDS, expected, actual, name, fix)


def _refuse(code: Code, expected: str, actual: str, name: str | None = None, fix: str = "") -> NoReturn:
    raise LayoutErrors((LayoutError(code, layer=name, expected=expected, actual=actual, fix=fix),))
