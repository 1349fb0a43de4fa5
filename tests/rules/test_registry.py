"""Rules of others: they are tried in order, by exact spec, and no answer of theirs is believed without its proof."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvlayout.algebra.claims import Pages
from kvlayout.algebra.dtype import DTYPES, DType
from kvlayout.algebra.kernel import Proved, own, page, prove
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.result import Err, Ok
from kvlayout.algebra.transforms import Refusal, beside_rows, join_rows
from kvlayout.algebra.units import Bytes, raw
from kvlayout.cache.paging import CacheLayout, own_pages
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
from kvlayout.planning import plan
from kvlayout.rules import builtin
from kvlayout.rules.builtin import BUILTIN, installed
from kvlayout.rules.presentation import Presentation, bytes_page, prove_view, refused, token_page
from kvlayout.rules.rule import NoMatch, Outcome, Registry, Rule, rule
from kvlayout.rules.state import mamba_page_view, mamba_unified_view
from tests.rules.building import (
    attention,
    code,
    codes,
    document,
    group,
    latent,
    mamba,
    one,
    planned,
    registered,
    state_list,
    state_row,
    tensor,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KV = attention()
FUSED = one(KV, tensor([12, 2, 16, 16]))
ROW = one(mamba(page=1024), state_row(mamba(page=1024), 3))


def answering(answer: Callable[[CacheLayout], Any], name: str = "mine") -> Registry:
    """Return a registry of a rule for attention with this answer, whatever it is."""

    def apply(spec: AttentionSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
        del spec, goal
        result: Outcome = answer(cache)
        return result

    return Registry.of(rule(AttentionSpec, name=name)(apply))


def shaped(
    cache: CacheLayout,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    axes: tuple[Axis, ...] = (Axis.BLOCK, Axis.BYTES),
    *,
    dtype: DType = DTYPES["int8"],
    offset: int = 0,
) -> Layout:
    bytes_ = tuple(map(Bytes, strides))
    return Layout(shape, bytes_, Bytes(offset), dtype, Bytes(cache.page_bytes), axes)


# -------------------------------------------------------------------------------------------------------- right answers


def test_a_rule_that_is_passed_goes_first() -> None:
    found = view(FUSED, rules=answering(bytes_page))
    assert (found["rule"], found["shape"], found["dtype"], found["content"]) == ("mine", [3, 4096], "int8", "opaque")


#: Fused, tokens outside heads in memory: its kernel pages can be joined row by row.
NHD = one(KV, tensor([12, 2, 16, 16], [512, 16, 32, 1]))


def joined(cache: CacheLayout) -> Layout:
    return beside_rows(cache.source).then(join_rows).unwrap()


def test_a_rule_that_keeps_the_order_of_the_registered_axes_is_semantic() -> None:
    found = view(NHD, rules=answering(lambda c: prove_view(joined(c), c, beside_rows(c.source).unwrap())))
    assert (found["rule"], found["shape"], found["content"]) == ("mine", [3, 2, 64, 16], "semantic")


def renamed(cache: CacheLayout) -> Layout:
    made = joined(cache)
    return made.arranged(made.shape, made.strides, (Axis.BLOCK, Axis.PLANE, Axis.TOKEN, Axis.CHANNEL))


def one_head(cache: CacheLayout) -> Layout:
    axes = (Axis.BLOCK, Axis.TOKEN, Axis.HEAD, Axis.CHANNEL)
    return shaped(cache, (3, 64, 1, 32), (4096, 64, 64, 2), axes, dtype=cache.source.dtype)


def other_rows(cache: CacheLayout) -> Layout:
    axes = (Axis.BLOCK, Axis.HEAD, Axis.TOKEN, Axis.CHANNEL)
    return shaped(cache, (3, 2, 64, 16), (4096, 2048, 32, 2), axes, dtype=cache.source.dtype)


@pytest.mark.parametrize("make", [renamed, one_head, other_rows])
def test_a_view_that_is_only_the_same_as_itself_is_opaque(make: Callable[[CacheLayout], Layout]) -> None:
    found = view(NHD, rules=answering(lambda cache: prove_view(make(cache), cache, make(cache))))
    assert (found["rule"], found["content"]) == ("mine", "opaque")


def test_a_rule_that_does_not_match_leaves_the_layer_to_the_next() -> None:
    assert view(FUSED, rules=answering(lambda _: NoMatch()))["rule"] == "subpaged-attention-view"


def test_the_first_match_wins() -> None:
    first, second = answering(lambda _: NoMatch(), "first"), answering(bytes_page, "second")
    assert view(FUSED, rules=first | second | answering(lambda _: 1 // 0, "third"))["rule"] == "second"


def test_a_rule_is_asked_only_about_its_own_spec() -> None:
    assert view(ROW, rules=answering(lambda _: 1 // 0))["rule"] == "mamba-unified-view"
    with_another = one(latent(), tensor([12, 16, 24]))
    assert view(with_another, rules=answering(lambda _: 1 // 0))["rule"] == "subpaged-mla-attention-view"


def test_a_rule_refuses_another_spec_itself() -> None:
    (mine,) = answering(bytes_page).rules
    unseen: Any = None
    assert mine(registered(ROW).groups[0].spec, unseen, unseen) == NoMatch()


def test_a_rule_may_take_a_layer_that_needs_none() -> None:
    kept = one(KV, tensor([3, 2, 64, 16]))
    assert view(kept, rules=answering(bytes_page))["shape"] == [3, 4096]


def test_a_rule_may_refuse() -> None:
    refusal = LayoutError(Code.AXES_AMBIGUOUS, expected="what I know", actual="this")
    result = planned(FUSED, rules=answering(lambda _: Err(refusal)))
    (error,) = result.errors
    assert (error.code, error.group, error.layer, error.expected) == (Code.AXES_AMBIGUOUS, 0, "a", "what I know")


def test_a_view_in_the_order_of_the_tensor_keeps_its_meaning() -> None:
    kept = one(KV, tensor([3, 2, 64, 16]))
    found = view(kept, rules=answering(lambda cache: prove_view(cache.source, cache, cache.source)))
    assert (found["verdict"], found["rule"], found["content"]) == ("view", "mine", "semantic")
    unproved = view(kept, rules=answering(lambda cache: prove_view(cache.source, cache)))
    assert unproved["content"] == "opaque"


# -------------------------------------------------------------------------------------------------------- wrong answers


def proved(view: Layout, cache: CacheLayout, **other: Any) -> Ok[Proved]:
    """Prove a view of pages that may be others than those of the layer."""
    numbers: dict[str, Any] = {
        "pages": cache.pages,
        "page_bytes": cache.page_bytes,
        "payload": cache.payload,
        "blocks": cache.blocks,
        "states": None,
    }
    verdict = prove(view, **numbers | other)
    assert isinstance(verdict, Proved), verdict
    return Ok(verdict)


def other_pages(cache: CacheLayout) -> Ok[Proved]:
    view = shaped(cache, (3, 4096), (4096, 1), offset=4096)
    return proved(view, cache, pages=Pages((4096,), 4096, 4096))


def kernel_pages(cache: CacheLayout) -> Ok[Proved]:
    """The wrong view that everything began with: pages of the kernel under the ids of blocks."""
    view = shaped(cache, (3, 1024), (1024, 1))
    return proved(view, cache, pages=Pages((0,), 1024, 1024), page_bytes=1024, payload=1024)


def part_of_a_page(cache: CacheLayout) -> Ok[Proved]:
    return proved(shaped(cache, (3, 4000), (4096, 1)), cache, pages=Pages((0,), 4096, 4000), payload=4000)


def more_than_a_page(cache: CacheLayout) -> Ok[Proved]:
    view = shaped(cache, (3, 8192), (8192, 1))
    return proved(view, cache, pages=Pages((0,), 8192, 8192), page_bytes=8192)


def other_block_count(cache: CacheLayout) -> Ok[Proved]:
    return proved(shaped(cache, (4, 4096), (4096, 1)), cache, blocks=4)


def other_states(cache: CacheLayout) -> Ok[Proved]:
    axes = (Axis.BLOCK, Axis.TOKEN, Axis.CHANNEL)
    return proved(shaped(cache, (3, 32, 128), (4096, 128, 1), axes), cache, states=32)


def no_states(cache: CacheLayout) -> Ok[Proved]:
    """Rows that are no axis, so that nobody sees how many there are: a page of one interval of channels."""
    return proved(shaped(cache, (3, 4096), (4096, 1), (Axis.BLOCK, Axis.CHANNEL)), cache)


def bare_pages(cache: CacheLayout) -> Any:
    return Ok(own(cache.pages, cache.page_bytes, cache.payload, cache.blocks))


def one_claim(cache: CacheLayout) -> Any:
    return Ok(page(shaped(cache, (3, 4096), (4096, 1)), cache.pages, cache.blocks))


def backwards(cache: CacheLayout) -> Ok[Proved]:
    """All bytes of each page, the last one first: no ``as_strided`` makes it."""
    return proved(shaped(cache, (3, 4096), (4096, -1), offset=4095), cache)


@pytest.mark.parametrize(
    "answer",
    [
        other_pages,
        kernel_pages,
        part_of_a_page,
        more_than_a_page,
        other_block_count,
        other_states,
        no_states,
        bare_pages,
        one_claim,
        backwards,
        lambda _: None,
        lambda _: Ok(None),
        lambda _: Ok("a view"),
        lambda cache: Ok(cache.source),
        lambda cache: cache.source,
        lambda _: Err("no"),
        lambda _: True,
        lambda _: 1 // 0,
        lambda cache: cache.no_such_thing,
        lambda cache: prove_view(shaped(cache, (3, 4096), (4096, 2)), cache).unwrap(),
    ],
    ids=lambda answer: answer.__name__,
)
def test_a_wrong_answer_is_not_believed(answer: Callable[[CacheLayout], Any]) -> None:
    assert code(FUSED, rules=answering(answer)) == "rule-not-proved"


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((3, 4096), (4096, 2), "page-not-contiguous"),
        ((3, 4095), (4096, 1), "page-bytes-mismatch"),
        ((3, 4097), (4096, 1), "page-bytes-mismatch"),
        ((4, 4096), (4096, 1), "page-not-contiguous"),
        ((3, 4096), (1024, 1), "page-not-contiguous"),
    ],
)
def test_a_view_that_is_not_proved_says_which_claim_is_false(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: str
) -> None:
    rules = answering(lambda cache: prove_view(shaped(cache, shape, strides), cache))
    assert code(FUSED, rules=rules) == expected
    (error,) = planned(FUSED, rules=rules).errors
    assert error.witness is not None


def test_a_page_is_not_shown_as_fewer_bytes_than_it_has() -> None:
    narrow = answering(lambda cache: token_page(cache, 2, heads_first=True))
    (error,) = planned(FUSED, rules=narrow).errors
    assert (error.code.value, error.expected, error.actual) == ("page-bytes-mismatch", "at least 2048", "64")


def test_a_view_that_no_tensor_can_be() -> None:
    odd = one(attention(heads=1, head=3, dtype="int8"), tensor([3, 1, 64, 6], [386, 6, 6, 1], dtype="int8"))
    wide = Axis.BLOCK, Axis.BYTES

    def doubles(cache: CacheLayout) -> Any:
        return proved(shaped(cache, (3, 48), (386, 8), wide, dtype=DTYPES["float64"]), cache)

    assert code(odd, rules=answering(doubles)) == "dtype-misaligned"


@pytest.mark.parametrize("name", ["int7", "int8"])
def test_a_view_of_a_type_that_torch_has_not(name: str) -> None:
    def odd(cache: CacheLayout) -> Any:
        return proved(shaped(cache, (3, 2048), (4096, 2), dtype=DType(name, 2)), cache)

    assert code(FUSED, rules=answering(odd)) == "unknown-dtype"


def test_one_block_may_have_any_stride_but_not_half_an_element() -> None:
    single = one(KV, tensor([1, 2, 64, 16]), 1)

    def odd(cache: CacheLayout) -> Any:
        return proved(shaped(cache, (1, 2048), (4097, 2), dtype=DTYPES["float16"]), cache)

    assert code(single, rules=answering(odd)) == "dtype-misaligned"


def test_each_rule_for_states_has_its_own() -> None:
    """The first of the two takes every list, so the second one never sees any; asked, it would say so."""
    spec = mamba(page=1024)
    goal = Presentation("lmcache", "NHD")
    for cache, mine, other in (
        (state_list(spec, 3, 1024), mamba_page_view, mamba_unified_view),
        (state_row(spec, 3), mamba_unified_view, mamba_page_view),
    ):
        made = registered(one(spec, cache))
        state = made.groups[0].spec
        assert isinstance(state, StateSpec)
        owned = own_pages(state, made.caches["a"], 3).unwrap()
        assert isinstance(mine(state, owned, goal), Ok)
        assert other(state, owned, goal) == NoMatch()


def test_an_offset_that_the_view_s_type_does_not_divide() -> None:
    def floats(cache: CacheLayout) -> Any:
        return proved(shaped(cache, (3, 1024), (4096, 4), dtype=DTYPES["float32"]), cache)

    assert code(one(KV, tensor([12, 2, 16, 16], offset=2)), rules=answering(floats)) is None
    assert code(one(KV, tensor([12, 2, 16, 16], offset=1)), rules=answering(floats)) == "dtype-misaligned"


def test_a_rule_that_fails_on_one_layer_fails_on_no_other() -> None:
    groups = [group(["a", "b"], KV), group(["m"], mamba(page=1024))]
    caches = {
        "a": tensor([12, 2, 16, 16], storage=0),
        "b": tensor([3, 2, 64, 16], storage=1),
        "m": state_row(mamba(page=1024), 3, storage=2),
    }

    def fails(cache: CacheLayout) -> Any:
        return NoMatch() if cache.kernel_pages == 1 else 1 // 0

    made = planned(document(groups, caches), rules=answering(fails))
    assert [(e.code, e.layer) for e in made.errors] == [(Code.RULE_NOT_PROVED, "a")]
    assert "ZeroDivisionError" in made.errors[0].actual
    assert list(made.plan.layers) == ["b", "m"]


def test_what_a_refused_move_or_verdict_means() -> None:
    pages = Pages((0,), 4, 4)
    bare = own(pages, 4, 4, 2)
    assert refused(bare).code is Code.RULE_NOT_PROVED
    wrong = own(pages, 5, 4, 2)
    assert refused(wrong).code is Code.PAGE_BYTES_MISMATCH
    assert refused(Refusal("permute", "all", "each once", "twice")).code is Code.RULE_NOT_PROVED
    assert refused(Refusal("split", "block", "a multiple of 4", "13")).code is Code.NOT_DIVISIBLE


def test_an_undecided_claim_is_a_refusal() -> None:
    from kvlayout.algebra.affine import BLOCK_COUNT

    def grows(cache: CacheLayout) -> Any:
        made = Layout(
            (3, BLOCK_COUNT), (Bytes(4096), Bytes(1)), Bytes(0), DTYPES["int8"], Bytes(4096), (Axis.BLOCK, Axis.BYTES)
        )
        return prove_view(made, cache)

    assert code(FUSED, rules=answering(grows)) == "rule-not-proved"

    def no_blocks(cache: CacheLayout) -> Any:
        return prove_view(shaped(cache, (3, 4096), (4096, 1), (Axis.CHANNEL, Axis.BYTES)), cache)

    assert code(FUSED, rules=answering(no_blocks)) == "rule-not-proved"


# ------------------------------------------------------------------------------------------------------------ conflicts


@pytest.mark.parametrize("spec", [CrossAttentionSpec, EncoderOnlySpec, RingSpec, RawSpec, UniformSpec, UnknownSpec])
def test_a_rule_for_what_is_never_served_can_never_be_reached(spec: type[Spec]) -> None:
    @rule(spec, name="never")
    def never(spec: Spec, cache: CacheLayout, goal: Presentation) -> Outcome:
        del spec, cache, goal
        return NoMatch()

    registry = Registry.of(never)
    assert [error.code for error in registry.errors] == [Code.RULE_CONFLICT]
    assert codes(FUSED, rules=registry) == [("rule-conflict", None, None)]


@pytest.mark.parametrize("spec", [AttentionSpec, LatentSpec, StateSpec])
def test_a_rule_for_what_is_served_can_be_reached(spec: type[Spec]) -> None:
    @rule(spec, name="mine")
    def mine(spec: Spec, cache: CacheLayout, goal: Presentation) -> Outcome:
        del spec, cache, goal
        return NoMatch()

    assert Registry.of(mine).errors == ()
    assert codes(FUSED, rules=Registry.of(mine)) == []


def test_two_rules_of_one_name() -> None:
    mine = answering(bytes_page)
    assert [error.code for error in (mine | mine).errors] == [Code.RULE_CONFLICT]
    assert len((mine | mine | mine).errors) == 2
    assert codes(FUSED, rules=answering(bytes_page, "subpaged-attention-view")) == [("rule-conflict", None, None)]
    assert codes(FUSED, rules=mine | mine) == [("rule-conflict", None, None)]


def test_a_conflict_refuses_the_plan() -> None:
    result = plan(registered(FUSED), rules=answering(bytes_page) | answering(bytes_page))
    assert isinstance(result, Err)
    assert [error.code for error in result.error.errors] == [Code.RULE_CONFLICT]


def test_a_registry_is_a_value() -> None:
    assert BUILTIN.names == (
        "mamba-page-view",
        "subpaged-attention-view",
        "mamba-unified-view",
        "subpaged-mla-attention-view",
    )
    assert BUILTIN.errors == ()
    assert (Registry() | BUILTIN) == BUILTIN
    assert hash(Registry()) == hash(Registry())
    with pytest.raises(AttributeError):
        BUILTIN.rules = ()  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------------- entry points


class Point:
    """What ``importlib.metadata`` finds: a name, and what loading it gives or raises."""

    def __init__(self, name: str, found: object) -> None:
        self.name, self.found = name, found

    def load(self) -> object:
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """One more folder of installed packages, for one test; the process looks anew."""
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    yield tmp_path
    installed.cache_clear()


def package(site: Path, declares: str | None, name: str = "some-1.0.dist-info") -> None:
    (site / name).mkdir()
    if declares is not None:
        (site / name / "entry_points.txt").write_text(declares)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch, site: Path) -> list[Point]:
    """Entry points that are installed for one test."""
    declared: list[Point] = []
    package(site, "[kvlayout.rules]\nmine = some:rules\n")

    def entry_points(*, group: str) -> list[Point]:
        assert group == builtin.ENTRY_POINTS == "kvlayout.rules"
        return declared

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return declared


def test_packages_are_asked_only_where_one_declares_rules(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    monkeypatch.delitem(sys.modules, "importlib.metadata")
    package(site, None, "plain-1.0.dist-info")
    package(site, "[console_scripts]\nother = other:main\n", "other-1.0.dist-info")
    (site / "kvlayout.rules").mkdir()
    assert installed() == BUILTIN
    assert "importlib.metadata" not in sys.modules
    assert not builtin._declared([str(site)])
    package(site, "[kvlayout.rules]\nmine = some:rules\n", "new-1.0.dist-info")
    assert builtin._declared([str(site)])


def test_packages_are_asked_where_asking_costs_nothing(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    asked: list[str] = []

    def entry_points(*, group: str) -> list[Point]:
        asked.append(group)
        return []

    assert not builtin._declared([str(site)])
    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert installed() == BUILTIN
    assert asked == ["kvlayout.rules"]


def test_packages_in_an_archive_are_asked(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    (site / "packages.zip").touch()
    monkeypatch.syspath_prepend(site / "no-such-folder")
    assert not builtin._declared([*sys.path, ""])
    monkeypatch.syspath_prepend(site / "packages.zip")
    assert builtin._declared(sys.path)


def test_no_entry_point_leaves_the_four_rules(points: list[Point]) -> None:
    assert points == []
    assert installed() == BUILTIN
    assert installed() is installed()


def test_a_package_may_declare_a_rule_or_a_registry(points: list[Point]) -> None:
    (mine,) = answering(bytes_page).rules
    assert isinstance(mine, Rule)
    points += [Point("one", mine), Point("more", answering(lambda _: NoMatch(), "second"))]
    assert installed().names == (*BUILTIN.names, "mine", "second")
    assert installed().errors == ()
    assert view(FUSED)["rule"] == "subpaged-attention-view"
    assert view(one(KV, tensor([3, 2, 64, 16])))["rule"] == "mine"  # what no built-in rule takes


@pytest.mark.parametrize("broken", [ImportError("no such module"), AttributeError("x"), 7, None, bytes_page])
def test_a_package_that_can_t_be_loaded(points: list[Point], broken: object) -> None:
    points += [Point("broken", broken), Point("good", answering(lambda _: NoMatch(), "good"))]
    assert codes(FUSED) == [("rule-load-failed", None, None)]
    (error,) = planned(FUSED).errors
    assert "'broken'" in error.expected
    assert installed().names[-1] == "good"


def test_faults_of_packages_are_collected(points: list[Point]) -> None:
    points += [Point("one", KeyError("x")), Point("two", answering(bytes_page, "mamba-page-view")), Point("three", 3)]
    assert sorted(codes(FUSED)) == [
        ("rule-conflict", None, None),
        ("rule-load-failed", None, None),
        ("rule-load-failed", None, None),
    ]


# ---------------------------------------------------------------------------------------------------------- the values


def test_what_a_rule_reads() -> None:
    seen: list[CacheLayout] = []

    def look(cache: CacheLayout) -> NoMatch:
        seen.append(cache)
        return NoMatch()

    view(one(KV, tensor([12, 2, 16, 16], offset=640)), rules=answering(look))
    (cache,) = seen
    assert cache.source.axes == (Axis.BLOCK, Axis.KERNEL_PAGE, Axis.HEAD, Axis.TOKEN, Axis.CHANNEL)
    assert cache.source.shape == (3, 4, 2, 16, 16)
    assert (cache.blocks, cache.states, cache.kernel_pages, cache.listed, cache.apart) == (3, 64, 4, False, False)
    assert (cache.page_bytes, cache.payload, raw(cache.source.offset)) == (4096, 4096, 0)


def test_one_question_serves_layers_that_differ_in_their_offset_only() -> None:
    asked: list[int] = []

    def count(cache: CacheLayout) -> NoMatch:
        asked.append(cache.kernel_pages)
        return NoMatch()

    names = [f"l{i}" for i in range(50)]
    caches = {name: tensor([12, 2, 16, 16], offset=i * 6144) for i, name in enumerate(names)}
    result = planned(document([group(names, KV)], caches), rules=answering(count))
    assert not result.errors
    assert asked == [4]
