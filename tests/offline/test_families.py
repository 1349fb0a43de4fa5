"""What each family makes of a config: layers, their names and their numbers, from its fields and never from a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvlayout.algebra.result import Err, Ok
from kvlayout.cache.registration import Registration
from kvlayout.errors import Code, LayoutError
from kvlayout.offline.model import AttentionLayer, CrossLayer, LatentLayer, Model, StateLayer, StatePart
from kvlayout.offline.reading import read_model
from tests.offline.configs import NAMES, config, encoded
from tests.offline.facts import of_layers, of_specs, sharing

CAPTURED = sorted((Path(__file__).parent.parent / "data" / "registrations").glob("*.json"))


def read(fields: object, *, generic: bool = False) -> Model:
    result = read_model(encoded(fields), generic=generic)
    assert isinstance(result, Ok), result.error
    return result.value


def refused(fields: object, *, generic: bool = False) -> tuple[LayoutError, ...]:
    result = read_model(encoded(fields), generic=generic)
    assert isinstance(result, Err)
    assert {error.code for error in result.error.errors} == {Code.BAD_CONFIG}
    return result.error.errors


def model_of(path: Path) -> str:
    """Return the tiny model that a captured registration is of."""
    name = path.stem.removeprefix("v025-").removeprefix("v026-").removeprefix("v028-")
    return max((known for known in NAMES if name.startswith(known)), key=len)


@pytest.mark.parametrize("path", CAPTURED, ids=[path.stem for path in CAPTURED])
def test_layers_are_those_that_engines_registered(path: Path) -> None:
    registered = Registration.from_json(path.read_bytes()).unwrap()
    specs = {layer: group.leaves.get(layer, group.spec) for group in registered.groups for layer in group.layers}
    assert of_layers(read(config(model_of(path)))) == of_specs(specs)


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_has_a_name_of_its_own_and_a_place_in_the_model(name: str) -> None:
    model = read(config(name))
    names = [layer.name for layer in model.layers]
    assert len(set(names)) == len(names)
    assert set(sharing(model).values()) <= set(names)
    assert model.depth is not None
    assert len(model.positions) in (0, len(names))
    assert all(0 <= place < model.depth for place in model.positions)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_decides(name: str) -> None:
    fields = config(name)
    renamed = fields | {
        "_name_or_path": "somebody/llama-gemma-mamba",
        "model_name": "GGUF",
        "transformers_version": "9",
    }
    assert read(renamed) == read(fields)


@pytest.mark.parametrize("name", NAMES)
def test_the_model_type_alone_is_enough(name: str) -> None:
    fields = config(name)
    known = read(fields)
    del fields["architectures"]
    assert read(fields).layers == known.layers
    assert read(fields | {"architectures": ["OursForCausalLM"]}).layers == known.layers


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-vision")])
def test_the_architecture_alone_is_enough(name: str) -> None:
    fields = config(name)
    known = read(fields)
    assert read(fields | {"model_type": "ours"}).layers == known.layers


def test_gated_delta_of_the_geometry_of_qwen35_08b() -> None:
    model = read(config("qwen35-08b-geom"))
    states = [layer for layer in model.layers if isinstance(layer, StateLayer)]
    full = [layer for layer in model.layers if isinstance(layer, AttentionLayer)]
    assert [layer.name for layer in full] == [f"model.layers.{i}.self_attn.attn" for i in range(3, 24, 4)]
    assert {(layer.heads, layer.head_size) for layer in full} == {(2, 256)}
    assert {layer.recurrence.parts(1) for layer in states} == {
        (StatePart("conv", (3, 6144)), StatePart("recurrent", (16, 128, 128)))
    }
    assert {layer.recurrence.parts(4) for layer in states} == {
        (StatePart("conv", (3, 1536)), StatePart("recurrent", (4, 128, 128)))
    }


def test_a_field_that_is_left_out_has_the_default_of_its_kind() -> None:
    """The language model of Gemma 3 4B as it is published: what equals a default is not in its file."""
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024, "model_type": "gemma3_text"}
    model = read({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text})
    layers = [layer for layer in model.layers if isinstance(layer, AttentionLayer)]
    assert {(layer.query_heads, layer.heads, layer.head_size) for layer in layers} == {(8, 4, 256)}
    assert [i for i, layer in enumerate(layers) if layer.window is None] == [5, 11, 17, 23, 29]
    assert {layer.window for layer in layers} == {None, 1024}
    assert model.max_positions == 131072
    assert layers[0].name == "language_model.model.layers.0.self_attn.attn"


def test_null_is_not_the_same_as_left_out() -> None:
    """Mistral has a window by default; later ones switch it off with null."""
    fields = config("llama", architectures=["MistralForCausalLM"], model_type="mistral")
    assert {layer.window for layer in windows(fields)} == {4096}
    assert {layer.window for layer in windows(fields | {"sliding_window": None})} == {None}
    assert {layer.window for layer in windows(fields | {"sliding_window": 0})} == {None}


def windows(fields: dict[str, Any]) -> list[AttentionLayer]:
    return [layer for layer in read(fields).layers if isinstance(layer, AttentionLayer)]


@pytest.mark.parametrize(
    ("first", "used", "expected"), [(0, True, {256}), (4, True, {None}), (9, True, {None}), (0, False, {None})]
)
def test_windows_of_qwen_are_for_all_layers_or_none(first: int, used: bool, expected: set[int | None]) -> None:
    fields = config("llama", architectures=["Qwen2ForCausalLM"], model_type="qwen2", sliding_window=256)
    fields |= {"use_sliding_window": used, "max_window_layers": first}
    assert {layer.window for layer in windows(fields)} == expected


def test_windows_of_some_layers_only_are_refused_where_the_engine_has_none() -> None:
    fields = config("llama", architectures=["Qwen2ForCausalLM"], model_type="qwen2", sliding_window=256)
    (error,) = refused(fields | {"use_sliding_window": True, "max_window_layers": 2})
    assert error.path == "max_window_layers"


@pytest.mark.parametrize(("name", "ways"), [("gemma3", True), ("gemma4", "all")])
def test_a_window_that_looks_both_ways_is_half_as_long(name: str, ways: object) -> None:
    assert windows(config(name, use_bidirectional_attention=ways))[0].window == 129
    assert windows(config(name, use_bidirectional_attention=None))[0].window == 256


def test_gemma4_has_other_heads_where_it_attends_to_everything() -> None:
    sliding, full = windows(config("gemma4", attention_k_eq_v=True))[0], windows(config("gemma4"))[-1]
    shared = windows(config("gemma4", attention_k_eq_v=True))[-1]
    assert (sliding.heads, sliding.head_size) == (2, 64)
    assert (full.heads, full.head_size, full.window) == (2, 128, None)
    assert (shared.heads, shared.head_size) == (1, 128)


def test_the_last_layers_of_gemma_read_the_cache_of_earlier_ones() -> None:
    model = read(config("gemma3n"))
    assert sharing(model) == {
        "model.layers.5.self_attn.attn": "model.layers.3.self_attn.attn",
        "model.layers.6.self_attn.attn": "model.layers.3.self_attn.attn",
        "model.layers.7.self_attn.attn": "model.layers.4.self_attn.attn",
    }
    four = config("gemma4", num_kv_shared_layers=2, num_hidden_layers=12, layer_types=None)
    assert set(sharing(read(four)).values()) == {"model.layers.9.self_attn.attn", "model.layers.5.self_attn.attn"}


def test_latent_rows_have_an_indexer_before_them_where_tokens_are_picked() -> None:
    model = read(config("deepseekv32", num_hidden_layers=2))
    assert model.layers == (
        LatentLayer("model.layers.0.self_attn.indexer.k_cache", 0, 0, index_bytes=132),
        LatentLayer("model.layers.0.self_attn.attn", 512, 64),
        LatentLayer("model.layers.1.self_attn.indexer.k_cache", 0, 0, index_bytes=132),
        LatentLayer("model.layers.1.self_attn.attn", 512, 64),
    )
    pattern = read(config("deepseekv32", num_hidden_layers=3, index_topk_pattern="FSF"))
    assert [layer.name.split(".")[2] for layer in pattern.layers if "indexer" in layer.name] == ["0", "2"]
    often = read(config("deepseekv32", num_hidden_layers=5, index_topk_freq=2))
    assert [layer.name.split(".")[2] for layer in often.layers if "indexer" in layer.name] == ["0", "1", "3"]


def test_a_decoder_of_whisper_attends_to_itself_and_to_the_encoder() -> None:
    model = read(config("whisper"))
    assert [type(layer) for layer in model.layers] == [AttentionLayer, CrossLayer] * 2
    assert model.max_positions == 448


def test_bamba_is_read_for_the_engines_that_have_it() -> None:
    kinds = [(layer.name, type(layer)) for layer in read(config("bamba")).layers]
    assert kinds == [
        ("model.layers.0.mixer", StateLayer),
        ("model.layers.1.attn", AttentionLayer),
        ("model.layers.2.mixer", StateLayer),
        ("model.layers.3.attn", AttentionLayer),
    ]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("llama", {"torch_dtype": "float16"}, "float16"),
        ("llama", {"torch_dtype": "torch.float16"}, "float16"),
        ("llama", {"torch_dtype": "float32"}, "bfloat16"),
        ("llama", {"torch_dtype": None}, "bfloat16"),
        ("llama", {"torch_dtype": "float16", "dtype": "bfloat16"}, "bfloat16"),
        ("gemma3", {"torch_dtype": "float16"}, "bfloat16"),
    ],
)
def test_element_type(name: str, given: dict[str, Any], expected: str) -> None:
    assert read(config(name, **given)).dtype == expected


def test_element_type_of_states() -> None:
    assert read(config("qwen35", mamba_ssm_dtype="float32")).ssm_dtype == "float32"
    assert read(config("qwen35")).ssm_dtype is None
    assert read(config("qwen3next", mamba_ssm_dtype="float32")).ssm_dtype is None, "the engine does not look there"
    assert read(config("nemotronh")).ssm_dtype == "float32"
    assert read(config("nemotronh", mamba_ssm_cache_dtype="bfloat16")).ssm_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ([], None),
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt_fp4", "quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": True, "num_bits": 8, "type": "float"}}, None),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT3"}, None),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None),
    ],
)
def test_element_type_of_caches_that_a_checkpoint_asks_for(given: object, expected: str | None) -> None:
    assert read(config("llama", quantization_config=given)).cache_dtype == expected


COMPRESSED = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
MODELOPT = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}


def test_a_quantised_checkpoint_is_described_in_one_of_three_places() -> None:
    assert read(config("llama", compression_config=COMPRESSED)).cache_dtype == "fp8"
    assert read(config("llama", compression_config=MODELOPT)).cache_dtype is None
    fields = config("mistral3-vision")
    fields["text_config"]["quantization_config"] = COMPRESSED
    assert read(fields).cache_dtype == "fp8"
    fields["text_config"]["quantization_config"] = MODELOPT
    assert read(fields).cache_dtype is None
    fields["quantization_config"] = {"quant_method": "fp8"}
    assert read(fields).cache_dtype is None


@pytest.mark.parametrize("name", ["deepseekv2", "deepseekv32", "kimilinear", "kimi-vision", "jamba", "zamba2", "lfm2"])
def test_attention_that_is_not_told_of_a_cache_scheme_keeps_its_own_type(name: str) -> None:
    assert read(config(name, quantization_config=COMPRESSED)).cache_dtype is None
    assert read(config(name, quantization_config=MODELOPT)).cache_dtype == "fp8_e4m3"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 8192),
        ({"rope_scaling": {"rope_type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_parameters": {"full_attention": None, "sliding_attention": {"type": "linear", "factor": 2}}}, 16384),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}}, 16384),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, 4096),
        ({"rope_scaling": {"rope_type": None, "factor": 2}}, 16384),
        ({"seq_length": 1024}, 1024),
        ({"model_max_length": 16384}, 16384),
    ],
)
def test_longest_request(given: dict[str, Any], expected: int) -> None:
    assert read(config("llama", **given)).max_positions == expected


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "dots1"])
def test_a_window_that_is_switched_off_is_in_no_layer_whatever_the_first_layer_with_one(name: str) -> None:
    classes = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "dots1": "Dots1ForCausalLM"}
    fields = config("llama", architectures=[classes[name]], model_type=name, num_hidden_layers=4)
    fields |= {"sliding_window": 32768, "max_window_layers": 3, "use_sliding_window": False}
    assert {layer.window for layer in read(fields).layers if isinstance(layer, AttentionLayer)} == {None}


def test_an_unknown_architecture_is_an_error_that_says_what_a_reading_would_need() -> None:
    fields = config("llama", architectures=["QuantumForCausalLM"], model_type="quantum")
    (error,) = refused(fields)
    assert error.path == "architectures"
    assert error.actual == '"QuantumForCausalLM"'
    for field in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"):
        assert field in error.expected
    assert "--generic" in error.fix


def test_plain_attention_is_read_from_an_unknown_architecture_only_on_request() -> None:
    fields = config("llama", architectures=["QuantumForCausalLM"], model_type="quantum")
    model = read(fields, generic=True)
    assert model.layers == read(config("llama")).layers
    assert model.architecture == "QuantumForCausalLM"
    assert "generic" in model.family
    inner = {"architectures": ["QuantumForCausalLM"], "model_type": "quantum", "text_config": config("llama")}
    first, *_ = read(inner, generic=True).layers
    assert first.name == "language_model.model.layers.0.self_attn.attn"


@pytest.mark.parametrize("name", ["qwen35", "nemotronh", "deepseekv2", "kimilinear", "lfm2", "jamba", "zamba2"])
def test_layers_that_are_not_plain_attention_are_never_read_as_such(name: str) -> None:
    fields = config(name, architectures=["QuantumForCausalLM"], model_type="quantum")
    (error,) = refused(fields)
    assert "--generic" not in error.fix
    assert len(refused(fields, generic=True)) >= 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_kv_heads", 2),
        ("n_head_kv", 2),
        ("multi_query", True),
        ("multi_query_group_num", 2),
        ("num_key_value_heads_per_layer", [4, 2]),
        ("block_configs", [{"attention": {"n_heads_in_group": 8}}]),
        ("attn_config", {"kv_n_heads": 8}),
        ("v_head_dim", 128),
        ("kv_channels", 64),
        ("attn_type_list", [0, 1]),
        ("full_attention_layers", [3]),
        ("is_encoder_decoder", True),
    ],
)
def test_heads_and_kinds_by_other_names_are_not_overlooked(field: str, value: object) -> None:
    unknown = {"architectures": ["QuantumForCausalLM"], "model_type": "quantum", field: value}
    (error,) = refused(config("llama", **unknown))
    assert field in error.expected
    assert "--generic" not in error.fix
    assert [error.path for error in refused(config("llama", **unknown), generic=True)] == [field]


def test_kinds_that_are_listed_need_no_other_name() -> None:
    listed = ["sliding_attention", "full_attention"] * 2
    unknown = {"architectures": ["QuantumForCausalLM"], "model_type": "quantum", "global_attn_every_n_layers": 2}
    fields = config("llama", num_hidden_layers=4, sliding_window=512, layer_types=listed, **unknown)
    assert [layer.window for layer in read(fields, generic=True).layers if isinstance(layer, AttentionLayer)] == [
        512,
        None,
        512,
        None,
    ]


def test_a_known_kind_with_fields_of_other_layers_is_not_taken_by_its_kind() -> None:
    fields = config("llama", architectures=["LlamaWithStatesForCausalLM"], ssm_state_size=16)
    assert [error.path for error in refused(fields)] == ["ssm_state_size"]
