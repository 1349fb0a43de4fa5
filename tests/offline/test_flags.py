from __future__ import annotations

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.algebra.result import Err
from kvlayout.offline.deployment import Deployment, KernelSize
from kvlayout.offline.flags import FLAGS, as_flags, field_text, flag_of, read_flags


def test_every_field_of_a_deployment_has_a_flag() -> None:
    assert {flag.field for flag in FLAGS} == {field.name for field in fields(Deployment)}
    assert all(flag.help and flag.metavar for flag in FLAGS)


def test_nothing_given_is_the_engines_choice() -> None:
    assert read_flags({}).unwrap() == Deployment()


DEPLOYMENTS = st.builds(
    Deployment,
    platform=st.sampled_from(["cuda", "cpu"]),
    tp=st.integers(1, 64),
    pp_rank=st.integers(0, 3),
    block_size=st.none() | st.integers(1, 4096),
    kernel_block_sizes=st.lists(st.builds(KernelSize, st.integers(1, 256), st.booleans()), max_size=3).map(tuple),
    mamba_cache_mode=st.none() | st.sampled_from(["none", "align", "all"]),
    mamba_ssm_dtype=st.none() | st.sampled_from(["float32", "bfloat16"]),
    layout=st.none() | st.sampled_from(["LBHNC", "BLNHC"]),
    cache_memory=st.none() | st.integers(1, 1 << 45),
    prefix_caching=st.booleans(),
)


@given(DEPLOYMENTS)
def test_a_deployment_survives_its_own_flags(made: Deployment) -> None:
    given = {flag.field: text for flag in FLAGS if (text := field_text(made, flag.field)) is not None}
    assert read_flags(given).unwrap() == made


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("8 GiB", 8 << 30),
        ("0.5GiB", 1 << 29),
        ("1.5TiB", 3 << 39),
        ("80GB", 80 * 10**9),
        ("512MiB", 1 << 29),
        ("1024", 1024),
        ("7B", 7),
        ("1.25KB", 1250),
    ],
)
def test_memory_has_units(text: str, size: int) -> None:
    assert read_flags({"cache_memory": text}).unwrap().cache_memory == size


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("cache_memory", text) for text in ("", "0", "-1", "8G", "8gib", "eight", "1e9", "GiB", "1..5GiB", "9" * 30)),
        *(("tp", text) for text in ("", "0", "-1", "1.5", "one", "0x10", "9" * 30, "1_0", "\u0661")),
        *(("kernel_block_sizes", text) for text in ("", "0", "32,", "multiple:", "multiple", "power:2", "32;64")),
        ("layout", "nhd"),
        ("layout", ""),
        ("mamba_cache_mode", "ALIGN"),
        ("platform", "tpu"),
        ("prefix_caching", "yes"),
        ("cache_dtype", ""),
        ("cache_dtype", "\x1b[2J"),
        ("engine", " "),
        ("pp_rank", "-1"),
    ],
)
def test_what_can_not_be_read_names_its_flag(field: str, text: str) -> None:
    refused = read_flags({field: text})
    assert isinstance(refused, Err)
    (error,) = refused.error.errors
    assert (error.code.value, error.path) == ("bad-config", "--" + field.replace("_", "-"))
    assert error.expected
    assert error.actual
    assert error.fix


def test_every_fault_is_named_at_once() -> None:
    refused = read_flags({"tp": "0", "layout": "x", "cache_memory": "much"})
    assert isinstance(refused, Err)
    assert [error.path for error in refused.error.errors] == ["--tp", "--layout", "--cache-memory"]


def test_the_engines_own_names_are_taken() -> None:
    named = ("--kv-cache-dtype", "--tensor-parallel-size", "--max-num-batched-tokens", "--mamba-ssm-cache-dtype")
    assert [flag.field for name in named if (flag := flag_of(name))] == [
        "cache_dtype",
        "tp",
        "max_batched_tokens",
        "mamba_ssm_dtype",
    ]
    assert flag_of("--block_size") == flag_of("--block-size")
    assert flag_of("tp") is None
    assert flag_of("--") is None


def test_flags_are_written_as_they_are_typed() -> None:
    assert as_flags({"block_size": "544", "cache_dtype": "fp8"}) == "--block-size 544 --cache-dtype fp8"


@pytest.mark.parametrize(("former", "name"), [("NHD", "LBNHC"), ("HND", "LBHNC")])
def test_the_engine_s_former_names_of_layouts_are_taken(former: str, name: str) -> None:
    assert read_flags({"layout": former}).unwrap().layout == name
