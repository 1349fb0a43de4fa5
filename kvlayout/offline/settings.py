"""What to set for a store, each with its reason, and what to look at twice.

All of it follows from block sizes and pages, so nothing here knows a model.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.cache.spec import AttentionSpec, LatentSpec, StateSpec
from kvlayout.offline.capacity import batched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvlayout.cache.spec import Spec
    from kvlayout.offline.capacity import Capacity
    from kvlayout.offline.deployment import Deployment
    from kvlayout.offline.serving import Served

__all__ = ["Advice", "Caution", "advise", "cautions", "chunk_unit", "largest_page", "padding_share", "payload"]

#: The share of a page above which its padding is worth a word.
_MUCH: Final = 0.1

#: Tokens of a chunk that stores have by default; the multiple that is proposed is the least that is no smaller.
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
    """A setting: its name, its value, and why."""

    name: str
    value: str
    reason: str


class Caution(NamedTuple):
    """Something to look at twice: what kind of thing, the groups that it concerns, and a sentence."""

    code: str
    groups: tuple[int, ...]
    text: str


def chunk_unit(served: Served) -> int:
    """Return the tokens that a store's chunk must be a multiple of: whole blocks of every group."""
    return lcm(*served.scheduler_blocks)


def payload(spec: Spec) -> int | None:
    """Return the bytes of a page that carry state; ``None`` for a spec that keeps none of its own."""
    if isinstance(spec, StateSpec):
        return spec.content_bytes
    return spec.payload_bytes if isinstance(spec, AttentionSpec | LatentSpec) else None


def largest_page(served: Served) -> int:
    """Return the bytes of the largest page."""
    return max((spec.page_bytes for spec in _specs(served)), default=0)


def padding_share(served: Served) -> float:
    """Return the share of all pages that is padding: of one page of each layer."""
    whole = kept = 0
    for group in served.registration.groups:
        for spec in group.specs if group.leaves else group.specs * len(group.layers):
            found = payload(spec)
            whole += spec.page_bytes
            kept += spec.page_bytes if found is None else found
    return (whole - kept) / whole if whole else 0.0


def _spare(spec: Spec) -> float:
    """Return the share of a page that is padding."""
    kept = payload(spec)
    return 0.0 if kept is None or not spec.page_bytes else (spec.page_bytes - kept) / spec.page_bytes


# ----------------------------------------------------------------------------------------------------------- settings


def advise(served: Served) -> tuple[Advice, ...]:
    """Return the settings of a deployment with a store."""
    return tuple(_advise(served))


def _advise(served: Served) -> Iterator[Advice]:
    deployment = served.deployment
    yield _chunk(served)
    yield _block(served)
    states = [spec for spec in _specs(served) if isinstance(spec, StateSpec)]
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
        if states and len(states) == len(list(_specs(served))):
            found += "; for a model without attention the engine has it only where it is asked for"
        yield Advice("prefix caching", "on", found)
    else:
        yield Advice("prefix caching", "turn on", "a store finds blocks by the hashes of prefix caching")


def _chunk(served: Served) -> Advice:
    unit, size = chunk_unit(served), served.deployment.chunk_size
    blocks = sorted(set(served.scheduler_blocks))
    several = f"the least common multiple of {', '.join(map(str, blocks))}" if len(blocks) > 1 else "one block"
    reason = f"a chunk is stored by whole blocks of every group: {several} is {unit:,} tokens"
    if size is None:
        return Advice("chunk size", f"a multiple of {unit:,}", f"{reason}, so {_near(unit, _USUAL_CHUNK):,} or more")
    if size % unit:
        return Advice("chunk size", f"{_near(unit, size):,}", f"{reason}, and {size:,} is no multiple of it")
    return Advice("chunk size", f"{size:,}", f"{reason}, and {size:,} is {size // unit} of it")


def _near(unit: int, size: int) -> int:
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
        return Advice(
            name, f"{batch:,}", f"{batch:,}{default} is {batch // block} whole blocks: steps end where states are"
        )
    text = f"steps are cut to whole blocks: of {batch:,}{default} {whole:,} are used, {batch - whole:,} are not"
    return Advice(name, f"{whole:,}", text)


# ----------------------------------------------------------------------------------------------------------- cautions


def cautions(asked: Deployment, served: Served, alone: Served | None, fits: Capacity | None) -> tuple[Caution, ...]:
    """Return what to look at twice.

    Args:
        asked: the deployment as it was asked for.
        served: the deployment as the engine runs it.
        alone: the same on one tensor-parallel rank, where it is on more.
        fits: its capacity, where it is known.
    """
    found = [*_changed(asked, served.deployment), *_padded(served), *_uneven(served), *_chunked(served)]
    found += [*_copied(served, alone), *_parallel(served, alone), *_short(fits)]
    drafts = tuple(i for i, group in enumerate(served.registration.groups) if group.draft)
    if drafts:
        found.append(
            Caution("draft", drafts, "pages of a draft model: store them with the model's, or neither is found")
        )
    if not served.deployment.prefix_caching:
        found.append(Caution("prefix-caching", (), "prefix caching is off, so a store finds nothing"))
    return tuple(found)


