"""How many tokens one hash of prefix caching stands for, beside a store.

>>> full = LayerSpec("full", 16, 8, 512)
>>> window = full._replace(kind="sliding", block=64)
>>> hash_block([Bunch(("a",), full, {}), Bunch(("b",), window, {})], (16, 64), by_mode=True)
16
"""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING

from kvlayout.offline.policy.values import Bunch, LayerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["hash_block", "spans"]


def spans(bunches: Sequence[Bunch], dcp: int) -> tuple[int, ...]:
    """Return the tokens that one block id of each group stands for, over all context-parallel ranks."""
    return tuple(bunch.spec.block * (dcp if bunch.spec.sharded else 1) for bunch in bunches)


def hash_block(bunches: Sequence[Bunch], tokens: Sequence[int], *, by_mode: bool) -> int:
    """Return the tokens of a hash: what divides the blocks of all groups, unless a state is kept elsewhere.

    Args:
        bunches: the groups.
        tokens: what a block id of each stands for.
        by_mode: the engine asks for the cache mode, and not whether blocks of states and attention agree.
    """
    if len(tokens) == 1:
        return tokens[0]
    least = min(bunch.spec.block for bunch in bunches)
    if any(_apart(bunch.spec, least, by_mode=by_mode) for bunch in bunches):
        return lcm(*tokens)
    return gcd(*tokens)


def _apart(spec: LayerSpec, block: int, *, by_mode: bool) -> bool:
    return spec.kind == "state" and (spec.cache_mode != "align" if by_mode else spec.block != block)
