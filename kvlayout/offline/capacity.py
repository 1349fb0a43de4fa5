"""How many tokens and requests fit: what a request holds of each group, counted in blocks of one shared pool.

A block id costs the same whoever takes it: the bytes of all pages that it addresses on one rank. A request takes ids
for each group by the group's own rule, and the sum over groups is what it holds:

>>> full, window = Growth(block_tokens=16), Growth(block_tokens=16, reach=1023 + 8192, fixed=1)
>>> [full.blocks(tokens) + window.blocks(tokens) for tokens in (1024, 8192, 65536)]
[129, 1025, 4673]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.cache.spec import AttentionSpec, EncoderOnlySpec, LatentSpec, RingSpec, StateSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvlayout.cache.registration import Group
    from kvlayout.cache.spec import Spec
    from kvlayout.offline.deployment import Deployment

__all__ = ["Capacity", "Fit", "Growth", "batched", "capacity", "group_growth", "growth", "in_flight"]

#: Lengths of the table: from the least on, each so many times the one before.
_LEAST: Final = 1024
_STEP: Final = 4

_ENDLESS: Final = 2**50
_OVERLAPS: Final = (0, 29)


class Growth(NamedTuple):
    """How the blocks that a request holds grow with its tokens.

    Attributes:
        block_tokens: tokens a block, over all ranks that share it; ``None`` where blocks don't grow with tokens.
        reach: tokens beyond which no more is held; ``None`` where all are.
        fixed: blocks that are held however short the request is.
    """

    block_tokens: int | None = None
    reach: int | None = None
    fixed: int = 0

    def blocks(self, tokens: int) -> int:
        """Return the blocks of a request of so many tokens."""
        if self.block_tokens is None:
            return self.fixed
        held = tokens if self.reach is None else min(tokens, self.reach)
        return self.fixed + -(-held // self.block_tokens)

    @property
    def endless(self) -> bool:
        """Whether every token adds, however many there are."""
        return self.block_tokens is not None and self.reach is None


class Fit(NamedTuple):
    """Requests of one length.

    Attributes:
        tokens: the length of each.
        blocks: blocks that one holds.
        bytes: their bytes on one rank.
        requests: how many fit together, as the engine counts it; ``None`` where the memory is not known.
        tokens_in_all: tokens of all of them.
    """

    tokens: int
    blocks: int
    bytes: int
    requests: float | None
    tokens_in_all: int | None


class Capacity(NamedTuple):
    """What fits on one rank.

    Attributes:
        block_bytes: bytes of one block id, over all layers.
        num_blocks: blocks of the pool; ``None`` where the memory is not known.
        fixed_bytes: bytes that a request holds at most for windows and states, however long it is.
        token_bytes: bytes that each further token adds.
        growths: how each group grows.
        longest: tokens of the longest request that fits, at most those that are served; ``None`` without memory.
        fits: requests of some lengths, the last the longest that is served.
    """

    block_bytes: int
    num_blocks: int | None
    fixed_bytes: int
    token_bytes: float
    growths: tuple[Growth, ...]
    longest: int | None
    fits: tuple[Fit, ...]


def growth(spec: Spec, dcp: int, tokens_in_flight: int) -> Growth | None:
    """Return how a layer's blocks grow; ``None`` where tokens don't tell (cross attention, a spec nobody knows).

    Args:
        spec: the layer's spec.
        dcp: decode-context-parallel ranks.
        tokens_in_flight: tokens that are scheduled and not yet settled (:func:`in_flight`).

    In ``align`` mode a request holds the state that it reads and the one that it writes, in ``none`` one state, in
    ``all`` one for each block of tokens. A window holds what it looks back at and what is in flight, and a block more,
    since it need not start where a block does.
    """
    if isinstance(spec, StateSpec):
        return Growth(spec.block_size) if spec.cache_mode == "all" else Growth(fixed=1 + (spec.cache_mode == "align"))
    if isinstance(spec, RingSpec | EncoderOnlySpec):
        return Growth(fixed=int(isinstance(spec, RingSpec)))
    if not isinstance(spec, AttentionSpec | LatentSpec):
        return None
    if spec.window_tokens is not None and spec.kind.startswith("sliding_window"):
        return Growth(spec.block_size, spec.window_tokens - 1 + tokens_in_flight, 1)
    if spec.window_tokens is not None and spec.kind == "chunked_local_attention":
        return Growth(spec.block_size, spec.window_tokens + tokens_in_flight)
    return Growth(spec.block_size * (dcp if spec.dcp_sharded else 1))


def group_growth(group: Group, dcp: int, tokens_in_flight: int) -> Growth | None:
    """Return how a group grows: as the most demanding of its layers."""
    found = [growth(spec, dcp, tokens_in_flight) for spec in group.specs]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.blocks(_ENDLESS)) if known and len(known) == len(found) else None


def batched(deployment: Deployment) -> int:
    """Return the tokens of a scheduler step: as asked for, or what a server of the engine takes by default.

    >>> from kvlayout.offline.deployment import Deployment
    >>> batched(Deployment()), batched(Deployment(platform="cpu", tp=2)), batched(Deployment(max_batched_tokens=4096))
    (8192, 4096, 4096)
    """
    if deployment.max_batched_tokens is not None:
        return deployment.max_batched_tokens
    return 2048 * deployment.tp * deployment.pp if deployment.platform == "cpu" else 8192


def in_flight(deployment: Deployment) -> int:
    """Return the tokens that can be scheduled and not yet settled: one batch for each step that runs at once.

    From vLLM 0.29 on, the next step is scheduled while one runs, and with pipeline ranks while each of them does; on a
    CPU steps don't overlap, but for those of pipeline ranks.

    >>> from kvlayout.offline.deployment import Deployment
    >>> in_flight(Deployment(max_batched_tokens=8192)), in_flight(Deployment("vllm-0.25", max_batched_tokens=8192))
    (16384, 8192)
    """
    batch, pp = batched(deployment), deployment.pp
    if _version(deployment.engine) < _OVERLAPS:
        return batch
    return batch * (pp if deployment.platform == "cpu" else pp + 1)


def _version(engine: str) -> tuple[int, int]:
    major, _, minor = engine.rpartition("-")[2].partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else _OVERLAPS


def capacity(groups: Sequence[Group], deployment: Deployment, block_bytes: int) -> Capacity | None:
    """Return what fits; ``None`` where a group holds what tokens don't tell.

    Args:
        groups: groups of one rank.
        deployment: its memory and lengths, with the engine's defaults filled in.
        block_bytes: bytes of one block id on this rank.
    """
    found = [group_growth(group, deployment.dcp, in_flight(deployment)) for group in groups]
    growths = tuple(one for one in found if one is not None)
    if not growths or len(growths) < len(found):
        return None
    memory, served = deployment.cache_memory, deployment.max_model_len or _LEAST
    pool = None if memory is None else memory // block_bytes
    bounded = sum(one.blocks(_ENDLESS) for one in growths if not one.endless)
    return Capacity(
        block_bytes=block_bytes,
        num_blocks=pool,
        fixed_bytes=bounded * block_bytes,
        token_bytes=sum(block_bytes / (one.block_tokens or 1) for one in growths if one.endless),
        growths=growths,
        longest=None if pool is None else _longest(growths, pool - 1, served),
        fits=tuple(_fit(growths, tokens, block_bytes, pool) for tokens in _lengths(served)),
    )


def _fit(growths: Sequence[Growth], tokens: int, block_bytes: int, pool: int | None) -> Fit:
    blocks = _held(growths, tokens)
    requests = None if pool is None else pool / max(blocks, 1)
    return Fit(tokens, blocks, blocks * block_bytes, requests, None if requests is None else int(requests * tokens))


def _held(growths: Sequence[Growth], tokens: int) -> int:
    return sum(one.blocks(tokens) for one in growths)


def _lengths(served: int) -> list[int]:
    """Return a few lengths up to the longest that is served."""
    lengths, tokens = [], _LEAST
    while tokens < served:
        lengths.append(tokens)
        tokens *= _STEP
    return [*lengths, served]


def _longest(growths: Sequence[Growth], usable: int, served: int) -> int:
    """Return the tokens of the longest request that fits in the usable blocks: the engine keeps one for itself."""
    low, high = 0, served
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _held(growths, middle) <= usable else (low, middle - 1)
    return low
