"""From a registration to a plan: every group judged, every layer proved, every refusal collected.

>>> from kvlayout.cache.registration import Registration
>>> plan(Registration((), {})).unwrap().groups
()

One structural proof serves all layers with one spec and one layout up to its offset; a further layer costs its
facts, one look-up and its own place in the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from attrs import evolve

from kvlayout.algebra.affine import BLOCK_COUNT, Affine, Size
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.paging import block_rows
from kvlayout.cache.registration import Group, RegisteredTensor, Registration
from kvlayout.cache.spec import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    LatentSpec,
    Spec,
    StateSpec,
)
from kvlayout.errors import Code, LayoutError, LayoutErrors
from kvlayout.plans import Disposition, Plan
from kvlayout.rules.builtin import installed
from kvlayout.rules.presentation import Form, Presentation
from kvlayout.rules.rule import Registry
from kvlayout.surveying import Survey

__all__ = ["Attempt", "attempt", "plan", "validate"]

_SERVED: Final = Disposition("served", None)
_KEEPS_STATE: Final = ("align", "all")
_FORMS: Final[tuple[Form, ...]] = ("lmcache", "bytes")


class Attempt(NamedTuple):
    """What planned, and all that did not."""

    plan: Plan
    errors: tuple[LayoutError, ...]


def plan(
    registration: Registration,
    *,
    rules: Registry | None = None,
    presentation: Form = "lmcache",
) -> Result[Plan, LayoutErrors]:
    """Plan a registration: a proved view for every served layer, or every refusal at once.

    Args:
        registration: what the engine hands over; the block count may be unknown.
        rules: rules to try before the installed ones.
        presentation: ``lmcache``, or ``bytes`` for ``(N, page bytes)``.

    Returns:
        ``Ok`` with a plan whose every view is proved for any number of blocks; ``Err`` with all errors.

    >>> from pathlib import Path
    >>> text = Path("tests/data/registrations/llama-kp32.json").read_text()
    >>> made = plan(Registration.from_json(text).unwrap()).unwrap()
    >>> layer = made.layers["model.layers.0.self_attn.attn"]
    >>> layer.rule, layer.view.shape
    ('subpaged-attention-view', (4096, 1, 128, 256))
    """
    made = attempt(registration, rules=rules, presentation=presentation)
    return Err(LayoutErrors(made.errors)) if made.errors else Ok(made.plan)


def validate(registration_or_groups: Registration | Sequence[Group]) -> tuple[LayoutError, ...]:
    """Return every error of a registration, or of bare groups before there are tensors; empty when served.

    >>> validate(())
    ()
    """
    if isinstance(registration_or_groups, Registration):
        return attempt(registration_or_groups).errors
    judged = (judge(i, group) for i, group in enumerate(registration_or_groups))
    return tuple(error for _, error in judged if error is not None)


def judge(index: int, group: Group) -> tuple[Disposition, LayoutError | None]:
    """Return what becomes of a group as a whole: excluded with a reason, refused with an error, or served."""
    specs = group.specs
    cacheable, viewed, cached = False, False, False
    for spec in specs:
        cacheable = cacheable or spec.prefix_cacheable
        viewed = viewed or spec.has_layer_views
        cached = cached or not isinstance(spec, EncoderOnlySpec)
    reason = None
    if not cacheable:
        reason = "scratch"
    elif not viewed:
        reason = "raw"
    elif group.host_resident:
        reason = "host-resident"
    elif not group.transferable:
        reason = "not-transferable"
    elif not cached:
        reason = "encoder-only"
    if reason is not None:
        return Disposition("excluded", reason), None
    for spec in specs:
        error = _unserved(spec)
        if error is not None:
            return Disposition("refused", error.code.value), evolve(error, group=index)
    return _SERVED, None


def _unserved(spec: Spec) -> LayoutError | None:
    if isinstance(spec, CrossAttentionSpec):
        return LayoutError(Code.UNSUPPORTED_CROSS_ATTENTION, expected="self-attention or state", actual=spec.type)
    if isinstance(spec, StateSpec):
        if spec.cache_mode in _KEEPS_STATE:
            return None
        return LayoutError(Code.UNSUPPORTED_MAMBA_MODE, expected="align or all", actual=spec.cache_mode)
    if isinstance(spec, (AttentionSpec, LatentSpec)) and spec.has_layer_views:
        return None
    return LayoutError(Code.UNSUPPORTED_SPEC, expected="a spec that kvlayout knows", actual=spec.type)


def attempt(
    registration: Registration,
    *,
    rules: Registry | None = None,
    presentation: Form = "lmcache",
) -> Attempt:
    """Plan as much as can be planned, and collect every error of every layer and group."""
    registry = installed() if rules is None else rules | installed()
    judged = [judge(i, group) for i, group in enumerate(registration.groups)]
    goal = Presentation(presentation, registration.layout_hint or registration.kv_cache_layout)
    blocks = _block_count(registration, judged)
    survey = Survey(registration, registry, goal, blocks)
    if presentation not in _FORMS:
        actual = f"{presentation!r:.60}"
        survey.errors.append(
            LayoutError(Code.BAD_CONFIG, expected="lmcache or bytes", actual=actual, path="presentation")
        )
    survey.errors += registry.errors
    for index, (word, error) in enumerate(judged):
        if error is not None:
            survey.errors.append(error)
        survey.take(index, registration.groups[index], word.word)
    survey.share_storages()
    aliases = survey.match_unlisted()
    dispositions = tuple([word for word, _ in judged])
    made = Plan(registration, presentation, blocks, tuple(survey.runs), aliases, dispositions, rules)
    unplaced = len(dispositions)
    return Attempt(made, tuple(sorted(survey.errors, key=lambda e: unplaced if e.group is None else e.group)))


def _block_count(registration: Registration, judged: Sequence[tuple[Disposition, object]]) -> Size | None:
    """Return the block count: as given, symbolic, or what the first layer that can be read makes."""
    if registration.num_blocks is not None:
        return registration.num_blocks
    first: Size | None = None
    for group, (word, _) in zip(registration.groups, judged, strict=True):
        for layer in group.layers if word.word == "served" else ():
            spec, entry = group.leaves.get(layer, group.spec), registration.caches.get(layer)
            if entry is None or not isinstance(spec, (AttentionSpec, LatentSpec, StateSpec)):
                continue
            parts = (entry,) if isinstance(entry, RegisteredTensor) else entry
            if any(isinstance(size, Affine) for part in parts for size in part.shape):
                return BLOCK_COUNT
            first = block_rows(spec, entry) if first is None else first
    return first
