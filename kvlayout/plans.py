"""A plan: for every layer its view and the proof of it, for every group what a connector needs to know.

A plan holds the registration that it was made from and values for the few distinct shapes of layers; layers and
groups are put together when they are asked for. Nothing here plans: that is :mod:`kvlayout.planning`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, final

from attrs import field, frozen

from kvlayout.algebra.affine import Size
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.registration import Engine, Registration
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec
from kvlayout.errors import LayoutErrors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.algebra.kernel import Proved
    from kvlayout.algebra.layout import Layout
    from kvlayout.algebra.result import Result
    from kvlayout.rules.presentation import Form
    from kvlayout.rules.rule import Registry
    from kvlayout.summaries import GroupPlan, LayerPlan
    from kvlayout.warning import PlanWarning

__all__ = [
    "Content",
    "Disposition",
    "GroupPlan",
    "LayerPlan",
    "Opaque",
    "Plan",
    "Run",
    "Semantic",
    "Shape",
    "Verdict",
    "Windows",
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

#: Intervals that a layer owns: start from its first byte, block stride, bytes.
Windows: TypeAlias = tuple[tuple[Size, Size, int], ...]


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
        itemsize: bytes of an element of the registered tensor (the first of a list).
        simple: a layer's place can be judged by its storage size alone.
        windows: the intervals that the layer owns.
    """

    spec: Spec
    cache: CacheLayout
    rule: str | None
    proof: Proved
    view: Layout
    same: bool
    content: Content
    reach: Size
    itemsize: int
    simple: bool
    windows: Windows


class Run(NamedTuple):
    """Served layers of one group and one shape: for each its storage, and the byte of it at which the layer starts."""

    layers: tuple[str, ...]
    group: int
    shape: Shape
    storages: tuple[int, ...]
    bases: tuple[Size, ...]


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
    if isinstance(spec, (AttentionSpec, LatentSpec)):
        return "semantic" if spec.proves_reading else "packed"
    return "state"


@final
@frozen(slots=False)
class Plan:
    """Views with their proofs, for one registration.

    Attributes:
        registration: what was planned.
        form: the presentation, ``lmcache`` or ``bytes``.
        blocks: the block count, possibly symbolic.
        runs: the served layers, those of a group together that are alike.
        aliases: alias -> the layer whose object it gets.
        dispositions: one a group.
        rules: rules that were passed, tried before the installed ones.
    """

    registration: Registration
    form: Form
    blocks: Size | None
    runs: tuple[Run, ...] = field(eq=False)
    aliases: Mapping[str, str] = field(eq=False)
    dispositions: tuple[Disposition, ...]
    rules: Registry | None = field(default=None, eq=False)

    @cached_property
    def layers(self) -> Mapping[str, LayerPlan]:
        """The layers that planned, in the order of registration, then excluded ones without a cache."""
        from kvlayout.summaries import summarise_layers

        return summarise_layers(self)

    @cached_property
    def groups(self) -> tuple[GroupPlan, ...]:
        """One for each group of the registration, served or not."""
        from kvlayout.summaries import summarise_groups

        return summarise_groups(self)

    @cached_property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """Where LMCache would refuse or misread these views, with the layers; empty where it reads them right."""
        from kvlayout.warning import warn

        return warn(self)

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


def __getattr__(name: str) -> object:
    """Give the summaries' classes under this module's name, without importing them for those who never ask."""
    if name in ("GroupPlan", "LayerPlan"):
        from kvlayout import summaries

        return getattr(summaries, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
