"""The closed union of cache specs: what one block of a layer is, in the spec's own numbers.

Bytes never come from a table of quantisation modes; a packed cache declares its content bytes.

>>> def keeps(spec: "Spec") -> str:
...     match spec:
...         case StateSpec():
...             return f"{spec.content_bytes} bytes of state"
...         case AttentionSpec() | LatentSpec():
...             return f"{spec.states} states a block"
...         case _:
...             return "nothing to store"
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, final

from attrs import frozen

__all__ = [
    "AttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlySpec",
    "LatentSpec",
    "Ratio",
    "RawSpec",
    "RingSpec",
    "Spec",
    "StateField",
    "StateSpec",
    "UniformSpec",
    "UnknownSpec",
]

#: Tokens per state as (tokens, states): (1, 1) for plain attention, (4, 1) compressed, (1, 4) for four rows a token.
Ratio: TypeAlias = tuple[int, int]


class StateField(NamedTuple):
    """One recurrent state of a layer (conv, ssm, ...): its shape in elements and its element type."""

    shape: tuple[int, ...]
    dtype: str


# The attrs machinery of a class takes half a millisecond at import, so the classes below that add no field of their own
# are plain subclasses: constructor, equality (of the same class only) and hash are those of their base.
@frozen(cache_hash=True)
class _Head:
    """What every spec has.

    Attributes:
        type: the engine's class name.
        kind: the engine's own word for the kind of attention.
        block_size: tokens a block, on one rank.
        page_bytes: bytes that the engine reserves for one block of one layer, padding included.
        dcp_sharded: decode-context parallelism spreads the tokens of a block over its ranks.
        prefix_cacheable: blocks of this spec can be found again by their content.
        has_layer_views: the engine gives each layer a view, and not its raw buffer.
    """

    type: str
    kind: str
    block_size: int
    page_bytes: int
    dcp_sharded: bool
    prefix_cacheable: bool
    has_layer_views: bool


@frozen(cache_hash=True)
class _Rows(_Head):
    """A spec that stores rows.

    Attributes:
        heads: head slots a state.
        states: rows a block (tokens, or fewer or more of them).
        content_bytes: bytes of one head slot of one state.
        head_size: elements of a key (or latent) head; ``head_size_v`` those of a value head.
        dtype: the declared element type.
        tokens_per_state: (tokens, states).
        window_tokens: tokens that are looked back at, where that is bounded.
        proves_reading: the content is head sizes times item size, so channels are what they seem.
        slots: the engine packs a state into slots of its own (TurboQuant); such a cache is left alone.
    """

    heads: int
    states: int
    content_bytes: int
    head_size: int
    head_size_v: int
    dtype: str
    tokens_per_state: Ratio
    window_tokens: int | None
    proves_reading: bool
    slots: bool

    @property
    def payload_bytes(self) -> int:
        """Bytes of a page that carry state."""
        return self.heads * self.states * self.content_bytes


@final
class AttentionSpec(_Rows):
    """Keys and values: full, sliding-window, chunked-local and sink attention."""

    __slots__ = ()


@final
class LatentSpec(_Rows):
    """One latent row a state: MLA, sliding MLA, indexers, hidden states."""

    __slots__ = ()


@final
@frozen(cache_hash=True)
class StateSpec(_Head):
    """A recurrent state: Mamba, GDN, KDA, short convolutions.

    Attributes:
        fields: the states of a layer, in the order in which a page keeps them.
        content_bytes: their bytes together.
        cache_mode: ``align`` and ``all`` keep a state for each block; ``none`` does not.
    """

    fields: tuple[StateField, ...]
    content_bytes: int
    cache_mode: str


@final
class CrossAttentionSpec(_Head):
    """Keys and values of an encoder: refused."""

    __slots__ = ()


@final
class EncoderOnlySpec(_Head):
    """Attention without a cache: excluded."""

    __slots__ = ()


@final
class RingSpec(_Head):
    """A ring buffer of one request: scratch, excluded."""

    __slots__ = ()


@final
class RawSpec(_Head):
    """A raw buffer without layer views: excluded."""

    __slots__ = ()


@final
class UniformSpec(_Head):
    """A group whose layers have specs of their own."""

    __slots__ = ()


@final
class UnknownSpec(_Head):
    """A spec that nobody here knows: refused."""

    __slots__ = ()


Spec: TypeAlias = (
    AttentionSpec
    | LatentSpec
    | StateSpec
    | CrossAttentionSpec
    | EncoderOnlySpec
    | RingSpec
    | RawSpec
    | UniformSpec
    | UnknownSpec
)
