"""What becomes of groups as a whole, of their members' names, and of caches that no group lists."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from kvlayout.algebra.result import Err, Ok
from kvlayout.errors import Code, LayoutErrors
from kvlayout.planning import attempt, plan, validate
from kvlayout.reporting import plan_json
from tests.rules.building import (
    Json,
    attention,
    codes,
    document,
    group,
    latent,
    mamba,
    one,
    place,
    planned,
    registered,
    state_list,
    state_row,
    tensor,
    uniform,
    view,
)

KV = attention()
ROWS = latent()
STATE = mamba(page=1024)


def with_derived(spec: Json, **values: Any) -> Json:
    return spec | {"derived": spec["derived"] | values}


def named(spec: Json, name: str) -> Json:
    return spec | {"type": name}


SCRATCH = with_derived(KV, prefix_cacheable=False)
RAW = with_derived(KV, has_layer_views=False)
CROSS = named(KV, "CrossAttentionSpec")
ENCODER = named(KV, "EncoderOnlyAttentionSpec")
UNKNOWN = named(KV, "NobodyKnowsSpec") | {"bases": []}
KEPT = tensor([3, 2, 64, 16])


def verdicts(made: Json) -> list[tuple[str, str | None]]:
    groups: Any = plan_json(planned(made).plan)["groups"]
    return [(found["disposition"], found["reason"]) for found in groups]


def layers(made: Json) -> dict[str, str]:
    found: Any = plan_json(planned(made).plan)["layers"]
    return {name: layer["verdict"] for name, layer in found.items()}


# ------------------------------------------------------------------------------------------------------------ excluded


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (group(["a"], SCRATCH), "scratch"),
        (group(["a"], named(KV, "CircularBufferSpec") | {"derived": {}}), "scratch"),
        (group(["a"], named(KV, "KpoolTailSpec") | {"derived": {}}), "scratch"),
        (group(["a"], latent(name="SlidingWindowMLASpec", bounded_replay=True) | {"derived": {}}), "scratch"),
        (group(["a"], RAW), "raw"),
        (group(["a"], KV, host_resident=True), "host-resident"),
        (group(["a"], KV, transferable=False), "not-transferable"),
        (group(["a"], ENCODER), "encoder-only"),
        (group(["a"], named(KV, "HiSparseHotSpec") | {"derived": {}}), "scratch"),
        (group(["a"], named(KV, "HiSparseHotSpec") | {"derived": {"prefix_cacheable": True}}), "raw"),
        # the first reason of the list is the one that is given
        (group(["a"], with_derived(RAW, prefix_cacheable=False), host_resident=True, transferable=False), "scratch"),
        (group(["a"], RAW, host_resident=True, transferable=False), "raw"),
        (group(["a"], ENCODER, host_resident=True, transferable=False), "host-resident"),
        (group(["a"], ENCODER, transferable=False), "not-transferable"),
        # excluded goes before refused
        (group(["a"], with_derived(CROSS, prefix_cacheable=False)), "scratch"),
        (group(["a"], CROSS, host_resident=True), "host-resident"),
        (group(["a"], UNKNOWN, transferable=False), "not-transferable"),
        (group(["a"], mamba(mode="none"), transferable=False), "not-transferable"),
    ],
    ids=lambda made: str(made)[:60],
)
def test_an_excluded_group_says_why(made: Json, reason: str) -> None:
    whole = document([made], {"a": KEPT})
    assert codes(whole) == []
    assert verdicts(whole) == [("excluded", reason)]
    assert layers(whole) == {"a": "excluded"}
    (found,) = [view(whole)]
    assert (found["rule"], found["shape"], found["strides"], found["dtype"], found["content"]) == (None,) * 5


def test_an_excluded_layer_needs_no_cache_and_no_sense() -> None:
    made = document([group(["a", "b"], SCRATCH)], {"b": tensor([7, 7], dtype="float7")})
    assert codes(made) == []
    assert layers(made) == {"b": "excluded", "a": "excluded"}


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"a": SCRATCH, "b": SCRATCH}, ("excluded", "scratch")),
        ({"a": SCRATCH, "b": KV}, ("served", None)),
        ({"a": KV, "b": SCRATCH}, ("served", None)),
        ({"a": RAW, "b": RAW}, ("excluded", "raw")),
        ({"a": ENCODER, "b": ENCODER}, ("excluded", "encoder-only")),
        ({"a": KV, "b": CROSS}, ("refused", "unsupported-cross-attention")),
        ({"a": KV, "b": mamba(mode="none")}, ("refused", "unsupported-mamba-mode")),
        ({"a": KV, "b": UNKNOWN}, ("refused", "unsupported-spec")),
        ({"a": KV, "b": ENCODER}, ("refused", "unsupported-spec")),
        ({"a": KV, "b": RAW}, ("refused", "unsupported-spec")),
    ],
    ids=str,
)
def test_a_uniform_group_is_judged_by_all_its_leaves(leaves: dict[str, Json], expected: tuple[str, str | None]) -> None:
    made = document([uniform(leaves)], {"a": KEPT, "b": tensor([3, 2, 64, 16], storage=1)})
    assert verdicts(made) == [expected]
    assert codes(made) == ([(expected[1], 0, None)] if expected[0] == "refused" else [])


# ------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (CROSS, "unsupported-cross-attention"),
        (mamba(mode="none"), "unsupported-mamba-mode"),
        (mamba(mode=""), "unsupported-mamba-mode"),
        (mamba(mode="some"), "unsupported-mamba-mode"),
        (UNKNOWN, "unsupported-spec"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refused_group_gives_one_error_and_none_for_its_layers(spec: Json, expected: str) -> None:
    made = document([group(["a", "b", "a"], spec), group(["c"], KV)], {"c": KEPT})
    assert codes(made) == [(expected, 0, None)]
    assert layers(made) == {"c": "same"}
    assert verdicts(made) == [("refused", expected), ("served", None)]


@pytest.mark.parametrize("mode", ["align", "all"])
def test_modes_that_keep_a_state_a_block(mode: str) -> None:
    spec = mamba(page=1024, mode=mode)
    assert codes(one(spec, state_row(spec, 3))) == []


def test_a_plain_model_with_kernel_pages_is_served_as_well() -> None:
    assert view(one(KV, tensor([12, 2, 16, 16])))["rule"] == "subpaged-attention-view"


# --------------------------------------------------------------------------------------------------------------- names


def test_layers_without_a_cache() -> None:
    made = document([group(["a", "b", "c"], KV), group(["d"], KV)], {"b": KEPT})
    assert codes(made) == [("missing-layer", 0, "a"), ("missing-layer", 0, "c"), ("missing-layer", 1, "d")]
    assert layers(made) == {"b": "same"}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([["a"], ["a"]], [("layer-in-two-groups", 1, "a")]),
        ([["a"], ["a"], ["a"]], [("layer-in-two-groups", 1, "a"), ("layer-in-two-groups", 2, "a")]),
        ([["a", "b"], ["b", "a"]], [("layer-in-two-groups", 1, "b"), ("layer-in-two-groups", 1, "a")]),
        ([["a", "a"]], [("layer-in-two-groups", 0, "a")]),
    ],
)
def test_a_layer_in_two_groups_is_reported_with_the_later_one(
    groups: list[list[str]], expected: list[tuple[str, int, str]]
) -> None:
    caches = {"a": KEPT, "b": tensor([3, 2, 64, 16], storage=1)}
    named_caches = {name: caches[name] for name in sorted({name for names in groups for name in names})}
    made = document([group(names, KV) for names in groups], named_caches)
    assert codes(made) == expected
    assert set(layers(made)) == set(named_caches)


def test_a_layer_in_a_refused_and_a_served_group() -> None:
    made = document([group(["a"], CROSS), group(["a"], KV)], {"a": KEPT})
    assert codes(made) == [("unsupported-cross-attention", 0, None), ("layer-in-two-groups", 1, "a")]
    made = document([group(["a"], KV), group(["a"], CROSS)], {"a": KEPT})
    assert codes(made) == [("unsupported-cross-attention", 1, None)]


def test_errors_are_in_the_order_of_groups_and_layers() -> None:
    bad = tensor([3, 3, 64, 16])
    groups = [group(["x"], KV), group(["c", "b"], KV), group([], CROSS), group(["d"], KV)]
    made = document(groups, {"b": bad, "c": bad, "d": bad, "stray": KEPT})
    assert codes(made) == [
        ("missing-layer", 0, "x"),
        ("axes-mismatch", 1, "c"),
        ("axes-mismatch", 1, "b"),
        ("unsupported-cross-attention", 2, None),
        ("axes-mismatch", 3, "d"),
        ("unknown-layer", None, "stray"),
    ]


# ------------------------------------------------------------------------------------------------------------- aliases


def with_stray(groups: list[Json], caches: dict[str, Any], stray: Any, **more: Any) -> Json:
    return document(groups, caches | {"stray": stray}, **more)


@pytest.mark.parametrize("form", ["lmcache", "bytes"])
@pytest.mark.parametrize(
    ("spec", "cache"),
    [
        (KV, KEPT),
        (KV, tensor([12, 2, 16, 16], offset=64)),
        (ROWS, tensor([12, 16, 24])),
        (STATE, state_list(STATE, 3, 1024)),
        (STATE, state_row(STATE, 3)),
    ],
    ids=["kept", "kernel pages", "latent", "list", "row"],
)
def test_an_unlisted_cache_with_the_tensors_of_a_served_layer_is_its_alias(spec: Json, cache: Any, form: Any) -> None:
    made = with_stray([group(["a"], spec)], {"a": cache}, cache)
    result = planned(made, form)
    assert not result.errors
    found: Any = plan_json(result.plan)["layers"]
    assert found["stray"] == found["a"] | {"verdict": "alias"}
    alias = result.plan.layers["stray"]
    assert (alias.alias_of, alias.group) == ("a", None)


def test_an_alias_that_comes_first_in_the_document() -> None:
    made = document([group(["a"], KV)], {"stray": KEPT, "a": KEPT})
    assert layers(made) == {"stray": "alias", "a": "same"}


def test_an_alias_of_an_alias_is_an_alias_of_the_layer() -> None:
    made = document([group(["a"], KV)], {"s": KEPT, "a": KEPT, "t": KEPT})
    result = planned(made)
    assert {name: layer.alias_of for name, layer in result.plan.layers.items()} == {"s": "a", "a": None, "t": "a"}


@pytest.mark.parametrize(
    "change",
    [{"offset": 16}, {"storage": 1}, {"dtype": "float16"}, {"order": (0, 2, 1, 3)}, {"nbytes": 1 << 20}],
    ids=str,
)
def test_any_other_tensors_are_an_unknown_layer(change: Json) -> None:
    stray = tensor([3, 2, 64, 16], **change)
    base = KEPT if "nbytes" not in change else tensor([3, 2, 64, 16], storage=1)
    assert codes(with_stray([group(["a"], KV)], {"a": base}, stray)) == [("unknown-layer", None, "stray")]


def test_all_parts_must_be_equal() -> None:
    cache = state_list(STATE, 3, 1024)
    made = with_stray([group(["a"], STATE)], {"a": cache}, cache[:1])
    assert codes(made) == [("unknown-layer", None, "stray")]
    made = with_stray([group(["a"], STATE)], {"a": cache}, cache[0])
    assert codes(made) == [("unknown-layer", None, "stray")]


def test_an_alias_of_an_excluded_layer_is_excluded() -> None:
    made = with_stray([group(["a"], SCRATCH)], {"a": KEPT}, KEPT)
    assert codes(made) == []
    assert layers(made) == {"a": "excluded", "stray": "excluded"}


def test_an_alias_of_a_failed_layer_is_silent() -> None:
    bad = tensor([3, 3, 64, 16])
    made = with_stray([group(["a"], KV)], {"a": bad}, bad)
    assert codes(made) == [("axes-mismatch", 0, "a")]
    assert layers(made) == {}
    made = with_stray([group(["a"], CROSS)], {"a": KEPT}, KEPT)
    assert codes(made) == [("unsupported-cross-attention", 0, None)]
    assert layers(made) == {}


def test_an_alias_of_a_served_and_a_failed_layer_is_that_of_the_served() -> None:
    made = with_stray([group(["a"], CROSS), group(["b"], KV)], {"a": KEPT, "b": KEPT}, KEPT)
    assert layers(made) == {"b": "same", "stray": "alias"}


def test_candidates_with_one_view_are_no_question() -> None:
    window = attention(name="SlidingWindowSpec", sliding_window=32)
    made = with_stray([group(["a"], window), group(["b"], KV)], {"b": KEPT, "a": KEPT}, KEPT)
    result = planned(made)
    assert not result.errors
    assert result.plan.layers["stray"].alias_of == "b"  # the first in the order of the document's caches


def test_candidates_whose_views_differ_are_ambiguous() -> None:
    # 3 blocks of 64 tokens, or 3 of 128 that are 2 kernel pages: 6 rows can't be both, so the heads differ
    row = tensor([3, 1, 1, 1024], dtype="int8")
    one_page, other = mamba(page=1024), mamba(block=32, page=1024)
    made = with_stray([group(["a"], one_page), group(["b"], other)], {"a": row, "b": row}, row)
    assert codes(made) == [("axes-ambiguous", None, "stray")]
    (error,) = planned(made).errors
    assert "a" in error.actual
    assert "b" in error.actual


# -------------------------------------------------------------------------------------------------------- block counts


@pytest.mark.parametrize(
    ("spec", "cache", "blocks"),
    [
        (KV, KEPT, 3),
        (KV, tensor([12, 2, 16, 16]), 3),
        (KV, tensor([2, 12, 16, 2, 8]), 3),
        (ROWS, tensor([20, 16, 24]), 5),
        (STATE, state_list(STATE, 7, 1024), 7),
        (STATE, state_row(STATE, 2), 2),
    ],
    ids=str,
)
def test_a_document_without_a_count_has_that_of_its_tensors(spec: Json, cache: Any, blocks: int) -> None:
    made = one(spec, cache, None)
    groups: Any = plan_json(planned(made).plan)["groups"]
    assert groups[0]["num_blocks"] == blocks
    assert view(made) == view(one(spec, cache, blocks))


def test_groups_that_count_differently() -> None:
    made = document([group(["a"], KV), group(["b"], KV)], {"a": KEPT, "b": tensor([4, 2, 64, 16], storage=1)}, None)
    assert codes(made) == [("granularity-mismatch", 1, "b")]


def test_a_count_that_some_tensors_have_in_n() -> None:
    made = document(
        [group(["a"], KV), group(["b"], KV)],
        {"a": KEPT, "b": tensor([3, 2, 64, 16], storage=1) | {"shape": ["n", 2, 64, 16]}},
        None,
    )
    assert codes(made) == [("granularity-mismatch", 0, "a")]


@pytest.mark.parametrize("groups", [[], [group([], KV)], [group(["a"], KV)]])
def test_nothing_to_count(groups: list[Json]) -> None:
    result = planned(document(groups, {}, None))
    assert [group.num_blocks for group in result.plan.groups] == [None] * len(groups)


# ----------------------------------------------------------------------------------------------------------- summaries


def summary(made: Json) -> Json:
    groups: Any = plan_json(planned(made).plan)["groups"]
    return dict(groups[0])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            KV,
            {
                "block_tokens": 64,
                "states_per_block": 64,
                "page_bytes": 4096,
                "payload_bytes": 4096,
                "compress_ratio": 1,
            },
        ),
        (attention(page=5000), {"page_bytes": 5000, "payload_bytes": 4096}),
        (attention(states=16, tokens_per_state=4), {"block_tokens": 64, "states_per_block": 16, "compress_ratio": 4}),
        (attention(states=256, tokens_per_state=[1, 4]), {"states_per_block": 256, "compress_ratio": [1, 4]}),
        (attention(name="SlidingWindowSpec", sliding_window=32), {"window_tokens": 32, "recurrent": False}),
        (KV, {"window_tokens": None, "recurrent": False, "draft": False, "kind": "full_attention"}),
        (ROWS, {"page_bytes": 3072, "kind": "mla_attention", "states_per_block": 64}),
        (
            STATE,
            {"block_tokens": 64, "states_per_block": 1, "page_bytes": 1024, "payload_bytes": 112, "recurrent": True},
        ),
        (STATE, {"compress_ratio": None, "window_tokens": None, "kind": "mamba"}),
        (named(KV, "CircularBufferSpec") | {"derived": {}}, {"states_per_block": None, "fingerprint": None}),
    ],
    ids=str,
)
def test_what_a_group_says(spec: Json, expected: Json) -> None:
    found = summary(document([group(["a"], spec)], {}))
    assert {key: found[key] for key in expected} == expected
    assert found["layers"] == ["a"]


def test_a_group_of_a_draft_model() -> None:
    assert summary(document([group(["a"], KV, draft=True)], {"a": KEPT}))["draft"] is True


def test_context_parallel_ranks_share_the_tokens_of_a_block() -> None:
    assert summary(one(KV, KEPT, dcp=2))["block_tokens"] == 128
    assert summary(one(attention(dcp_sharded=False), KEPT, dcp=2))["block_tokens"] == 64
    assert summary(one(attention(dcp_sharded=True), KEPT, dcp=4))["block_tokens"] == 256
    assert summary(one(STATE, state_row(STATE, 3), dcp=2))["block_tokens"] == 64


def test_pages_of_unequal_leaves_are_null() -> None:
    made = document([uniform({"a": KV, "b": ROWS})], {"a": KEPT, "b": tensor([3, 64, 24], storage=1)})
    found = summary(made)
    assert codes(made) == []
    assert (found["page_bytes"], found["payload_bytes"], found["states_per_block"]) == (None, None, 64)
    assert found["fingerprint"]


def test_a_group_with_a_failed_layer_has_no_fingerprint() -> None:
    caches = {"a": KEPT, "b": tensor([3, 3, 64, 16], storage=1)}
    assert summary(document([group(["a", "b"], KV)], caches))["fingerprint"] is None
    assert summary(document([group(["a"], KV)], {"a": KEPT}))["fingerprint"]


def test_fingerprints_forget_names_offsets_and_counts_and_nothing_else() -> None:
    def mark(made: Json) -> Any:
        return summary(made)["fingerprint"]

    base = mark(one(KV, KEPT))
    assert mark(document([group(["x", "y"], KV)], {"x": KEPT, "y": tensor([3, 2, 64, 16], storage=1)})) == base
    assert mark(one(KV, tensor([3, 2, 64, 16], offset=128))) == base
    assert mark(one(KV, tensor([9, 2, 64, 16]), 9)) == base
    assert mark(one(KV, tensor([3, 2, 64, 16], [9000, 1024, 16, 1]))) == base
    tokens_first = tensor([3, 2, 64, 16], order=(0, 2, 1, 3))
    others = [
        one(KV, tokens_first),
        one(KV, tensor([12, 2, 16, 16])),  # heads outside tokens in each kernel page: dense, and another order
        one(KV, tensor([6, 2, 32, 16])),
        one(KV, tensor([3, 2, 64, 2, 8])),
        one(KV, tensor([3, 2, 64, 2, 8], order=(0, 1, 3, 2, 4))),
        one(KV, tensor([3, 2, 64, 2, 8], order=(0, 2, 1, 3, 4))),
        one(KV, tensor([2, 3, 64, 2, 8])),
        one(KV, tensor([2, 3, 64, 2, 8], order=(0, 1, 3, 2, 4))),
        one(attention(dtype="float16"), tensor([3, 2, 64, 16], dtype="float16")),
        one(attention(page=5000), tensor([3, 2, 64, 16], [2500, 1024, 16, 1])),
        one(attention(name="SlidingWindowSpec") | {"kind": "sliding_window"}, KEPT),
        one(KV, KEPT, platform="cpu"),
        one(attention(block=32, heads=4), tensor([3, 4, 32, 16])),
        one(attention(states=64, block=256, tokens_per_state=4), KEPT),
        one(attention(states=64, block=128, tokens_per_state=2), KEPT),
        one(attention(states=64, block=16, tokens_per_state=[1, 4]), KEPT),
    ]
    assert len({base, *map(mark, others)}) == len(others) + 1


def test_kernel_pages_that_lie_like_further_rows_change_nothing() -> None:
    def mark(made: Json) -> Any:
        return summary(made)["fingerprint"]

    tokens_first = mark(one(KV, tensor([3, 2, 64, 16], order=(0, 2, 1, 3))))
    assert mark(one(KV, tensor([12, 2, 16, 16], order=(0, 2, 1, 3)))) == tokens_first
    assert mark(one(KV, tensor([192, 2, 1, 16]))) == tokens_first
    rows = mark(one(ROWS, tensor([3, 64, 24])))
    for shape in ([12, 16, 24], [3, 1, 64, 24], [12, 16, 1, 24], [192, 1, 24]):
        assert mark(one(ROWS, tensor(shape))) == rows
    planes = mark(one(KV, tensor([2, 3, 64, 2, 8])))
    assert mark(one(KV, tensor([2, 12, 16, 2, 8]))) == planes
    packed = latent(dtype="uint8", content=30)  # what a row is inside, nobody says: it may be planar
    shapes = ([3, 64, 30], [12, 16, 30])
    assert len({mark(one(packed, tensor(shape, dtype="uint8"))) for shape in shapes}) == 2


def test_a_state_page_is_the_same_as_a_list_and_as_a_row() -> None:
    def mark(spec: Json, cache: Any) -> Any:
        return summary(one(spec, cache))["fingerprint"]

    page = mark(STATE, state_list(STATE, 3, 1024))
    assert mark(STATE, state_row(STATE, 3)) == page
    assert mark(STATE, state_row(STATE, 3, row=1024)) == page
    assert mark(STATE, state_row(STATE, 3, 4096, base=1024)) == page
    turned = mamba(shapes=((8, 3), (4, 4)), page=1024)
    typed = mamba(shapes=((3, 8), (4, 4)), dtypes=("float16", "float32"), page=1024)
    longer = mamba(page=2048)
    others = [mark(spec, state_row(spec, 3)) for spec in (turned, typed, longer)]
    assert len({page, *others}) == 4
    gap = state_list(STATE, 3, 1024)
    gap[1]["storage_offset"] += 4
    assert mark(STATE, gap) not in {page, *others}
    strided = state_list(STATE, 3, 1024)
    strided[0]["stride"][1:] = [1, 3]
    assert mark(STATE, strided) not in {page, *others}


def test_a_row_whose_states_nobody_can_measure_is_one_part() -> None:
    strange = mamba(shapes=[[16]], dtypes=["float7"], page=64) | {
        "derived": {"page_size_bytes": 64, "state_content_size_bytes": 32}
    }
    page = planned(one(strange, state_row(strange, 3, row=64)), "bytes").plan.layers["a"].page
    assert page is not None
    assert [field[:3] for field in page.fields] == [("state", 0, 32), ("pad", 32, 32)]
    assert page.padding_bytes == 32


# ---------------------------------------------------------------------------------------------------------- the doors


def test_plan_gives_a_plan_or_all_errors() -> None:
    good, bad = registered(one(KV, KEPT)), registered(document([group(["a", "b"], KV)], {}))
    result = plan(good)
    assert isinstance(result, Ok)
    assert result.value.bind(3) == result
    refused = plan(bad)
    assert isinstance(refused, Err)
    assert isinstance(refused.error, LayoutErrors)
    assert [error.layer for error in refused.error.errors] == ["a", "b"]
    with pytest.raises(LayoutErrors, match="missing-layer"):
        refused.unwrap()


def test_validate_takes_a_registration_or_its_groups() -> None:
    made = registered(document([group(["a"], CROSS), group(["b"], KV)], {}))
    assert [error.code for error in validate(made)] == [Code.UNSUPPORTED_CROSS_ATTENTION, Code.MISSING_LAYER]
    assert [(error.code, error.group) for error in validate(made.groups)] == [(Code.UNSUPPORTED_CROSS_ATTENTION, 0)]
    assert validate(registered(one(KV, KEPT))) == ()
    assert validate(()) == ()


def test_a_placement_of_layers_that_nobody_registers_says_nothing() -> None:
    assert codes(one(KV, KEPT, placements=[place(["x", "y"], offset=3, block_stride=5, size=1)])) == []


@pytest.mark.parametrize("form", ["byte", "", "BYTES", None, []])
def test_an_unknown_presentation_is_refused(form: Any) -> None:
    result = plan(registered(one(KV, KEPT)), presentation=form)
    assert isinstance(result, Err)
    assert [(error.code, error.path) for error in result.error.errors] == [(Code.BAD_CONFIG, "presentation")]


@pytest.mark.parametrize("blocks", [3, None])
@pytest.mark.parametrize("spec", [KV, STATE])
def test_a_list_of_no_tensors_is_refused_alone(spec: Json, blocks: int | None) -> None:
    cache = KEPT if spec is KV else state_row(STATE, 3)
    whole = registered(document([group(["a", "b"], spec)], {"a": cache, "b": cache | {"storage": 1}}, blocks))
    made = attempt(evolve(whole, caches={**whole.caches, "a": ()}))
    assert [(error.code, error.layer) for error in made.errors] == [(Code.AXES_MISMATCH, "a")]
    assert list(made.plan.layers) == ["b"]


def test_a_group_without_layers_has_the_spec_of_the_whole() -> None:
    whole = registered(one(KV, KEPT))
    (given,) = whole.groups
    bare = evolve(given, layers=(), leaves={"b": given.spec})
    made = attempt(evolve(whole, groups=(bare, given)))
    assert not made.errors
    assert [(found.layers, found.page_bytes) for found in made.plan.groups] == [((), 4096), (("a",), 4096)]
    assert validate((bare,)) == ()
