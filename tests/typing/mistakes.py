"""Deliberate mistakes. A line that ends in a flag must be an error of mypy with that code, and no other line may.

Read by ``test_mistakes.py``; never imported, never formatted, and excluded from the ordinary mypy run.
"""

from __future__ import annotations

from typing import assert_never

from kvlayout import Err, Layout, Ok, Plan, Proved, Registration, Registry, apply, plan, rule
from kvlayout.algebra.affine import BLOCK_COUNT, Size
from kvlayout.algebra.claims import Pages, Refuted, Undecided
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.kernel import Verdict, prove, same
from kvlayout.algebra.layout import Axis
from kvlayout.algebra.result import Result
from kvlayout.algebra.transforms import merge_mla_tiles, retype
from kvlayout.algebra.units import Bytes, Elements, in_bytes
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.registration import RegisteredTensor
from kvlayout.cache.spec import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    LatentSpec,
    RawSpec,
    RingSpec,
    Spec,
    StateSpec,
    UniformSpec,
    UnknownSpec,
)
from kvlayout.errors import Code, LayoutError
from kvlayout.plans import Content, Opaque, Semantic
from kvlayout.rules.presentation import Presentation, bytes_page, prove_view
from kvlayout.rules.rule import NoMatch, Outcome, Rule

# ------------------------------------------------------------------------------------------------------------- units


def units(stride: Bytes, count: Elements, size: Size, layout: Layout) -> None:
    stride + count  # E: operator
    count - stride  # E: operator
    stride + 4  # E: operator
    4 + stride  # E: operator
    stride * stride  # E: operator
    stride < count  # E: operator
    total: int = stride  # E: assignment
    bare: Size = count  # E: assignment
    in_bytes(stride, 2)  # E: arg-type
    layout.shifted(count)  # E: arg-type
    layout.shifted(4)  # E: arg-type
    Layout((4,), (count,), stride, DTYPES["int8"], stride, (Axis.BYTES,))  # E: arg-type
    Layout((4,), (1,), stride, DTYPES["int8"], stride, (Axis.BYTES,))  # E: arg-type
    layout.strides[0] * 3 + layout.offset + in_bytes(count, 2)
    size + BLOCK_COUNT - 1


# ------------------------------------------------------------------------------------------------------------- rules


