"""Small models, by hand: what the captured registrations were made of."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from kvlayout.offline.model import (
    AttentionLayer,
    GatedDelta,
    KimiDelta,
    LatentLayer,
    Mamba2,
    Model,
    ShortConv,
    StateLayer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvlayout.offline.model import Layer, Recurrence

__all__ = ["MODELS", "attention", "model", "states"]


def attention(
    index: int,
    name: str = "model.layers.{}.self_attn.attn",
    *,
    heads: int = 2,
    size: int = 64,
    window: int | None = None,
    chunk: int | None = None,
    query_heads: int = 4,
) -> AttentionLayer:
    return AttentionLayer(name.format(index), query_heads, heads, size, size, window, chunk)


def states(index: int, kind: str, recurrence: Recurrence, name: str) -> StateLayer:
    return StateLayer(name.format(index), kind, recurrence)


def model(
    layers: Iterable[Layer], *, ssm: str | None = None, chunk: int | None = None, depth: int | None = None
) -> Model:
    return Model("Tiny", "tiny", "bfloat16", tuple(layers), 8192, ssm, depth=depth, state_chunk=chunk)


def _gated(count: int, delta: GatedDelta, *, heads: int, size: int, query_heads: int = 4) -> Iterable[Layer]:
    for index in range(count):
        if index % 4 == 3:
            yield attention(index, heads=heads, size=size, query_heads=query_heads)
        else:
            yield states(index, "GDN_ATTN", delta, "model.layers.{}.linear_attn")


def _mixed(pattern: str, mixer: str, attend: str, recurrence: Recurrence, kind: str, *, size: int) -> Iterable[Layer]:
    for index, letter in enumerate(pattern):
        if letter == "M":
            yield states(index, kind, recurrence, mixer)
        elif letter == "*":
            yield attention(index, attend, size=size)


_TINY = GatedDelta(2, 4, 64, 64, 4)
_MAMBA2 = Mamba2(256, 1, 4, 64, 64, 4)
_KIMI = KimiDelta(4, 128, 4)

MODELS: dict[str, Model] = {
    "llama": model(map(attention, range(4)), depth=4),
    "llama4": model(attention(i, chunk=None if i == 3 else 256) for i in range(4)),
    "gemma3": model(attention(i, window=None if i == 5 else 256) for i in range(6)),
    "gemma4": model(attention(i, size=128) if i == 5 else attention(i, window=256) for i in range(6)),
    "gptoss": model(attention(i, "model.layers.{}.attn.attn", window=128 if i % 2 == 0 else None) for i in range(4)),
    "deepseekv2": model(LatentLayer(f"model.layers.{i}.self_attn.attn", 512, 64) for i in range(3)),
    "qwen35": model(_gated(8, _TINY, heads=2, size=64)),
    "qwen3next": model(_gated(8, _TINY, heads=2, size=64)),
    "qwen35-08b-geom": model(_gated(24, GatedDelta(16, 16, 128, 128, 4), heads=2, size=256, query_heads=8)),
    "falconh1": model(
        chain(
            (attention(i, "model.layers.{}.attn") for i in range(4)),
            (states(i, "MAMBA2", _MAMBA2, "model.{}.mixer") for i in range(4, 8)),
        ),
        chunk=128,
    ),
    "nemotronh": model(
        _mixed("M*-M*-", "model.layers.{}.mixer", "model.layers.{}.mixer.attn", _MAMBA2, "MAMBA2", size=64),
        ssm="float32",
        chunk=128,
    ),
    "lfm2": model(
        _mixed(
            "M*M*",
            "model.layers.{}.short_conv",
            "model.layers.{}.self_attn.attn",
            ShortConv(128, 3),
            "SHORT_CONV",
            size=32,
        )
    ),
    "kimilinear": model(
        LatentLayer(f"model.layers.{i}.self_attn", 512, 64)
        if i == 3
        else states(i, "GDN_ATTN", _KIMI, "model.layers.{}.self_attn")
        for i in range(4)
    ),
}
