"""Attention with grouped heads, whose layers look back at everything or at a window.

>>> from kvlayout.offline.config import Config, Faults
>>> config = Config({"num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 64, "sliding_window": 512}, Faults())
>>> [layer.window for layer in attention(config, "model.layers").layers]
[512, 512]
"""

from __future__ import annotations

from typing import Final

from kvlayout.offline.config import Config
from kvlayout.offline.families.heads import heads
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.patterns import FULL, SLIDING, Pattern, layer_types, unsaid

__all__ = ["attention", "windows"]

_KINDS: Final = (FULL, SLIDING)


def attention(  # noqa: PLR0913 - in what models of one kind differ, by name
    config: Config,
    prefix: str,
    *,
    pattern: Pattern = unsaid,
    mixed: bool = True,
    beyond_window: int = 0,
    own_size: bool = True,
    both_ways: object = None,
    module: str = "self_attn.attn",
) -> Layers:
    """Return a layer of attention for each of ``num_hidden_layers``.

    Args:
        config: the config.
        prefix: what the engine puts before a layer's number.
        pattern: which layers have windows, where ``layer_types`` does not say.
        mixed: the engine can give windows to some layers only.
        beyond_window: tokens that the engine adds to a window.
        own_size: ``head_dim`` holds where it is given.
        both_ways: the ``use_bidirectional_attention`` with which a window counts tokens on both sides.
        module: what the engine puts after a layer's number.
    """
    count, each = config.layers(), heads(config, own_size=own_size)
    kinds = layer_types(config, count, _KINDS) or pattern(config, count)
    spans = windows(config, kinds, count, mixed=mixed, beyond_window=beyond_window, both_ways=both_ways)
    return Layers(tuple(each.layer(f"{prefix}.{i}.{module}", span) for i, span in enumerate(spans)), count)


def windows(  # noqa: PLR0913 - as above
    config: Config,
    kinds: tuple[str, ...] | None,
    count: int,
    *,
    mixed: bool = True,
    beyond_window: int = 0,
    both_ways: object = None,
) -> tuple[int | None, ...]:
    """Return the window of each layer: of all where none has a kind, else of those that slide."""
    size = config.length("sliding_window", least=0) or None if window_in_use(config) else None
    if kinds is None:
        return (size,) * count
    if not mixed and len(set(kinds)) > 1:
        config.fault("max_window_layers", f"0 or {count}: the engine has no windows in some layers only")
    if size is None:
        return (None,) * count
    if both_ways is not None and config.get("use_bidirectional_attention") == both_ways:
        size = size // 2 + 1
    return tuple(size + beyond_window if kind == SLIDING else None for kind in kinds)


def window_in_use(config: Config) -> bool:
    """Tell whether a window counts: some configs carry one and switch it off."""
    return config.flag("use_sliding_window", default=True)
