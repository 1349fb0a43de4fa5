"""What to look at twice in a deployment with a store: copies, padding, what is not as it was asked for.

All of it follows from block sizes and pages, so nothing here knows a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.cache.spec import AttentionSpec, LatentSpec
from kvlayout.offline.settings import chunk_unit, listed, nearest, payload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvlayout.cache.spec import Spec
    from kvlayout.offline.capacity import Capacity
    from kvlayout.offline.deployment import Deployment
    from kvlayout.offline.serving import Served

__all__ = ["Caution", "cautions"]

#: The share of a page above which its padding is worth a word.
_MUCH: Final = 0.1


class Caution(NamedTuple):
    """Something to look at twice: what kind of thing, the groups that it concerns, and a sentence."""

    code: str
    groups: tuple[int, ...]
    text: str


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
    most = max((len(group.layers) for group in served.registration.groups), default=0)
    for index, group in enumerate(served.registration.groups):
        specs = group.specs if group.leaves else group.specs * len(group.layers)
        used, here = sum(spec.page_bytes for spec in specs), len(group.layers)
        if not whole or (whole - used) / whole <= _MUCH:
            continue
        text = f"its pages have {used:,} of the {whole:,} bytes that a block id costs"
        if used * most == whole * here:
            text = f"group {index} has {_layers(here)}, others {most:,}"
        yield Caution(
            "uneven-groups", (index,), f"{text}: {_part(whole - used, whole)} of each of its blocks is unused"
        )


def _layers(count: int) -> str:
    return f"{count:,} layer{'' if count == 1 else 's'}"


def _part(part: int, whole: int) -> str:
    """Return a part in words where it has any.

    >>> _part(2, 10), _part(2, 3)
    ('a fifth', '67%')
    """
    words = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 8: "an eighth"}
    word = words.get(whole // part)
    return word if word is not None and whole % part == 0 else f"{part / whole:.0%}"


def _chunked(served: Served) -> Iterator[Caution]:
    size, unit = served.deployment.chunk_size, chunk_unit(served)
    if size is None or unit is None:
        return
    if size % unit:
        near = sorted({max(size // unit, 1) * unit, nearest(unit, size)})
        multiples = f"the nearest {'is' if len(near) == 1 else 'are'} {listed(near)}"
        yield Caution("chunk-size", (), f"a chunk of {size:,} tokens is no multiple of {unit:,}; {multiples}")
    for index, group in enumerate(served.registration.groups):
        tokens = served.scheduler_blocks[index]
        for window in {spec.window_tokens for spec in group.specs if isinstance(spec, AttentionSpec | LatentSpec)}:
            if window is not None and window < size and window % tokens:
                text = (
                    f"a window of {window:,} tokens inside a chunk of {size:,} is no multiple of the block, {tokens:,}"
                )
                yield Caution("window", (index,), text)


def _copied(served: Served, alone: Served | None) -> Iterator[Caution]:
    """Yield groups of which several tensor-parallel ranks hold the same: all of them a page, or some a head."""
    if alone is None or len(alone.registration.groups) != len(served.registration.groups):
        return
    pairs = zip(served.registration.groups, alone.registration.groups, strict=True)
    tp, alike = served.deployment.tp, dict[int, list[int]]()
    for index, (here, there) in enumerate(pairs):
        copies = tp if here.specs == there.specs else _copies(here.specs, there.specs, tp)
        alike.setdefault(copies, []).append(index)
    for copies, groups in sorted(alike.items(), reverse=True):
        if copies == tp:
            text = f"each of {tp} ranks holds the same pages: a store that takes them from every rank keeps {tp} copies"
            yield Caution("replicated", tuple(groups), text)
        elif copies > 1:
            text = f"each KV head is on {copies} of {tp} ranks: a store that takes pages from every rank keeps"
            yield Caution("replicated", tuple(groups), f"{text} {copies} copies")


def _copies(here: Sequence[Spec], there: Sequence[Spec], tp: int) -> int:
    """Return on how many ranks each head is, of the layer with most copies: heads of all ranks by heads."""
    found = [
        tp * mine.heads // max(all_.heads, 1)
        for mine, all_ in zip(here, there, strict=False)
        if isinstance(mine, AttentionSpec) and isinstance(all_, AttentionSpec)
    ]
    return max(found, default=1)


def _parallel(served: Served, alone: Served | None) -> Iterator[Caution]:
    if alone is None or alone.aligned_block == served.aligned_block:
        return
    here, there, tp = served.aligned_block, alone.aligned_block, served.deployment.tp
    text = f"a block has {here:,} tokens at --tp {tp} and {there:,} at --tp 1, {here / there:.2g} times as many: "
    yield Caution("block-size-and-tp", (), text + "ranks of another --tp can't share blocks unless --block-size is set")


def _short(fits: Capacity | None) -> Iterator[Caution]:
    """Yield why a request of the longest length does not fit: as the engine counts, or for the block that it keeps."""
    if fits is None or fits.longest is None or fits.num_blocks is None:
        return
    asked, pool = fits.fits[-1], fits.num_blocks
    if not pool:
        text = f"not one block fits: a block id costs {fits.block_bytes:,} bytes on this rank, more than --cache-memory"
        yield Caution("memory", (), f"{text}, which is in bytes where it has no unit, as 40GiB")
    elif not fits.longest:
        text = (
            f"no request fits: one of {pool:,} blocks is the engine's null block"
            if pool > 1
            else ("no request fits: the one block that does is the engine's null block")
        )
        yield Caution("memory", (), f"{text}, and a block id costs {fits.block_bytes:,} bytes on this rank")
    elif pool < asked.blocks:
        text = f"no request of {asked.tokens:,} tokens fits in this memory, the longest has {fits.longest:,}: the"
        yield Caution("memory", (), f"{text} engine will not start without a smaller --max-model-len")
    elif fits.longest < asked.tokens:
        text = (
            f"the engine counts {pool / asked.blocks:,.2f} requests of {asked.tokens:,} tokens and starts, but one of"
        )
        text += f" the {pool:,} blocks is its null block: the longest request that it can run has {fits.longest:,}"
        yield Caution("memory", (), f"{text}; set --max-model-len to that, or give memory for a block more")


def _spare(spec: Spec) -> float:
    """Return the share of a page that is padding."""
    kept = payload(spec)
    return 0.0 if kept is None or not spec.page_bytes else (spec.page_bytes - kept) / spec.page_bytes
