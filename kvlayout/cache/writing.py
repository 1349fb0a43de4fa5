"""From a registration to its document. :mod:`kvlayout.cache.document` reads it back.

>>> from kvlayout.algebra.affine import BLOCK_COUNT
>>> from kvlayout.cache.reading import read_spec
>>> latent = read_spec("MLAAttentionSpec", (), None, {"block_size": 64, "head_size": 576, "dtype": "bfloat16"}, {})
>>> layer = RegisteredTensor((BLOCK_COUNT, 64, 576), (36864, 576, 1), 0, "bfloat16", 0, 73728 * BLOCK_COUNT)
>>> text = write_registration(Registration((Group(("attn",), latent, {}),), {"attn": layer}))
>>> json.loads(text)["caches"]["attn"]["shape"]
['1n', 64, 576]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvlayout.algebra.affine import Affine, Size, format_size
from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.reading import family_of
from kvlayout.cache.registration import Entry, Group, Placement, RegisteredTensor, Registration
from kvlayout.cache.spec import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    LatentSpec,
    RawSpec,
    RingSpec,
    Spec,
    StateSpec,
    UniformSpec,
    UnknownSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMAT", "VERSION", "write_registration"]

#: What a registration document calls itself.
FORMAT: Final = "kvlayout/registration"
VERSION: Final = 1


def write_registration(registration: Registration) -> str:
    """Write the document of a registration; reading it gives an equal one.

    A spec is written with the numbers that it was read as, so that a reader needs no fallbacks of old engine versions.

    Args:
        registration: one that a document can hold: numbers below 2**63, symbolic sizes ``A+Bn`` with A of 0 or more and
            none where the block count is known, specs from :func:`kvlayout.cache.reading.read_spec`.

    >>> '"num_blocks": 4096' in write_registration(Registration(groups=(), caches={}, num_blocks=4096))
    True
    """
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": registration.name,
        "engine": registration.engine._asdict(),
        "num_blocks": registration.num_blocks,
        "kv_cache_layout": registration.kv_cache_layout,
        "layout_hint": registration.layout_hint,
        "placements": [_write_placement(placement) for placement in registration.placements],
        "groups": [_write_group(group) for group in registration.groups],
        "caches": {layer: _write_entry(entry) for layer, entry in registration.caches.items()},
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _write_size(size: Size | None) -> int | str | None:
    return format_size(size) if isinstance(size, Affine) else size


def _write_placement(placement: Placement) -> dict[str, object]:
    numbers = zip(Placement._fields[1:], map(_write_size, placement[1:]), strict=True)
    return {"layers": placement.layers, **dict(numbers)}


def _write_entry(entry: Entry) -> object:
    if not isinstance(entry, RegisteredTensor):
        return [_write_entry(part) for part in entry]
    return {
        "shape": [_write_size(size) for size in entry.shape],
        "stride": [_write_size(size) for size in entry.strides],
        "storage_offset": _write_size(entry.offset),
        "dtype": entry.dtype,
        "storage": entry.storage,
        "storage_nbytes": _write_size(entry.storage_nbytes),
    }


def _write_group(group: Group) -> dict[str, object]:
    return {
        "layers": group.layers,
        "spec": _write_spec(group.spec),
        "layer_specs": {layer: _write_spec(leaf) for layer, leaf in group.leaves.items()},
        "draft": group.draft,
        "host_resident": group.host_resident,
        "transferable": group.transferable,
    }


#: The class that a spec of an engine's plug-in is read as.
_BASES: Final[Mapping[type[Spec], str]] = {
    AttentionSpec: "FullAttentionSpec",
    LatentSpec: "MLAAttentionSpec",
    StateSpec: "MambaSpec",
    CrossAttentionSpec: "CrossAttentionSpec",
    EncoderOnlySpec: "EncoderOnlyAttentionSpec",
    RingSpec: "CircularBufferSpec",
    RawSpec: "HiSparseHotSpec",
    UniformSpec: "UniformTypeKVCacheSpecs",
}


def _write_spec(spec: Spec) -> dict[str, object]:
    fields: dict[str, object] = {"block_size": spec.block_size}
    derived: dict[str, object] = {"page_size_bytes": spec.page_bytes}
    if isinstance(spec, AttentionSpec | LatentSpec):
        fields |= _row_fields(spec)
        tokens, states = spec.tokens_per_state
        derived |= {"num_states": spec.states, "num_heads": spec.heads, "state_content_size_bytes": spec.content_bytes}
        derived["tokens_per_state"] = tokens if states == 1 else [tokens, states]
    elif isinstance(spec, StateSpec):
        fields |= {"shapes": [field.shape for field in spec.fields], "dtypes": [field.dtype for field in spec.fields]}
        fields["mamba_cache_mode"] = spec.cache_mode
        derived["state_content_size_bytes"] = spec.content_bytes
    derived |= {"dcp_sharded": spec.dcp_sharded, "prefix_cacheable": spec.prefix_cacheable}
    derived["has_layer_views"] = spec.has_layer_views
    bases = [] if isinstance(spec, UnknownSpec) or family_of(spec.type) else [_BASES[type(spec)]]
    return {"type": spec.type, "bases": bases, "kind": spec.kind, "fields": fields, "derived": derived}


def _row_fields(spec: AttentionSpec | LatentSpec) -> dict[str, object]:
    fields: dict[str, object] = {"head_size": spec.head_size, "head_size_v": spec.head_size_v, "dtype": spec.dtype}
    if spec.window_tokens is not None:
        fields["sliding_window"] = spec.window_tokens
    item = DTYPES.get(spec.dtype)
    if spec.slots:
        fields["tq_slot_size"] = spec.content_bytes
    elif not spec.proves_reading and item and spec.content_bytes == (spec.head_size + spec.head_size_v) * item.itemsize:
        fields["cache_role"] = "INDEXER"  # the only thing that keeps such content from being what it seems
    return fields
