"""Chunked local attention, with layers of full attention that have no positions between (Llama 4)."""

from __future__ import annotations

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import heads
from kvlayout.offline.families.layers import Layers

__all__ = ["chunked"]


def chunked(config: Config, prefix: str) -> Layers:
    """Return local layers, and full attention where ``no_rope_layers`` has a 0 or there is no chunk.

    The marks decide, and not ``layer_types``: so does the engine.
    """
    count, each = config.layers(), heads(config)
    interval = config.whole("no_rope_layer_interval", default=4)
    marks = config.wholes("no_rope_layers") or tuple(int((i + 1) % interval != 0) for i in range(count))
    if len(marks) < count:
        config.fault("no_rope_layers", f"a mark for each of {count} layers")
        marks = (1,) * count
    chunk = config.length("attention_chunk_size", least=0) or None
    return Layers(
        tuple(each.layer(f"{prefix}.{i}.self_attn.attn", chunk=chunk if marks[i] else None) for i in range(count)),
        count,
    )
