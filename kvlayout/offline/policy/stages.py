"""Which layers a pipeline rank has.

>>> bounds(10, 4)
((0, 2), (2, 5), (5, 8), (8, 10))
"""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from kvlayout.offline.policy.values import Bunch, refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvlayout.offline.model import Model
    from kvlayout.offline.policy.kinds import Kinds

__all__ = ["alone", "bounds", "check_stages", "on_stage", "stage_of"]


def bounds(depth: int, stages: int) -> tuple[tuple[int, int], ...]:
    """Return the first layer of each rank and the one behind its last.

    Layers that are left over go to the ranks before the last one, from the back.
    """
    counts = [depth // stages] * stages
    for index in range(2, depth % stages + 2):
        counts[-index] += 1
    return tuple(pairwise(accumulate(counts, initial=0)))


def stage_of(model: Model, stages: int) -> dict[str, int]:
    """Return the pipeline rank of each layer.

    Raises:
        RefusedError: there are more ranks than layers, or the layers' places are unknown.
    """
    if stages == 1:
        return dict.fromkeys((layer.name for layer in model.layers), 0)
    places = model.positions or tuple(_number(layer.name) for layer in model.layers)
    depth = model.depth or max(places, default=-1) + 1
    if stages > depth:
        raise refused("pp", f"at most {depth} stages, one a decoder layer", stages, f"set --pp to at most {depth}")
    rank = [stage for stage, (start, end) in enumerate(bounds(depth, stages)) for _ in range(start, end)]
    return {layer.name: rank[min(place, depth - 1)] for layer, place in zip(model.layers, places, strict=True)}


def alone(kinds: Kinds, stage: dict[str, int]) -> frozenset[str]:
    """Return the layers that keep states on stages where no layer attends."""
    attending = {stage[layer.name] for layer in kinds.attending} | {stage[layer] for layer in kinds.aliases}
    return frozenset(layer.name for layer in kinds.states if stage[layer.name] not in attending)


def _number(name: str) -> int:
    found = re.search(r"\.(\d+)(?:\.|$)", name)
    if found is None:
        raise refused("pp", "layers with a number in their name", name)
    return int(found[1])


def check_stages(kinds: Kinds, stage: dict[str, int], stages: int, *, declares: bool) -> None:
    """Refuse stages that the engine does not start with.

    Args:
        kinds: the layers.
        stage: the pipeline rank of each.
        stages: how many ranks there are.
        declares: the attention backend declares its layouts, on which all ranks must agree.

    Raises:
        RefusedError: a stage keeps nothing, or attends while another one does not.
    """
    attending = {stage[layer.name] for layer in kinds.attending}
    holding = attending | {stage[layer.name] for layer in kinds.states}
    for rank in range(stages):
        if rank not in holding:
            raise refused("pp", "stages with a layer that has a cache", f"none on stage {rank}", "set --pp 1")
        if declares and attending and rank not in attending:
            raise refused(
                "pp", "stages with an attention layer, on this platform", f"none on stage {rank}", "set --pp 1"
            )


def on_stage(bunches: Sequence[Bunch], stage: dict[str, int], rank: int) -> list[Bunch]:
    """Return the groups of the whole model with the layers of one rank only; a group may then be empty."""
    mine: list[Bunch] = []
    for bunch in bunches:
        layers = tuple(layer for layer in bunch.layers if stage[layer] == rank)
        if bunch.leaves and not layers:
            raise refused("pp", "stages with layers of every group whose layers differ", f"none on stage {rank}")
        leaves = {layer: bunch.leaves[layer] for layer in layers} if bunch.leaves else {}
        mine.append(Bunch(layers, bunch.spec, leaves))
    return mine
