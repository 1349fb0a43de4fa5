"""State spaces and attention in one layer: side by side in each (Falcon-H1), or shared blocks in some (Zamba2)."""

from __future__ import annotations

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import Heads, heads
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.mamba2 import MAMBA2, named_space
from kvlayout.offline.families.patterns import LINEAR, layer_types
from kvlayout.offline.model import Layer, Mamba2, StateLayer

__all__ = ["falcon", "zamba"]

_HYBRID = "hybrid"


def falcon(config: Config, prefix: str) -> Layers:
    """Return attention and a state space for each layer; the engine counts the state spaces after all layers."""
    count, full = config.layers(), heads(config)
    space = named_space(config, config.maybe("mamba_d_ssm"))
    root = prefix.partition(".")[0]
    made: list[Layer] = []
    for i in range(count):
        made.append(full.layer(f"{prefix}.{i}.attn"))
        made.append(StateLayer(f"{root}.{count + i}.mixer", MAMBA2, space))
    return Layers(tuple(made), count, tuple(i for i in range(count) for _ in range(2)))


def zamba(config: Config, prefix: str) -> Layers:
    """Return attention for each hybrid layer, block by block of those that share weights, then all state spaces.

    Blocks of attention take twice the model's width. The engine counts state spaces on from the hybrid layers.
    """
    count = config.layers()
    kinds = layer_types(config, count, (LINEAR, _HYBRID), "layers_block_type") or _usual(config, count)
    hybrids = [i for i, kind in enumerate(kinds) if kind == _HYBRID]
    if config.has("hybrid_layer_ids") and list(config.wholes("hybrid_layer_ids") or ()) != hybrids:
        config.fault("hybrid_layer_ids", f"the layers that layers_block_type calls {_HYBRID}")
    full, space = _wide_heads(config), _space(config)
    blocks = config.whole("num_mem_blocks", default=1)
    root = prefix.rpartition(".")[0]
    made: list[Layer] = []
    positions: list[int] = []
    for block in range(min(blocks, len(hybrids) or 1)):
        first = block * (len(hybrids) + blocks - 1) // blocks
        for j, place in enumerate(hybrids[block::blocks]):
            made.append(full.layer(f"{root}.attn.{first + j}"))
            positions.append(place)
    made += [StateLayer(f"{len(hybrids) + i}.mixer", MAMBA2, space) for i in range(count)]
    return Layers(tuple(made), count, (*positions, *range(count)))


def _wide_heads(config: Config) -> Heads:
    query = config.whole("num_attention_heads")
    width = config.maybe("attention_hidden_size") or 2 * config.whole("hidden_size")
    size = config.maybe("attention_head_dim") or max(width // query, 1)
    if size * query != width:
        config.fault("num_attention_heads", f"heads of {size} that make up a width of {width}")
    return Heads(query, query, size)


def _space(config: Config) -> Mamba2:
    channels, count = config.whole("mamba_expand") * config.whole("hidden_size"), config.whole("n_mamba_heads")
    if channels % count:
        config.fault("n_mamba_heads", f"a divisor of the {channels} channels")
    return Mamba2(
        channels,
        config.whole("mamba_ngroups"),
        count,
        max(channels // count, 1),
        config.whole("mamba_d_state"),
        config.whole("mamba_d_conv", least=2),
    )


def _usual(config: Config, count: int) -> tuple[str, ...]:
    usual = (LINEAR, *((*(LINEAR,) * 5, _HYBRID) * 7), *(LINEAR,) * 4, _HYBRID, *(LINEAR,) * 3, _HYBRID, LINEAR, LINEAR)
    if count != len(usual):
        config.fault("layers_block_type", f"a kind for each of {count} layers")
        return (LINEAR,) * count
    return usual
