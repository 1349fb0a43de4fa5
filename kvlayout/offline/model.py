"""What a model keeps in the cache, over all ranks, as its config says: the values that families make and policies read.

Heads and widths are those of the whole model; an engine's policy divides them over ranks.

>>> GatedDelta(key_heads=16, value_heads=16, key_dim=128, value_dim=128, kernel=4).parts(tp=1)
(StatePart(role='conv', shape=(3, 6144)), StatePart(role='recurrent', shape=(16, 128, 128)))
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, final

from attrs import frozen

__all__ = [
    "AttentionLayer",
    "CrossLayer",
    "GatedDelta",
    "KimiDelta",
    "LatentLayer",
    "Layer",
    "Mamba1",
    "Mamba2",
    "Model",
    "Recurrence",
    "ShortConv",
    "StateLayer",
    "StatePart",
]


class StatePart(NamedTuple):
    """One state of a layer on one rank: what it is for (which decides its element type) and its shape in elements."""

    role: Literal["conv", "recurrent"]
    shape: tuple[int, ...]


def _conv(channels: int, kernel: int, tp: int) -> StatePart:
    return StatePart("conv", (kernel - 1, channels // tp))


@final
@frozen
class Mamba1:
    """Selective state space: ``channels`` inner channels with ``state`` numbers each."""

    channels: int
    state: int
    kernel: int

    def parts(self, tp: int) -> tuple[StatePart, ...]:
        """Return the states of one of ``tp`` ranks."""
        return _conv(self.channels, self.kernel, tp), StatePart("recurrent", (self.channels // tp, self.state))


@final
@frozen
class Mamba2:
    """Heads of ``head_dim`` channels with ``state`` numbers each; ``groups`` share their input projections."""

    channels: int
    groups: int
    heads: int
    head_dim: int
    state: int
    kernel: int

    def parts(self, tp: int) -> tuple[StatePart, ...]:
        """Return the states of one of ``tp`` ranks; groups that do not divide are repeated, one a rank."""
        groups = self.groups if self.groups % tp == 0 else tp
        channels = self.channels + 2 * groups * self.state
        return _conv(channels, self.kernel, tp), StatePart("recurrent", (self.heads // tp, self.head_dim, self.state))


@final
@frozen
class GatedDelta:
    """Gated delta net: one matrix of value_dim by key_dim for each value head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    def parts(self, tp: int) -> tuple[StatePart, ...]:
        """Return the states of one of ``tp`` ranks."""
        channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        shape = (self.value_heads // tp, self.value_dim, self.key_dim)
        return _conv(channels, self.kernel, tp), StatePart("recurrent", shape)


@final
@frozen
class KimiDelta:
    """Kimi delta attention: one square matrix a head."""

    heads: int
    head_dim: int
    kernel: int

    def parts(self, tp: int) -> tuple[StatePart, ...]:
        """Return the states of one of ``tp`` ranks."""
        channels = 3 * self.heads * self.head_dim
        shape = (self.heads // tp, self.head_dim, self.head_dim)
        return _conv(channels, self.kernel, tp), StatePart("recurrent", shape)


@final
@frozen
class ShortConv:
    """A gated short convolution: its last inputs are all that it keeps."""

    channels: int
    kernel: int

    def parts(self, tp: int) -> tuple[StatePart, ...]:
        """Return the states of one of ``tp`` ranks."""
        return (_conv(self.channels, self.kernel, tp),)


Recurrence: TypeAlias = Mamba1 | Mamba2 | GatedDelta | KimiDelta | ShortConv


@final
@frozen
class AttentionLayer:
    """Attention that keeps keys and values.

    Attributes:
        name: the engine's name of the layer.
        query_heads: heads that ask.
        heads: key and value heads.
        head_size: elements of a key head; ``head_size_v`` those of a value head.
        window: tokens that are looked back at, in a sliding window.
        chunk: tokens of a chunk, in chunked local attention.
        shares: the layer whose cache this one reads; it keeps none of its own.
    """

    name: str
    query_heads: int
    heads: int
    head_size: int
    head_size_v: int
    window: int | None = None
    chunk: int | None = None
    shares: str | None = None


@final
@frozen
class LatentLayer:
    """Attention that keeps one latent row a token: ``rank`` compressed and ``rope`` rotated elements.

    An indexer keeps rows of its own kind, ``index_bytes`` each.
    """

    name: str
    rank: int
    rope: int
    index_bytes: int | None = None
    window: int | None = None


@final
@frozen
class StateLayer:
    """A layer that keeps a recurrent state; ``kind`` is the engine's word for its backend (``GDN_ATTN``, ...)."""

    name: str
    kind: str
    recurrence: Recurrence


@final
@frozen
class CrossLayer:
    """Attention of a decoder to an encoder's output."""

    name: str
    heads: int
    head_size: int


Layer: TypeAlias = AttentionLayer | LatentLayer | StateLayer | CrossLayer


@final
@frozen
class Model:
    """A model as its config describes it.

    Attributes:
        architecture: the config's own word for it.
        family: the family that read it.
        dtype: element type of weights and, by default, of caches.
        layers: layers with a cache, in the order in which the engine makes them.
        max_positions: tokens of the longest request that the model is made for.
        ssm_dtype: element type of recurrent states that the config asks for.
        query_heads: attention heads that ask, which tensor parallelism must divide; those of the layers where unknown.
        depth: decoder layers, with and without a cache, which pipeline parallelism divides.
        positions: the decoder layer of each of ``layers``; empty where it is the first number of their names.
        state_chunk: tokens that a recurrent kernel takes at once (``chunk_size``), which old engines align blocks to.
        cache_dtype: element type of attention caches that a quantised checkpoint asks for, in the engine's words.
        typed_cache: attention caches have the element type that a deployment asks for; else always the model's own.
    """

    architecture: str
    family: str
    dtype: str
    layers: tuple[Layer, ...]
    max_positions: int | None = None
    ssm_dtype: str | None = None
    query_heads: int | None = None
    depth: int | None = None
    positions: tuple[int, ...] = ()
    state_chunk: int | None = None
    cache_dtype: str | None = None
    typed_cache: bool = True
