"""What a plan says of each layer and each group, put together when it is asked for.

Apart from :mod:`kvlayout.plans`, since a connector that only applies views never needs it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeVar, final

from attrs import evolve, frozen

from kvlayout.algebra.affine import Size
from kvlayout.algebra.claims import Claim
from kvlayout.algebra.kernel import Proved, fibre, within
from kvlayout.algebra.kernel import Verdict as KernelVerdict
from kvlayout.algebra.units import Bytes
from kvlayout.cache.page import PageMap, page_map
from kvlayout.cache.registration import Group, RegisteredTensor
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec, StateSpec
from kvlayout.plans import Content, Plan, Run, Verdict, packing
from kvlayout.sharing import tracks_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.algebra.layout import Layout

__all__ = ["GroupPlan", "LayerPlan", "summarise_groups", "summarise_layers"]


@final
@frozen
class LayerPlan:
    """One layer of a plan.

    Attributes:
        layer: its name.
        group: index of its group; ``None`` for an alias.
        verdict: ``view`` (re-presented), ``same`` (left as it is), ``alias`` (another layer's object) or ``excluded``.
        rule: the rule that took it.
        source: the registered tensors.
        view: the layout of the result in its storage; ``None`` for excluded layers.
        content: whether axes mean what they say.
        claims: what is proved of the view.
        open: claims that only live tensors can close (``within``, where the storage size is unknown).
        page: what each byte of its page is.
        alias_of: the layer whose object an alias gets.
    """

    layer: str
    group: int | None
    verdict: Verdict
    rule: str | None
    source: tuple[RegisteredTensor, ...]
    view: Layout | None = None
    content: Content | None = None
    claims: tuple[Claim, ...] = ()
    open: tuple[str, ...] = ()
    page: PageMap | None = None
    alias_of: str | None = None


@final
@frozen
class GroupPlan:
    """One group of a plan; sizes are in bytes, states and tokens a block; ``None`` where unknown or unequal.

    Attributes:
        index: its position in the engine's list.
        kind: the spec's own word for its kind of attention.
        layers: names of its layers.
        disposition: ``served``, ``excluded`` or ``refused``.
        reason: why it is not served.
        num_blocks: the block count N.
        block_tokens: tokens that one block id stands for, over all ranks that share it.
        states_per_block: stored rows a block; 1 for recurrent state.
        page_bytes: bytes a block and layer, padding included.
        payload_bytes: those that carry state.
        compress_ratio: tokens a state: a whole number, or (tokens, states).
        window_tokens: tokens that are looked back at, where bounded.
        recurrent: it keeps recurrent state.
        draft: it belongs to a draft model.
        fingerprint: equal where pages mean the same; of a group that is served whole.
    """

    index: int
    kind: str
    layers: tuple[str, ...]
    disposition: Literal["served", "excluded", "refused"]
    reason: str | None
    num_blocks: Size | None
    block_tokens: int | None
    states_per_block: int | None
    page_bytes: int | None
    payload_bytes: int | None
    compress_ratio: int | tuple[int, int] | None
    window_tokens: int | None
    recurrent: bool
    draft: bool
    fingerprint: str | None


def summarise_layers(plan: Plan) -> Mapping[str, LayerPlan]:
    """Return the layers that planned, in the order of registration, then excluded ones without a cache."""
    blocks = 1 if plan.blocks is None else plan.blocks
    shared = {storage: fibre(tracks, blocks) for storage, tracks in tracks_of(plan.runs).items()}
    made = {
        layer: _served(plan, layer, run, base, shared[storage])
        for run in plan.runs
        for layer, storage, base in zip(run.layers, run.storages, run.bases, strict=True)
    }
    for index, (group, disposition) in enumerate(zip(plan.registration.groups, plan.dispositions, strict=True)):
        if disposition.word == "excluded":
            for layer in group.layers:
                made.setdefault(layer, LayerPlan(layer, index, "excluded", None, _source(plan, layer)))
    for alias, target in plan.aliases.items():
        verdict: Verdict = "excluded" if made[target].verdict == "excluded" else "alias"
        source = _source(plan, alias)
        made[alias] = evolve(made[target], layer=alias, group=None, verdict=verdict, source=source, alias_of=target)
    order = dict.fromkeys((*plan.registration.caches, *made))
    return {layer: made[layer] for layer in order if layer in made}


def _source(plan: Plan, layer: str) -> tuple[RegisteredTensor, ...]:
    entry = plan.registration.caches.get(layer)
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, RegisteredTensor) else entry


def _served(plan: Plan, layer: str, run: Run, base: Size, shared: KernelVerdict) -> LayerPlan:
    shape, source = run.shape, _source(plan, layer)
    view, storage = shape.view.shifted(Bytes(base)), source[0].storage_nbytes
    inside = None if storage is None else within(view, storage)
    return LayerPlan(
        layer=layer,
        group=run.group,
        verdict="same" if shape.same else "view",
        rule=shape.rule,
        source=source,
        view=view,
        content=shape.content,
        claims=shape.proof.claims + _claims(inside) + _claims(shared),
        open=("within",) if storage is None else (),
        page=page_map(shape.spec, shape.cache, packing(shape.spec, plan.registration.engine)),
    )


def _claims(verdict: KernelVerdict | None) -> tuple[Claim, ...]:
    return verdict.claims if isinstance(verdict, Proved) else ()


def summarise_groups(plan: Plan) -> tuple[GroupPlan, ...]:
    """Return one summary for each group of the registration, served or not."""
    return tuple(_group(plan, i, group) for i, group in enumerate(plan.registration.groups))


def _group(plan: Plan, index: int, group: Group) -> GroupPlan:
    word, reason = plan.dispositions[index]
    specs = group.specs
    first = specs[0]
    maps = [
        made.page for layer in group.layers if (made := plan.layers.get(layer)) is not None and made.page is not None
    ]
    whole = word == "served" and len(maps) == len(group.layers) and bool(maps)
    dcp = plan.registration.engine.dcp if first.dcp_sharded else 1
    return GroupPlan(
        index=index,
        kind=group.spec.kind if group.spec.kind != "unknown" else first.kind,
        layers=group.layers,
        disposition=word,
        reason=reason,
        num_blocks=plan.blocks,
        block_tokens=(first.block_size * dcp) or None,
        states_per_block=_only({_states(spec) for spec in specs}),
        page_bytes=_only({spec.page_bytes for spec in specs}) or None,
        payload_bytes=_only({_payload(spec) for spec in specs}),
        compress_ratio=_only({_ratio(spec) for spec in specs}),
        window_tokens=_only({_window(spec) for spec in specs}),
        recurrent=all(isinstance(spec, StateSpec) for spec in specs),
        draft=group.draft,
        fingerprint=_digest({page.fingerprint for page in maps}) if whole else None,
    )


_T = TypeVar("_T")


def _only(values: set[_T]) -> _T | None:
    """Return the one value of a group, ``None`` where its leaves differ."""
    return next(iter(values)) if len(values) == 1 else None


def _states(spec: Spec) -> int | None:
    return spec.states if isinstance(spec, AttentionSpec | LatentSpec) else 1 if isinstance(spec, StateSpec) else None


def _payload(spec: Spec) -> int | None:
    if isinstance(spec, AttentionSpec | LatentSpec):
        return spec.payload_bytes
    return spec.content_bytes if isinstance(spec, StateSpec) else None


def _ratio(spec: Spec) -> int | tuple[int, int] | None:
    if not isinstance(spec, AttentionSpec | LatentSpec):
        return None
    tokens, states = spec.tokens_per_state
    return tokens if states == 1 else (tokens, states)


def _window(spec: Spec) -> int | None:
    return spec.window_tokens if isinstance(spec, AttentionSpec | LatentSpec) else None


def _digest(fingerprints: set[str]) -> str:
    """Return the fingerprint of a group: that of its sorted distinct layers."""
    return sha256("\n".join(sorted(fingerprints)).encode()).hexdigest()[:32]
