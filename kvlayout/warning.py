"""Where LMCache would refuse or misread views that are right: said at planning time, with the layers concerned.

A plan proves that block i of a view is the engine's block i. Whether LMCache addresses these bytes is another
question, since it takes the axes from sizes and strides and the numbers of a group from its first layer. Here its
detection and grouping are worked out for the views of a plan (:mod:`kvlayout.engines.lmcache_formats`), and every
difference becomes a warning. Only ``Plan.warnings`` comes here, and only when it is asked for.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from attrs import frozen

from kvlayout.cache.spec import LatentSpec, Spec
from kvlayout.engines.lmcache_formats import UNSUPPORTED_LAYOUTS, Block, Identity, Reading, layout_hint
from kvlayout.engines.lmcache_groups import MANY, Kind, Truth, kinds_of, moves, read_group, tokens_of, window_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvlayout.plans import Plan

__all__ = ["PlanWarning", "WarningCode", "warn"]

WarningCode: TypeAlias = Literal[
    "lmcache-layout",
    "lmcache-exclusion",
    "lmcache-no-format",
    "lmcache-misread",
    "lmcache-indexer",
    "lmcache-merged",
    "lmcache-tokens",
    "lmcache-rows",
    "lmcache-window",
]


@final
@frozen
class PlanWarning:
    """What LMCache makes of some views, where that is not what the plan proves.

    Attributes:
        code: what kind of difference; docs/lmcache.md lists them.
        group: index of the group.
        layers: names of the layers that it concerns.
        message: the difference in words; sizes in bytes, tokens or rows, as it says.
    """

    code: WarningCode
    group: int | None
    layers: tuple[str, ...]
    message: str


def warn(plan: Plan) -> tuple[PlanWarning, ...]:
    """Return every warning on a plan in LMCache's presentation, by group; there are none on pages as bytes."""
    if plan.form != "lmcache":
        return ()
    registration = plan.registration
    found = list(_exclusions(plan))
    layout = registration.kv_cache_layout
    if layout in UNSUPPORTED_LAYOUTS and plan.runs:
        message = (
            f"LMCache's connector raises NotImplementedError for the layout {layout}, before it registers anything"
        )
        layers = tuple(layer for run in plan.runs for layer in run.layers)
        found.append(PlanWarning("lmcache-layout", None, layers, message))
        return _ordered(found)
    hint = layout_hint(registration.layout_hint, layout, registration.engine.platform)
    chunk = lcm(*(tokens_of(group, plan) for group in registration.groups if moves(group)))
    groups: dict[int, list[Kind]] = {}
    for kind in kinds_of(plan):
        groups.setdefault(kind.group, []).append(kind)
    for index, members in groups.items():
        group = registration.groups[index]
        if moves(group):
            read = read_group(members, hint)
            found += [one for kind, reading in read for one in _alone(kind, reading, plan)]
            found += _together([(kind, reading) for kind, reading in read if isinstance(reading, Reading)])
            found += _counted(read, tokens_of(group, plan), chunk, registration.engine.dcp)
    return _ordered(found)


def _ordered(found: Iterable[PlanWarning]) -> tuple[PlanWarning, ...]:
    """Put layers of one difference together, and warnings in the order of groups."""
    alike: dict[tuple[WarningCode, int | None, str], list[str]] = {}
    for one in found:
        alike.setdefault((one.code, one.group, one.message), []).extend(one.layers)
    made = [PlanWarning(code, group, tuple(layers), text) for (code, group, text), layers in alike.items()]
    return tuple(sorted(made, key=lambda one: -1 if one.group is None else one.group))


def _exclusions(plan: Plan) -> Iterator[PlanWarning]:
    """Tell of groups that one of the two leaves out and the other one moves."""
    for index, (group, (word, reason)) in enumerate(zip(plan.registration.groups, plan.dispositions, strict=True)):
        if word == "excluded" and group.layers and moves(group):
            message = f"LMCache does not know that this group is excluded ({reason}): it moves these layers, or fails"
        elif word == "served" and not moves(group):
            message = "LMCache leaves the whole group out, because the spec of its first layer is scratch"
        else:
            continue
        yield PlanWarning("lmcache-exclusion", index, group.layers, message)


# ---------------------------------------------------------------------------------------------------- what is different


def _alone(kind: Kind, reading: Reading | str, plan: Plan) -> Iterator[PlanWarning]:
    """Tell what is wrong with a layer's format whatever stands beside it."""
    if isinstance(reading, str):
        yield PlanWarning("lmcache-no-format", kind.group, kind.layers, f"LMCache refuses the view: {reading}")
    elif reading.padding > 0:
        message = f"LMCache refuses the view: {reading.format} with {reading.padding} elements between blocks"
        yield PlanWarning("lmcache-no-format", kind.group, kind.layers, message)
    elif differences := _differences(kind.truth, reading):
        message = f"LMCache takes the view for {reading.format}: {'; '.join(differences)}"
        yield PlanWarning("lmcache-misread", kind.group, kind.layers, message)
    elif reading.format.endswith("BSV_BSS") and not _indexes(kind.spec, plan):
        message = "LMCache takes uint8 rows of 132 bytes for an indexer's: 128 values of every row, then 4 of scales"
        yield PlanWarning("lmcache-indexer", kind.group, kind.layers, message)


