"""Heads of attention, as nearly every config spells them.

>>> from kvlayout.offline.config import Config, Faults
>>> heads(Config({"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8}, Faults()))
Heads(query=16, kv=8, size=64)
"""

from __future__ import annotations

from typing import NamedTuple

from kvlayout.offline.config import Config
from kvlayout.offline.model import AttentionLayer

__all__ = ["Heads", "heads"]


class Heads(NamedTuple):
    """Query heads, key and value heads, and elements of one."""

    query: int
    kv: int
    size: int

    def layer(self, name: str, window: int | None = None, chunk: int | None = None) -> AttentionLayer:
        """Return a layer of these heads."""
        return AttentionLayer(name, self.query, self.kv, self.size, self.size, window, chunk)


def heads(config: Config, query_key: str = "num_attention_heads", kv_key: str = "num_key_value_heads") -> Heads:
    """Return the heads of a config: as many key as query heads and equal shares of the width, where it does not say."""
    query = config.whole(query_key)
    kv = config.whole(kv_key, default=query)
    if query % kv:
        config.fault(kv_key, f"a divisor of {query_key} ({query})")
    return Heads(query, kv, head_size(config, query, query_key))


def head_size(config: Config, query: int, query_key: str = "num_attention_heads") -> int:
    """Return ``head_dim``, or an equal share of ``hidden_size``."""
    if config.has("head_dim"):
        return config.whole("head_dim")
    hidden = config.whole("hidden_size")
    if hidden % query:
        config.fault(query_key, f"a divisor of hidden_size ({hidden}), or head_dim")
    return max(hidden // query, 1)
