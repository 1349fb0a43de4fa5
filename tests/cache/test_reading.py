from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.cache.reading import LIMIT, FieldError, family_of, plain_dtype, read_spec
from kvlayout.cache.spec import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    LatentSpec,
    RawSpec,
    RingSpec,
    Spec,
    StateField,
    StateSpec,
    UniformSpec,
    UnknownSpec,
)

HUGE = 10**5_000

# Llama 3.2 1B: eight heads of 64, sixteen tokens a block.
LLAMA: dict[str, object] = {"block_size": 16, "num_kv_heads": 8, "head_size": 64, "dtype": "torch.bfloat16"}
# DeepSeek V3: one latent row of 512 + 64 elements a token.
DEEPSEEK: dict[str, object] = {
    "block_size": 64,
    "num_kv_heads": 1,
    "head_size": 576,
    "head_size_v": 0,
    "dtype": "bfloat16",
}
# Qwen3.5: a convolution window and a matrix state.
QWEN: dict[str, object] = {
    "block_size": 256,
    "shapes": [[3, 512], [4, 64, 64]],
    "dtypes": ["bfloat16", "float32"],
    "page_size_padded": 131072,
    "mamba_cache_mode": "align",
}


def attention(fields: dict[str, object], derived: dict[str, object] | None = None) -> AttentionSpec:
    spec = read_spec("FullAttentionSpec", (), None, fields, derived or {})
    assert isinstance(spec, AttentionSpec)
    return spec


def latent(fields: dict[str, object], derived: dict[str, object] | None = None) -> LatentSpec:
    spec = read_spec("MLAAttentionSpec", (), None, fields, derived or {})
    assert isinstance(spec, LatentSpec)
    return spec


def state(fields: dict[str, object], derived: dict[str, object] | None = None) -> StateSpec:
    spec = read_spec("MambaSpec", (), None, fields, derived or {})
    assert isinstance(spec, StateSpec)
    return spec


def refused(name: str, fields: dict[str, object], derived: dict[str, object] | None = None) -> FieldError:
    with pytest.raises(FieldError) as caught:
        read_spec(name, (), None, fields, derived or {})
    assert caught.value.path
    assert caught.value.expected
    assert len(str(caught.value)) < 300
    return caught.value


@pytest.mark.parametrize(
    ("name", "made", "kind"),
    [
        ("FullAttentionSpec", AttentionSpec, "full_attention"),
        ("TQFullAttentionSpec", AttentionSpec, "full_attention"),
        ("RSWASpec", AttentionSpec, "full_attention"),
        ("SlidingWindowSpec", AttentionSpec, "sliding_window"),
        ("ChunkedLocalAttentionSpec", AttentionSpec, "chunked_local_attention"),
        ("SinkFullAttentionSpec", AttentionSpec, "sink_full_attention"),
        ("MLAAttentionSpec", LatentSpec, "mla_attention"),
        ("HiddenStateCacheSpec", LatentSpec, "mla_attention"),
        ("SlidingWindowMLASpec", LatentSpec, "sliding_window_mla"),
        ("MambaSpec", StateSpec, "mamba"),
        ("CrossAttentionSpec", CrossAttentionSpec, "cross_attention"),
        ("EncoderOnlyAttentionSpec", EncoderOnlySpec, "encoder_only_attention"),
        ("CircularBufferSpec", RingSpec, "unknown"),
        ("KpoolTailSpec", RingSpec, "unknown"),
        ("HiSparseHotSpec", RawSpec, "unknown"),
        ("HiSparseResidentSpec", RawSpec, "unknown"),
        ("UniformTypeKVCacheSpecs", UniformSpec, "unknown"),
        ("NeverSeenSpec", UnknownSpec, "unknown"),
    ],
)
def test_each_class_is_read_as_its_family(name: str, made: type[Spec], kind: str) -> None:
    spec = read_spec(name, (), None, LLAMA | QWEN, {})
    assert type(spec) is made
    assert (spec.type, spec.kind, spec.block_size) == (name, kind, 256)
    assert (family_of(name) is None) == (made is UnknownSpec)


