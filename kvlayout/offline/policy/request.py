"""What an engine's policy is asked, and what it answers with.

>>> from kvlayout.offline.deployment import KernelSize
>>> from kvlayout.offline.policy.facts import Facts
>>> from kvlayout.offline.policy.values import Bunch, LayerSpec
>>> request = Request(Facts(minor=32), "cuda", "LBHNC", sizes=(KernelSize(32),), indexer=(KernelSize(64),))
>>> request.hint, kernel_block(Bunch(("a",), LayerSpec("full", 544, 2, 1024), {}), request)
('HND', 32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvlayout.offline.policy.kernels import Sizes, common

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.cache.registration import Entry, Placement
    from kvlayout.offline.deployment import LayoutName, Platform
    from kvlayout.offline.policy.facts import Facts
    from kvlayout.offline.policy.values import Bunch, LayerSpec

__all__ = ["Arranged", "Request", "kernel_block"]


class Request(NamedTuple):
    """How pages are to be laid out.

    Attributes:
        facts: what holds for the engine's version.
        platform: whose attention backends hold.
        layout: the order of axes in memory.
        sizes: kernel blocks of attention; ``indexer`` those of an indexer.
        local: layers whose attention is local in chunks, by a backend of its own.
        hybrid: kinds of layers are managed apart; without that, local attention keeps all tokens.
    """

    facts: Facts
    platform: Platform
    layout: LayoutName
    sizes: Sizes
    indexer: Sizes
    local: frozenset[str] = frozenset()
    hybrid: bool = True

    @property
    def hint(self) -> str:
        """The layout as engines before 0.29 call it."""
        return "HND" if self.layout == "LBHNC" else "NHD"

    def backend(self, spec: LayerSpec) -> Sizes:
        """Return the kernel blocks that a layer's backend takes."""
        return self.indexer if spec.indexer else self.sizes


class Arranged(NamedTuple):
    """Where the pages of one rank are.

    Attributes:
        placements: as the engine declares them.
        caches: the tensors of each layer, in the order of registration.
        kernels: tokens a kernel block of each group, ``None`` for states.
        block_bytes: bytes of the device that one block id costs.
        layout: the engine's name of the layout, where it has names; ``hint`` what it tells a store.
    """

    placements: tuple[Placement, ...]
    caches: Mapping[str, Entry]
    kernels: tuple[int | None, ...]
    block_bytes: int
    layout: str | None
    hint: str | None


def kernel_block(bunch: Bunch, request: Request) -> int | None:
    """Return the kernel block that all backends of a group take, in tokens; ``None`` for states.

    Raises:
        RefusedError: there is none.
    """
    if bunch.spec.kind == "state":
        return None
    return common(bunch.spec.block, tuple(dict.fromkeys(request.backend(spec) for spec in bunch.specs)))
