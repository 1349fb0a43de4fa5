"""A plan: for every layer its view and the proof of it, for every group what a connector needs to know.

A plan holds the registration that it was made from and values for the few distinct shapes of layers; layers and
groups are put together when they are asked for. Nothing here plans: that is :mod:`kvlayout.planning`.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar, final

from attrs import field, frozen

from kvlayout.algebra.affine import Size
from kvlayout.algebra.units import Bytes
from kvlayout.cache.page import PageMap, page_map
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.registration import Engine, Group, RegisteredTensor, Registration
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec, StateSpec
from kvlayout.errors import LayoutErrors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.algebra.claims import Claim
    from kvlayout.algebra.kernel import Proved
    from kvlayout.algebra.layout import Layout
    from kvlayout.algebra.result import Result
    from kvlayout.rules.presentation import Form
    from kvlayout.rules.rule import Registry

__all__ = [
    "Content",
    "Disposition",
    "GroupPlan",
    "LayerPlan",
    "Opaque",
    "Placed",
    "Plan",
    "Semantic",
    "Shape",
    "Verdict",
    "packing",
]

Verdict: TypeAlias = Literal["view", "same", "alias", "excluded"]


@final
@frozen
class Semantic:
    """The axes of the view still mean planes, heads, tokens and channels."""

    tag: str = "semantic"


@final
@frozen
class Opaque:
    """The axes only address bytes: a codec that looks at values must not touch it. ``why`` says so in words."""

    why: str
    tag: str = "opaque"


Content: TypeAlias = Semantic | Opaque


@final
@frozen(eq=False)
class Shape:
    """What all layers with one spec and one layout up to its offset have in common: one proof serves them.

    Attributes:
        spec: the layer's spec.
        cache: its tensors and pages, offsets counted from the layer's first tensor.
        rule: the rule that took it, ``None`` where none did.
        proof: the claims that hold of its view.
        view: the layout of the view, its offset counted likewise.
        same: the registered tensor is left as it is.
        content: what its axes mean.
        reach: bytes from the layer's first byte to the end of its last page in the view.
    """

    spec: Spec
    cache: CacheLayout
    rule: str | None
    proof: Proved
    view: Layout
    same: bool
    content: Content
    reach: Size

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the registered tensor (the first of a list)."""
        return self.cache.source.dtype.itemsize

    @property
    def simple(self) -> bool:
        """Whether a layer's place can be judged by its storage size alone."""
        return not self.cache.listed and self.view.dtype.itemsize <= self.itemsize


class Placed(NamedTuple):
    """A served layer: its group, its shape, and the byte of its storage at which it starts."""

    layer: str
    group: int
    shape: Shape
    base: Size


class Disposition(NamedTuple):
    """What became of a group: ``served``, ``excluded`` or ``refused``, and why."""

    word: Literal["served", "excluded", "refused"]
    reason: str | None


def packing(spec: Spec, engine: Engine) -> str:
    """Return how a page's content is packed: ``semantic`` where the spec proves a reading of it.

    vLLM's CPU attention keeps all key rows of a page and then its value rows, packed, under the shape of
    interleaved rows; so there the shape says nothing (docs/engines.md).
    """
    if isinstance(spec, AttentionSpec) and engine.name == "vllm" and engine.platform == "cpu":
        return "cpu-attention"
    if isinstance(spec, AttentionSpec | LatentSpec):
        return "semantic" if spec.proves_reading else "packed"
    return "state"


