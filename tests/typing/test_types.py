"""What mypy thinks the types are: checked by the ordinary mypy run, and by running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_type

from kvlayout import Err, Layout, LayoutErrors, Ok, Plan, Proved, Registration, plan, rule
from kvlayout.algebra.affine import BLOCK_COUNT, Affine, Size
from kvlayout.algebra.claims import Refuted, Undecided
from kvlayout.algebra.kernel import Verdict
from kvlayout.algebra.result import Result
from kvlayout.algebra.transforms import Refusal, merge_mla_tiles
from kvlayout.algebra.units import Bytes, Elements, in_bytes, in_elements, raw
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.registration import Registration as Document
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec, StateSpec
from kvlayout.plans import Content, Opaque, Semantic
from kvlayout.rules.presentation import Presentation, prove_view
from kvlayout.rules.rule import NoMatch, Outcome, Registry, Rule
from kvlayout.summaries import GroupPlan, LayerPlan

if TYPE_CHECKING:
    from kvlayout.errors import LayoutError


def test_units() -> None:
    stride, count = Bytes(64), Elements(3)
    assert_type(stride + stride, Bytes)
    assert_type(stride - stride, Bytes)
    assert_type(stride * 3, Bytes)
    assert_type(stride * BLOCK_COUNT, Bytes)
    assert_type(count * 2, Elements)
    assert_type(in_bytes(count, 2), Bytes)
    assert_type(in_elements(stride, 2), Elements | None)
    assert_type(raw(stride), Size)
    assert_type(BLOCK_COUNT, Affine)
    assert (raw(stride + stride), raw(in_bytes(count, 2))) == (128, 6)


def test_results_of_planning() -> None:
    result = plan(Registration((), {}))
    assert_type(result, Result[Plan, LayoutErrors])
    if isinstance(result, Ok):
        assert_type(result.value, Plan)
        assert_type(result.value.layers, Mapping[str, LayerPlan])
        assert_type(result.value.groups, tuple[GroupPlan, ...])
    else:
        assert_type(result.error, LayoutErrors)
    assert_type(result.unwrap(), Plan)
    assert_type(Plan.from_json("{}"), Result[Plan, LayoutErrors])
    assert_type(Document.from_json("{}"), Result[Registration, LayoutErrors])


def test_a_pipeline_keeps_both_types() -> None:
    def joined(layout: Layout, cache: CacheLayout) -> Result[Proved, LayoutError | Refusal]:
        moved = merge_mla_tiles(layout, 12)
        assert_type(moved, Result[Layout, Refusal])
        if isinstance(moved, Err):
            assert_type(moved.error, Refusal)
            return moved
        return prove_view(moved.value, cache)

    assert callable(joined)


def test_a_rule_knows_its_spec() -> None:
    @rule(LatentSpec, name="mine")
    def mine(spec: LatentSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
        del spec, cache, goal
        return NoMatch()

    assert_type(mine, Rule[LatentSpec])
    assert_type(mine.spec, type[LatentSpec])
    assert_type(Registry.of(mine) | Registry(), Registry)


def test_narrowing() -> None:
    def of_spec(spec: Spec) -> int:
        if isinstance(spec, AttentionSpec | LatentSpec):
            return spec.states
        if isinstance(spec, StateSpec):
            assert_type(spec.content_bytes, int)
        return 0

    def of_verdict(verdict: Verdict) -> str:
        match verdict:
            case Proved():
                assert_type(verdict.view, Layout | None)
                return "proved"
            case Refuted() | Undecided():
                assert_type(verdict.reason, str)
                return verdict.claim

    def of_content(content: Content) -> str:
        if isinstance(content, Opaque):
            return content.why
        assert_type(content, Semantic)
        return content.tag

    assert (of_content(Semantic()), of_content(Opaque("state"))) == ("semantic", "state")
    assert callable(of_spec)
    assert callable(of_verdict)
