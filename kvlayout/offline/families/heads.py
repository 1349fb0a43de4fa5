"""Heads of attention, as nearly every config spells them.

>>> from kvlayout.offline.config import Config, Faults
>>> heads(Config({"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8}, Faults()))
Heads(query=16, kv=8, size=64)
"""

from __future__ import annotations

from typing import NamedTuple

from kvlayout.offline.config import Config
from kvlayout.offline.model import AttentionLayer

__all__ = ["Heads", "heads", "share"]


class Heads(NamedTuple):
    """Query heads, key and value heads, and elements of one."""

    query: int
    kv: int
    size: int

    def layer(
        self, name: str, window: int | None = None, chunk: int | None = None, shares: str | None = None
    ) -> AttentionLayer:
        """Return a layer of these heads."""
        return AttentionLayer(name, self.query, self.kv, self.size, self.size, window, chunk, shares)


def heads(config: Config, *, own_size: bool = True) -> Heads:
    """Return the heads of a config: as many key as query heads, and equal shares of the width, where it does not say.

    Args:
        config: the config.
        own_size: ``head_dim`` holds where it is given; otherwise the engine divides the width whatever it says.
    """
    query = config.whole("num_attention_heads")
    kv = config.whole("num_key_value_heads", default=query)
    if query % kv and config.sound("num_attention_heads", "num_key_value_heads"):
        config.fault("num_key_value_heads", f"a divisor of num_attention_heads ({query})")
    if own_size and config.has("head_dim"):
        config.maybe("hidden_size")
        return Heads(query, kv, config.whole("head_dim"))
    return Heads(query, kv, share(config, "hidden_size", query, "num_attention_heads"))


def share(config: Config, key: str, parts: int, parts_key: str) -> int:
    """Return an equal share of a width."""
    width = config.whole(key)
    if width % parts and config.sound(key, parts_key):
        config.faults.note(config.at(key), f"a multiple of {parts_key} ({parts})", str(width))
    return max(width // parts, 1)