def _indexes(spec: Spec, plan: Plan) -> bool:
    """Return whether latent rows may be an indexer's: they say so, or stand beside the latent rows that they index."""
    if not isinstance(spec, LatentSpec):
        return False
    others = (run.shape.spec for run in plan.runs)
    beside = any(isinstance(one, LatentSpec) and one.content_bytes != spec.content_bytes for one in others)
    return beside or not spec.proves_reading


def _differences(truth: Truth, reading: Reading) -> list[str]:
    found = []
    if reading.blocks != truth.blocks:
        found.append(f"{_count(reading.blocks)} blocks, not {_count(truth.blocks)}")
    if reading.slots != truth.slots:
        found.append(f"slots a block are {_count(reading.slots)}, not {truth.slots}")
    elif truth.slot_stride is not None and reading.slot_stride != truth.slot_stride:
        found.append(f"slots are {reading.slot_stride} bytes apart, not {truth.slot_stride}")
    if wrong := _strays(truth, reading):
        found.append(wrong)
    return found


def _strays(truth: Truth, reading: Reading) -> str:
    """Return the first block that LMCache would look for elsewhere, in words; empty where there is none."""
    for index in truth.probes:
        theirs, own = _joined(reading.block(index)), _joined(truth.block(index))
        if theirs != own and truth.blocks == MANY:
            return f"block {_count(index)} is elsewhere"
        if theirs != own:
            return f"block {_count(index)} of a layer is at bytes {_intervals(theirs)}, not {_intervals(own)}"
    return ""


def _together(read: Sequence[tuple[Kind, Reading]]) -> Iterator[PlanWarning]:
    """Tell where layers that LMCache does not tell apart differ in what it takes from the first one."""
    alike: dict[Identity, list[tuple[Kind, Reading]]] = {}
    for kind, reading in read:
        alike.setdefault(reading.identity, []).append((kind, reading))
    for members in alike.values():
        lead, first = min(members, key=lambda one: one[0].position)
        layers = tuple(layer for kind, _ in members for layer in kind.layers)
        for kind, reading in members:
            merged = reading._replace(blocks=first.blocks, block_stride=first.block_stride)
            wrong = _strays(kind.truth, merged)
            if wrong and not _strays(kind.truth, reading):
                message = f"LMCache addresses all of them by the block stride of {lead.layers[0]}: {wrong}"
                yield PlanWarning("lmcache-merged", kind.group, layers, message)
                break
        windows = sorted({window_of(kind.spec) or -1 for kind, _ in members})
        if len(windows) > 1:
            message = f"LMCache refuses layers that look alike with windows of {' and '.join(map(str, windows))} tokens"
            yield PlanWarning("lmcache-merged", lead.group, layers, message)


def _counted(read: Sequence[tuple[Kind, Reading | str]], tokens: int, chunk: int, dcp: int) -> Iterator[PlanWarning]:
    """Tell where LMCache counts a group's tokens otherwise, or refuses the numbers; a chunk is whole blocks of all."""
    for kind, reading in read:
        spec = kind.spec
        own = spec.block_size * (dcp if spec.dcp_sharded else 1)
        if own != tokens:
            message = f"LMCache counts {tokens} tokens a block, not {own}, as if each of {dcp} ranks kept a share"
            yield PlanWarning("lmcache-tokens", kind.group, kind.layers, message)
        if isinstance(reading, Reading) and reading.slots == kind.truth.slots and tokens % reading.slots:
            message = (
                f"LMCache refuses {reading.slots} rows a block of {tokens} tokens: no whole number of tokens a row"
            )
            yield PlanWarning("lmcache-rows", kind.group, kind.layers, message)
        window = window_of(spec)
        if window is not None and window < chunk and window % tokens:
            message = (
                f"LMCache refuses a window of {window} tokens with blocks of {tokens}: its chunk is at least {chunk} "
                "tokens, and a smaller window must be whole blocks"
            )
            yield PlanWarning("lmcache-window", kind.group, kind.layers, message)


def _joined(block: Block) -> Block:
    """Join intervals that touch: with one block, K and V of it do."""
    if len(block) == 2 and block[0][1] == block[1][0]:
        return ((block[0][0], block[1][1]),)
    return block


def _intervals(block: Block) -> str:
    return " and ".join(f"[{_count(start)}, {_count(end)})" for start, end in block)


def _count(value: int) -> str:
    return {MANY: "n", MANY - 1: "n-1"}.get(value, f"{value:,}")
