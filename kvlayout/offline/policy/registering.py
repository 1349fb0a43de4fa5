"""From an engine's numbers to the values of a registration.

>>> bunch = Bunch(("a", "b"), LayerSpec("full", 64, 8, 256, 64, 64, "bfloat16"), {})
>>> group(bunch, Facts(minor=32)).spec.page_bytes
131072
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.registration import Group
from kvlayout.cache.spec import AttentionSpec, CrossAttentionSpec, LatentSpec, Spec, StateSpec, UniformSpec
from kvlayout.offline.policy.facts import Facts
from kvlayout.offline.policy.values import GROWING, Bunch, LayerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["group", "leaf"]

#: Kind -> (the engine's class, its word for the kind).
_CLASSES: Final[Mapping[str, tuple[str, str]]] = {
    "full": ("FullAttentionSpec", "full_attention"),
    "sliding": ("SlidingWindowSpec", "sliding_window"),
    "chunked": ("ChunkedLocalAttentionSpec", "chunked_local_attention"),
    "latent": ("MLAAttentionSpec", "mla_attention"),
    "sliding-latent": ("SlidingWindowMLASpec", "sliding_window_mla"),
    "state": ("MambaSpec", "mamba"),
    "cross": ("CrossAttentionSpec", "cross_attention"),
}


#: Every spec that is planned can be found again by its content, and each layer has a view.
_SERVED: Final = (True, True)


def leaf(spec: LayerSpec, facts: Facts) -> Spec:
    """Return the spec of a layer as the engine registers it."""
    name, kind = _CLASSES[spec.kind]
    if spec.kind == "state":
        head = (name, kind, spec.block, spec.page, spec.sharded, *_SERVED)
        return StateSpec(*head, fields=spec.fields, content_bytes=spec.content, cache_mode=spec.cache_mode)
    if spec.kind == "cross":
        return CrossAttentionSpec(name, kind, spec.block, spec.page, spec.sharded, *_SERVED)
    made = LatentSpec if spec.kind in ("latent", "sliding-latent") else AttentionSpec
    dense = (spec.head_size + spec.head_size_v) * DTYPES[spec.dtype].itemsize
    return made(
        name,
        kind,
        spec.block,
        spec.page,
        spec.sharded,
        *_SERVED,
        heads=spec.heads,
        states=spec.block,
        content_bytes=spec.content,
        head_size=spec.head_size,
        head_size_v=spec.head_size_v,
        dtype=spec.dtype,
        tokens_per_state=(1, 1),
        window_tokens=spec.window or spec.chunk,
        proves_reading=spec.content == dense and not (spec.indexer and facts.declares_roles),
        slots=False,
    )


def _common_kind(specs: Sequence[LayerSpec], facts: Facts) -> str:
    """Return the engine's word for a group of unlike layers."""
    kinds = {spec.kind for spec in specs}
    if len(kinds) == 1:
        return _CLASSES[specs[0].kind][1]
    return "full_attention" if kinds <= GROWING and facts.unlike_is_full else "unknown"


def group(bunch: Bunch, facts: Facts) -> Group:
    """Return a group as the engine registers it: with one spec, or with one for each layer."""
    if not bunch.leaves:
        return Group(bunch.layers, leaf(bunch.spec, facts), {})
    specs = tuple(bunch.leaves.values())
    made = {spec: leaf(spec, facts) for spec in dict.fromkeys(specs)}
    pages = sum(spec.page for spec in specs)
    sharded = specs[0].sharded and facts.declares_sharding
    first, kind = specs[0], _common_kind(specs, facts)
    spec = UniformSpec("UniformTypeKVCacheSpecs", kind, first.block, pages, sharded, *_SERVED)
    return Group(bunch.layers, spec, {layer: made[bunch.leaves[layer]] for layer in bunch.layers})
