"""LMCache's two functions, with proved views: change the two imports, and nothing else.

    from kvlayout.engines.lmcache import apply_kv_cache_group_edits, validate_kv_cache_groups

Names, arguments and results are those of ``lmcache.integration.vllm.kv_cache_group_edits`` of LMCache 0.5.6, and so is
what they promise: a new dict with the same keys in the same order, layers that need no view as the same objects, one
``ValueError`` for all that can't be served, and nothing done where there is no configuration. LMCache itself is not
imported. docs/lmcache.md lists where the views differ from LMCache's own, and why.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from kvlayout.algebra.affine import Size, at
from kvlayout.algebra.result import Err
from kvlayout.applying import Cache, plan_then_apply
from kvlayout.cache.registration import Entry, RegisteredTensor
from kvlayout.engines.vllm import registration
from kvlayout.errors import LayoutErrors
from kvlayout.planning import validate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvlayout.plans import Plan, Shape

__all__ = ["AUX_POOLS", "apply_kv_cache_group_edits", "validate_kv_cache_groups"]

#: Caches of LMCache's own (of CacheBlend) beside the engine's: in no group of the engine, and passed on as they are.
AUX_POOLS: Final = "cb.aux_pool."

_LOG: Final = logging.getLogger("kvlayout")


def validate_kv_cache_groups(kv_cache_config: object) -> None:
    """Refuse groups that can't be served, before there are tensors.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``, of 0.22 or newer; ``None`` is not looked at.

    Raises:
        LayoutErrors: a ``ValueError`` with every refused group: cross attention, recurrent state whose cache mode keeps
            nothing to reuse, a spec that nobody here knows, a configuration that can't be read.

    >>> validate_kv_cache_groups(None)
    """
    if kv_cache_config is None:
        return
    groups = SimpleNamespace(  # nothing else of a configuration is settled where LMCache calls this, nor needed
        num_blocks=1,
        kv_cache_tensors=getattr(kv_cache_config, "kv_cache_tensors", None) or (),
        kv_cache_groups=getattr(kv_cache_config, "kv_cache_groups", None),
    )
    read = registration(groups, {})
    if isinstance(read, Err):
        raise read.error
    if errors := validate(read.value.groups):
        raise LayoutErrors(errors)


def apply_kv_cache_group_edits(
    kv_cache_config: object,
    kv_caches: Mapping[str, Cache],
    layout_hints: Mapping[str, object] | None,
) -> dict[str, Cache]:
    """Return registered caches as LMCache is to see them: block i of every entry is the engine's block i.

    What was done is logged by the logger ``kvlayout``, a line a group; what LMCache would misread, as a warning.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``, of 0.22 or newer; ``None`` passes everything through.
        kv_caches: layer name -> tensor or tensors, as vLLM's ``register_kv_caches`` gets them.
        layout_hints: LMCache's hints; ``kv_layout`` is ``NHD``, ``HND``, ``BLHNC`` or ``BLNHC``. ``None`` is no hint.

    Returns:
        A new dict with the keys of ``kv_caches`` in their order; entries that need no view are the same objects.

    Raises:
        LayoutErrors: a ``ValueError`` with every refusal of every layer and group; no view was made then.

    >>> apply_kv_cache_group_edits(None, {"model.layers.0.attn": [1, 2]}, {"kv_layout": "NHD"})
    {'model.layers.0.attn': [1, 2]}
    """
    if kv_cache_config is None:
        return dict(kv_caches)
    pools = _pools(kv_caches)
    engines = {layer: cache for layer, cache in kv_caches.items() if layer not in pools} if pools else kv_caches
    applied = plan_then_apply(kv_cache_config, engines, layout_hints, dcp=_context_ranks())
    _tell(applied.plan)
    if not pools:
        return applied.views
    return {layer: applied.views.get(layer, cache) for layer, cache in kv_caches.items()}


def _pools(kv_caches: object) -> set[str]:
    """Return the names of LMCache's own pools; what is no mapping has none, and is refused later."""
    layers = kv_caches if isinstance(kv_caches, Mapping) else ()
    return {layer for layer in layers if isinstance(layer, str) and layer.startswith(AUX_POOLS)}


def _context_ranks() -> int:
    """Return the decode-context parallel size of this process; 1 where vLLM has set up none."""
    find = getattr(sys.modules.get("vllm.distributed.parallel_state"), "get_dcp_group", None)
    if find is None:
        return 1
    try:
        group = find()
    except AssertionError:  # vLLM's word for a group that is not set up; without assertions it is None
        return 1
    size = getattr(group, "world_size", 1)
    return size if isinstance(size, int) else 1


def _tell(plan: Plan) -> None:
    """Log what was done with each group, and what LMCache will make of it."""
    if _LOG.isEnabledFor(logging.INFO):
        for line in _lines(plan):
            _LOG.info("%s", line)
    for one in plan.warnings:
        _LOG.warning("%s: %s (layers %s)", one.code, one.message, ", ".join(one.layers))


def _lines(plan: Plan) -> Iterator[str]:
    """Return a line a group: the rule, the shape before and the shape after; more than one where its layers differ."""
    treated: dict[int, dict[int, tuple[Shape, str, int]]] = {}
    for layers, where, shape, *_ in plan.runs:
        _, first, count = treated.setdefault(where, {}).get(id(shape), (shape, layers[0], 0))
        treated[where][id(shape)] = shape, first, count + len(layers)
    for index, (group, (word, reason)) in enumerate(zip(plan.registration.groups, plan.dispositions, strict=True)):
        head = f"group {index} ({len(group.layers)} x {group.specs[0].type})"
        if word != "served":
            yield f"{head}: {word}, {reason}"
            continue
        alike = list(treated.get(index, {}).values())
        texts = [_treatment(shape, plan.registration.caches[first]) for shape, first, _ in alike]
        if len(texts) > 1:
            texts = [f"{count} layers {text}" for text, (_, _, count) in zip(texts, alike, strict=True)]
        yield f"{head}: {'; '.join(texts) or 'no layers'}"


def _treatment(shape: Shape, entry: Entry) -> str:
    before = " + ".join(
        map(_sizes, [(entry.shape)] if isinstance(entry, RegisteredTensor) else [e.shape for e in entry])
    )
    return f"left as it is, {before}" if shape.same else f"{shape.rule}, {before} -> {_sizes(shape.view.shape)}"


def _sizes(shape: tuple[Size, ...]) -> str:
    return f"[{', '.join(str(at(size, 1)) for size in shape)}]"
