"""What a layer of a model keeps on one rank: heads divided or repeated, bytes by the cache's element type.

>>> layer = AttentionLayer("model.layers.0.self_attn.attn", 32, 8, 128, 128)
>>> rank_heads(layer.heads, tp=4), rank_heads(layer.heads, tp=16)
(2, 1)
>>> rank_heads(6, tp=4)
Traceback (most recent call last):
    ...
kvlayout.offline.policy.values.RefusedError: ...
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.spec import StateField
from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.model import AttentionLayer, CrossLayer, KimiDelta, LatentLayer, StateLayer
from kvlayout.offline.policy.kernels import Sizes, largest_within, smallest
from kvlayout.offline.policy.values import LayerSpec, refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvlayout.offline.model import Layer, Recurrence

__all__ = [
    "CACHE_TYPES",
    "PLAIN_TYPES",
    "CacheType",
    "Rank",
    "cache_type",
    "layer_spec",
    "rank_heads",
    "state_bytes",
    "state_fields",
]


class CacheType(NamedTuple):
    """An element type of caches: torch's name (``None``: the model's own), and what a row keeps beside its elements.

    ``latent_bytes`` is the size of a whole latent row where it is packed.
    """

    element: str | None
    extra: int = 0
    halved: bool = False
    latent_bytes: int | None = None
    latent_only: bool = False


_BYTES: Final = CacheType("uint8")
#: What ``--kv-cache-dtype`` can say in every version. fp8 of any kind lies in a tensor of plain bytes.
PLAIN_TYPES: Final[Mapping[str, CacheType]] = {
    "auto": CacheType(None),
    "float16": CacheType("float16"),
    "bfloat16": CacheType("bfloat16"),
    "fp8": _BYTES,
    "fp8_e4m3": _BYTES,
    "fp8_e5m2": _BYTES,
    "fp8_ds_mla": CacheType("uint8", latent_bytes=656, latent_only=True),
}
#: And where the scales of a head and a token lie beside its elements.
CACHE_TYPES: Final[Mapping[str, CacheType]] = {
    **PLAIN_TYPES,
    "int8_per_token_head": CacheType("int8", extra=8),
    "fp8_per_token_head": CacheType("uint8", extra=8),
    "int4_per_token_head": CacheType("uint8", extra=8, halved=True),
}


def cache_type(word: str, known: Mapping[str, CacheType]) -> CacheType:
    """Return what an engine's word for a cache's element type means.

    Raises:
        RefusedError: the engine has no such word.
    """
    found = known.get(word)
    if found is None:
        raise refused("cache_dtype", f"one of {', '.join(known)}", repr(word))
    return found


class Rank(NamedTuple):
    """All that decides what one rank keeps of a layer.

    Attributes:
        tp: tensor-parallel ranks.
        dtype: the model's element type; ``conv`` and ``recurrent`` those of states.
        mode: the engine's word for the cache's element type, and ``cache`` what it means.
        block: tokens a block of attention; ``state_block`` those of a state, and ``first_block`` those that it
            would have without attention beside it.
        state_padded: bytes of a state's page, where it is padded.
        cache_mode: which states are kept.
        sizes: kernel blocks of the attention backend; ``indexer`` those of an indexer.
        sparse: latent attention is sparse.
        apart: blocks lie whole rows, or whole kernel blocks, apart.
        window_block: a sliding window starts from the smallest kernel block, or from the largest of the page.
        leaders: latent layers that have an indexer.
    """

    tp: int
    dtype: str
    conv: str
    recurrent: str | None
    mode: str
    cache: CacheType
    block: int
    state_block: int
    first_block: int
    state_padded: int | None
    cache_mode: str
    sizes: Sizes
    indexer: Sizes
    sparse: bool
    apart: bool
    window_block: Literal["smallest", "largest"]
    leaders: frozenset[str]


def rank_heads(heads: int, tp: int) -> int:
    """Return the key and value heads of one rank: divided, or repeated where there are fewer than ranks.

    Raises:
        RefusedError: neither divides the other.
    """
    if heads % tp and tp % heads:
        raise refused(
            "tp", f"a divisor or a multiple of {heads} key and value heads", tp, f"set --tp to a divisor of {heads}"
        )
    return max(1, heads // tp)


def state_fields(recurrence: Recurrence, rank: Rank) -> Iterator[StateField]:
    """Yield the states of a layer on one rank; a type that is not asked for is that of the convolution.

    Kimi delta attention keeps full precision of its own accord.
    """
    other = "float32" if isinstance(recurrence, KimiDelta) else rank.conv
    for part in recurrence.parts(rank.tp):
        yield StateField(part.shape, rank.conv if part.role == "conv" else rank.recurrent or other)


def layer_spec(layer: Layer, rank: Rank) -> LayerSpec:
    """Return what one rank keeps of a layer."""
    match layer:
        case AttentionLayer():
            return _attention(layer, rank)
        case LatentLayer():
            return _latent(layer, rank)
        case StateLayer():
            fields = tuple(state_fields(layer.recurrence, rank))
            return LayerSpec(
                "state",
                rank.state_block,
                1,
                state_bytes(fields),
                padded=rank.state_padded,
                sharded=False,
                fields=fields,
                backend=layer.kind,
                cache_mode=rank.cache_mode,
            )
        case CrossLayer():
            row, dtype = _row(2 * layer.head_size, rank)
            heads = rank_heads(layer.heads, rank.tp)
            return LayerSpec(
                "cross", rank.block, heads, row, layer.head_size, layer.head_size, dtype, rank.mode, align=_whole(rank)
            )


def state_bytes(fields: tuple[StateField, ...]) -> int:
    """Return the bytes of all states of a layer."""
    return sum(prod(field.shape) * DTYPES[field.dtype].itemsize for field in fields)


def _row(elements: int, rank: Rank) -> tuple[int, str]:
    """Return the bytes of a head slot of a token, and the element type of the tensor."""
    dtype = rank.cache.element or rank.dtype
    row = elements * DTYPES[dtype].itemsize
    return (row // 2 if rank.cache.halved else row) + rank.cache.extra, dtype


def _whole(rank: Rank, sizes: Sizes | None = None) -> KernelSize | None:
    """Return the kernel blocks that a packed block must hold whole: those of a backend with exact sizes only."""
    sizes = rank.sizes if sizes is None else sizes
    if not rank.apart or any(size.multiple for size in sizes):
        return None
    return KernelSize(max(size.tokens for size in sizes), multiple=True)


def _attention(layer: AttentionLayer, rank: Rank) -> LayerSpec:
    row, dtype = _row(layer.head_size + layer.head_size_v, rank)
    spec = LayerSpec(
        "full",
        rank.block,
        rank_heads(layer.heads, rank.tp),
        row,
        layer.head_size,
        layer.head_size_v,
        dtype,
        rank.mode,
        align=_whole(rank),
    )
    if layer.chunk is not None:
        return spec._replace(kind="chunked", chunk=layer.chunk)
    if layer.window is None:
        return spec
    token = spec.heads * row
    smallest_block = rank.window_block == "smallest"
    block = smallest(rank.sizes) if smallest_block else largest_within(rank.sizes, token, token * rank.block)
    return spec._replace(kind="sliding", window=layer.window, block=block)


def _latent(layer: LatentLayer, rank: Rank) -> LayerSpec:
    if layer.index_bytes is not None:
        return LayerSpec(
            "latent",
            rank.block,
            1,
            layer.index_bytes,
            layer.index_bytes,
            dtype="uint8",
            mode="",
            align=_whole(rank, rank.indexer),
            indexer=True,
        )
    width = layer.rank + layer.rope
    row, dtype = _row(width, rank)
    row = rank.cache.latent_bytes or row
    align: int | KernelSize | None = _whole(rank)
    if rank.sparse and rank.apart:
        align = KernelSize(64, multiple=True) if rank.cache.element == "uint8" else row
    spec = LayerSpec("latent", rank.block, 1, row, width, 0, dtype, rank.mode, align=align)
    if layer.window is not None:
        return spec._replace(kind="sliding-latent", window=layer.window)
    return spec._replace(leader=layer.name in rank.leaders)
