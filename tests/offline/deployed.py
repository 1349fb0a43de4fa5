"""Small models for the tests of what follows from a deployment, and the answer for one of them."""

from __future__ import annotations

from typing import Any

from kvlayout.offline.answering import Answer, answer
from kvlayout.offline.deployment import Deployment, KernelSize
from kvlayout.offline.model import AttentionLayer, CrossLayer, GatedDelta, LatentLayer, Layer, Model, StateLayer

KERNELS = (KernelSize(32), KernelSize(64))


def hybrid(heads: int = 2, state_heads: int = 16, layers: int = 8) -> Model:
    """Return gated delta nets and attention, three to one: the geometry of Qwen3.5-0.8B."""
    delta = GatedDelta(state_heads, state_heads, 128, 128, 4)
    made: list[Layer] = [
        AttentionLayer(f"model.layers.{i}.self_attn.attn", 8, heads, 256, 256)
        if i % 4 == 3
        else StateLayer(f"model.layers.{i}.linear_attn", "GDN_ATTN", delta)
        for i in range(layers)
    ]
    return Model("Hybrid", "gated delta", "bfloat16", tuple(made), 262144, "float32")


def dense(heads: int = 8, layers: int = 4) -> Model:
    names = [f"model.layers.{i}.self_attn.attn" for i in range(layers)]
    made = tuple(AttentionLayer(name, 32, heads, 128, 128) for name in names)
    return Model("Dense", "full attention", "bfloat16", made, 8192)


def windowed(window: int = 1000) -> Model:
    """Return five sliding layers for each full one."""
    made = tuple(
        AttentionLayer(f"model.layers.{i}.self_attn.attn", 8, 4, 128, 128, None if i % 6 == 5 else window)
        for i in range(12)
    )
    return Model("Windowed", "sliding window", "bfloat16", made, 32768)


def latent() -> Model:
    made = tuple(LatentLayer(f"model.layers.{i}.self_attn.attn", 512, 64) for i in range(4))
    return Model("Latent", "latent attention", "bfloat16", made, 163840)


def crossed() -> Model:
    own = AttentionLayer("model.decoder.layers.0.self_attn.attn", 8, 8, 64, 64)
    return Model(
        "Crossed", "cross", "bfloat16", (own, CrossLayer("model.decoder.layers.0.encoder_attn.attn", 8, 64)), 448
    )


def answered(model: Model, **fields: Any) -> Answer:
    return answer(model, Deployment(**fields)).unwrap()