def test_a_plug_in_class_is_read_as_its_nearest_known_base() -> None:
    bases = ("AcmeSpec", "SlidingWindowMLASpec", "SlidingWindowSpec", "AttentionSpec")
    spec = read_spec("AcmeLatentSpec", bases, None, DEEPSEEK, {})
    assert isinstance(spec, LatentSpec)
    assert (spec.type, spec.kind) == ("AcmeLatentSpec", "sliding_window_mla")


def test_the_engines_own_kind_wins() -> None:
    assert read_spec("FullAttentionSpec", (), "rswa", LLAMA, {}).kind == "rswa"


def test_bytes_follow_from_head_and_item_sizes_where_nothing_is_derived() -> None:
    spec = attention(LLAMA)
    assert (spec.heads, spec.states, spec.content_bytes, spec.page_bytes) == (8, 16, 256, 32768)
    assert (spec.head_size_v, spec.dtype, spec.proves_reading) == (64, "bfloat16", True)
    assert spec.payload_bytes == spec.page_bytes


def test_a_latent_row_has_no_value_head_of_its_own() -> None:
    del (fields := dict(DEEPSEEK))["head_size_v"]
    assert latent(fields) == latent(DEEPSEEK)
    assert latent(DEEPSEEK).content_bytes == 1152


def test_derived_numbers_win_over_declared_ones() -> None:
    derived: dict[str, object] = {
        "page_size_bytes": 65536,
        "num_states": 8,
        "num_heads": 4,
        "state_content_size_bytes": 100,
    }
    spec = attention(LLAMA, derived)
    assert (spec.page_bytes, spec.states, spec.heads, spec.content_bytes) == (65536, 8, 4, 100)
    assert not spec.proves_reading


def test_older_engines_declare_head_slots_and_content() -> None:
    spec = attention(LLAMA | {"num_head_slots": 3, "state_content_bytes": 272, "page_size_padded": 16384})
    assert (spec.heads, spec.content_bytes, spec.page_bytes) == (3, 272, 16384)


