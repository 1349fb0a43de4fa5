"""Every refusal of a layer: its code, its precedence over others, and that nothing else is said of the layer."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.rules.building import (
    Json,
    attention,
    code,
    codes,
    document,
    group,
    latent,
    mamba,
    one,
    place,
    planned,
    state_list,
    state_row,
    tensor,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KV = attention()
ROWS = latent()
STATE = mamba(page=1024)
SLOTS = attention(name="TQFullAttentionSpec", content=20, tq_slot_size=20, dtype="uint8")


def part(spec: Json, index: int, **changes: Any) -> list[Json]:
    """Return the list of states of three blocks, one of them changed."""
    made: list[Json] = state_list(spec, 3, 1024)
    made[index] |= changes
    return made


# ---------------------------------------------------------------------------------------------------------- one fault


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (tensor([3, 64, 32]), "axes-mismatch"),  # no reading of rank 3 for keys and values
        (tensor([3, 2, 64, 2, 8, 1]), "axes-mismatch"),
        (tensor([192]), "axes-mismatch"),
        ([tensor([3, 2, 64, 16])], "axes-mismatch"),  # a list of one
        (tensor([3, 4, 64, 16]), "axes-mismatch"),  # other heads
        (tensor([3, 64, 2, 16]), "axes-mismatch"),  # [B, N, H, C], which vLLM never says
        (tensor([3, 2, 64, 8]), "axes-mismatch"),  # other content
        (tensor([3, 2, 64, 16], dtype="float32"), "axes-mismatch"),
        (tensor([3, 2, 64, 4, 4]), "axes-mismatch"),
        (tensor([3, 3, 64, 2, 8]), "axes-mismatch"),  # three planes
        (tensor([3, 2, 48, 16]), "not-divisible"),  # 48 is no part of 64
        (tensor([3, 2, 128, 16]), "not-divisible"),  # a kernel page of two blocks
        (tensor([13, 2, 16, 16]), "not-divisible"),  # 13 kernel pages, 4 a block
        (tensor([16, 2, 16, 16]), "granularity-mismatch"),  # four blocks
        (tensor([4, 2, 64, 16]), "granularity-mismatch"),
        (tensor([2, 4, 64, 2, 8]), "granularity-mismatch"),
        (tensor([12, 2, 16, 16], [512, 256, 16, 1]), None),
        (tensor([12, 2, 16, 16], [640, 256, 16, 1]), "page-not-contiguous"),  # a gap behind each kernel page
        (tensor([12, 2, 16, 16], [1024, 512, 32, 2]), "page-not-contiguous"),  # every other element
        (tensor([3, 2, 64, 16], [4096, 2048, 32, 1]), "page-not-contiguous"),
        (tensor([3, 2, 64, 16], [2048, 0, 16, 1]), "page-not-contiguous"),  # two heads in one place
        (tensor([2, 12, 16, 2, 8], [3072, 320, 16, 8, 1]), "page-not-contiguous"),
        (tensor([2, 12, 16, 2, 8], [3072, 256, 16, 8, 1]), None),
        (tensor([2, 12, 16, 2, 8], [4000, 256, 16, 8, 1]), None),  # a gap between the planes
        (tensor([2, 12, 16, 2, 8], [3000, 256, 16, 8, 1]), "page-overlap"),  # they meet
        (tensor([3, 2, 64, 16], [1024, 1024, 16, 1]), "page-bytes-mismatch"),  # blocks overlap
        (tensor([3, 2, 64, 16], dtype="float7"), "unknown-dtype"),
    ],
    ids=str,
)
def test_keys_and_values(cache: Any, expected: str | None) -> None:
    assert code(one(KV, cache)) == expected


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (tensor([3, 64]), "axes-mismatch"),
        (tensor([3, 2, 64, 24]), "axes-mismatch"),
        (tensor([3, 64, 2, 24]), "axes-mismatch"),
        (tensor([3, 64, 12]), "axes-mismatch"),
        (tensor([3, 2, 64, 1, 24]), "axes-mismatch"),
        (tensor([12, 15, 24]), "not-divisible"),
        (tensor([13, 16, 24]), "not-divisible"),
        (tensor([16, 16, 24]), "granularity-mismatch"),
        (tensor([12, 16, 24], [400, 24, 1]), "page-not-contiguous"),
        (tensor([12, 16, 24], [768, 48, 2]), "page-not-contiguous"),
        (tensor([3, 64, 24], [1500, 24, 1]), "page-bytes-mismatch"),
        (tensor([3, 64, 24], dtype="float7"), "unknown-dtype"),
    ],
    ids=str,
)
def test_latent_rows(cache: Any, expected: str) -> None:
    assert code(one(ROWS, cache)) == expected


def test_values_of_another_size_are_no_second_plane() -> None:
    spec = attention(head=8, head_v=4)
    assert code(one(spec, tensor([3, 2, 64, 12]))) is None
    for shape in ([3, 2, 64, 2, 6], [12, 2, 16, 2, 6], [2, 3, 64, 2, 6]):
        assert code(one(spec, tensor(shape))) == "axes-mismatch"


def test_several_latent_heads_are_not_joined() -> None:
    assert code(one(latent(heads=2), tensor([12, 2, 16, 24]))) == "granularity-mismatch"


def test_latent_padding_between_tiles() -> None:
    assert code(one(latent(page=4096), tensor([12, 16, 24]))) == "page-bytes-mismatch"
    assert code(one(latent(page=4096), tensor([3, 64, 24], [2048, 24, 1]))) is None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (attention(page=4098), "page-bytes-mismatch"),
        (attention(page=4094), "page-bytes-mismatch"),
        (attention(page=8192), "page-bytes-mismatch"),
    ],
)
def test_kernel_pages_of_another_page(spec: Json, expected: str) -> None:
    assert code(one(spec, tensor([12, 2, 16, 16]))) == expected


def test_an_odd_page_has_no_two_planes() -> None:
    assert code(one(attention(page=4097), tensor([2, 3, 64, 2, 8]))) == "page-bytes-mismatch"


def test_a_slot_cache_is_left_alone_or_refused() -> None:
    assert code(one(SLOTS, tensor([12, 2, 16, 20], dtype="uint8"))) == "granularity-mismatch"
    assert code(one(SLOTS, tensor([3, 3, 64, 20], dtype="uint8"))) == "axes-mismatch"
    assert code(one(SLOTS, tensor([3, 64, 2, 20], dtype="uint8"))) is None


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ([tensor([3, 3, 8])], "axes-mismatch"),  # one state is missing
        (part(STATE, 0, shape=[3, 8, 3]), "axes-mismatch"),
        (part(STATE, 1, dtype="float16"), "axes-mismatch"),
        (list(reversed(state_list(STATE, 3, 1024))), "axes-mismatch"),
        (part(STATE, 0, shape=[4, 3, 8]), "granularity-mismatch"),
        (part(STATE, 1, shape=[4, 4, 4]), "granularity-mismatch"),
        (part(STATE, 0, stride=[512, 16, 2]), "page-not-contiguous"),
        (part(STATE, 1, stride=[256, 8, 1]), "page-not-contiguous"),
        (part(STATE, 1, storage=1), "storages-differ"),
        (part(STATE, 1, storage_offset=250), "page-bytes-mismatch"),  # ends beyond the page
        (part(STATE, 1, storage_offset=8), "page-bytes-mismatch"),  # in the first state
        (part(STATE, 1, stride=[257, 4, 1]), "state-stride-mismatch"),
        (state_list(STATE, 3, 512), "state-stride-mismatch"),  # blocks nearer than a page
        (part(STATE, 0, storage_offset=512 - 24), "state-not-at-page-base"),  # behind the second state
        (state_list(STATE, 3, 1024, base=64), "state-not-at-page-base"),  # the page would cross its block stride
        (state_list(STATE, 3, 2048, base=1088), "state-not-at-page-base"),
        (state_list(STATE, 3, 2048, base=1024), None),
        (part(STATE, 0, dtype="float7"), "unknown-dtype"),
        (tensor([3, 1, 1]), "axes-mismatch"),
        (tensor([3, 2, 1, 112], dtype="int8"), "axes-mismatch"),
    ],
    ids=str,
)
def test_states(cache: Any, expected: str | None) -> None:
    assert code(one(STATE, cache)) == expected


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (state_row(STATE, 4), "granularity-mismatch"),
        (tensor([3, 1, 1, 112], [1024, 112, 112, 2], dtype="int8"), "page-not-contiguous"),
        (state_row(STATE, 3, row=111), "page-bytes-mismatch"),  # less than the state
        (state_row(STATE, 3, 2048, row=1025), "page-bytes-mismatch"),  # more than the page
        (state_row(STATE, 3, 512), "state-stride-mismatch"),
        (state_row(STATE, 3) | {"dtype": "float7"}, "unknown-dtype"),
        (state_row(STATE, 3, 1025), "state-row-untileable"),  # no alignment divides the stride
    ],
    ids=str,
)
def test_state_rows(cache: Any, expected: str) -> None:
    assert code(one(STATE, cache)) == expected


def test_a_row_that_no_aligned_width_tiles() -> None:
    tight = mamba(block=63, page=112)  # 63 rows of 2 bytes are more than the page
    assert code(one(tight, state_row(tight, 3))) == "state-row-untileable"
    assert code(one(tight, state_row(tight, 3)), form="bytes") is None
    real = mamba(block=96, shapes=[[1408]], dtypes=["int8"])
    assert code(one(real, state_row(real, 3))) == "state-row-untileable"
    wide = mamba(block=64, shapes=[[17, 4]], dtypes=["float32"], page=272)
    assert code(one(wide, state_row(wide, 3, dtype="float32"))) == "state-row-untileable"


def test_a_page_that_is_no_multiple_of_its_rows() -> None:
    odd = mamba(page=1000)
    assert code(one(odd, state_list(odd, 3, 1000))) == "not-divisible"
    assert code(one(odd, state_list(odd, 3, 1000)), form="bytes") is None
    half = mamba(page=896)  # 7 elements a row: no two halves, but rank 4
    assert code(one(half, state_list(half, 3, 896))) == "not-divisible"
    assert code(one(half, state_list(half, 3, 896), hint="HND")) is None
    assert code(one(half, state_list(half, 2, 896), 2)) is None
    packed = attention(heads=1, dtype="uint8", content=9)  # 576 bytes, 4.5 a row and half
    assert code(one(packed, tensor([12, 1, 16, 9], dtype="uint8"))) is None


def test_a_rank_5_page_of_odd_halves() -> None:
    # K and V apart in the tensor, 3 bytes each a token: 6 bytes a token, 3 in each half
    odd = attention(heads=1, head=3, dtype="int8")
    assert view(one(odd, tensor([12, 2, 16, 1, 3], dtype="int8")))["shape"] == [3, 2, 64, 1, 3]


# --------------------------------------------------------------------------------------------------------------- hints


def test_a_hint_is_missed_only_by_layers_that_need_one() -> None:
    layers = {
        "kept": (KV, tensor([3, 2, 64, 16], storage=0)),
        "fused": (KV, tensor([12, 2, 16, 16], storage=1)),
        "planes": (KV, tensor([2, 12, 16, 2, 8], storage=2)),
        "tiles": (ROWS, tensor([12, 16, 24], storage=3)),
        "row": (STATE, state_row(STATE, 3, storage=4)),
        "list": (STATE, state_list(STATE, 3, 1024, storage=5)),
        "rank5": (KV, tensor([12, 2, 16, 2, 8], storage=6)),
    }
    groups = [group([name], spec) for name, (spec, _) in layers.items()]
    made = document(groups, {name: cache for name, (_, cache) in layers.items()}, hint=None)
    assert codes(made) == [
        ("missing-layout-hint", i, name) for i, name in enumerate(layers) if name in ("fused", "row", "list", "rank5")
    ]
    assert codes(made, form="bytes") == []
    assert codes(made | {"kv_cache_layout": "LBNHC"}) == []


@pytest.mark.parametrize("layout", ["LHBNC", "BHLNC"])
@pytest.mark.parametrize("hint", [None, "NHD", "HND"])
def test_layouts_that_put_the_blocks_of_a_head_together(layout: str, hint: str | None) -> None:
    for cache in (tensor([3, 2, 64, 16], order=(1, 0, 2, 3)), tensor([12, 2, 16, 16], order=(1, 0, 2, 3))):
        made = one(KV, cache, hint=hint)
        assert code(made) == "page-not-contiguous"
        assert code(made | {"kv_cache_layout": layout}) == "unsupported-layout"
    one_head = attention(heads=1)
    cache = tensor([12, 1, 16, 16], order=(1, 0, 2, 3))
    found = code(one(one_head, cache, hint=hint, layout=layout))
    assert found == (None if hint else "unsupported-layout")


# ----------------------------------------------------------------------------------------------------------- ambiguity


@pytest.mark.parametrize("hint", ["NHD", "HND", None])
def test_two_blocks_of_two_planes_or_the_other_way_round(hint: str | None) -> None:
    made = one(KV, tensor([2, 2, 64, 2, 8]), 2, hint)
    assert code(made) == "axes-ambiguous"
    (error,) = planned(made).errors
    assert "block plane token head channel" in error.actual
    assert "plane block token head channel" in error.actual


def test_kernel_pages_can_be_two_as_well() -> None:
    assert code(one(KV, tensor([2, 2, 32, 2, 8]), 1)) == "axes-ambiguous"


def test_strides_that_differ_decide() -> None:
    inside = one(KV, tensor([2, 2, 64, 2, 8], order=(1, 0, 2, 3, 4)), 2)
    assert code(inside) is None
    assert view(inside)["block_axis"] == 1


def test_a_placement_decides() -> None:
    made = one(KV, tensor([2, 2, 64, 2, 8]), 2)
    blocks_first = made | {"placements": [place(["a"], offset=0, block_stride=4096)]}
    assert view(blocks_first)["block_axis"] == 0
    planes_first = made | {"placements": [place(["a"], offset=0, block_stride=2048)]}
    assert view(planes_first)["block_axis"] == 1


def test_a_block_count_decides() -> None:
    assert code(one(KV, tensor([2, 2, 64, 2, 8]), 4)) == "granularity-mismatch"
    assert view(one(KV, tensor([2, 4, 64, 2, 8]), 4))["block_axis"] == 1
    assert view(one(KV, tensor([4, 2, 64, 2, 8]), 4))["block_axis"] == 0


# ------------------------------------------------------------------------------------------------------------- storage


@pytest.mark.parametrize(
    ("spec", "cache", "form", "least"),
    [
        (KV, tensor([3, 2, 64, 16], offset=16), "lmcache", 32 + 3 * 4096),
        (KV, tensor([12, 2, 16, 16]), "lmcache", 3 * 4096),
        (attention(page=5000), tensor([3, 2, 64, 16], [2500, 1024, 16, 1]), "lmcache", 2 * 5000 + 4096),
        (attention(page=5000), tensor([3, 2, 64, 16], [2500, 1024, 16, 1]), "bytes", 3 * 5000),
        (KV, tensor([2, 12, 16, 2, 8], offset=8), "lmcache", 16 + 3 * 4096),
        (ROWS, tensor([12, 16, 24]), "lmcache", 3 * 3072),
        (STATE, state_list(STATE, 3, 1024), "lmcache", 3072),
        (STATE, state_row(STATE, 3), "lmcache", 3072),
        (mamba(page=1100), state_row(mamba(page=1100), 3), "lmcache", 2 * 1100 + 256),
        (mamba(page=1100), state_row(mamba(page=1100), 3), "bytes", 3300),
    ],
    ids=str,
)
def test_a_view_ends_where_its_storage_does(spec: Json, cache: Any, form: Any, least: int) -> None:
    def sized(nbytes: int) -> Json:
        new = copy.deepcopy(cache)
        for item in new if isinstance(new, list) else [new]:
            item["storage_nbytes"] = nbytes
        return one(spec, new)

    assert code(sized(least), form) is None
    made = sized(least - 1)
    assert code(made, form) == "storage-overrun"
    (error,) = planned(made, form).errors
    assert error.witness is not None
    assert error.witness.actual is not None
    assert error.witness.actual >= least - 1


# ---------------------------------------------------------------------------------------------------------- placements


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, None),
        ({"offset": 0}, None),
        ({"offset": 4096}, "placement-mismatch"),
        ({"block_stride": 4096}, None),
        ({"block_stride": 8192}, "placement-mismatch"),
        ({"block_stride": 1024}, "placement-mismatch"),
        ({"size": 12288}, None),
        ({"size": 12287}, "placement-mismatch"),
        ({"size": 1 << 40, "offset": 0, "block_stride": 4096, "layer_stride": 12288}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("cache", [tensor([3, 2, 64, 16]), tensor([12, 2, 16, 16]), tensor([12, 2, 16, 2, 8])], ids=str)
def test_a_tensor_is_where_its_placement_says(numbers: Json, expected: str | None, cache: Json) -> None:
    assert code(one(KV, cache, placements=[place(["a"], **numbers)])) == expected


def test_the_second_layer_of_a_placement_is_a_layer_stride_on() -> None:
    caches = {"a": tensor([3, 2, 64, 16]), "b": tensor([3, 2, 64, 16], offset=6144)}
    for stride, expected in ((12288, []), (12290, [("placement-mismatch", 0, "b")]), (None, [])):
        placement = place(["a", "b"], offset=0, layer_stride=stride, block_stride=4096)
        assert codes(document([group(["a", "b"], KV)], caches, placements=[placement])) == expected


def test_one_block_has_no_block_stride_to_hold_against() -> None:
    made = one(KV, tensor([1, 2, 64, 16]), 1, placements=[place(["a"], offset=0, block_stride=99)])
    assert code(made) is None


def test_states_are_held_against_placements_too() -> None:
    for cache in (state_list(STATE, 3, 2048, base=1024), state_row(STATE, 3, 2048, base=1024)):
        good = place(["a"], offset=1024, block_stride=2048)
        assert code(one(STATE, cache, placements=[good])) is None
        for bad in ({"offset": 0}, {"block_stride": 1024}):
            assert code(one(STATE, cache, placements=[good | bad])) == "placement-mismatch"


# ---------------------------------------------------------------------------------------------------------- precedence

Change = tuple[str, "Callable[[Json], None]"]


def changed(spec: Json, cache: Any, *changes: Change) -> Json:
    made = copy.deepcopy(one(spec, cache, placements=[place(["a"])]))
    for _, change in changes:
        change(made)
    return made


def tensors(made: Json) -> list[Json]:
    entry = made["caches"]["a"]
    return entry if isinstance(entry, list) else [entry]


def set_first(**facts: Any) -> Callable[[Json], None]:
    return lambda made: tensors(made)[0].update(facts)


def scale_block_stride(by: int) -> Callable[[Json], None]:
    def change(made: Json) -> None:
        for facts in tensors(made):
            facts["stride"][0] *= by

    return change


def set_page(page: int) -> Callable[[Json], None]:
    return lambda made: made["groups"][0]["spec"]["derived"].update(page_size_bytes=page)


def set_all(**facts: Any) -> Callable[[Json], None]:
    def change(made: Json) -> None:
        for tensor_facts in tensors(made):
            tensor_facts.update(facts)

    return change


def shift(elements: int) -> Callable[[Json], None]:
    def change(made: Json) -> None:
        for facts in tensors(made):
            facts["storage_offset"] += elements

    return change


def set_place(**numbers: int) -> Callable[[Json], None]:
    return lambda made: made["placements"][0].update(numbers)


def last_stride(by: int) -> Callable[[Json], None]:
    def change(made: Json) -> None:
        for facts in tensors(made):
            facts["stride"][1:] = [stride * by for stride in facts["stride"][1:]]

    return change


# in the order of the contract: the first of two faults is what is said
KERNEL_PAGED: list[Change] = [
    ("missing-layer", lambda made: made["caches"].clear()),
    ("axes-mismatch", lambda made: made["groups"][0]["spec"]["derived"].update(num_heads=3)),
    ("not-divisible", lambda made: made["groups"][0]["spec"]["derived"].update(num_states=65)),
    ("page-not-contiguous", last_stride(2)),
    ("page-bytes-mismatch", set_page(4098)),
    ("placement-mismatch", set_place(offset=2)),
    ("storage-overrun", set_all(storage_nbytes=100)),
]
LIST: list[Change] = [
    ("missing-layer", lambda made: made["caches"].clear()),
    ("axes-mismatch", lambda made: made["groups"][0]["spec"]["fields"].update(shapes=[[3, 9], [4, 4]])),
    ("granularity-mismatch", lambda made: made.update(num_blocks=4)),
    ("page-not-contiguous", lambda made: tensors(made)[1].update(stride=[256, 8, 1])),
    ("page-bytes-mismatch", set_page(64)),
    ("state-stride-mismatch", lambda made: tensors(made)[1]["stride"].__setitem__(0, 500)),
    ("state-not-at-page-base", shift(16)),
    ("storage-overrun", set_all(storage_nbytes=100)),
]
ROW: list[Change] = [
    ("axes-mismatch", set_first(shape=[3, 1, 2, 112])),
    ("granularity-mismatch", lambda made: made.update(num_blocks=4)),
    ("page-not-contiguous", lambda made: tensors(made)[0].update(stride=[1024, 112, 112, 2])),
    ("page-bytes-mismatch", set_page(64)),
    ("placement-mismatch", set_place(block_stride=2)),
    ("storage-overrun", set_all(storage_nbytes=100)),
]
UNKNOWN: list[Change] = [
    ("axes-mismatch", lambda made: made["groups"][0]["spec"]["derived"].update(num_heads=3)),
    ("not-divisible", lambda made: made["groups"][0]["spec"]["derived"].update(num_states=65)),
    ("granularity-mismatch", lambda made: made.update(num_blocks=5)),
    ("page-not-contiguous", last_stride(2)),
    ("page-bytes-mismatch", set_page(4098)),
    ("unknown-dtype", set_all(dtype="float7")),
    ("storage-overrun", set_all(storage_nbytes=100)),
]

CHAINS = [
    (KV, tensor([12, 2, 16, 16]), KERNEL_PAGED),
    (STATE, state_list(STATE, 3, 1024), LIST),
    (STATE, state_row(STATE, 3), ROW),
    (KV, tensor([12, 2, 16, 16]), UNKNOWN),
]


@pytest.mark.parametrize(("spec", "cache", "chain"), CHAINS, ids=["kernel pages", "list", "row", "unknown type"])
def test_one_fault_alone(spec: Json, cache: Any, chain: list[Change]) -> None:
    assert code(changed(spec, cache)) is None
    for change in chain:
        assert code(changed(spec, cache, change)) == change[0]


@pytest.mark.parametrize(("spec", "cache", "chain"), CHAINS, ids=["kernel pages", "list", "row", "unknown type"])
def test_the_first_of_two_faults_is_what_is_said(spec: Json, cache: Any, chain: list[Change]) -> None:
    for first, second in itertools.combinations(chain, 2):
        if "missing-layer" in (first[0], second[0]):
            made = changed(spec, cache, second, first)
        else:
            made = changed(spec, cache, first, second)
        assert code(made) == first[0], (first[0], second[0])


def test_grain_of_any_state_goes_before_contiguity_of_another() -> None:
    made = state_list(STATE, 3, 1024)
    made[0]["stride"] = [512, 16, 2]
    made[1]["shape"] = [4, 4, 4]
    assert code(one(STATE, made)) == "granularity-mismatch"


def test_both_presentations_refuse_alike() -> None:
    for spec, cache, chain in CHAINS:
        for change in chain:
            assert code(changed(spec, cache, change), form="bytes") == change[0]
