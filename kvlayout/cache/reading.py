"""From an engine's class name and fields to a spec, over all engine versions.

The same function reads a spec from a document and from a live engine, so that the two can't drift apart.
Facts on fields and versions: docs/engines.md.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.fields import LIMIT, MAX_RANK, FieldError, Fields, is_shape, plain_dtype
from kvlayout.cache.spec import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    LatentSpec,
    RawSpec,
    RingSpec,
    Spec,
    StateField,
    StateSpec,
    UniformSpec,
    UnknownSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LIMIT", "MAX_RANK", "FieldError", "family_of", "plain_dtype", "read_spec"]

#: Class name -> (family, the engine's word for it where the document has none).
_CLASSES: Final = {
    "FullAttentionSpec": ("attention", "full_attention"),
    "TQFullAttentionSpec": ("attention", "full_attention"),
    "RSWASpec": ("attention", "full_attention"),
    "SlidingWindowSpec": ("attention", "sliding_window"),
    "ChunkedLocalAttentionSpec": ("attention", "chunked_local_attention"),
    "SinkFullAttentionSpec": ("attention", "sink_full_attention"),
    "MLAAttentionSpec": ("latent", "mla_attention"),
    "HiddenStateCacheSpec": ("latent", "mla_attention"),
    "SlidingWindowMLASpec": ("latent", "sliding_window_mla"),
    "MambaSpec": ("state", "mamba"),
    "CrossAttentionSpec": ("cross", "cross_attention"),
    "EncoderOnlyAttentionSpec": ("encoder-only", "encoder_only_attention"),
    "CircularBufferSpec": ("ring", "unknown"),
    "KpoolTailSpec": ("ring", "unknown"),
    "HiSparseHotSpec": ("raw", "unknown"),
    "HiSparseResidentSpec": ("raw", "unknown"),
    "UniformTypeKVCacheSpecs": ("uniform", "unknown"),
}


def family_of(type_name: str) -> str | None:
    """Return what a class keeps where it is read by its own name, so that its bases don't matter.

    >>> family_of("MLAAttentionSpec"), family_of("MambaSpec"), family_of("PluginSpec")
    ('latent', 'state', None)
    """
    return _CLASSES.get(type_name, (None,))[0]


def read_spec(
    type_name: str,
    bases: Sequence[str],
    kind: str | None,
    fields: Mapping[str, object],
    derived: Mapping[str, object],
) -> Spec:
    """Return the spec that an engine's class and its fields declare.

    A class of an engine's plug-in is read as the nearest known class that it derives from.

    Args:
        type_name: the class name, as ``MLAAttentionSpec``.
        bases: names of the classes it derives from, nearest first.
        kind: the engine's own word for the kind of attention, where it has one.
        fields: declared fields; those that an old engine version lacks may be absent.
        derived: computed properties (``page_size_bytes``, ``num_states``, ...), as far as known.

    Raises:
        FieldError: a number is missing, of a wrong type, negative or beyond 64 bits.

    >>> spec = read_spec(
    ...     "MLAAttentionSpec",
    ...     (),
    ...     None,
    ...     {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "head_size_v": 0, "dtype": "bfloat16"},
    ...     {},
    ... )
    >>> spec.states, spec.content_bytes, spec.page_bytes
    (64, 1152, 73728)
    """
    known = _CLASSES.get(type_name) or next((_CLASSES[name] for name in bases if name in _CLASSES), None)
    family, word = known or ("unknown", "unknown")
    read = Fields(fields, derived)
    attends = family in ("attention", "latent", "ring")
    scratch = family in ("ring", "raw") or read.flag("bounded_replay", default=False)
    head = _Common(
        type_name,
        kind or word,
        read.required("block_size") if attends or family in ("state", "cross") else read.number("block_size") or 0,
        read.number("page_size_padded", "page_size", derived="page_size_bytes"),
        read.flag("dcp_sharded", default=attends),
        read.flag("prefix_cacheable", default=not scratch),
        read.flag("has_layer_views", default=family != "raw"),
    )
    if family == "attention":
        return _rows(AttentionSpec, head, read)
    if family == "latent":
        return _rows(LatentSpec, head, read)
    if family == "state":
        return _state(head, read)
    return _PLAIN[family](*head[:3], head.page_bytes or 0, *head[4:])


class _Common(NamedTuple):
    type: str
    kind: str
    block_size: int
    page_bytes: int | None
    dcp_sharded: bool
    prefix_cacheable: bool
    has_layer_views: bool


_Plain: TypeAlias = CrossAttentionSpec | EncoderOnlySpec | RingSpec | RawSpec | UniformSpec | UnknownSpec
_PLAIN: Final[dict[str, type[_Plain]]] = {
    "cross": CrossAttentionSpec,
    "encoder-only": EncoderOnlySpec,
    "ring": RingSpec,
    "raw": RawSpec,
    "uniform": UniformSpec,
    "unknown": UnknownSpec,
}

_Rowed = TypeVar("_Rowed", AttentionSpec, LatentSpec)


def _rows(made: type[_Rowed], head: _Common, read: Fields) -> _Rowed:
    """Read a spec that stores rows; older engines declare less, and the fallbacks are theirs."""
    tokens, rows = read.ratio(head.block_size)
    latent = made is LatentSpec
    heads = read.number("num_head_slots", "num_kv_heads", derived="num_heads", least=1) or 1
    states = read.number(derived="num_states", least=1) or max(head.block_size * rows // tokens, 1)
    head_size = read.number("head_size") or 0
    head_size_v = read.number("head_size_v")
    if head_size_v is None:
        head_size_v = 0 if latent else head_size
    dtype = plain_dtype(read.text("dtype"))
    item = DTYPES.get(dtype)
    dense = (head_size + head_size_v) * item.itemsize if item else 0
    slots = bool(read.number("tq_slot_size"))
    content = read.number("state_content_bytes", "tq_slot_size", derived="state_content_size_bytes", least=1)
    if content is None:
        padded = read.number("page_size_padded") is not None
        page, slots_a_page = head.page_bytes or 0, heads * states
        content = dense if padded or not page or page % slots_a_page else page // slots_a_page
    if not content:
        raise FieldError("fields.dtype", "a known element type, or the content bytes of a state", dtype)
    page_bytes = head.page_bytes or heads * states * content
    if max(states, content, page_bytes, heads * states * content) >= LIMIT:
        raise FieldError("derived.page_size_bytes", "a page below 2**63 bytes", page_bytes)
    window = read.number("sliding_window", "rswa_window", "attention_chunk_size", least=1)
    role = read.text("cache_role").rpartition(".")[2].lower()
    return made(
        *head[:3],
        page_bytes,
        *head[4:],
        heads=heads,
        states=states,
        content_bytes=content,
        head_size=head_size,
        head_size_v=head_size_v,
        dtype=dtype,
        tokens_per_state=(tokens, rows),
        window_tokens=window,
        proves_reading=content == dense and not slots and role != "indexer",
        slots=slots,
    )


def _state(head: _Common, read: Fields) -> StateSpec:
    """Read a recurrent state; its fields say what a page keeps, and in which order."""
    shapes, dtypes = read.fields.get("shapes"), read.fields.get("dtypes")
    if (
        not isinstance(shapes, (list, tuple))
        or not isinstance(dtypes, (list, tuple))
        or not len(shapes) == len(dtypes) <= MAX_RANK
    ):
        raise FieldError("fields.shapes", f"at most {MAX_RANK} shapes, and one element type for each", shapes)
    fields, total = [], 0
    for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        if not is_shape(shape):
            raise FieldError(f"fields.shapes[{i}]", f"a list of at most {MAX_RANK} whole numbers from 1", shape)
        name = plain_dtype(str(dtype))
        fields.append(StateField(tuple(shape), name))
        total += prod(shape) * (DTYPES[name].itemsize if name in DTYPES else 0)
        if total >= LIMIT:
            raise FieldError(f"fields.shapes[{i}]", "states below 2**63 bytes", shape)
    content = read.number(derived="state_content_size_bytes") or total
    return StateSpec(
        *head[:3],
        head.page_bytes or content,
        *head[4:],
        fields=tuple(fields),
        content_bytes=content,
        cache_mode=read.text("mamba_cache_mode") or "none",
    )