def _specs(served: Served) -> Iterator[Spec]:
    for group in served.registration.groups:
        yield from group.specs


def _changed(asked: Deployment, deployment: Deployment) -> Iterator[Caution]:
    """Yield what the engine does otherwise than it was told."""
    for name, told, does in (
        ("--mamba-cache-mode", asked.mamba_cache_mode, deployment.mamba_cache_mode),
        ("--layout", asked.layout, deployment.layout),
    ):
        if told is not None and told != does:
            yield Caution("not-as-asked", (), f"{name} {told} was asked for, and the engine takes {does or 'none'}")
    if asked.cache_dtype != "auto" and deployment.cache_dtype == "auto":
        text = f"--cache-dtype {asked.cache_dtype} was asked for, and the engine"
        yield Caution("not-as-asked", (), f"{text} does not hand it to the attention of this model")


def _padded(served: Served) -> Iterator[Caution]:
    alike: dict[tuple[int, int], list[int]] = {}
    for index, group in enumerate(served.registration.groups):
        for spec in dict.fromkeys(group.specs):
            if _spare(spec) > _MUCH:
                alike.setdefault((spec.page_bytes, payload(spec) or 0), []).append(index)
    for (page, kept), groups in alike.items():
        share = (page - kept) / page
        text = f"{share:.1%} of each page of {page:,} bytes is padding, which a store copies and keeps too"
        yield Caution("padding", tuple(dict.fromkeys(groups)), text)


def _uneven(served: Served) -> Iterator[Caution]:
    """Yield groups whose block ids pay for more bytes than the group has pages."""
    whole = served.block_bytes
    for index, group in enumerate(served.registration.groups):
        specs = group.specs if group.leaves else group.specs * len(group.layers)
        used = sum(spec.page_bytes for spec in specs)
        if whole and (whole - used) / whole > _MUCH:
            text = f"a block id costs {whole:,} bytes and this group has pages for {used:,} of them"
            yield Caution("uneven-groups", (index,), text)


def _chunked(served: Served) -> Iterator[Caution]:
    size, unit = served.deployment.chunk_size, chunk_unit(served)
    if size is None:
        return
    if size % unit:
        text = f"a chunk of {size:,} tokens is no multiple of {unit:,}; the nearest are "
        near = sorted({max(size // unit, 1) * unit, _near(unit, size)})
        yield Caution("chunk-size", (), text + " and ".join(f"{one:,}" for one in near))
    for index, group in enumerate(served.registration.groups):
        tokens = served.scheduler_blocks[index]
        for window in {spec.window_tokens for spec in group.specs if isinstance(spec, AttentionSpec | LatentSpec)}:
            if window is not None and window < size and window % tokens:
                text = (
                    f"a window of {window:,} tokens inside a chunk of {size:,} is no multiple of the block, {tokens:,}"
                )
                yield Caution("window", (index,), text)


def _copied(served: Served, alone: Served | None) -> Iterator[Caution]:
    """Yield groups of which every tensor-parallel rank holds the same pages."""
    if alone is None or len(alone.registration.groups) != len(served.registration.groups):
        return
    pairs = zip(served.registration.groups, alone.registration.groups, strict=True)
    same = [index for index, (here, there) in enumerate(pairs) if here.specs == there.specs]
    if same:
        tp = served.deployment.tp
        text = f"each of {tp} ranks holds the same pages: a store that takes them from every rank keeps {tp} copies"
        yield Caution("replicated", tuple(same), text)


def _parallel(served: Served, alone: Served | None) -> Iterator[Caution]:
    if alone is None or alone.aligned_block == served.aligned_block:
        return
    here, there, tp = served.aligned_block, alone.aligned_block, served.deployment.tp
    text = f"a block has {here:,} tokens at --tp {tp} and {there:,} at --tp 1, {here / there:.2g} times as many: "
    yield Caution("block-size-and-tp", (), text + "ranks of another --tp can't share blocks unless --block-size is set")


def _short(fits: Capacity | None) -> Iterator[Caution]:
    if fits is None or fits.longest is None:
        return
    asked = fits.fits[-1].tokens
    if fits.longest < asked:
        text = f"no request of {asked:,} tokens fits in this memory, the longest has {fits.longest:,}: the engine will "
        yield Caution("memory", (), text + "not start without a smaller --max-model-len")
