"""The layers of a model by kind.

>>> from kvlayout.offline.model import Model
>>> latent = LatentLayer("model.layers.0.self_attn.attn", 512, 64)
>>> indexer = LatentLayer("model.layers.0.self_attn.indexer.k_cache", 0, 0, index_bytes=132)
>>> Kinds.of(Model("", "", "bfloat16", (latent, indexer))).leaders
frozenset({'model.layers.0.self_attn.attn'})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvlayout.offline.model import AttentionLayer, LatentLayer, StateLayer

if TYPE_CHECKING:
    from kvlayout.offline.model import Layer, Model

__all__ = ["Kinds", "is_indexer"]


def is_indexer(layer: Layer) -> bool:
    """Return whether a layer is the cache of an indexer."""
    return isinstance(layer, LatentLayer) and layer.index_bytes is not None


class Kinds(NamedTuple):
    """The layers of a model by kind.

    Attributes:
        attending: those with a cache of their own that grows with tokens.
        latent: latent ones among them, indexers too.
        states: those that keep states.
        aliases: layers that read another one's cache -> that one.
        local: layers whose attention is local in chunks.
        parallel: every decoder layer that keeps a state attends as well.
    """

    attending: tuple[Layer, ...]
    latent: tuple[LatentLayer, ...]
    states: tuple[StateLayer, ...]
    aliases: dict[str, str]
    local: frozenset[str]
    parallel: bool

    @staticmethod
    def of(model: Model) -> Kinds:
        """Return the kinds of a model's layers."""
        attending: list[Layer] = []
        latent: list[LatentLayer] = []
        states: list[StateLayer] = []
        aliases: dict[str, str] = {}
        local: list[str] = []
        for layer in model.layers:
            if isinstance(layer, StateLayer):
                states.append(layer)
                continue
            if isinstance(layer, AttentionLayer):
                if layer.shares is not None:
                    aliases[layer.name] = layer.shares
                    continue
                if layer.chunk is not None:
                    local.append(layer.name)
            elif isinstance(layer, LatentLayer):
                latent.append(layer)
            attending.append(layer)
        beside = {place for place, layer in zip(model.positions, model.layers, strict=False) if layer in attending}
        recurrent = {place for place, layer in zip(model.positions, model.layers, strict=False) if layer in states}
        parallel = bool(recurrent) and recurrent <= beside
        return Kinds(tuple(attending), tuple(latent), tuple(states), aliases, frozenset(local), parallel)

    @property
    def sparse(self) -> bool:
        """Whether latent attention reads only the rows that an indexer chose."""
        return any(layer.index_bytes is not None for layer in self.latent)

    @property
    def leaders(self) -> frozenset[str]:
        """Latent layers that have an indexer of their own, by the part of the name that they share with it."""
        homes = {layer.name.rpartition(".indexer.")[0] for layer in self.latent if layer.index_bytes is not None}
        return frozenset(layer.name for layer in self.latent if layer.name.rpartition(".")[0] in homes)
