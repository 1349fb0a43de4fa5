"""The block that attention and recurrent states share: so long that a page of keys holds a whole state.

>>> hybrid(32, 2048, 1085440, [(KernelSize(32),)])
SharedBlock(tokens=544, page=1114112)
"""

from __future__ import annotations

from math import ceil, lcm
from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.policy.kernels import Sizes, smallest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LATENT_TOKENS", "KernelSize", "SharedBlock", "hybrid"]

#: Latent kernels count kernel blocks in multiples of this many tokens.
LATENT_TOKENS: Final = 128


class SharedBlock(NamedTuple):
    """Tokens a block of attention, and the bytes of the page that states are padded to."""

    tokens: int
    page: int


def hybrid(block: int, token_bytes: int, state_bytes: int, backends: Sequence[Sizes], least: int = 1) -> SharedBlock:
    """Return the block of a hybrid model.

    Args:
        block: tokens a block so far: the default, or what the user asked for.
        token_bytes: bytes of one token of one attention layer.
        state_bytes: bytes of the states of one recurrent layer.
        backends: kernel blocks of the attention backends, that of the first layer first.
        least: tokens that the block is a multiple of beside them.
    """
    unit = max(smallest(backends[0]), block, least)
    tokens = unit * ceil(state_bytes / (unit * token_bytes))
    every = lcm(*map(smallest, backends))
    tokens = max(block, -(-tokens // every) * every)
    return SharedBlock(tokens, tokens * token_bytes)
