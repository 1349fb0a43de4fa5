"""Store and retrieve: the blocks of one layer as bytes, and bytes as blocks, on whatever device its view is.

One gather or one scatter a layer, and one copy between device and host. Everything is checked before the first byte
moves, so a refused retrieve has changed nothing.

>>> import torch  # doctest: +SKIP
>>> pages = store(view, [4, 7], layer=plan.layers["model.layers.0.attn"])  # doctest: +SKIP
>>> retrieve(view, [9, 2], pages, layer=plan.layers["model.layers.0.attn"])  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvlayout.transfer.asking import Asked, asked, received

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kvlayout.summaries import LayerPlan

__all__ = ["Buffer", "retrieve", "store"]

#: Bytes to read from: anything contiguous with Python's buffer protocol.
Buffer: TypeAlias = bytes | bytearray | memoryview


def store(
    view: Tensor, block_ids: Sequence[int], *, layer: LayerPlan | None = None, null_block: int | None = None
) -> bytearray:
    """Return the bytes of blocks of one layer, block after block.

    Args:
        view: a plan's view of one layer, on any device.
        block_ids: the blocks, in the order in which their bytes are wanted; one may be asked for twice. Whole numbers,
            in a list, a tensor or an array.
        layer: the layer's plan: the view is held against it, and it says which axis counts blocks. Without it that is
            the first axis, and a view of rank 3 or more whose first axis has size 2 is refused: it may be planes.
        null_block: the engine's placeholder block, if it has one: no id may be it.

    Returns:
        ``len(block_ids)`` times the bytes that the view covers of a block, each block in the view's own order.

    Raises:
        LayoutErrors: ``bad-block-ids``; ``axes-ambiguous`` where the block axis can't be told; ``stale-plan`` where
            the view has another shape, stride, offset or element size than the planned one; ``unknown-dtype`` where no
            integer type is as wide as the view's elements.
        TypeError: the view is no tensor, or the layer is no layer of a plan.

    >>> import torch
    >>> store(torch.arange(12, dtype=torch.uint8).reshape(4, 3), [2, 0]).hex()
    '060708000102'
    """
    request = asked(view, block_ids, layer, null_block)
    pages = bytearray(request.nbytes)
    if pages:
        import torch

        index = torch.tensor(request.ids, device=view.device)
        host = _shaped(torch.frombuffer(pages, dtype=torch.uint8), request)
        if view.device.type == "cpu":
            torch.index_select(request.blocks, 0, index, out=host)
        else:
            host.copy_(request.blocks.index_select(0, index))
    return pages


def retrieve(
    view: Tensor,
    block_ids: Sequence[int],
    data: Buffer,
    *,
    layer: LayerPlan | None = None,
    null_block: int | None = None,
) -> None:
    """Write the bytes of blocks, as :func:`store` returned them, into blocks of one layer: all of them, or none.

    Args:
        view: a plan's view of one layer, on any device; bytes outside it are neither read nor written.
        block_ids: the blocks to write, each once.
        data: their bytes, block after block.
        layer: the layer's plan, as for :func:`store`.
        null_block: the engine's placeholder block, if it has one: no id may be it.

    Raises:
        LayoutErrors: as :func:`store`, and ``bad-block-ids`` where a block is given twice or the data have another
            length; nothing is written then.

    >>> import torch
    >>> view = torch.zeros(4, 3, dtype=torch.uint8)
    >>> retrieve(view, [1, 3], bytes([1, 2, 3, 4, 5, 6]))
    >>> view.tolist()
    [[0, 0, 0], [1, 2, 3], [0, 0, 0], [4, 5, 6]]
    """
    request = asked(view, block_ids, layer, null_block)
    pages = received(request, data)
    if pages:
        import torch

        index, flat = torch.tensor(request.ids, device=view.device), torch.frombuffer(pages, dtype=torch.uint8)
        if flat.data_ptr() % request.blocks.element_size():  # a slice may begin where a wide integer can't
            flat = flat.clone()
        request.blocks.index_copy_(0, index, _shaped(flat, request).to(view.device))


def _shaped(flat: Tensor, request: Asked) -> Tensor:
    """Return a tensor of the requested blocks over as many bytes."""
    return flat.view(request.blocks.dtype).view(len(request.ids), *request.blocks.shape[1:])
