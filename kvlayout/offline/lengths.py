"""How long a request may be, as a config says and the engine takes it.

>>> from kvlayout.offline.config import Config, Faults
>>> scaled = {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}
>>> longest_request(Config(scaled, Faults()))
16384
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

from kvlayout.offline.config import MAX_LENGTH, Config

__all__ = ["longest_request"]

#: The fields that say how long a request may be; the least of them holds.
_LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)

#: Kinds of scaled positions whose length is that of the config already.
_SCALED: Final = frozenset(("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"))


def longest_request(config: Config, *, scale: bool = True) -> int | None:
    """Return the tokens of the longest request, ``None`` where the config does not say.

    Args:
        config: the config.
        scale: the length is to be multiplied where positions are scaled by a factor.
    """
    lengths = [config.length(key) for key in _LENGTHS]
    longest = config.length("model_max_length") or min((length for length in lengths if length), default=None)
    if longest is None:
        return None
    factor: float = 1
    for rope in _ropes(config):
        kind = rope.text("rope_type") or rope.text("type", "default")
        if kind == "longrope" and config.has("original_max_position_embeddings"):
            return config.length("original_max_position_embeddings")
        if kind not in _SCALED:
            factor = _factor(rope, factor, longest)
    return int(min(longest * factor, MAX_LENGTH)) if scale else longest


def _ropes(config: Config) -> Iterator[Config]:
    """Yield the descriptions of positions: one, or one for each kind of layer. The older name goes before the newer."""
    key = next((key for key in ("rope_scaling", "rope_parameters") if config.get(key)), None)
    rope = None if key is None else config.child(key)
    if rope is None:
        return
    inner = [rope.child(key) for key, value in rope.fields.items() if isinstance(value, Mapping)]
    yield from [one for one in inner if one is not None] or [rope]


def _factor(rope: Config, default: float, longest: int) -> float:
    """Return by what a length is multiplied; a fault reads as the default."""
    value = rope.get("factor")
    if value is None:
        return default
    if type(value) in (int, float) and isinstance(value, (int, float)) and 1 <= value * longest < inf:
        return value
    rope.fault("factor", "a number by which the longest request is multiplied, and stays one")
    return default
