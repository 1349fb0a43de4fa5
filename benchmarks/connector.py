"""The connector's call on live tensors, against LMCache's and against the least that any such call does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.hybrids import HINTS, AbsentError, Hybrid, hybrid, load
from benchmarks.table import Row, Section, compared, left_out, timed
from benchmarks.timing import in_turns
from kvlayout import apply, plan_then_apply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

__all__ = ["MOST_OF_BARE", "MOST_OF_LMCACHE", "bare_loop", "connector", "lmcache_edits"]

MOST_OF_LMCACHE = 0.30
MOST_OF_BARE = 2.5

#: A connector calls once, between other work; a loop of such calls measures a processor whose caches are warm.
_WARMING = 3


def connector(layers: int, blocks: int, rounds: int, *, placed: bool) -> Section:
    """Time ``plan_then_apply`` on a hybrid, with its proofs and its re-proofs."""
    pools = "one pool, placed" if placed else "a storage a slot"
    title = f"{layers:,} layers, {layers - layers // 4} of them states: {pools}"
    try:
        subject = hybrid(layers, blocks, placed=placed)
    except AbsentError as error:
        return Section(title, (left_out("all of it", str(error)),))
    config, caches = subject
    made = plan_then_apply(config, caches, HINTS).plan
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: plan_then_apply(config, caches, HINTS),
        "bare": bare_loop(subject),
        "apply": lambda: apply(made, caches),
    }
    refused = ""
    try:
        theirs = lmcache_edits(subject)
        theirs()
    except AbsentError as error:
        refused = str(error)
    except (NotImplementedError, ValueError) as error:
        refused = f"LMCache refuses: {error}"
    else:
        calls = {"lmcache": theirs} | calls
    cold, warm = in_turns(calls, rounds), in_turns(calls, max(rounds // 2, 2), untimed=_WARMING)
    alone = timed("apply alone, of a plan made before", cold["apply"])
    return Section(title, (*_rows(cold, refused), *_rows(warm, refused, ", warm"), alone))


def _rows(taken: Mapping[str, Sequence[float]], refused: str, how: str = "") -> tuple[Row, Row, Row]:
    ours, what = taken["ours"], f"LMCache's apply_kv_cache_group_edits{how}"
    return (
        timed(f"plan_then_apply, proof and re-proof included{how}", ours),
        left_out(what, refused) if refused else compared(what, ours, taken["lmcache"], MOST_OF_LMCACHE),
        compared(f"bare loop: six facts, one as_strided a layer{how}", ours, taken["bare"], MOST_OF_BARE),
    )


def lmcache_edits(subject: Hybrid) -> Callable[[], dict[str, Tensor]]:
    """Return LMCache's edits of the same tensors.

    Raises:
        AbsentError: LMCache does not import.
    """
    load("lmcache", "lmcache.integration.vllm.kv_cache_group_edits")
    from lmcache.integration.vllm.kv_cache_group_edits import apply_kv_cache_group_edits

    def edits() -> dict[str, Tensor]:
        edited: dict[str, Tensor] = apply_kv_cache_group_edits(subject.config, subject.caches, HINTS)
        return edited

    return edits


def bare_loop(subject: Hybrid) -> Callable[[], dict[str, Tensor]]:
    """Return the least that any such function does: it reads six facts, and makes the view that it was told before."""
    from torch import Tensor

    caches, told = subject.caches, {}
    for name, view in plan_then_apply(subject.config, caches, HINTS).views.items():
        if isinstance(view, Tensor):
            told[name] = view.shape, view.stride(), view.storage_offset()

    def loop() -> dict[str, Tensor]:
        views = {}
        for name, tensor in caches.items():
            _ = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.data_ptr()
            _ = tensor.untyped_storage().nbytes()
            views[name] = tensor.as_strided(*told[name])
        return views

    return loop
