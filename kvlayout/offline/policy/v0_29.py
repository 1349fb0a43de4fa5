"""vLLM 0.29 to 0.33: one allocation with placements, one layout name for the whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvlayout.offline.policy.grouping import grouped, one_group, promoted
from kvlayout.offline.policy.packing import packed
from kvlayout.offline.policy.strides import is_outermost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.offline.deployment import LayoutName
    from kvlayout.offline.policy.values import Bunch, LayerSpec

__all__ = ["HINTS", "MINORS", "bunches"]

#: The second number of the versions that these facts hold for.
MINORS: Final = range(29, 34)

#: What the engine tells a store about a layout; it has no word for the others.
HINTS: Final[Mapping[str, str]] = {"LBNHC": "NHD", "LBHNC": "HND", "BLHNC": "BLHNC", "BLNHC": "BLNHC"}


def bunches(specs: Mapping[str, LayerSpec], layout: LayoutName, *, hybrid: bool) -> list[Bunch]:
    """Return the groups: packed ones where a block holds all layers and their pages differ."""
    if not hybrid:
        specs = promoted(specs)
    distinct = tuple(dict.fromkeys(specs.values()))
    bunch = one_group(specs, distinct)
    if bunch is not None:
        return [bunch]
    if is_outermost(layout) and len({spec.page for spec in distinct}) > 1:
        return packed(specs)
    return grouped(specs)
