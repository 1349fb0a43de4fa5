"""vLLM 0.25: a tensor for each layer of a group, which groups share; keys and values in planes; states in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvlayout.offline.policy.facts import Facts
from kvlayout.offline.policy.layers import PLAIN_TYPES
from kvlayout.offline.policy.pools import pooled
from kvlayout.offline.policy.tensors import fused, latent, planes, state_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvlayout.cache.registration import Entry
    from kvlayout.offline.policy.pools import Spot
    from kvlayout.offline.policy.request import Arranged, Request
    from kvlayout.offline.policy.values import Bunch

__all__ = ["FACTS", "arrange"]

FACTS: Final = (
    Facts(
        minor=25,
        all_by_default=True,
        latent_unit=1,
        joins_unlike=False,
        pads_states=False,
        full_allocation=False,
        context_groups=False,
        unlike_is_full=False,
        hash_by_mode=False,
        cpu_states=None,
        cpu_latent=(),
        cache_types=PLAIN_TYPES,
    ),
)


def arrange(bunches: Sequence[Bunch], request: Request) -> Arranged:
    """Return where pages are, and the tensors of each layer."""

    def entry(spot: Spot) -> Entry:
        if spot.spec.kind == "state":
            return state_parts(spot)
        if spot.spec.kind in ("latent", "sliding-latent"):
            return latent(spot)
        return fused(spot, "HND") if request.platform == "cpu" else planes(spot, request.hint)

    return pooled(bunches, request, entry)
