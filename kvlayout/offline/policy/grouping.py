"""Which layers share block ids: one group where one will do, else equal numbers of layers a group.

>>> full = LayerSpec("full", 16, 8, 512, 128, 128, "bfloat16")
>>> window = full._replace(kind="sliding", window=1024)
>>> specs = {f"layers.{i}": full if i % 3 == 2 else window for i in range(6)}
>>> [bunch.layers for bunch in by_page(specs)]
[('layers.0', 'layers.3'), ('layers.1', 'layers.4'), ('layers.2', 'layers.5')]
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from kvlayout.offline.policy.alike import merged, uniform
from kvlayout.offline.policy.packing import packed
from kvlayout.offline.policy.strides import check_rows, is_outermost
from kvlayout.offline.policy.values import GROWING, Bunch, Kind, LayerSpec, refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvlayout.offline.policy.facts import Facts
    from kvlayout.offline.policy.request import Request

__all__ = ["by_page", "grouped", "promoted", "unified"]


def _one_group(specs: Mapping[str, LayerSpec], distinct: Sequence[LayerSpec]) -> Bunch | None:
    """Return the one group that holds all layers, or ``None`` where there must be several."""
    common = merged(distinct)
    if common is not None:
        return Bunch(tuple(specs), common, {})
    return Bunch(tuple(specs), distinct[0], dict(specs)) if uniform(distinct) else None


def promoted(specs: Mapping[str, LayerSpec], facts: Facts) -> Mapping[str, LayerSpec]:
    """Return the specs where local attention keeps all tokens, as full attention does.

    Its blocks become those of full attention, or in older versions stay as long as they were.

    Args:
        specs: what each layer keeps.
        facts: what holds for the engine's version.

    Raises:
        RefusedError: the layers still do not fit into one group.
    """
    distinct = tuple(dict.fromkeys(specs.values()))
    if merged(distinct) is not None or uniform(distinct):
        return specs
    blocks = {spec.block for spec in distinct if spec.kind in GROWING}
    same = next(iter(blocks)) if len(blocks) == 1 and facts.full_allocation else None
    windows = any(spec.kind == "sliding-latent" for spec in distinct)
    if blocks and windows and not facts.promotes_latent:
        raise refused("hybrid_manager", "kinds of layers that are managed apart, for latent windows", "off")
    local = any(spec.kind in ("sliding", "sliding-latent", "chunked") for spec in distinct)
    made = {spec: _promote(spec, same) for spec in distinct} if blocks and local else {spec: spec for spec in distinct}
    changed = tuple(dict.fromkeys(made.values()))
    if merged(changed) is None and not uniform(changed):
        raise refused("layers", "layers that can share one group", "specs that can't be made one type")
    return {layer: made[spec] for layer, spec in specs.items()}


def _promote(spec: LayerSpec, block: int | None) -> LayerSpec:
    if spec.kind not in ("sliding", "sliding-latent", "chunked"):
        return spec
    block = block or spec.block
    padded = None if spec.padded is None else max(spec.padded, spec.payload * block // spec.block)
    kind: Kind = "latent" if spec.kind == "sliding-latent" else "full"
    return spec._replace(kind=kind, block=block, padded=padded)


def unified(specs: Mapping[str, LayerSpec], request: Request) -> Mapping[str, LayerSpec] | None:
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
        elif (spec.kind != "state" or not request.facts.pads_states) and largest % page == 0:
            made[spec] = spec._replace(block=spec.block * (largest // page))
            if made[spec].page != largest:  # its padding does not grow with it: the engine stops here
                raise refused("block_size", f"pages of {largest} bytes", f"a padded page of {page} bytes")
        elif _pads(spec, request):
            made[spec] = spec._replace(padded=largest)
        else:
            return None
    return {layer: made[spec] for layer, spec in specs.items()}


def _pads(spec: LayerSpec, request: Request) -> bool:
    """Return whether the engine pads a page of this kind."""
    if spec.kind == "state":
        return request.facts.pads_states
    return spec.kind != "latent" and (request.facts.pads_attention == "always" or request.platform == "cuda")


def by_page(specs: Mapping[str, LayerSpec], *, joins: bool = True) -> list[Bunch]:
    """Return groups of layers with one page size, of equal numbers of layers as far as they go.

    The number is that of the rarest kind, or of the most frequent one where that is less than half as many again.
    Layers are dealt out in turn, so that each stage of a pipeline has some of every group.

    Args:
        specs: what each layer keeps.
        joins: layers of full attention that differ in a window only are one kind.
    """
    alike: dict[LayerSpec, list[str]] = {}
    for layer, spec in specs.items():
        alike.setdefault(spec, []).append(layer)
    buckets: list[tuple[list[LayerSpec], list[str]]] = []
    for spec, layers in alike.items():
        for known, names in buckets:
            if joins and _joins([*known, spec]):
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


def grouped(specs: Mapping[str, LayerSpec], request: Request) -> list[Bunch]:
    """Return the groups of all layers.

    Args:
        specs: what each layer keeps, over all pipeline ranks.
        request: how pages are laid out.

    Raises:
        RefusedError: the engine finds no grouping.
    """
    facts = request.facts
    check_rows(set(specs.values()), request.layout)
    if not request.hybrid:
        specs = promoted(specs, facts)
    distinct = tuple(dict.fromkeys(specs.values()))
    bunch = _one_group(specs, distinct)
    if bunch is not None:
        return [bunch]
    if is_outermost(request.layout) and len({spec.page for spec in distinct}) > 1:
        return packed(specs, windows=facts.packs_windows)
    same = unified(specs, request)
    if same is not None:
        return by_page(same, joins=facts.joins_unlike)
    return [_fallback(specs, request)]


def _fallback(specs: Mapping[str, LayerSpec], request: Request) -> Bunch:
    """Return one group where windows beside latent rows keep all tokens, since their pages can't be made equal."""
    kinds = {spec.kind for spec in specs.values()}
    able = request.facts.full_allocation and {"latent", "sliding"} <= kinds
    if able and not kinds & {"sliding-latent", "chunked"}:
        promotion = promoted(specs, request.facts)
        distinct = tuple(dict.fromkeys(promotion.values()))
        if uniform(distinct):
            return Bunch(tuple(promotion), distinct[0], dict(promotion))
    pages = sorted({spec.page for spec in specs.values()})
    fix = "set --layout BLHNC, which packs pages of different sizes side by side" if request.facts.minor >= 29 else ""
    raise refused("layers", "page sizes that can be made equal", f"pages of {', '.join(map(str, pages))} bytes", fix)
