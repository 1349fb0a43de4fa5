"""What is right, worked out from a document alone, and what is wrong with LMCache's reading of a layer."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

import kvlayout
from kvlayout.algebra.layout import Axis
from kvlayout.algebra.units import raw
from tests.documents.enumeration import (
    page_bytes_of,
    placed_base,
    sorted_addresses,
    source_block,
    spec_for,
    state_bytes,
    states_of,
)
from tests.lmcache.reading import Interval, Layer, downstream, joined

if TYPE_CHECKING:
    from kvlayout.applying import Applied
    from kvlayout.plans import Plan
    from tests.lmcache.registered import Registered

Json = dict[str, Any]


def probes(made: Json) -> list[int]:
    """Return the blocks that tell: the first two and the last."""
    blocks = made["num_blocks"]
    return sorted({0, 1, blocks - 1} & set(range(blocks)))


def owned(made: Json, layer: str, block: int) -> tuple[Interval, ...]:
    """Return the bytes that the engine owns for a block: a state's whole page, else its rows."""
    spec, entry = spec_for(made, layer), made["caches"][layer]
    if spec["type"] == "MambaSpec":
        start, _ = state_bytes(entry, block)
        found: tuple[Interval, ...] = ((start, start + page_bytes_of(spec)),)
    else:
        source = source_block(spec, entry, block)
        places = sorted_addresses(source.key) + source.start
        breaks = np.flatnonzero(np.diff(places) != 1)
        starts, ends = [0, *(breaks + 1).tolist()], [*breaks.tolist(), len(places) - 1]
        found = joined((int(places[a]), int(places[b]) + 1) for a, b in zip(starts, ends, strict=True))
    placed = placed_base(made, layer)
    if placed is not None:
        assert found[0][0] == placed[0] + block * placed[1], "the engine placed this block elsewhere"
    return found


def hits(made: Json, layer: str, block: int, addressed: tuple[Interval, ...]) -> bool:
    """Tell whether these bytes are the engine's block: of a state all that it keeps, from the page on, inside it."""
    spec, own = spec_for(made, layer), owned(made, layer, block)
    if spec["type"] != "MambaSpec":
        return addressed == own
    _, states = state_bytes(made["caches"][layer], block)
    last = max(end for _, end in states)
    ((start, end),) = own
    return len(addressed) == 1 and addressed[0][0] == start and last <= addressed[0][1] <= end


def tokens_of(spec: Json, dcp: int) -> int:
    """Return the tokens that a block id stands for: those of all ranks, where they share a block."""
    sharded = spec["fields"].get("dcp_sharded", spec["type"] != "MambaSpec")
    return int(spec["fields"]["block_size"]) * (dcp if sharded else 1)


def slots_of(spec: Json) -> int:
    """Return the slots a block: tokens of a state group, the group's states in all others."""
    return int(spec["fields"]["block_size"]) if spec["type"] == "MambaSpec" else states_of(spec)


def ratio_of(spec: Json) -> Fraction:
    """Return the tokens a slot that the spec declares."""
    if spec["type"] == "MambaSpec":
        return Fraction(1)
    declared = spec["fields"].get("tokens_per_state") or spec["fields"].get("compress_ratio") or 1
    return Fraction(*declared) if isinstance(declared, list) else Fraction(declared)


def indexes(made: Json, spec: Json) -> bool:
    """Tell whether rows are an indexer's: they say so, or stand beside the latent rows that they index."""
    if str(spec["fields"].get("cache_role")).rpartition(".")[2] == "INDEXER":
        return True
    specs = [leaf for group in made["groups"] for leaf in (group.get("layer_specs") or {0: group["spec"]}).values()]
    latent = [one for one in specs if "MLA" in one["type"]]
    return spec in latent and any(one["fields"]["head_size"] != spec["fields"]["head_size"] for one in latent)


def wrong(made: Json, plan: Plan | None, layer: str, read: Layer | None, dcp: int) -> list[str]:
    """Return all that is wrong with LMCache's reading of a layer; with a plan, of the view that the plan gives it."""
    if read is None:
        return ["left out"]
    if read.error:
        return [read.error]
    spec = spec_for(made, layer)
    tokens = tokens_of(spec, dcp)
    spread = dcp if tokens != spec["fields"]["block_size"] else 1
    found = [
        f"{name}: {theirs} for {own}"
        for name, theirs, own in (
            ("slots", read.slots, slots_of(spec)),
            ("tokens", read.tokens, tokens),
            ("ratio", Fraction(read.tokens, read.slots), ratio_of(spec) * spread),
            ("blocks", read.blocks, made["num_blocks"]),
        )
        if theirs != own
    ]
    view = None if plan is None else plan.layers[layer].view
    if view is not None:
        rows = next(i for i, axis in enumerate(view.axes) if axis in (Axis.TOKEN, Axis.STATE))
        if view.shape[rows] != 1 and read.slots == view.shape[rows] and read.slot_stride != raw(view.strides[rows]):
            found.append("slots lie elsewhere")
    if read.form == "NL_X_NB_BSV_BSS" and not indexes(made, spec):
        found.append("taken for an indexer")
    found += [f"block {i}" for i in probes(made) if not hits(made, layer, i, read.block(i))]
    return found


def applied(live: Registered) -> Applied:
    engine = live.document["engine"]
    return kvlayout.plan_then_apply(
        live.config,
        live.caches,
        {"kv_layout": live.hint},
        engine_version=engine["version"],
        platform=engine["platform"],
        dcp=live.dcp,
    )


def faults(live: Registered, plan: Plan, views: dict[str, Any]) -> dict[str, list[str]]:
    """Return what LMCache gets wrong, layer by layer."""
    read = downstream(live.config, views, live.hint, live.dcp)
    found = {
        layer: wrong(live.document, plan, layer, read.get(layer), live.dcp)
        for group in plan.groups
        if group.disposition == "served"
        for layer in group.layers
    }
    moved = [one for group in plan.groups if group.disposition == "excluded" for one in group.layers if one in read]
    return {layer: said for layer, said in found.items() if said} | {layer: ["moved"] for layer in moved}


def warned_of(plan: Plan, found: dict[str, list[str]]) -> None:
    """Check that warnings are about all that is wrong, and about nothing else."""
    told = {layer for warning in plan.warnings for layer in warning.layers}
    assert set(found) <= told, {layer: said for layer, said in found.items() if layer not in told}
    for warning in plan.warnings:
        right = [layer for layer in warning.layers if layer not in found]
        # of layers that are merged, those that are like the first one are read right
        assert len(right) < len(warning.layers) if warning.code == "lmcache-merged" else not right, (warning, right)
