"""Which layers are alike: one spec holds for all, or at least one sequence of block ids does.

>>> full = LayerSpec("full", 16, 8, 512, 128, 128, "bfloat16")
>>> merged([full, full._replace(window=1024)]).window, uniform([full, full._replace(kind="sliding", window=1024)])
(1024, False)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlayout.offline.policy.values import GROWING, LayerSpec, refused

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["merged", "uniform"]


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
            raise refused("layers", "one window a group of full attention", f"windows of {sorted(sizes)} tokens")
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
