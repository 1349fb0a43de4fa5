"""Where pages are before vLLM 0.29: a tensor for each place in a group, which the groups share.

The i-th layers of all groups lie in one tensor, since a block id belongs to one group at a time; where one group holds
all layers, each has a tensor of its own.

>>> full = LayerSpec("full", 16, 2, 256, 64, 64, "bfloat16")
>>> bunches = [Bunch(("a", "b"), full, {}), Bunch(("c",), full._replace(kind="sliding", window=64), {})]
>>> list(_shares(bunches))
[(('a', 'c'), 8192), (('b',), 8192)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvlayout.algebra.affine import BLOCK_COUNT, Size
from kvlayout.cache.registration import Entry, Placement
from kvlayout.offline.policy.request import Arranged, Request, kernel_block
from kvlayout.offline.policy.values import Bunch, LayerSpec, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Spot", "pooled"]


class Spot(NamedTuple):
    """A layer's place: its spec, its kernel block in tokens, the storage and its bytes."""

    spec: LayerSpec
    kernel: int
    storage: int
    nbytes: Size


def _shares(bunches: Sequence[Bunch]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the layers of each tensor, and the bytes of a block of it."""
    if len(bunches) == 1:
        for layer, spec in zip(bunches[0].layers, bunches[0].specs, strict=True):
            yield (layer,), spec.page
        return
    pages = {spec.page for bunch in bunches for spec in bunch.specs}
    if len(pages) > 1:
        raise refused("layers", "groups with one page size", f"pages of {', '.join(map(str, sorted(pages)))} bytes")
    for index in range(max(len(bunch.layers) for bunch in bunches)):
        yield tuple(bunch.layers[index] for bunch in bunches if index < len(bunch.layers)), max(pages)


def _ordered(bunch: Bunch, local: frozenset[str]) -> Iterator[tuple[str, LayerSpec]]:
    """Yield the layers of a group in the order of their backends and specs, which is that of registration."""
    kinds: dict[tuple[LayerSpec, bool], list[str]] = {}
    for layer, spec in zip(bunch.layers, bunch.specs, strict=True):
        kinds.setdefault((spec, layer in local), []).append(layer)
    for (spec, _), layers in kinds.items():
        for layer in layers:
            yield layer, spec


def pooled(bunches: Sequence[Bunch], request: Request, entry: Callable[[Spot], Entry]) -> Arranged:
    """Return where pages are, and what ``entry`` makes of each layer's place.

    Raises:
        RefusedError: the pages of the groups differ in size, or a kernel block serves no backend.
    """
    kernels = tuple(kernel_block(bunch, request) for bunch in bunches)
    shares = tuple(_shares(bunches))
    home = {layer: index for index, (layers, _) in enumerate(shares) for layer in layers}
    numbers: dict[int, int] = {}
    caches: dict[str, Entry] = {}
    made: dict[tuple[LayerSpec, int], Entry] = {}
    for bunch, kernel in zip(bunches, kernels, strict=True):
        for layer, spec in _ordered(bunch, request.local):
            share = home[layer]
            storage = numbers.setdefault(share, len(numbers))
            known = made.get((spec, share))
            if known is None:
                spot = Spot(spec, kernel or spec.block, storage, shares[share][1] * BLOCK_COUNT)
                known = made[spec, share] = entry(spot)
            caches[layer] = known
    return Arranged(
        tuple(Placement(layers, page * BLOCK_COUNT, 0, None, None) for layers, page in shares),
        caches,
        kernels,
        sum(page for _, page in shares),
        None,
        request.hint,
    )
