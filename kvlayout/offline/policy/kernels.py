"""Kernel block sizes: what an attention backend takes, and what the engine makes of it.

>>> smallest((KernelSize(32), KernelSize(64))), takes((KernelSize(16, multiple=True),), 544)
(32, True)
>>> common(544, [(KernelSize(32),)]), common(96, [(KernelSize(32), KernelSize(48))])
(32, 48)
"""

from __future__ import annotations

from itertools import product
from math import lcm
from typing import TYPE_CHECKING, TypeAlias

from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.policy.values import refused

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Sizes", "common", "holds", "largest_within", "preferred", "smallest", "takes", "written"]

#: What one backend takes: exact sizes and multiples, in its own order.
Sizes: TypeAlias = tuple[KernelSize, ...]


def written(sizes: Sizes) -> str:
    """Return sizes as the command line takes them.

    >>> written((KernelSize(32), KernelSize(64, multiple=True)))
    '32,multiple:64'
    """
    return ",".join(f"multiple:{size.tokens}" if size.multiple else str(size.tokens) for size in sizes)


def smallest(sizes: Sizes) -> int:
    """Return the smallest kernel block of a backend, in tokens."""
    return min(size.tokens for size in sizes)


def takes(sizes: Sizes, block: int) -> bool:
    """Return whether a backend runs blocks of exactly this many tokens."""
    return any(block % size.tokens == 0 if size.multiple else block == size.tokens for size in sizes)


def holds(sizes: Sizes, block: int) -> bool:
    """Return whether a block is made of whole kernel blocks, which is all that the engine asks of one by itself.

    >>> holds((KernelSize(32),), 96), holds((KernelSize(16, multiple=True),), 24)
    (True, False)
    """
    return any(block % size.tokens == 0 for size in sizes)


def preferred(backends: Sequence[Sizes], default: int) -> int:
    """Return the smallest block that every backend accepts: the default where they all do.

    Raises:
        RefusedError: they share none.
    """
    if all(holds(sizes, default) for sizes in backends):
        return default
    if len(backends) == 1:
        return smallest(backends[0])
    candidates = {lcm(*sizes) for sizes in product(*([size.tokens for size in sizes] for sizes in backends))}
    for block in sorted(candidates):
        if all(holds(sizes, block) for sizes in backends):
            return block
    raise refused(
        "kernel_block_sizes", "a block size that all attention backends accept", "; ".join(map(written, backends))
    )


def common(block: int, backends: Sequence[Sizes]) -> int:
    """Return the kernel block of a group: its whole block, or the largest exact size that divides it.

    Raises:
        RefusedError: no size serves every backend.
    """
    if all(takes(sizes, block) for sizes in backends):
        return block
    exact = {size.tokens for sizes in backends for size in sizes if not size.multiple and block % size.tokens == 0}
    for tokens in sorted(exact, reverse=True):
        if all(takes(sizes, tokens) for sizes in backends):
            return tokens
    sizes = "; ".join(map(written, backends))
    fix = f"set --block-size to a multiple of {lcm(*map(smallest, backends))}"
    raise refused("block_size", f"a block of whole kernel blocks ({sizes})", f"{block} tokens", fix)


def largest_within(sizes: Sizes, token_bytes: int, budget: int) -> int:
    """Return the largest kernel block whose page fits into a budget of bytes; the smallest one where none fits."""
    most = budget // token_bytes
    blocks = [max(s.tokens, most // s.tokens * s.tokens) if s.multiple else s.tokens for s in sizes]
    fitting = [block for block in blocks if block <= most]
    return max(fitting) if fitting else min(blocks)