@rule(LatentSpec, name="wrong-spec")  # E: arg-type
def wrong_spec(spec: AttentionSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
    return NoMatch()


@rule(AttentionSpec, name="wrong-arguments")  # E: arg-type
def wrong_arguments(spec: AttentionSpec, cache: CacheLayout) -> Outcome:
    return NoMatch()


@rule(AttentionSpec, name="wrong-goal")  # E: arg-type
def wrong_goal(spec: AttentionSpec, cache: CacheLayout, goal: str) -> Outcome:
    return NoMatch()


@rule(str, name="no-spec")  # E: type-var
def no_spec(spec: str, cache: CacheLayout, goal: Presentation) -> Outcome:
    return NoMatch()


@rule(AttentionSpec)  # E: call-arg
def no_name(spec: AttentionSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
    return NoMatch()


@rule(AttentionSpec, name="unproved")
def unproved(spec: AttentionSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
    if goal.form == "bytes":
        return cache.source  # E: return-value
    if cache.apart:
        return Ok(cache.source)  # E: arg-type
    if cache.listed:
        return retype(cache.source, DTYPES["int8"])  # E: return-value
    return prove_view(cache.source, cache)


@rule(LatentSpec, name="undecided")
def undecided(spec: LatentSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
    verdict = prove(cache.source, cache.pages, cache.page_bytes, cache.payload, cache.blocks, cache.states)
    if goal.form == "bytes":
        return Ok(verdict)  # E: arg-type
    if isinstance(verdict, Refuted):
        return Ok(verdict)  # E: arg-type
    if isinstance(verdict, Undecided):
        return Err("undecided")  # E: arg-type
    return Ok(verdict)


@rule(LatentSpec, name="untold")
def untold(spec: LatentSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
    moved = merge_mla_tiles(cache.source, cache.kernel_pages)
    if goal.form == "bytes":
        return prove_view(moved, cache)  # E: arg-type
    if isinstance(moved, Err):
        return moved  # E: return-value
    return prove_view(moved.value, cache)


@rule(StateSpec, name="forgotten")
def forgotten(spec: StateSpec, cache: CacheLayout, goal: Presentation) -> Outcome:  # E: return
    if goal.form == "bytes":
        return bytes_page(cache)
    prove_view(cache.source, cache)


@rule(StateSpec, name="nothing")
def nothing(spec: StateSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
    if cache.listed:
        return None  # E: return-value
    if cache.untouched:
        return NoMatch  # E: return-value
    return False  # E: return-value


def registries(mine: Rule[AttentionSpec], cache: CacheLayout, goal: Presentation) -> None:
    Registry.of(mine) | mine  # E: operator
    Registry.of(wrong_spec, bytes_page)  # E: arg-type
    Registry.of(mine).rules += (mine,)  # E: misc
    mine.name = "another"  # E: misc
    mine("FullAttentionSpec", cache, goal)  # E: arg-type


# ------------------------------------------------------------------------------------------------------------- proofs


def forging(view: Layout, cache: CacheLayout, found: Proved) -> None:
    Proved(view, ())  # E: call-arg
    Proved(view, (), None)  # E: arg-type
    Proved(view, (), object())  # E: arg-type
    Proved()  # E: call-arg
    verdict: Proved = same(view, view)  # E: assignment
    proof: Result[Proved, LayoutError] = view  # E: assignment
    verdict.claims[0].reasons.append(("covered", 0))  # E: attr-defined
    Pages((0,), 1, 1).covered = 2  # E: misc


def subclassing() -> None:
    class Forged(Proved):  # E: misc
        """A final class; and mypy knows that nothing comes after this."""


# -------------------------------------------------------------------------------------------------------- cases


def spec_without_a_case(spec: Spec) -> int:
    match spec:  # E: exhaustive-match
        case AttentionSpec() | LatentSpec():
            return spec.states
        case StateSpec():
            return 1
        case CrossAttentionSpec() | EncoderOnlySpec() | RingSpec() | RawSpec():
            return 0
    return -1


def every_spec(spec: Spec) -> int:
    match spec:
        case AttentionSpec() | LatentSpec():
            return spec.states
        case StateSpec() | CrossAttentionSpec() | EncoderOnlySpec() | RingSpec() | RawSpec():
            return 1
        case UniformSpec() | UnknownSpec():
            return 0


def code_without_a_case(code: Code) -> str:
    match code:  # E: exhaustive-match
        case Code.MISSING_LAYER:
            return "none"
        case Code.UNKNOWN_LAYER:
            return "one too many"
    return "?"


def verdict_without_a_case(verdict: Verdict) -> str:
    match verdict:
        case Proved():
            return "yes"
        case Refuted():
            return "no"
        case _:
            assert_never(verdict)  # E: arg-type


def a_case_too_many(spec: AttentionSpec | LatentSpec) -> int:
    match spec:  # E: exhaustive-match
        case AttentionSpec() | LatentSpec():
            return spec.states
        case StateSpec():  # E: unreachable
            return 1  # E: unreachable


def no_common_field(spec: Spec) -> int:
    return spec.states  # E: union-attr


# ------------------------------------------------------------------------------------------------------------ content


def quantise(content: Semantic, view: Layout) -> Layout:
    return view


def content_unasked(content: Content, view: Layout) -> None:
    quantise(content, view)  # E: arg-type
    if isinstance(content, Opaque):
        quantise(content, view)  # E: arg-type
    else:
        quantise(content, view)
    content.why  # E: union-attr


# ------------------------------------------------------------------------------------------------------------ results


def results(registration: Registration, layout: Layout, tensor: RegisteredTensor) -> None:
    result = plan(registration)
    result.value  # E: union-attr
    result.layers  # E: union-attr
    result.error.errors  # E: union-attr
    apply(result, {})  # E: arg-type
    apply(layout, {})  # E: arg-type
    apply(registration, {})  # E: arg-type
    if isinstance(result, Err):
        apply(result.error, {})  # E: arg-type
        result.value  # E: attr-defined
    else:
        result.error  # E: attr-defined
        apply(result.value, {})
    plan("registration.json")  # E: arg-type
    plan(registration, presentation="nixl")  # E: arg-type
    plan(registration, rules=[unproved])  # E: arg-type
    apply(result.unwrap(), {"layer": layout})  # E: dict-item
    made: Plan = Plan.from_json("{}")  # E: assignment


def frozen(layout: Layout, tensor: RegisteredTensor, registration: Registration, error: LayoutError) -> None:
    layout.shape = (1,)  # E: misc
    layout.offset = Bytes(4)  # E: misc
    tensor.shape = (1,)  # E: misc
    registration.num_blocks = 3  # E: misc
    registration.caches["a"] = tensor  # E: index
    error.code = Code.MISSING_LAYER  # E: misc
    error.code = "missing-layer"  # E: misc, assignment
    LayoutError("missing-layer")  # E: arg-type
    Presentation("nixl", None)  # E: arg-type
