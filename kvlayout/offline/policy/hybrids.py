"""The block that attention and recurrent states share: so long that a page of keys holds a whole state.

>>> hybrid(32, 2048, 1085440, (KernelSize(32),))
SharedBlock(tokens=544, state_tokens=544, page=1114112)
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.policy.kernels import Sizes, smallest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KernelSize", "SharedBlock", "hybrid"]


class SharedBlock(NamedTuple):
    """Tokens a block of attention and of states, and the bytes of the page that states are padded to."""

    tokens: int
    state_tokens: int
    page: int


def hybrid(  # noqa: PLR0913 - all that the block depends on
    block: int,
    token_bytes: int,
    state_bytes: int,
    first: Sizes,
    *,
    every: Sequence[Sizes] = (),
    least: int = 1,
    chunk: int | None = None,
) -> SharedBlock:
    """Return the block of a hybrid model.

    Args:
        block: tokens a block so far: the default, or what the user asked for.
        token_bytes: bytes of one token of one attention layer.
        state_bytes: bytes of the states of one recurrent layer.
        first: kernel blocks of the first attention layer's backend.
        every: kernel blocks of all backends, where the engine rounds to them.
        least: tokens that the unit of rounding is at least.
        chunk: tokens that a recurrent kernel takes at once, where it keeps the state of every block.
    """
    unit = max(smallest(first), block, least)
    if chunk is None:
        tokens = unit * -(-state_bytes // (unit * token_bytes))
    else:
        unit = lcm(chunk, unit)
        tokens = unit * -(-state_bytes // (unit * token_bytes))
    whole = lcm(*map(smallest, every))
    tokens = -(-tokens // whole) * whole
    longest = max(block, tokens)
    return SharedBlock(longest, longest if chunk is None else tokens, longest * token_bytes)
