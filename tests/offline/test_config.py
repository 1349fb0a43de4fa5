"""Configs that are none: one clear error for each field, none that follows from another, nothing sized by a number."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from kvlayout.algebra.result import Err, Ok
from kvlayout.errors import Code, LayoutError
from kvlayout.offline.reading import read_model
from tests.offline.configs import config, encoded

NONSENSE = [0, -1, -(10**9), True, False, "4", "", 4.0, 0.5, 10**6, 10**12, 10**30, [4], {}, {"a": 1}, float("inf")]
COUNTS = ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size"]


def faults(text: bytes, *, generic: bool = False) -> tuple[LayoutError, ...]:
    result = read_model(text, generic=generic)
    assert isinstance(result, Err)
    assert {error.code for error in result.error.errors} == {Code.BAD_CONFIG}
    assert str(result.error)
    return result.error.errors


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("field", COUNTS)
def test_a_count_that_is_none_is_one_error_with_its_field(field: str, value: Any) -> None:
    (error,) = faults(encoded(config("llama", **{field: value})))
    assert error.path == field
    assert "whole number" in error.expected


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("qwen35", "linear_num_key_heads", 0),
        ("qwen35", "linear_value_head_dim", "128"),
        ("qwen35", "linear_conv_kernel_dim", 1),
        ("qwen35", "full_attention_interval", 0),
        ("deepseekv2", "kv_lora_rank", -512),
        ("deepseekv2", "qk_rope_head_dim", True),
        ("deepseekv2", "v_head_dim", 0),
        ("gemma3", "sliding_window", -1),
        ("llama4", "attention_chunk_size", 1.5),
        ("llama4", "no_rope_layers", [1]),
        ("nemotronh", "ssm_state_size", 0),
        ("falconh1", "mamba_n_heads", 10**30),
        ("granitehybrid", "mamba_d_conv", None),
        ("lfm2", "conv_L_cache", 0),
        ("jamba", "attn_layer_offset", 7),
        ("zamba2", "hybrid_layer_ids", [0]),
        ("mamba2", "state_size", []),
        ("whisper", "decoder_layers", 0),
        ("whisper", "d_model", -8),
        ("gemma3n", "num_kv_shared_layers", 8),
        ("llama", "intermediate_size", -256),
        ("llama", "vocab_size", -1),
        ("llama", "max_position_embeddings", 0),
        ("llama", "torch_dtype", "int4"),
        ("llama", "torch_dtype", 16),
        ("llama", "layer_types", ["full_attention"]),
        ("llama", "layer_types", "full_attention"),
        ("kimilinear", "linear_attn_config", None),
        ("kimilinear", "linear_attn_config", [1]),
        ("gemma3-vision", "text_config", [1]),
        ("llama", "architectures", "LlamaForCausalLM"),
        ("llama", "architectures", [None]),
        ("llama", "model_type", 5),
        ("llama", "rope_scaling", "yarn"),
        ("llama", "rope_parameters", [1]),
    ],
)
def test_a_field_that_is_no_good_is_one_error_with_its_path(name: str, field: str, value: Any) -> None:
    (error,) = faults(encoded(config(name, **{field: value})))
    assert error.path == field


def test_a_field_inside_another_has_its_whole_path() -> None:
    fields = config("qwen35-vision")
    fields["text_config"]["linear_num_value_heads"] = -3
    assert [error.path for error in faults(encoded(fields))] == ["text_config.linear_num_value_heads"]
    kimi = config("kimilinear")
    kimi["linear_attn_config"]["head_dim"] = 0
    assert [error.path for error in faults(encoded(kimi))] == ["linear_attn_config.head_dim"]


@pytest.mark.parametrize(
    ("rope", "path"),
    [
        ({"rope_type": ["yarn"], "factor": 2.0}, "rope_type"),
        ({"type": 5, "factor": 2.0}, "type"),
        ({"rope_type": "linear", "factor": "8"}, "factor"),
        ({"rope_type": "linear", "factor": True}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": -2.0}, "factor"),
        ({"rope_type": "linear", "factor": 1e-9}, "factor"),
        ({"rope_type": "dynamic", "factor": float("inf")}, "factor"),
        ({"rope_type": "dynamic", "factor": 1e308}, "factor"),
    ],
    ids=repr,
)
def test_a_scale_of_positions_that_is_none_is_one_error_with_its_path(rope: dict[str, Any], path: str) -> None:
    (error,) = faults(encoded(config("llama", rope_scaling=rope)))
    assert error.path == f"rope_scaling.{path}"
    (inner,) = faults(encoded(config("llama", rope_parameters={"full_attention": rope})))
    assert inner.path == f"rope_parameters.full_attention.{path}"


def test_a_pattern_is_read_where_kinds_are_not_listed() -> None:
    (error,) = faults(encoded(config("gemma3", layer_types=None, sliding_window_pattern=0)))
    assert error.path == "sliding_window_pattern"


def test_kinds_that_no_one_knows_are_named() -> None:
    (error,) = faults(encoded(config("llama", layer_types=["full_attention", "telepathy", "x", "y"])))
    assert (error.path, error.actual) == ("layer_types[1]", '"telepathy"')
    (long,) = faults(encoded(config("llama", layer_types=["x" * 100_000] * 4)))
    assert (long.path, len(long.actual) < 100) == ("layer_types[0]", True)
    (letter,) = faults(encoded(config("nemotronh", hybrid_override_pattern="M*QM")))
    assert (letter.path, letter.actual) == ("hybrid_override_pattern[2]", '"Q"')


def test_heads_that_do_not_divide() -> None:
    (error,) = faults(encoded(config("llama", num_attention_heads=6, num_key_value_heads=4)))
    assert (error.path, error.expected) == ("num_key_value_heads", "a divisor of num_attention_heads (6)")
    (width,) = faults(encoded(config("llama", num_attention_heads=6, num_key_value_heads=6, head_dim=None)))
    assert (width.path, width.expected) == ("hidden_size", "a multiple of num_attention_heads (6)")


def test_all_faults_at_once() -> None:
    wrong = {"num_hidden_layers": 10**9, "linear_num_key_heads": 0, "linear_key_head_dim": "x", "head_dim": -1}
    assert {error.path for error in faults(encoded(config("qwen35", **wrong)))} == set(wrong)


def test_many_faults_end_somewhere() -> None:
    fields = config("llama") | {f"num_{i}_size": -1 for i in range(500)}
    assert len(faults(encoded(fields))) == 64


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b'"config.json"',
        b'{"architectures": ["LlamaForCausalLM"], "num_hidden',
        b'{"num_hidden_layers": NaN}',
        b'{"num_hidden_layers": ' + b"9" * 5000 + b"}",
        b'{"head_dim": 64, "head_dim": 128}',
        b"GGUF\x03\x00\x00\x00" + bytes(range(256)),
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
        b"PK\x03\x04\x14\x00",
        b"\xff\xd8\xff\xe0\x00\x10JFIF",
        "{}".encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b"\x00" * 1000,
    ],
    ids=lambda text: repr(text[:16]),
)
def test_what_is_no_config_is_one_error(text: bytes) -> None:
    (error,) = faults(text)
    assert error.path
    assert len(error.actual) < 200


def test_an_empty_object_is_an_unknown_architecture() -> None:
    (error,) = faults(b"{}")
    assert (error.path, error.actual) == ("architectures", "nothing")


def test_every_truncation_of_a_config_is_one_error() -> None:
    text = encoded(config("qwen35"))
    for end in range(len(text)):
        assert len(faults(text[:end])) == 1


@pytest.mark.parametrize("name", ["llama", "qwen35", "kimilinear", "gemma4", "nemotronh", "zamba2", "whisper"])
def test_no_mutation_of_a_field_raises(name: str) -> None:
    fields = config(name)
    for field in fields:
        for value in [*NONSENSE, None, "x" * 1000, ["a", 1, None], [[]]]:
            assert isinstance(read_model(encoded(fields | {field: value})), (Ok, Err))
        assert isinstance(read_model(encoded({key: fields[key] for key in fields if key != field})), (Ok, Err))


def test_nothing_is_allocated_by_a_number() -> None:
    tracemalloc.start()
    start = time.perf_counter()
    for field in COUNTS:
        for value in (10**6, 10**9, 10**18, 10**90):
            faults(encoded(config("qwen35", **{field: value})))
    assert time.perf_counter() - start < 1
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_real_files_have_more_in_them() -> None:
    """Floats, nulls, objects, lists, Infinity and fields that no one knows are no faults."""
    more = {
        "time_step_limit": [0.0, float("inf")],
        "rope_scaling": None,
        "quantization_config": {"bits": 4, "modules": [None, {"a": 1e-6}]},
        "eos_token_id": [1, 2],
        "pad_token_id": -1,
        "rms_norm_eps": 1e-300,
        "auto_map": {"AutoConfig": "x.Y"},
        "some_flag": False,
        "torch_dtype": "bfloat16",
    }
    assert isinstance(read_model(encoded(config("llama", **more))), Ok)
