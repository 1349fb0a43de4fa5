"""Warnings are about all that LMCache refuses or misreads, and about nothing else: known cases, and drawn ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvlayout.plans import Plan
from kvlayout.reporting import plan_json
from kvlayout.warning import WarningCode
from tests.lmcache.registered import registered
from tests.lmcache.truth import applied, faults, warned_of
from tests.rules.building import (
    Json,
    attention,
    document,
    group,
    latent,
    mamba,
    one,
    place,
    planned,
    state_list,
    state_row,
    strides_of,
    tensor,
    uniform,
)
from tests.rules.test_cases import unknown

lmcache = [pytest.mark.engine, pytest.mark.lmcache, pytest.mark.torch]

KV = attention(16, 2, 8)
WINDOW = attention(16, 2, 8, name="SlidingWindowSpec", sliding_window=24) | {"kind": "sliding_window"}
PADDED = attention(16, 2, 8, page=1536, page_size_padded=1536)
ROWS = latent(16, 24)
PACKED = latent(16, 132, "uint8", cache_role="SPARSE")
INDEXER = latent(16, 132, "uint8", cache_role="INDEXER")


def padded(block: int, **more: Any) -> Json:
    """Return a fused cache whose blocks are ``block`` elements apart."""
    return tensor([3, 2, 16, 16], [block, 256, 16, 1], **more)


def unlike(first: int, second: int) -> Json:
    """Return two layers of one group, alike but for their block strides."""
    caches = {"a": padded(first), "b": padded(second, storage=1)}
    return document([uniform({"a": PADDED, "b": PADDED})], caches, 3, "HND")


CASES: dict[str, tuple[Json, list[tuple[str, list[str]]]]] = {
    "heads outside tokens": (one(KV, tensor([3, 2, 16, 16]), hint="HND"), []),
    "tokens outside heads": (one(KV, tensor([3, 2, 16, 16], order=(0, 2, 1, 3)), hint="NHD"), []),
    "the other way round than the hint": (one(KV, tensor([3, 2, 16, 16]), hint="NHD"), [("lmcache-misread", ["a"])]),
    "as many heads as tokens, the other way round": (
        one(attention(16, 16, 8), tensor([3, 16, 16, 16]), hint="NHD"),
        [("lmcache-misread", ["a"])],
    ),
    "no hint on a GPU": (one(KV, tensor([3, 2, 16, 16]), hint=None), [("lmcache-misread", ["a"])]),
    "no hint on a CPU": (one(KV, tensor([3, 2, 16, 16]), hint=None, platform="cpu"), []),
    "planes inside a block": (one(KV, tensor([3, 2, 16, 2, 8])), []),
    "planes inside a block, heads outside": (
        one(KV, tensor([3, 2, 16, 2, 8]), hint="HND"),
        [("lmcache-misread", ["a"])],
    ),
    "planes inside a padded block": (
        one(PADDED, tensor([3, 2, 16, 2, 8], [768, 256, 16, 8, 1])),
        [("lmcache-no-format", ["a"])],
    ),
    "two blocks": (
        one(
            KV,
            tensor([2, 2, 16, 2, 8]),
            blocks=2,
            placements=[place(["a"], size=2048, offset=0, layer_stride=2048, block_stride=1024)],
        ),
        [("lmcache-misread", ["a"])],
    ),
    "planes first": (one(KV, tensor([2, 3, 16, 2, 8])), []),
    "planes first, heads outside": (one(KV, tensor([2, 3, 16, 2, 8]), hint="HND"), [("lmcache-misread", ["a"])]),
    "planes first and far apart": (
        one(KV, tensor([2, 3, 16, 2, 8], [1024, 256, 16, 8, 1])),
        [("lmcache-no-format", ["a"])],
    ),
    "one block of a pool": (
        one(PADDED, tensor([1, 2, 16, 16], [768, 256, 16, 1]), blocks=1, hint="HND"),
        [("lmcache-no-format", ["a"])],
    ),
    "latent rows": (one(ROWS, tensor([3, 16, 24])), []),
    "latent rows in tiles": (one(ROWS, tensor([12, 4, 24])), []),
    "packed rows like an indexer's": (one(PACKED, tensor([3, 16, 132], dtype="uint8")), [("lmcache-indexer", ["a"])]),
    "keys and values like an indexer's": (
        one(attention(16, 1, 66, "uint8"), tensor([3, 1, 16, 132], dtype="uint8"), hint="HND"),
        [("lmcache-indexer", ["a"])],
    ),
    "an indexer": (one(INDEXER, tensor([3, 1, 16, 132], dtype="uint8"), hint="HND"), []),
    "an indexer that does not say so, beside what it indexes": (
        document(
            [uniform({"a": latent(16, 656, "uint8"), "b": latent(16, 132, "uint8")})],
            {"a": tensor([3, 16, 656], dtype="uint8"), "b": tensor([3, 16, 132], dtype="uint8", storage=1)},
        ),
        [],
    ),
    "equal block strides": (unlike(768, 768), []),
    "unequal block strides": (unlike(768, 1024), [("lmcache-merged", ["a", "b"])]),
    "unequal block strides, in groups of their own": (
        document(
            [group(["a"], PADDED), group(["b"], PADDED)], {"a": padded(768), "b": padded(1024, storage=1)}, 3, "HND"
        ),
        [],
    ),
    "compressed": (one(attention(16, 2, 8, states=4, tokens_per_state=4), tensor([3, 2, 4, 16]), hint="HND"), []),
    "several rows a token": (
        one(attention(16, 2, 8, states=64, tokens_per_state=[1, 4]), tensor([3, 2, 64, 16]), hint="HND"),
        [("lmcache-rows", ["a"])],
    ),
    "ranks that share blocks": (one(KV, tensor([3, 2, 16, 16]), hint="HND", dcp=2), []),
    "ranks that do not share blocks": (
        one(attention(16, 2, 8, dcp_sharded=False), tensor([3, 2, 16, 16]), hint="HND", dcp=2),
        [("lmcache-tokens", ["a"])],
    ),
    "states on ranks that share blocks": (
        one(mamba(16, page=512), state_row(mamba(16, page=512), 3), hint="HND", dcp=2),
        [],
    ),
    "a window of blocks and a half": (one(WINDOW, tensor([3, 2, 16, 16]), hint="HND"), []),
    "a window of blocks and a half, in a chunk of more": (
        document(
            [group(["a"], WINDOW), group(["b"], attention(64, 2, 8))],
            {"a": tensor([3, 2, 16, 16]), "b": tensor([3, 2, 64, 16], storage=1)},
            3,
            "HND",
        ),
        [("lmcache-window", ["a"])],
    ),
    "windows that differ": (
        document(
            [
                uniform(
                    {
                        "a": WINDOW | {"fields": WINDOW["fields"] | {"sliding_window": 32}},
                        "b": WINDOW | {"fields": WINDOW["fields"] | {"sliding_window": 48}},
                    }
                )
            ],
            {"a": tensor([3, 2, 16, 16]), "b": tensor([3, 2, 16, 16], storage=1)},
            3,
            "HND",
        ),
        [("lmcache-merged", ["a", "b"])],
    ),
    "excluded by a flag": (
        document(
            [group(["a"], KV), group(["b"], KV, transferable=False)],
            {"a": tensor([3, 2, 16, 16]), "b": tensor([3, 2, 16, 16], storage=1)},
            3,
            "HND",
        ),
        [("lmcache-exclusion", ["b"])],
    ),
    "a list of states": (one(mamba(16, page=1024), state_list(mamba(16, page=1024), 3, 1024)), []),
    "a list of states, two blocks": (
        one(mamba(16, page=1024), state_list(mamba(16, page=1024), 2, 1024), blocks=2),
        [],
    ),
    "kernel pages": (one(KV, tensor([12, 2, 4, 16])), []),
    "kernel pages, heads outside": (one(KV, tensor([12, 2, 4, 16]), hint="HND"), []),
}

every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_what_is_warned_of(name: str) -> None:
    made, wanted = CASES[name]
    result = planned(made)
    assert not result.errors
    assert [(one.code, list(one.layers)) for one in result.plan.warnings] == wanted
    assert all(one.message and one.group is not None for one in result.plan.warnings)


class TestAgainstLMCache:
    pytestmark = lmcache

    @every_case
    def test_what_is_warned_of_is_wrong_and_nothing_else(self, name: str) -> None:
        made, wanted = CASES[name]
        live = registered(made)
        result = applied(live)
        found = faults(live, result.plan, result.views)
        warned_of(result.plan, found)
        assert bool(found) == bool(wanted)

    @settings(max_examples=400, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
    @given(st.data())
    def test_any_registration(self, data: st.DataObject) -> None:
        made = data.draw(registrations())
        live = registered(made)
        assume(not planned(made).errors)  # a refusal hands nothing on
        result = applied(live)
        warned_of(result.plan, faults(live, result.plan, result.views))


@st.composite
def registrations(draw: st.DrawFn) -> Json:
    """Draw up to three groups of up to three layers, each in a storage of its own."""
    blocks, hint = draw(st.sampled_from((1, 2, 3, 5))), draw(st.sampled_from(("NHD", "HND", "BLNHC", "BLHNC")))
    dcp = draw(st.sampled_from((1, 1, 2)))
    caches: Json = {}
    groups = []
    for index in range(draw(st.integers(1, 3))):
        block = draw(st.sampled_from((4, 8, 16)))
        kind = draw(st.sampled_from((fused, fused, split, rows, states)))
        specs = {}
        share = draw(kind_of(kind, block))
        for layer in (f"{index}.{i}" for i in range(draw(st.integers(1, 3)))):
            own = share if draw(st.booleans()) else draw(kind_of(kind, block))
            specs[layer], caches[layer] = draw(kind(own, blocks, len(caches)))
        groups.append(
            uniform(specs) if kind is not states and draw(st.booleans()) else group(list(specs), specs[f"{index}.0"])
        )
    layers = list(caches)
    order = draw(st.permutations(layers)) if draw(st.booleans()) else layers
    return document(groups, {layer: caches[layer] for layer in order}, blocks, hint, dcp=dcp)


@st.composite
def kind_of(draw: st.DrawFn, kind: Any, block: int) -> Json:
    """Draw a spec."""
    more: Json = {"dcp_sharded": False} if draw(st.integers(0, 4)) == 0 else {}
    if kind is states:
        return mamba(block, ((2, 4), (2, 2)), page=draw(st.sampled_from((128, 192, 256))), mode="align")
    if kind is rows:
        wide = draw(st.sampled_from((8, 24, 132)))
        return latent(block, wide, "uint8", **more)
    heads = draw(st.sampled_from((1, 2, 4, block)))
    ratio = draw(st.sampled_from((1, 1, 2)))
    more |= {"states": block // ratio, "tokens_per_state": ratio} if ratio > 1 else {}
    if draw(st.integers(0, 3)) == 0:
        made = attention(
            block, heads, 8, name="SlidingWindowSpec", sliding_window=draw(st.sampled_from((8, 12, 64))), **more
        )
        return made | {"kind": "sliding_window"}
    dense = (block // ratio) * heads * 32
    if draw(st.booleans()):
        more |= {"page": dense + 64, "page_size_padded": dense + 64}
    return attention(block, heads, 8, **more)


@st.composite
def fused(draw: st.DrawFn, spec: Json, blocks: int, storage: int) -> tuple[Json, Json]:
    """Draw a cache of rank 4, in kernel pages or not, in either order, with room between blocks or not."""
    derived = spec["derived"]
    rows, heads, page = derived["num_states"], derived["num_heads"], derived["page_size_bytes"] // 2
    dense = rows * heads * 16
    pages = draw(st.sampled_from((1, 1, 2))) if page == dense else 1
    shape = [blocks * pages, heads, rows // pages, 16]
    order = draw(st.sampled_from(((0, 1, 2, 3), (0, 2, 1, 3))))
    strides = strides_of(shape, order)
    if pages == 1:
        strides[0] = page + draw(st.sampled_from((0, 0, 64, page)))
    return spec, tensor(shape, strides, storage=storage)


@st.composite
def split(draw: st.DrawFn, spec: Json, blocks: int, storage: int) -> tuple[Json, Json]:
    """Draw a cache of rank 5, planes inside or first, heads inside or outside, padded or not."""
    derived = spec["derived"]
    rows, heads, page = derived["num_states"], derived["num_heads"], derived["page_size_bytes"] // 2
    dense = rows * heads * 16
    pages = draw(st.sampled_from((1, 1, 2))) if page == dense else 1
    first = page == dense and draw(st.booleans())
    shape = [2, blocks * pages] if first else [blocks * pages, 2]
    shape += [rows // pages, heads, 8]
    strides = strides_of(shape, draw(st.sampled_from(((0, 1, 2, 3, 4), (0, 1, 3, 2, 4)))))
    if not first and pages == 1:
        strides[0] = page
    return spec, tensor(shape, strides, storage=storage)


@st.composite
def rows(draw: st.DrawFn, spec: Json, blocks: int, storage: int) -> tuple[Json, Json]:
    """Draw a cache of latent rows, of rank 3 or 4, whole or in tiles."""
    states, wide = spec["derived"]["num_states"], spec["fields"]["head_size"]
    pages = draw(st.sampled_from((1, 1, 2)))
    sizes = [blocks * pages, states // pages, wide]
    at = draw(st.sampled_from((None, 1, 2)))
    if at is not None:
        sizes.insert(at, 1)
    strides = strides_of(sizes)
    if at is not None and draw(st.booleans()):
        strides[at] = wide
    if pages == 1:
        strides[0] += draw(st.sampled_from((0, 0, 16)))
    return spec, tensor(sizes, strides, dtype="uint8", storage=storage)


@st.composite
def states(draw: st.DrawFn, spec: Json, blocks: int, storage: int) -> tuple[Json, Any]:
    """Draw recurrent state, as a row or as a list."""
    page = spec["derived"]["page_size_bytes"]
    if draw(st.booleans()):
        return spec, state_list(spec, blocks, page, storage=storage)
    return spec, state_row(spec, blocks, page * draw(st.sampled_from((1, 1, 2))), storage=storage)


# ------------------------------------------------------------------------------------------------------- where they are


def test_pages_as_bytes_have_none() -> None:
    made, wanted = CASES["unequal block strides"]
    assert wanted
    assert planned(made, "bytes").plan.warnings == ()


def test_unknown_block_counts_have_those_of_many_blocks() -> None:
    many = one(KV, tensor([3, 2, 16, 16]), None, "NHD")
    many["caches"]["a"]["shape"][0] = "1n"
    few, _ = CASES["the other way round than the hint"]
    loose, bound = planned(many).plan, planned(few).plan
    assert [warning.message for warning in loose.warnings] == [warning.message for warning in bound.warnings]
    assert loose.bind(3).unwrap().warnings == bound.warnings


def test_a_stored_plan_has_them_and_does_not_need_them() -> None:
    plan = planned(CASES["unequal block strides"][0]).plan
    stored = json.loads(plan.to_json())
    assert stored["warnings"] == plan_json(plan)["warnings"] != []
    assert Plan.from_json(json.dumps(stored)).unwrap().warnings == plan.warnings
    del stored["warnings"]
    assert Plan.from_json(json.dumps(stored)).unwrap().warnings == plan.warnings


def test_a_refusal_has_none() -> None:
    made, _ = CASES["unequal block strides"]
    made = json.loads(json.dumps(made))
    del made["caches"]["a"]
    result = planned(made)
    assert result.errors
    assert "warnings" not in plan_json(result.plan, result.errors)


def test_a_group_whose_first_layer_is_scratch_is_left_out() -> None:
    """The engine looks at all layers of a group, LMCache at the first one."""
    scratch = KV | {"derived": KV["derived"] | {"prefix_cacheable": False}}
    caches = {"a": tensor([3, 2, 16, 16]), "b": tensor([3, 2, 16, 16], storage=1)}
    (warning,) = planned(document([uniform({"a": scratch, "b": KV})], caches, 3, "HND")).plan.warnings
    assert (warning.code, warning.group, warning.layers) == ("lmcache-exclusion", 0, ("a", "b"))
    both = planned(document([uniform({"a": scratch, "b": scratch})], caches, 3, "HND")).plan
    assert both.groups[0].reason == "scratch"
    assert both.warnings == ()


def test_the_table_shows_them() -> None:
    tables = pytest.importorskip("kvlayout.cli.tables")
    made, _ = CASES["unequal block strides"]
    shown = " ".join(tables.show_plan(planned(made).plan, ()).split())
    assert "lmcache-merged: LMCache addresses all of them by the block stride of a: block 1 of a layer is at" in shown
    assert "where group 0: 2 layers a, b" in shown
    assert shown.endswith("1 warning")
    right, _ = CASES["equal block strides"]
    assert "warning" not in tables.show_plan(planned(right).plan, ())


def test_every_code_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "lmcache.md").read_text()
    listed = re.findall(r"^\| `(lmcache-[a-z-]+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert tuple(code for code, _, _ in listed) == get_args(WarningCode)
    met = {code for _, wanted in CASES.values() for code, _ in wanted}
    assert met == set(get_args(WarningCode)) - {"lmcache-layout"}


@pytest.mark.parametrize("name", [name for name, (made, _) in CASES.items() if made["num_blocks"] == 3])
def test_any_block_count_has_the_same_warnings(name: str) -> None:
    made, wanted = CASES[name]
    result = planned(unknown(made))
    assert not result.errors
    assert [(one.code, list(one.layers)) for one in result.plan.warnings] == wanted
    for blocks in (3, 5, 1000):
        bound = result.plan.bind(blocks).unwrap()
        assert [(one.code, list(one.layers)) for one in bound.warnings] == wanted
