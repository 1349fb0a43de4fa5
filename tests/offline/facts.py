"""What a layer keeps, in words that a model's layer and an engine's spec have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvlayout.cache.spec import AttentionSpec, LatentSpec, StateSpec
from kvlayout.offline.model import AttentionLayer, LatentLayer, StateLayer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.cache.spec import Spec
    from kvlayout.offline.model import Layer, Model

__all__ = ["Fact", "of_layers", "of_specs", "sharing"]

Fact: TypeAlias = tuple[object, ...]


def of_layers(model: Model, tp: int = 1) -> dict[str, Fact]:
    """Return what each layer that has a cache of its own keeps on one rank, in the model's order."""
    return {layer.name: _of_layer(layer, tp) for layer in model.layers if not shares(layer)}


def sharing(model: Model) -> dict[str, str]:
    """Return whose cache each layer without one reads."""
    return {layer.name: target for layer in model.layers if (target := shares(layer))}


def shares(layer: Layer) -> str | None:
    return layer.shares if isinstance(layer, AttentionLayer) else None


def _of_layer(layer: Layer, tp: int) -> Fact:
    if isinstance(layer, AttentionLayer):
        kind = "sliding_window" if layer.window else "chunked_local_attention" if layer.chunk else "full_attention"
        heads = max(1, layer.heads // tp)
        return kind, heads, layer.head_size, layer.head_size_v, layer.window or layer.chunk
    if isinstance(layer, LatentLayer):
        return "mla_attention", layer.index_bytes or layer.rank + layer.rope
    if isinstance(layer, StateLayer):
        return "mamba", tuple(part.shape for part in layer.recurrence.parts(tp))
    return ("cross_attention",)


def of_specs(specs: Mapping[str, Spec]) -> dict[str, Fact]:
    """Return what each layer of an engine keeps."""
    return {name: _of_spec(spec) for name, spec in specs.items()}


def _of_spec(spec: Spec) -> Fact:
    if isinstance(spec, AttentionSpec):
        return spec.kind, spec.heads, spec.head_size, spec.head_size_v, spec.window_tokens
    if isinstance(spec, LatentSpec):
        return spec.kind, spec.head_size
    if isinstance(spec, StateSpec):
        return spec.kind, tuple(field.shape for field in spec.fields)
    return (spec.kind,)
