"""Which layer is of which kind: lists that name each, and rules that give every n-th.

>>> every(4, 6, "full", "local")
('local', 'local', 'local', 'full', 'local', 'local')
"""

from __future__ import annotations

from kvlayout.offline.config import Config

__all__ = ["every", "layer_types"]


def every(interval: int, count: int, last: str, other: str) -> tuple[str, ...]:
    """Return ``other``, and ``last`` for every ``interval``-th layer."""
    return tuple(other if (i + 1) % interval else last for i in range(count))


def layer_types(config: Config, count: int, known: tuple[str, ...], key: str = "layer_types") -> tuple[str, ...] | None:
    """Return the kind of each layer as the config lists it, or ``None`` where it does not.

    A list of another length, or a kind that is not ``known``, is a fault and reads as a list of the first known kind.
    """
    listed = config.texts(key)
    if listed is None:
        return None
    if len(listed) < count:
        config.faults.note(config.at(key), f"a kind for each of {count} layers", f"a list of {len(listed)}")
        return (known[0],) * count
    strange = next((i for i, kind in enumerate(listed[:count]) if kind not in known), None)
    if strange is not None:
        place = f"{config.at(key)}[{strange}]"
        config.faults.note(place, f"one of {', '.join(known)}", listed[strange])
        return (known[0],) * count
    return listed[:count]