@final
@frozen
class LayerPlan:
    """One layer of a plan.

    Attributes:
        layer: its name.
        group: index of its group; ``None`` for an alias.
        verdict: ``view`` (re-presented), ``same`` (left as it is), ``alias`` (the object of another layer) or ``excluded``.
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


@final
@frozen(slots=False)
class Plan:
    """Views with their proofs, for one registration.

    Attributes:
        registration: what was planned.
        form: the presentation, ``lmcache`` or ``bytes``.
        blocks: the block count, possibly symbolic.
        placed: the served layers.
        aliases: alias -> the layer whose object it gets.
        dispositions: one a group.
        rules: rules that were passed, tried before the installed ones.
    """

    registration: Registration
    form: Form
    blocks: Size | None
    placed: tuple[Placed, ...] = field(eq=False)
    aliases: Mapping[str, str] = field(eq=False)
    dispositions: tuple[Disposition, ...]
    rules: Registry | None = field(default=None, eq=False)

    @cached_property
    def layers(self) -> Mapping[str, LayerPlan]:
        """The layers that planned, in the order of registration, then excluded ones without a cache."""
        made = {placed.layer: self._served(placed) for placed in self.placed}
        for index, (group, disposition) in enumerate(zip(self.registration.groups, self.dispositions, strict=True)):
            if disposition.word == "excluded":
                for layer in group.layers:
                    made.setdefault(layer, LayerPlan(layer, index, "excluded", None, self._source(layer)))
        for alias, target in self.aliases.items():
            whole = made[target]
            verdict: Verdict = "excluded" if whole.verdict == "excluded" else "alias"
            made[alias] = LayerPlan(
                alias,
                None,
                verdict,
                whole.rule,
                self._source(alias),
                whole.view,
                whole.content,
                whole.claims,
                whole.open,
                whole.page,
                target,
            )
        order = dict.fromkeys((*self.registration.caches, *made))
        return {layer: made[layer] for layer in order if layer in made}

    def _source(self, layer: str) -> tuple[RegisteredTensor, ...]:
        entry = self.registration.caches.get(layer)
        if entry is None:
            return ()
        return (entry,) if isinstance(entry, RegisteredTensor) else entry

    def _served(self, placed: Placed) -> LayerPlan:
        shape = placed.shape
        source = self._source(placed.layer)
        known = source[0].storage_nbytes is not None
        return LayerPlan(
            placed.layer,
            placed.group,
            "same" if shape.same else "view",
            shape.rule,
            source,
            shape.view.shifted(Bytes(placed.base)),
            shape.content,
            shape.proof.claims,
            () if known else ("within",),
            page_map(shape.spec, shape.cache, packing(shape.spec, self.registration.engine)),
        )

    @cached_property
    def groups(self) -> tuple[GroupPlan, ...]:
        """One for each group of the registration, served or not."""
        return tuple(self._group(i, group) for i, group in enumerate(self.registration.groups))

    def _group(self, index: int, group: Group) -> GroupPlan:
        word, reason = self.dispositions[index]
        specs = group.specs
        first = specs[0]
        maps = [plan.page for layer in group.layers if (plan := self.layers.get(layer)) and plan.page]
        whole = word == "served" and len(maps) == len(group.layers) and bool(maps)
        dcp = self.registration.engine.dcp if first.dcp_sharded else 1
        return GroupPlan(
            index=index,
            kind=group.spec.kind if group.spec.kind != "unknown" else first.kind,
            layers=group.layers,
            disposition=word,
            reason=reason,
            num_blocks=self.blocks,
            block_tokens=(first.block_size * dcp) or None,
            states_per_block=_only({_states(spec) for spec in specs}),
            page_bytes=_only({spec.page_bytes for spec in specs}),
            payload_bytes=_only({_payload(spec) for spec in specs}),
            compress_ratio=_only({_ratio(spec) for spec in specs}),
            window_tokens=_only({_window(spec) for spec in specs}),
            recurrent=all(isinstance(spec, StateSpec) for spec in specs),
            draft=group.draft,
            fingerprint=_digest({page.fingerprint for page in maps}) if whole else None,
        )

    def bind(self, blocks: int) -> Result[Plan, LayoutErrors]:
        """Plan again at a concrete block count, from the registration, so that nothing stale is kept."""
        from kvlayout.planning import plan

        return plan(self.registration.bind(blocks), rules=self.rules, presentation=self.form)

    def to_json(self) -> str:
        """Write the plan: its registration, its presentation, and the results to hold against a new planning."""
        from kvlayout.reporting import write_plan

        return write_plan(self)

    @staticmethod
    def from_json(text: str | bytes) -> Result[Plan, LayoutErrors]:
        """Read a plan and prove it again; results that differ from the new ones are ``stale-plan``."""
        from kvlayout.reporting import read_plan

        return read_plan(text)


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