def test_the_content_of_an_unpadded_page_is_its_share_of_the_page() -> None:
    fields = {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": "uint8"}
    spec = latent(dict(fields), {"page_size_bytes": 64 * 656})
    assert (spec.content_bytes, spec.proves_reading) == (656, False)
    padded = latent(fields | {"page_size_padded": 64 * 656}, {"page_size_bytes": 64 * 656})
    assert (padded.content_bytes, padded.proves_reading) == (576, True)


@pytest.mark.parametrize(
    ("declared", "ratio", "states"),
    [
        ({}, (1, 1), 16),
        ({"tokens_per_state": 4}, (4, 1), 4),
        ({"compress_ratio": 4}, (4, 1), 4),
        ({"tokens_per_state": [1, 4]}, (1, 4), 64),
        ({"tokens_per_state": (1, 4)}, (1, 4), 64),
        ({"tokens_per_state": -1}, (16, 1), 1),
        ({"tokens_per_state": 64}, (64, 1), 1),
    ],
)
def test_states_a_block_follow_from_tokens_per_state(
    declared: dict[str, object], ratio: tuple[int, int], states: int
) -> None:
    spec = attention(LLAMA | declared)
    assert (spec.tokens_per_state, spec.states) == (ratio, states)


@pytest.mark.parametrize("value", [0, -2, True, 1.0, "4", [4], [1, 0], [1, True], [1, 2, 3], [LIMIT, 1], {}])
def test_a_ratio_is_a_number_or_a_pair(value: object) -> None:
    assert refused("FullAttentionSpec", LLAMA | {"tokens_per_state": value}).path == "fields.tokens_per_state"
    assert refused("FullAttentionSpec", LLAMA, {"tokens_per_state": value}).path == "derived.tokens_per_state"


def test_a_recurrent_state_has_minus_one_token_per_state() -> None:
    assert state(QWEN | {"tokens_per_state": -1}) == state(QWEN)


@pytest.mark.parametrize("key", ["sliding_window", "rswa_window", "attention_chunk_size"])
def test_a_bounded_window_is_read_under_each_of_its_names(key: str) -> None:
    assert attention(LLAMA | {key: 512}).window_tokens == 512
    assert attention(LLAMA | {key: None}).window_tokens is None


def test_packed_slots_are_no_proof_of_a_reading() -> None:
    spec = attention(LLAMA | {"tq_slot_size": 256})
    assert (spec.slots, spec.content_bytes, spec.proves_reading) == (True, 256, False)


@pytest.mark.parametrize("role", ["INDEXER", "indexer", "CacheRole.INDEXER"])
def test_an_indexer_is_no_proof_of_a_reading(role: str) -> None:
    assert not latent(DEEPSEEK | {"cache_role": role}).proves_reading
    assert latent(DEEPSEEK | {"cache_role": "CacheRole.MAIN"}).proves_reading


def test_an_unknown_element_type_needs_declared_content() -> None:
    fields = LLAMA | {"dtype": "float3"}
    assert refused("FullAttentionSpec", fields).path == "fields.dtype"
    assert attention(fields | {"state_content_bytes": 48}).content_bytes == 48


def test_a_state_keeps_its_fields_in_order() -> None:
    spec = state(QWEN)
    assert spec.fields == (StateField((3, 512), "bfloat16"), StateField((4, 64, 64), "float32"))
    assert (spec.content_bytes, spec.page_bytes, spec.cache_mode) == (3072 + 65536, 131072, "align")


def test_a_state_without_padding_is_its_own_page() -> None:
    fields = {key: value for key, value in QWEN.items() if key not in ("page_size_padded", "mamba_cache_mode")}
    spec = state(fields)
    assert (spec.page_bytes, spec.cache_mode) == (68608, "none")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"shapes": None}, "fields.shapes"),
        ({"shapes": "ab"}, "fields.shapes"),
        ({"dtypes": ["bfloat16"]}, "fields.shapes"),
        ({"shapes": [[1]] * 17, "dtypes": ["int8"] * 17}, "fields.shapes"),
        ({"shapes": [[3, 512], 4]}, "fields.shapes[1]"),
        ({"shapes": [[3, 0], [4]]}, "fields.shapes[0]"),
        ({"shapes": [[3, True], [4]]}, "fields.shapes[0]"),
        ({"shapes": [[3, 4.0], [4]]}, "fields.shapes[0]"),
        ({"shapes": [[3], [1] * 17]}, "fields.shapes[1]"),
        ({"shapes": [[3], [LIMIT - 1, 2]]}, "fields.shapes[1]"),
    ],
)
def test_a_state_of_another_form_is_refused(change: dict[str, object], path: str) -> None:
    assert refused("MambaSpec", QWEN | change).path == path


@pytest.mark.parametrize(
    "name", ["FullAttentionSpec", "MLAAttentionSpec", "MambaSpec", "CrossAttentionSpec", "KpoolTailSpec"]
)
@pytest.mark.parametrize(
    "value",
    [None, 0, -1, True, 16.0, "16", [16], LIMIT, HUGE],
    ids=lambda value: str(value)[:9] if value is not HUGE else "huge",
)
def test_a_block_size_is_a_whole_number_from_one(name: str, value: object) -> None:
    assert refused(name, LLAMA | QWEN | {"block_size": value}).path == "fields.block_size"


@pytest.mark.parametrize("key", ["dcp_sharded", "prefix_cacheable", "has_layer_views", "bounded_replay"])
@pytest.mark.parametrize("value", [0, 1, "true", []])
def test_a_flag_is_true_or_false(key: str, value: object) -> None:
    assert refused("FullAttentionSpec", LLAMA | {key: value}).path == f"fields.{key}"
    assert refused("FullAttentionSpec", LLAMA, {key: value}).path == f"derived.{key}"


