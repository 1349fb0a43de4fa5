"""The connector's door: from live tensors to views of them. torch is met here, and only through its own methods.

>>> import torch  # doctest: +SKIP
>>> applied = plan_then_apply(kv_cache_config, kv_caches, {"kv_layout": "NHD"})  # doctest: +SKIP
>>> applied.views["model.layers.0.self_attn.attn"].shape  # doctest: +SKIP
torch.Size([4096, 2, 544, 1, 512])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast, final

from attrs import evolve, field, frozen

from kvlayout.algebra.affine import Affine, at
from kvlayout.algebra.kernel import Proved
from kvlayout.algebra.result import Err
from kvlayout.cache.registration import Entry, RegisteredTensor, Registration
from kvlayout.errors import Code, LayoutError, LayoutErrors
from kvlayout.planning import attempt
from kvlayout.plans import Plan, Run, Shape
from kvlayout.rules.presentation import Form, refused, verdict_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor, dtype

    from kvlayout.rules.rule import Registry

__all__ = ["Applied", "Cache", "apply", "plan_then_apply"]

#: What ``register_kv_caches`` gets and gives: a tensor, or the tensors of a recurrent layer.
Cache: TypeAlias = "Tensor | Sequence[Tensor]"


class _Step(NamedTuple):
    """How a shape is made: a dtype to view as first (or none), then sizes and strides in elements."""

    same: bool
    listed: bool
    element: dtype | None
    extents: tuple[int, ...]
    strides: tuple[int, ...]


@final
@frozen
class Applied:
    """The views, in the order of the caches they are of, and the plan that they follow."""

    views: dict[str, Cache] = field(repr=False)
    plan: Plan


def plan_then_apply(  # noqa: PLR0913 - keywords, and all of them optional
    kv_cache_config: object,
    kv_caches: Mapping[str, Cache],
    layout_hints: Mapping[str, object] | None = None,
    *,
    rules: Registry | None = None,
    presentation: Form = "lmcache",
    engine_version: str | None = None,
    platform: str | None = None,
    dcp: int = 1,
) -> Applied:
    """Re-present registered caches as views whose block i is exactly the engine's block i: all of them, or none.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``, of 0.22 or newer; ``None`` passes everything through.
        kv_caches: layer name -> tensor or tensors, as ``register_kv_caches`` gets them. None is copied or changed.
        layout_hints: LMCache's hints; ``kv_layout`` is ``NHD``, ``HND``, ``BLNHC`` or ``BLHNC``.
        rules: rules to try before the installed ones.
        presentation: ``lmcache``, or ``bytes`` for ``(N, page bytes)``.
        engine_version: vLLM's version; that of the loaded package by default.
        platform: ``cpu``, ``cuda``, ...; the device of the first tensor by default.
        dcp: decode-context parallel size.

    Returns:
        ``.views``, in the order of ``kv_caches``, untouched layers the same objects; and ``.plan``.

    Raises:
        LayoutErrors: every refusal of every layer and group; no view is made then.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> class FullAttentionSpec(SimpleNamespace): ...  # read by its name and its fields, as vLLM's own is
    >>> spec = FullAttentionSpec(block_size=64, num_kv_heads=2, head_size=64, dtype="bfloat16", page_size_bytes=32768)
    >>> groups = [SimpleNamespace(layer_names=["layer"], kv_cache_spec=spec)]
    >>> config = SimpleNamespace(num_blocks=3, kv_cache_tensors=[], kv_cache_groups=groups)
    >>> caches = {"layer": torch.zeros(3 * 4, 2, 16, 128, dtype=torch.bfloat16)}  # kernel pages of 16 tokens
    >>> list(plan_then_apply(config, caches, {"kv_layout": "NHD"}, engine_version="0.32.0").views["layer"].shape)
    [3, 64, 1, 256]
    """
    # Not at import: it takes a third of the time to import kvlayout, and only live tensors need it.
    from kvlayout.engines.vllm import registration

    if kv_cache_config is None:
        return Applied(dict(kv_caches), Plan(Registration((), {}), presentation, None, (), {}, ()))
    live = registration(
        kv_cache_config, kv_caches, layout_hints, engine_version=engine_version, platform=platform, dcp=dcp
    )
    if isinstance(live, Err):
        raise live.error
    made = attempt(live.value, rules=rules, presentation=presentation)
    if made.errors:
        raise LayoutErrors(made.errors)
    return Applied(_execute(made.plan, kv_caches), made.plan)


def apply(plan: Plan, kv_caches: Mapping[str, Cache]) -> dict[str, Cache]:
    """Apply a plan to live tensors: one ``as_strided`` a layer, for all layers or for none.

    The plan is not believed: the facts of the live tensors are held against its registration, and every view is
    planned and proved again from them.

    Args:
        plan: from :func:`kvlayout.plan` or ``Plan.from_json``; an unknown block count is that of the tensors.
        kv_caches: layer name -> tensor or tensors.

    Returns:
        The views in the order of ``kv_caches``; untouched layers are the same objects.

    Raises:
        LayoutErrors: ``bad-config`` for each cache that is no tensor; ``stale-plan`` for each layer whose tensors are
            not those of the plan; any error of planning.
    """
    from kvlayout.engines.tensors import read_caches

    read = read_caches(kv_caches)
    if isinstance(read, Err):
        raise read.error
    live, planned = read.value, plan.registration
    blocks = plan.blocks if isinstance(plan.blocks, int) else _live_blocks(plan, live)
    if blocks is not None:
        planned = planned.bind(blocks)
    stale = tuple(_stale(planned.caches, live))
    if stale:
        raise LayoutErrors(stale)
    made = attempt(evolve(planned, caches=live), rules=plan.rules, presentation=plan.form)
    if made.errors:
        raise LayoutErrors(made.errors)
    return _execute(made.plan, kv_caches)


def _live_blocks(plan: Plan, live: Mapping[str, Entry]) -> int | None:
    """Return the block count at which the first symbolic axis of the plan has the size of the live one."""
    for layer, entry in plan.registration.caches.items():
        found = live.get(layer)
        if found is None:
            continue
        for planned, actual in zip(_parts(entry), _parts(found), strict=False):
            for size, extent in zip(planned.shape, actual.shape, strict=False):
                if isinstance(size, Affine) and isinstance(extent, int):
                    blocks, left = divmod(extent - size.a, size.b)
                    return None if left or blocks < 0 else blocks + 1
    return None


def _parts(entry: Entry) -> tuple[RegisteredTensor, ...]:
    return (entry,) if isinstance(entry, RegisteredTensor) else entry


def _stale(planned: Mapping[str, Entry], live: Mapping[str, Entry]) -> Iterator[LayoutError]:
    """Yield an error for each cache that is not the one that was planned; storages may have other sizes and numbers."""
    for layer in dict.fromkeys((*planned, *live)):
        one, other = planned.get(layer), live.get(layer)
        if isinstance(one, RegisteredTensor) and isinstance(other, RegisteredTensor) and one[:4] == other[:4]:
            continue
        parts, others = (None if entry is None else _parts(entry) for entry in (one, other))
        if parts is None or others is None or [part[:4] for part in parts] != [part[:4] for part in others]:
            yield LayoutError(Code.STALE_PLAN, layer=layer, expected=_facts(parts), actual=_facts(others))


def _facts(parts: Sequence[RegisteredTensor] | None) -> str:
    """Return what tensors are, in words; sizes and strides are in elements."""
    if parts is None:
        return "no cache"
    shown = []
    for part in parts:
        sizes, strides = (", ".join(map(str, numbers)) for numbers in (part.shape, part.strides))
        shown.append(f"[{sizes}] of {part.dtype}, strides ({strides}), offset {part.offset}")
    return " and ".join(shown)


def _execute(plan: Plan, kv_caches: Mapping[str, Cache]) -> dict[str, Cache]:
    """Prove each distinct shape once more as it is about to be made, then make one view a layer.

    A view starts where its tensor does, and ``as_strided`` is quicker where that is not said again.
    """
    views = dict(kv_caches)
    steps: dict[Shape, _Step] = {}
    faults: list[LayoutError] = []
    for run in plan.runs:
        step = steps.get(run.shape)
        if step is None:
            step = steps[run.shape] = _step(run.shape)
        if step.same:
            continue
        caches = [views[layer] for layer in run.layers]
        tensors = cast("list[Tensor]", [cache[0] for cache in caches] if step.listed else caches)
        try:
            views.update(zip(run.layers, _viewed(tensors, step), strict=True))
        except RuntimeError:
            faults += _unviewable(run, tensors, step, plan.registration.caches)
    if faults:
        raise LayoutErrors(tuple(faults))
    if plan.aliases:  # of a layer that is excluded, an alias keeps its own object
        served = {layer for run in plan.runs for layer in run.layers}
        views |= {alias: views[target] for alias, target in plan.aliases.items() if target in served}
    return views


def _viewed(tensors: Sequence[Tensor], step: _Step) -> list[Tensor]:
    """Make views of tensors that are alike."""
    element, extents, strides = step[2:]
    if element is None:
        return [tensor.as_strided(extents, strides) for tensor in tensors]
    if all(tensor.stride(-1) == 1 for tensor in tensors):
        return [tensor.view(element).as_strided(extents, strides) for tensor in tensors]
    # torch views another type only along a dense last axis, so pages are laid out first
    old, new = tensors[0].element_size(), element.itemsize
    extents = (*extents[:-1], extents[-1] * new // old)
    strides = (*(stride * new // old for stride in strides[:-1]), 1)
    return [tensor.as_strided(extents, strides).view(element) for tensor in tensors]


def _unviewable(run: Run, tensors: Sequence[Tensor], step: _Step, caches: Mapping[str, Entry]) -> Iterator[LayoutError]:
    """Yield why torch makes no view: a storage that ends before another one with the same first byte, or a type."""
    for layer, tensor in zip(run.layers, tensors, strict=True):
        try:
            _viewed((tensor,), step)
        except RuntimeError as error:
            known, held = _parts(caches[layer])[0].storage_nbytes, tensor.untyped_storage().nbytes()
            code, expected = Code.DTYPE_MISALIGNED, "a tensor that torch views as bytes"
            actual = str(error).partition("\n")[0]
            if isinstance(known, int) and held < known:
                code, expected = Code.STORAGE_OVERRUN, f"a storage of {known} bytes"
                actual = f"a storage of {held} bytes, where another one starts at the same byte"
            yield LayoutError(code, run.group, layer, expected, actual)


def _step(shape: Shape) -> _Step:
    """Prove a shape's view again, and return the arguments of its ``as_strided``."""
    cache, view = shape.cache, shape.view
    verdict, strides = verdict_on(view, cache), view.element_strides()
    if not isinstance(verdict, Proved) or strides is None:
        raise LayoutErrors((refused(verdict),))
    extents = tuple([size if type(size) is int else at(size, 1) for size in view.shape])
    steps = tuple([stride if type(stride) is int else at(stride, 1) for stride in strides])
    element = None if view.dtype == cache.source.dtype else getattr(import_module("torch"), view.dtype.name)
    return _Step(shape.same, cache.listed, element, extents, steps)
