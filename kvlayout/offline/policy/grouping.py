"""Which layers share block ids, from vLLM 0.29: one group where one will do, else equal numbers of layers a group.

>>> full = LayerSpec("full", 16, 8, 512, 128, 128, "bfloat16")
>>> window = full._replace(kind="sliding", window=1024)
>>> specs = {f"layers.{i}": full if i % 3 == 2 else window for i in range(6)}
>>> [bunch.layers for bunch in grouped(specs)]
[('layers.0', 'layers.3'), ('layers.1', 'layers.4'), ('layers.2', 'layers.5')]
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from kvlayout.offline.policy.values import GROWING, Bunch, LayerSpec, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["by_page", "grouped", "merged", "one_group", "promoted", "uniform", "unified"]


def merged(specs: Sequence[LayerSpec]) -> LayerSpec | None:
    """Return the spec of a group of these layers, or ``None`` where no one spec holds for all.

    Full attention forgets a window or a chunk that only some of its layers have: it allocates for all tokens.

    Raises:
        RefusedError: two windows in one such group, which the engine refuses.
    """
    first = specs[0]
    if all(spec == first for spec in specs):
        return first
    if first.kind != "full" or any(spec.kind != "full" for spec in specs):
        return None
    windows = {spec.window for spec in specs if spec.window is not None}
    chunks = {spec.chunk for spec in specs if spec.chunk is not None}
    for sizes in (windows, chunks):
        if len(sizes) > 1:
            refuse("layers", "one window a group of full attention", f"windows of {sorted(sizes)} tokens")
    plain = first._replace(window=None, chunk=None)
    if (windows and chunks) or any(spec._replace(window=None, chunk=None) != plain for spec in specs):
        return None
    return first._replace(window=next(iter(windows), None), chunk=next(iter(chunks), None))


def uniform(specs: Sequence[LayerSpec]) -> bool:
    """Return whether all layers need the same number of blocks, so that they can share ids whatever their pages are."""
    first = specs[0]
    if any(spec.block != first.block or spec.sharded != first.sharded for spec in specs):
        return False
    if first.kind in GROWING:
        return all(spec.kind in GROWING for spec in specs)
    if first.kind == "sliding":
        return all(spec.kind in ("sliding", "sliding-latent") and spec.window == first.window for spec in specs)
    if first.kind == "state":
        return all(
            spec.kind == "state" and spec.page == first.page and _checkpoints(spec) == _checkpoints(first)
            for spec in specs
        )
    return all((spec.kind, spec.window, spec.chunk) == (first.kind, first.window, first.chunk) for spec in specs)


def _checkpoints(spec: LayerSpec) -> bool:
    """Return whether the engine takes states in the middle of a prefill, which keeps such layers apart."""
    return spec.backend == "MAMBA2"


def one_group(specs: Mapping[str, LayerSpec], distinct: Sequence[LayerSpec]) -> Bunch | None:
    """Return the one group that holds all layers, or ``None`` where there must be several."""
    common = merged(distinct)
    if common is not None:
        return Bunch(tuple(specs), common, {})
    return Bunch(tuple(specs), distinct[0], dict(specs)) if uniform(distinct) else None


def promoted(specs: Mapping[str, LayerSpec]) -> Mapping[str, LayerSpec]:
    """Return the specs where local attention keeps all tokens, as full attention does.

    Raises:
        RefusedError: the layers still do not fit into one group.
    """
    distinct = tuple(dict.fromkeys(specs.values()))
    if merged(distinct) is not None or uniform(distinct):
        return specs
    blocks = {spec.block for spec in distinct if spec.kind in GROWING}
    local = any(spec.kind in ("sliding", "sliding-latent", "chunked") for spec in distinct)
    made = {spec: _promote(spec, blocks) for spec in distinct} if blocks and local else {spec: spec for spec in distinct}
    changed = tuple(dict.fromkeys(made.values()))
    if merged(changed) is None and not uniform(changed):
        refuse("layers", "layers that can share one group", "specs that can't be made one type")
    return {layer: made[spec] for layer, spec in specs.items()}


def _promote(spec: LayerSpec, blocks: set[int]) -> LayerSpec:
    if spec.kind not in ("sliding", "sliding-latent", "chunked"):
        return spec
    block = next(iter(blocks)) if len(blocks) == 1 else spec.block
    padded = None if spec.padded is None else max(spec.padded, spec.payload * block // spec.block)
    kind = "latent" if spec.kind == "sliding-latent" else "full"
    return spec._replace(kind=kind, block=block, padded=padded)


def unified(specs: Mapping[str, LayerSpec]) -> Mapping[str, LayerSpec] | None:
    """Return the specs with one page size: a smaller page grows by whole blocks, or is padded; ``None`` where neither.

    Latent rows are never padded: sparse attention reads them as one run of rows.
    """
    distinct = tuple(dict.fromkeys(specs.values()))
    largest = max(spec.page for spec in distinct)
    made: dict[LayerSpec, LayerSpec] = {}
    for spec in distinct:
        page = spec.page
        if page == largest:
            made[spec] = spec
        elif spec.kind != "state" and largest % page == 0:
            made[spec] = spec._replace(block=spec.block * (largest // page))
            if made[spec].page != largest:  # its padding does not grow with it: the engine stops here
                refuse("block_size", f"pages of {largest} bytes", f"a padded page of {page} bytes")
        elif spec.kind != "latent":
            made[spec] = spec._replace(padded=largest)
        else:
            return None
    return {layer: made[spec] for layer, spec in specs.items()}


def by_page(specs: Mapping[str, LayerSpec]) -> list[Bunch]:
    """Return groups of layers with one page size, of equal numbers of layers as far as they go.

    The number is that of the rarest kind, or of the most frequent one where that is less than half as many again.
    Layers are dealt out in turn, so that each stage of a pipeline has some of every group.
    """
    alike: dict[LayerSpec, list[str]] = {}
    for layer, spec in specs.items():
        alike.setdefault(spec, []).append(layer)
    buckets: list[tuple[list[LayerSpec], list[str]]] = []
    for spec, layers in alike.items():
        for known, names in buckets:
            if _joins([*known, spec]):
                known.append(spec)
                names.extend(layers)
                break
        else:
            buckets.append(([spec], list(layers)))
    counts = [len(names) for _, names in buckets]
    size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    groups: list[Bunch] = []
    for _, names in buckets:
        turns = ceil(len(names) / size)
        for turn in range(turns):
            layers = names[turn::turns]
            group = merged([specs[layer] for layer in layers]) or specs[layers[0]]
            groups.append(Bunch(tuple(layers), group, {}))
    return groups


def _joins(specs: Sequence[LayerSpec]) -> bool:
    full = [spec for spec in specs if spec.kind == "full"]
    if len({s.window for s in full if s.window}) > 1 or len({s.chunk for s in full if s.chunk}) > 1:
        return False
    return merged(specs) is not None


def grouped(specs: Mapping[str, LayerSpec], *, hybrid: bool = True) -> list[Bunch]:
    """Return the groups of a layout whose layers lie one after another.

    Args:
        specs: what each layer keeps.
        hybrid: the engine manages different kinds of layers apart; ``False`` makes local attention keep all tokens.

    Raises:
        RefusedError: the engine finds no grouping.
    """
    if not hybrid:
        specs = promoted(specs)
    bunch = one_group(specs, tuple(dict.fromkeys(specs.values())))
    if bunch is not None:
        return [bunch]
    same = unified(specs)
    if same is not None:
        return by_page(same)
    return [_fallback(specs)]


def _fallback(specs: Mapping[str, LayerSpec]) -> Bunch:
    """Return one group where windows beside latent rows keep all tokens, since their pages can't be made equal."""
    kinds = {spec.kind for spec in specs.values()}
    if {"latent", "sliding"} <= kinds and not kinds & {"sliding-latent", "chunked"}:
        promotion = promoted(specs)
        distinct = tuple(dict.fromkeys(promotion.values()))
        if uniform(distinct):
            return Bunch(tuple(promotion), distinct[0], dict(promotion))
    pages = sorted({spec.page for spec in specs.values()})
    refuse(
        "layers",
        "page sizes that can be made equal",
        f"pages of {pages} bytes",
        "set --layout BLHNC, which packs pages of different sizes side by side",
    )