def test_flags_default_to_what_the_family_is() -> None:
    flags = {
        name: (spec.dcp_sharded, spec.prefix_cacheable, spec.has_layer_views)
        for name in ("FullAttentionSpec", "MambaSpec", "KpoolTailSpec", "HiSparseHotSpec")
        for spec in [read_spec(name, (), None, LLAMA | QWEN, {})]
    }
    assert flags == {
        "FullAttentionSpec": (True, True, True),
        "MambaSpec": (False, True, True),
        "KpoolTailSpec": (True, False, True),
        "HiSparseHotSpec": (False, False, False),
    }
    assert not attention(LLAMA | {"bounded_replay": True}).prefix_cacheable


def test_a_page_of_more_bytes_than_64_bits_count_is_refused() -> None:
    huge = LLAMA | {"head_size": 2**61, "block_size": 2**40}
    assert refused("FullAttentionSpec", huge).path == "derived.page_size_bytes"
    assert refused("FullAttentionSpec", LLAMA, {"num_states": LIMIT - 1}).path == "derived.page_size_bytes"


def test_a_hostile_value_is_shown_by_its_size() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value, shown in [
        (deep, "a list of 1"),
        ([0] * 10**6, "a list of 1000000"),
        ({"a": deep}, "an object with 1 keys"),
    ]:
        assert refused("FullAttentionSpec", LLAMA | {"head_size": value}).actual == shown
    assert refused("FullAttentionSpec", LLAMA | {"head_size": "9" * 10**6}).actual.endswith("...")


def test_a_dtype_is_named_without_its_module() -> None:
    assert plain_dtype("torch.float8_e4m3fn") == plain_dtype("float8_e4m3fn") == "float8_e4m3fn"


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([1, 16, LIMIT - 1, -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)
KEYS = sorted({*LLAMA, *QWEN, "tokens_per_state", "sliding_window", "tq_slot_size", "cache_role", "bounded_replay"})
DERIVED = [
    "page_size_bytes",
    "num_states",
    "num_heads",
    "tokens_per_state",
    "state_content_size_bytes",
    "prefix_cacheable",
]


@given(
    st.sampled_from(["FullAttentionSpec", "MLAAttentionSpec", "MambaSpec", "KpoolTailSpec", "X"]),
    st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=3),
    st.dictionaries(st.sampled_from(DERIVED), ANYTHING, max_size=3),
)
def test_any_fields_give_bounded_numbers_or_a_named_field(
    name: str, fields: dict[str, object], derived: dict[str, object]
) -> None:
    try:
        spec = read_spec(name, (), None, LLAMA | QWEN | fields, derived)
    except FieldError as caught:
        named = caught.path.split(".")[0]
    else:
        check_bounded(spec)
        return
    assert named in ("fields", "derived")


def check_bounded(spec: Spec) -> None:
    assert 0 <= spec.block_size < LIMIT
    assert 0 <= spec.page_bytes < LIMIT
    if isinstance(spec, AttentionSpec | LatentSpec):
        assert 0 < spec.payload_bytes < LIMIT


def test_specs_of_the_samples_fit_in_their_pages() -> None:
    for path in sorted((Path(__file__).parents[1] / "data/registrations").glob("*.json")):
        for group in json.loads(path.read_text())["groups"]:
            document = group["spec"]
            spec = read_spec(
                document["type"], document["bases"], document["kind"], document["fields"], document["derived"]
            )
            assert spec.page_bytes == document["derived"]["page_size_bytes"]
            if isinstance(spec, AttentionSpec | LatentSpec):
                assert spec.payload_bytes <= spec.page_bytes
            if isinstance(spec, StateSpec):
                assert spec.content_bytes <= spec.page_bytes
