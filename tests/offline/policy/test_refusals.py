"""Deployments that the engine does not start with are refused: one error, with the field and what to change."""

from __future__ import annotations

from random import Random

import pytest
from attrs import evolve

from kvlayout.algebra.result import Err, Ok
from kvlayout.errors import Code, LayoutError
from kvlayout.offline.deployment import Deployment, KernelSize
from kvlayout.offline.model import AttentionLayer, CrossLayer, LatentLayer, Mamba1, Model, StateLayer
from kvlayout.offline.serving import serve
from tests.offline.policy.models import MODELS, attention, model

SPARSE = model(
    [
        LatentLayer("model.layers.0.self_attn.indexer.k_cache", 0, 0, index_bytes=132),
        LatentLayer("model.layers.0.self_attn.attn", 512, 64),
    ]
)
UNEVEN = model([attention(0, size=128), attention(1, size=96, window=64), attention(2, size=128)])
WIDE = model([AttentionLayer("model.layers.0.self_attn.attn", 8, 8, 192, 128)])


def refusals(made: Model, deployment: Deployment) -> tuple[LayoutError, ...]:
    result = serve(made, deployment)
    assert isinstance(result, Err), result
    assert all(error.code.value and error.expected and error.actual for error in result.error.errors)
    return result.error.errors


def refused(made: Model, deployment: Deployment) -> LayoutError:
    (error,) = refusals(made, deployment)
    return error


@pytest.mark.parametrize(
    ("name", "deployment", "path", "fix"),
    [
        ("llama", Deployment(tp=3), "tp", "set --tp to a divisor of 4"),
        ("llama", Deployment(tp=8), "tp", "set --tp to a divisor of 4"),
        ("qwen35", Deployment(tp=4, mamba_cache_mode="all"), "mamba_cache_mode", "set --mamba-cache-mode align"),
        ("llama", Deployment(engine="vllm-0.24"), "engine", "set --engine vllm-0.32"),
        ("llama", Deployment(engine="vllm-0.34"), "engine", "set --engine vllm-0.32"),
        ("llama", Deployment(engine="sglang-0.5"), "engine", "set --engine vllm-0.32"),
        ("llama", Deployment(engine="vllm-0.32; rm"), "engine", "set --engine vllm-0.32"),
        ("llama", Deployment(cache_dtype="fp9"), "cache_dtype", ""),
        ("llama", Deployment(cache_dtype="fp8_ds_mla"), "cache_dtype", "set --cache-dtype fp8 or auto"),
        ("deepseekv2", Deployment(cache_dtype="fp8_ds_mla"), "cache_dtype", "set --cache-dtype fp8 or auto"),
        ("deepseekv2", Deployment(cache_dtype="int8_per_token_head"), "cache_dtype", "set --cache-dtype fp8 or auto"),
        ("llama", Deployment(engine="vllm-0.28", cache_dtype="int8_per_token_head"), "cache_dtype", ""),
        ("llama", Deployment(block_size=24), "block_size", "set --block-size to a multiple of 16"),
        ("llama", Deployment(block_size=48, kernel_block_sizes=(KernelSize(32),)), "block_size", None),
        ("llama", Deployment(max_model_len=8193), "max_model_len", "set --max-model-len"),
        ("llama", Deployment(dtype="int4"), "dtype", "set --dtype"),
        ("llama", Deployment(pp=5), "pp", "set --pp to at most 4"),
        ("llama", Deployment(tp=2, dcp=3), "dcp", "set --dcp to a divisor of --tp"),
        ("llama", Deployment(tp=2, dcp=2), "dcp", "set --tp to at least 4, or --dcp 1"),
        ("gemma3", Deployment(tp=4, dcp=2), "dcp", "set --dcp 1"),
        ("qwen3next", Deployment(engine="vllm-0.25", tp=4, dcp=2), "dcp", "set --dcp 1"),
        ("llama", Deployment(engine="vllm-0.28", layout="BLHNC"), "layout", "set --layout LBNHC"),
        ("kimilinear", Deployment(mamba_ssm_dtype="float16"), "mamba_ssm_dtype", "set --mamba-ssm-dtype float32"),
        ("kimilinear", Deployment(engine="vllm-0.26", platform="cpu"), "platform", "set --platform cuda"),
        (
            "kimilinear",
            Deployment(platform="cpu", kernel_block_sizes=(KernelSize(16),)),
            "kernel_block_sizes",
            "set --kernel-block-sizes multiple:32",
        ),
        ("qwen3next", Deployment(platform="cpu", pp=4), "pp", "set --pp 1"),
    ],
)
def test_a_deployment_that_this_model_can_not_have(
    name: str, deployment: Deployment, path: str, fix: str | None
) -> None:
    error = refused(MODELS[name], deployment)
    assert (error.code, error.path) == (Code.BAD_CONFIG, path)
    assert fix is None or error.fix == fix


