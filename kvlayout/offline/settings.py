"""What to set for a store, each with its reason.

All of it follows from block sizes and pages, so nothing here knows a model.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.cache.spec import AttentionSpec, LatentSpec, StateSpec
from kvlayout.offline.capacity import batched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvlayout.cache.spec import Spec
    from kvlayout.offline.serving import Served

__all__ = [
    "Advice",
    "advise",
    "chunk_unit",
    "keeps_states",
    "largest_page",
    "listed",
    "nearest",
    "padding_share",
    "payload",
    "specs_of",
]

#: Tokens of a chunk that LMCache has by default; the multiple that is proposed is the least that is no smaller.
_USUAL_CHUNK: Final = 256

_ORDERS: Final = {
    "LBHNC": "each layer has its blocks in one row; in a block heads come before tokens",
    "LBNHC": "each layer has its blocks in one row; in a block tokens come before heads",
    "BLHNC": "a block holds all its layers side by side; in a page heads come before tokens",
    "BLNHC": "a block holds all its layers side by side; in a page tokens come before heads",
    "LHBNC": "a head's blocks lie together, so a page is many intervals: no store can take it",
    "BHLNC": "a head's layers lie together, so a page is many intervals: no store can take it",
}


class Advice(NamedTuple):
    """A setting: its name, its value (``None`` where there is none to take), and why."""

    name: str
    value: str | None
    reason: str


def chunk_unit(served: Served) -> int | None:
    """Return the tokens that a store's chunk must be a multiple of: whole blocks of every group.

    ``None`` in a cache mode that keeps no state at the end of a block: there is no length whose states are kept.
    """
    return lcm(*served.scheduler_blocks) if keeps_states(served) else None


def keeps_states(served: Served) -> bool:
    """Return whether every state is kept where a block ends, so that blocks are hashed, found and stored."""
    return not any(isinstance(spec, StateSpec) and spec.cache_mode == "none" for spec in specs_of(served))


def payload(spec: Spec) -> int | None:
    """Return the bytes of a page that carry state; ``None`` for a spec that keeps none of its own."""
    if isinstance(spec, StateSpec):
        return spec.content_bytes
    return spec.payload_bytes if isinstance(spec, AttentionSpec | LatentSpec) else None


def specs_of(served: Served) -> Iterator[Spec]:
    """Yield the spec of each group, or of each of its layers."""
    for group in served.registration.groups:
        yield from group.specs


def largest_page(served: Served) -> int:
    """Return the bytes of the largest page."""
    return max((spec.page_bytes for spec in specs_of(served)), default=0)


def padding_share(served: Served) -> float:
    """Return the share of all pages that is padding: of one page of each layer."""
    whole = kept = 0
    for group in served.registration.groups:
        for spec in group.specs if group.leaves else group.specs * len(group.layers):
            found = payload(spec)
            whole += spec.page_bytes
            kept += spec.page_bytes if found is None else found
    return (whole - kept) / whole if whole else 0.0


# ----------------------------------------------------------------------------------------------------------- settings


def advise(served: Served) -> tuple[Advice, ...]:
    """Return the settings of a deployment with a store."""
    return tuple(_advise(served))


def _advise(served: Served) -> Iterator[Advice]:
    deployment = served.deployment
    yield _chunk(served)
    yield _block(served)
    states = [spec for spec in specs_of(served) if isinstance(spec, StateSpec)]
    if states:
        yield _mode(states[0].cache_mode)
        if states[0].cache_mode == "align":
            yield _steps(served.aligned_block, batched(deployment), asked=deployment.max_batched_tokens is not None)
    name = served.registration.kv_cache_layout
    if name is not None:
        hint = served.registration.layout_hint
        store = f"; the store is told {hint}" if hint else ""
        yield Advice("--layout", name, f"{_ORDERS.get(name, 'as the engine names it')}{store}")
    if deployment.prefix_caching:
        found = f"a store finds blocks by the hashes of prefix caching, one every {served.hash_block:,} tokens"
        if states and len(states) == len(list(specs_of(served))):
            found += "; for a model without attention the engine has it only where it is asked for"
        yield Advice("prefix caching", "on", found)
    else:
        yield Advice("prefix caching", "turn on", "a store finds blocks by the hashes of prefix caching")


def _chunk(served: Served) -> Advice:
    unit, size = chunk_unit(served), served.deployment.chunk_size
    if unit is None:
        text = "in --mamba-cache-mode none no state is kept at the end of a block, so no chunk can be stored or found"
        return Advice("chunk size", None, text)
    blocks = sorted(set(served.scheduler_blocks))
    several = f"the least common multiple of {listed(blocks)}" if len(blocks) > 1 else "one block"
    reason = f"a chunk is stored by whole blocks of every group: {several} is {unit:,} tokens"
    if size is None:
        return Advice("chunk size", f"a multiple of {unit:,}", f"{reason}; {_usual(unit)}")
    if size % unit:
        return Advice("chunk size", f"{nearest(unit, size):,}", f"{reason}, and {size:,} is no multiple of it")
    return Advice("chunk size", f"{size:,}", f"{reason}, and {size:,} is {size // unit} of it")


def _usual(unit: int) -> str:
    """Return which multiple is nearest to what LMCache takes where nothing is said."""
    if _USUAL_CHUNK % unit == 0:
        return f"{_USUAL_CHUNK}, LMCache's default, is a multiple"
    return f"the smallest multiple from {_USUAL_CHUNK} on, LMCache's default, is {nearest(unit, _USUAL_CHUNK):,}"


def listed(numbers: Sequence[int]) -> str:
    """Return numbers as a list in a sentence."""
    *most, last = (f"{one:,}" for one in numbers)
    return f"{', '.join(most)} and {last}" if most else last


def nearest(unit: int, size: int) -> int:
    """Return the least multiple of a unit that is no smaller than a size."""
    return unit * max(-(-size // unit), 1)


def _block(served: Served) -> Advice:
    asked, block = served.user_block, served.aligned_block
    if block != asked:
        why = f"the engine raises {asked:,} until a block of attention is as large as a state"
        return Advice("--block-size", f"{block:,}", f"{why}; set it, and both of a pair have the same")
    return Advice("--block-size", f"{block:,}", "the engine keeps it as it is")


def _mode(mode: str) -> Advice:
    if mode == "none":
        return Advice("--mamba-cache-mode", "align", "in mode none no block of tokens has a state that could be stored")
    kept = "at the end of each step that ends on a block" if mode == "align" else "at the end of every block"
    return Advice("--mamba-cache-mode", mode, f"a state is kept {kept}, so that it can be stored and found")


def _steps(block: int, batch: int, *, asked: bool) -> Advice:
    """Return how many tokens a step should take: in align mode a prefill step is cut where a block ends."""
    name = "--max-batched-tokens"
    if batch < block:
        text = f"{batch:,} is less than a block of {block:,}: no step would end on one without being cut for it"
        return Advice(name, f"{block:,} or more", text)
    whole = batch // block * block
    default = "" if asked else ", the default,"
    if whole == batch:
        blocks = f"{batch // block:,} whole block{'' if batch == block else 's'}"
        return Advice(name, f"{batch:,}", f"{batch:,}{default} is {blocks}: steps end where states are")
    text = f"steps are cut to whole blocks: of {batch:,}{default} {whole:,} are used, {batch - whole:,} are not"
    return Advice(name, f"{whole:,}", text)
