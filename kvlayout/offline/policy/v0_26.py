"""vLLM 0.26 to 0.28: a tensor for each layer of a group, which groups share; keys and values side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.policy.facts import Facts
from kvlayout.offline.policy.layers import PLAIN_TYPES
from kvlayout.offline.policy.pools import pooled
from kvlayout.offline.policy.tensors import fused, latent, state_parts, state_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvlayout.cache.registration import Entry
    from kvlayout.offline.policy.pools import Spot
    from kvlayout.offline.policy.request import Arranged, Request
    from kvlayout.offline.policy.values import Bunch

__all__ = ["FACTS", "arrange"]

_FIRST: Final = Facts(
    minor=26,
    all_by_default=True,
    latent_unit=1,
    joins_unlike=False,
    full_allocation=False,
    unlike_is_full=False,
    hash_by_mode=False,
    cpu_latent=(),
    cache_types=PLAIN_TYPES,
)
_SECOND: Final = _FIRST._replace(minor=27, latent_unit=128, joins_unlike=True, full_allocation=True)

FACTS: Final = (
    _FIRST,
    _SECOND,
    _SECOND._replace(
        minor=28,
        all_by_default=False,
        unlike_is_full=True,
        hash_by_mode=True,
        cpu_latent=(KernelSize(16),),
    ),
)


def arrange(bunches: Sequence[Bunch], request: Request) -> Arranged:
    """Return where pages are, and the tensors of each layer: from 0.27 a state is one row of bytes."""

    def entry(spot: Spot) -> Entry:
        if spot.spec.kind == "state":
            return state_parts(spot) if request.facts.minor == 26 else state_row(spot)
        if spot.spec.kind in ("latent", "sliding-latent"):
            return latent(spot)
        return fused(spot, request.hint)

    return pooled(bunches, request, entry)