def test_every_number_that_makes_no_sense_is_named() -> None:
    deployment = Deployment(tp=0, pp=-1, dcp=0, block_size=0, cache_memory=-5, kernel_block_sizes=(KernelSize(0),))
    paths = [error.path for error in refusals(MODELS["llama"], deployment)]
    assert paths == ["tp", "pp", "dcp", "block_size", "cache_memory", "kernel_block_sizes"]


@pytest.mark.parametrize("number", [2**40 + 1, 2**63, 10**30])
def test_a_number_beyond_any_machine_is_refused(number: int) -> None:
    assert refused(MODELS["llama"], Deployment(block_size=number)).path == "block_size"


def test_a_model_that_keeps_nothing_is_refused() -> None:
    assert refused(model([]), Deployment()).path == "layers"


def test_sparse_attention_is_not_for_a_cpu() -> None:
    assert refused(SPARSE, Deployment(platform="cpu")).path == "platform"


@pytest.mark.parametrize("asked", [Deployment(layout="LHBNC"), Deployment(layout="BHLNC")])
def test_layers_of_different_shapes_need_whole_pages(asked: Deployment) -> None:
    error = refused(MODELS["qwen35"], asked)
    assert (error.code, error.path) == (Code.UNSUPPORTED_LAYOUT, "layout")


def test_pages_that_can_not_be_made_equal() -> None:
    error = refused(UNEVEN, Deployment(engine="vllm-0.28", platform="cpu"))
    assert (error.path, error.expected) == ("layers", "page sizes that can be made equal")
    assert isinstance(serve(UNEVEN, Deployment(engine="vllm-0.32", platform="cpu")), Ok)


def test_a_block_of_several_layers_is_not_split_into_kernel_blocks() -> None:
    asked = Deployment(engine="vllm-0.31", layout="BLHNC", block_size=128, kernel_block_sizes=(KernelSize(32),))
    error = refused(MODELS["llama"], asked)
    assert (error.code, error.fix) == (Code.NOT_DIVISIBLE, "set --block-size 32, or --layout LBNHC")
    assert isinstance(serve(MODELS["llama"], evolve(asked, engine="vllm-0.32")), Ok)


def test_keys_wider_than_values_are_not_for_planes() -> None:
    assert refused(WIDE, Deployment(engine="vllm-0.25")).code is Code.UNSUPPORTED_SPEC
    assert isinstance(serve(WIDE, Deployment(engine="vllm-0.26")), Ok)


@pytest.mark.parametrize("block", [1, 7, 24, 1000])
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseekv2", "qwen35", "kimilinear", "falconh1"])
def test_a_block_that_no_backend_of_a_gpu_takes_is_refused_for_hybrids_too(name: str, block: int) -> None:
    error = refused(MODELS[name], Deployment(block_size=block))
    assert (error.path, error.actual) == ("block_size", f"{block} tokens")
    assert "16" in error.fix
    assert isinstance(serve(MODELS[name], Deployment(block_size=48)), Ok)


def test_context_parallelism_needs_attention() -> None:
    states = model(StateLayer(f"model.layers.{i}.mixer", "MAMBA1", Mamba1(256, 16, 4)) for i in range(2))
    assert refused(states, Deployment(tp=2, dcp=2)).path == "dcp"


def test_cross_attention_is_laid_out_and_left_to_the_planner() -> None:
    own = AttentionLayer("model.decoder.layers.0.self_attn.attn", 8, 8, 64, 64)
    cross = CrossLayer("model.decoder.layers.0.encoder_attn.attn", 8, 64)
    served = serve(model([own, cross]), Deployment(platform="cpu")).unwrap()
    assert [group.spec.kind for group in served.registration.groups] == ["full_attention", "cross_attention"]


def test_no_deployment_ends_in_anything_but_an_answer() -> None:
    random = Random(7)
    answers = {"Ok": 0, "Err": 0}
    for _ in range(1500):
        name = random.choice(sorted(MODELS))
        deployment = Deployment(
            engine=f"vllm-0.{random.randint(24, 34)}",
            platform=random.choice(["cuda", "cpu"]),
            tp=random.choice([1, 1, 2, 4, 5]),
            pp=random.choice([1, 1, 1, 2, 3]),
            dcp=random.choice([1, 1, 1, 2]),
            cache_dtype=random.choice(["auto", "fp8", "fp8_ds_mla", "int4_per_token_head", "?"]),
            block_size=random.choice([None, None, 1, 16, 32, 100, 128, 4096]),
            kernel_block_sizes=random.choice([(), (KernelSize(32),), (KernelSize(7, multiple=True), KernelSize(64))]),
            mamba_cache_mode=random.choice([None, "none", "align", "all"]),
            mamba_ssm_dtype=random.choice([None, "auto", "float32", "float16"]),
            layout=random.choice([None, None, "LBHNC", "LHBNC", "BLHNC", "BHLNC"]),
            prefix_caching=random.random() < 0.8,
            hybrid_manager=random.random() < 0.8,
        )
        answers[type(serve(MODELS[name], deployment)).__name__] += 1
    assert min(answers.values()) > 100
