"""vLLM 0.29 to 0.33: one allocation with placements, one layout name, and the axes (block, head, row, channel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.policy.facts import Facts
from kvlayout.offline.policy.placing import block_bytes, kernel_blocks, placements, tensors
from kvlayout.offline.policy.request import Arranged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvlayout.offline.policy.request import Request
    from kvlayout.offline.policy.values import Bunch

__all__ = ["FACTS", "HINTS", "arrange"]

#: What the engine tells a store about a layout; it has no word for the others.
HINTS: Final[Mapping[str, str]] = {"LBNHC": "NHD", "LBHNC": "HND", "BLHNC": "BLHNC", "BLNHC": "BLNHC"}

_CPU: Final = (KernelSize(32, multiple=True),)

_V29: Final = Facts(minor=29, pads_attention="always", cpu_half_states=True, cpu_sizes=_CPU, cpu_latent=_CPU)
_V30: Final = _V29._replace(minor=30, window_block="largest", packs_windows=True, declares_roles=True)
_V31: Final = _V30._replace(
    minor=31, default_for="every", declares_sharding=True, typed_delta=True, promotes_latent=False
)
_V32: Final = _V31._replace(
    minor=32,
    sparse_sizes=(KernelSize(64, multiple=True),),
    all_states=False,
    kernel_rounding="every",
    rows_apart=True,
    whole_when_packed=True,
)

FACTS: Final = (_V29, _V30, _V31, _V32, _V32._replace(minor=33))


def arrange(bunches: Sequence[Bunch], request: Request) -> Arranged:
    """Return where pages are, and the tensors of each layer."""
    placed = placements(bunches, request.layout)
    kernels = kernel_blocks(bunches, placed, request)
    return Arranged(
        tuple(item.placement for item in placed),
        dict(tensors(placed, kernels, request.layout)),
        kernels,
        block_bytes(bunches, request),
        request.layout,
        HINTS.get(request.layout),
    )
