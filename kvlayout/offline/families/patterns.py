"""Which layer is of which kind: lists that name each, and the rules by which configs without a list mean one.

>>> every(4, 6, FULL, SLIDING)[2:4]
('sliding_attention', 'full_attention')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from kvlayout.cache.strict_json import show
from kvlayout.offline.config import Config

__all__ = [
    "FULL",
    "LINEAR",
    "SLIDING",
    "Pattern",
    "beyond",
    "every",
    "layer_types",
    "leading",
    "listed",
    "one_kind",
    "unsaid",
    "without_rope",
]

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
LINEAR: Final = "linear_attention"

#: What older configs call the same kinds.
_OLD: Final = {"mamba": LINEAR, "attention": FULL}

#: From a config without a list, and a number of layers, to their kinds, or ``None`` where it has no kinds.
Pattern: TypeAlias = Callable[[Config, int], tuple[str, ...] | None]


def every(interval: int, count: int, last: str, other: str) -> tuple[str, ...]:
    """Return ``other``, and ``last`` for every ``interval``-th layer."""
    return tuple(other if (i + 1) % interval else last for i in range(count))


def unsaid(_: Config, __: int) -> None:
    """Return that such a config has no kinds of layers: a window, where it has one, is that of all layers."""
    return


def one_kind(config: Config, count: int) -> tuple[str, ...]:
    """Return windows for all where there is a window."""
    return (SLIDING if config.has("sliding_window") else FULL,) * count


def beyond(config: Config, count: int) -> tuple[str, ...]:
    """Return windows from layer ``max_window_layers`` on, where there is a window that is in use."""
    used = config.flag("use_sliding_window", default=True) and config.has("sliding_window")
    first = config.whole("max_window_layers", least=0) if used else count
    return tuple(SLIDING if i >= first else FULL for i in range(count))


def without_rope(config: Config, count: int) -> tuple[str, ...]:
    """Return windows for the layers that ``no_rope_layers`` marks with 0, where windows are in use."""
    marks = config.wholes("no_rope_layers") or tuple(
        int((i + 1) % config.whole("no_rope_layer_interval", default=4) != 0) for i in range(count)
    )
    used = config.flag("use_sliding_window") and config.has("sliding_window")
    if len(marks) < count:
        config.fault("no_rope_layers", f"a mark for each of {count} layers")
        return (FULL,) * count
    return tuple(SLIDING if used and not mark else FULL for mark in marks[:count])


def listed(known: Sequence[str], interval: int, key: str = "sliding_window_pattern") -> Pattern:
    """Return the pattern of ``known[1]`` for every n-th layer and ``known[0]`` else; ``key`` may give another n."""

    def pattern(config: Config, count: int) -> tuple[str, ...]:
        return every(config.whole(key, default=interval) if key else interval, count, known[1], known[0])

    return pattern


def leading(interval: int) -> Pattern:
    """Return the pattern of full attention in the first of every n layers, and windows in the others."""

    def pattern(_: Config, count: int) -> tuple[str, ...]:
        return tuple(SLIDING if i % interval else FULL for i in range(count))

    return pattern


def layer_types(config: Config, count: int, known: Sequence[str], key: str = "layer_types") -> tuple[str, ...] | None:
    """Return the kind of each layer as the config lists it, or ``None`` where it does not.

    A list that is too short, or a kind that is not ``known``, is a fault and reads as a list of the first known kind.
    """
    named = config.texts(key)
    if named is None:
        return None
    kinds = tuple(_OLD.get(kind, kind) for kind in named[:count])
    if len(kinds) < count:
        config.faults.note(config.at(key), f"a kind for each of {count} layers", f"a list of {len(kinds)}")
        return (known[0],) * count
    strange = next((i for i, kind in enumerate(kinds) if kind not in known), None)
    if strange is not None:
        config.faults.note(f"{config.at(key)}[{strange}]", f"one of {', '.join(known)}", show(named[strange]))
        return (known[0],) * count
    return kinds
