"""Full attention with grouped heads: every layer keeps the keys and values of every token."""

from __future__ import annotations

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import heads
from kvlayout.offline.model import Layer

__all__ = ["dense"]


def dense(config: Config, prefix: str) -> tuple[Layer, ...]:
    """Return one layer of full attention for each of ``num_hidden_layers``."""
    each = heads(config)
    return tuple(each.layer(f"{prefix}.{i}.self_attn.attn") for i in range(config.layers()))
