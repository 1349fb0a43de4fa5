"""What the engine chooses where a deployment leaves it open, and what a rank of many has."""

from __future__ import annotations

from importlib import import_module
from random import Random
from typing import Any

import pytest
from attrs import evolve

from kvlayout import plan
from kvlayout.algebra.affine import format_size
from kvlayout.algebra.result import Ok
from kvlayout.cache.registration import RegisteredTensor
from kvlayout.cache.spec import AttentionSpec, LatentSpec, StateSpec, UniformSpec
from kvlayout.offline.deployment import Deployment, KernelSize
from kvlayout.offline.model import AttentionLayer, LatentLayer, Mamba1, Mamba2, Model, StateLayer
from kvlayout.offline.policy.choosing import INDEXER
from kvlayout.offline.policy.kernels import Sizes, common, preferred, smallest, takes
from kvlayout.offline.policy.layers import CACHE_TYPES, rank_heads
from kvlayout.offline.policy.stages import bounds
from kvlayout.offline.policy.values import RefusedError
from kvlayout.offline.policy.versions import policy_of
from kvlayout.offline.serving import Served, serve
from tests.offline.policy.engine import sizes_of
from tests.offline.policy.models import MODELS, attention, model

VERSIONS = [f"vllm-0.{minor}" for minor in range(25, 34)]
INDEXED = model(
    layer
    for i in range(3)
    for layer in (
        LatentLayer(f"model.layers.{i}.self_attn.indexer.k_cache", 0, 0, index_bytes=132),
        LatentLayer(f"model.layers.{i}.self_attn.attn", 512, 64),
    )
)


def served(made: Model, **asked: Any) -> Served:
    return serve(made, Deployment(**asked)).unwrap()


def state(known: Served) -> StateSpec:
    return next(group.spec for group in known.registration.groups if isinstance(group.spec, StateSpec))


@pytest.mark.parametrize("engine", VERSIONS)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_version_serves_every_family(name: str, engine: str) -> None:
    known = served(MODELS[name], engine=engine)
    assert isinstance(plan(known.registration), Ok)
    assert serve(MODELS[name], known.deployment) == Ok(known)


@pytest.mark.parametrize("engine", VERSIONS)
def test_states_of_each_block_are_kept_by_default_only_where_kernels_can_and_until_0_27(engine: str) -> None:
    early = engine in VERSIONS[:3]
    assert state(served(MODELS["falconh1"], engine=engine)).cache_mode == ("all" if early else "align")
    assert state(served(MODELS["qwen35"], engine=engine)).cache_mode == "align"


@pytest.mark.parametrize("engine", VERSIONS[:7])
def test_a_mode_that_kernels_can_not_do_falls_back(engine: str) -> None:
    assert state(served(MODELS["qwen35"], engine=engine, mamba_cache_mode="all")).cache_mode == "align"
    assert state(served(MODELS["falconh1"], engine=engine, mamba_cache_mode="all")).cache_mode == "all"


def test_to_keep_no_state_is_to_do_without_prefix_caching() -> None:
    asked = served(MODELS["qwen35"], mamba_cache_mode="none", max_model_len=4096)
    assert state(asked) == state(served(MODELS["qwen35"], prefix_caching=False, max_model_len=4096))
    assert (state(asked).cache_mode, state(asked).block_size) == ("none", 4096)
    assert not asked.deployment.prefix_caching
    assert served(MODELS["llama"], mamba_cache_mode="none").deployment.prefix_caching, (
        "no states, nothing to do without"
    )


def test_a_request_of_unknown_length_has_the_2048_tokens_that_the_engine_assumes() -> None:
    made = served(evolve(MODELS["qwen35"], max_positions=None), mamba_cache_mode="none")
    assert (state(made).block_size, made.deployment.max_model_len) == (2048, 2048)
    longer = served(evolve(MODELS["qwen35"], max_positions=None), mamba_cache_mode="none", max_model_len=4096)
    assert (state(longer).block_size, longer.deployment.max_model_len) == (4096, 4096)


def test_a_kernel_that_takes_chunks_aligns_the_block_to_them() -> None:
    # 35,072 bytes of state are 69 tokens of 512 bytes: one chunk of 256, and 128 where only the kernel block counts
    made = evolve(MODELS["falconh1"], state_chunk=256)
    assert served(made, engine="vllm-0.27", block_size=16, mamba_cache_mode="all").aligned_block == 256
    assert served(made, engine="vllm-0.27", block_size=16, mamba_cache_mode="align").aligned_block == 80


def test_a_model_without_attention_has_the_default_block() -> None:
    made = model(StateLayer(f"model.layers.{i}.mixer", "MAMBA1", Mamba1(256, 16, 4)) for i in range(2))
    assert served(made).scheduler_blocks == served(made, platform="cpu").scheduler_blocks == (16,)
    assert served(made, block_size=64).scheduler_blocks == (64,)
    assert state(served(made)).page_bytes == state(served(made)).content_bytes


@pytest.mark.parametrize(("asked", "types"), [({}, "float32"), ({"mamba_ssm_dtype": "bfloat16"}, "bfloat16")])
def test_the_config_decides_the_type_of_states_unless_it_is_asked_for(asked: dict[str, str], types: str) -> None:
    made = MODELS["nemotronh"]
    assert [field.dtype for field in state(served(made, **asked)).fields] == ["bfloat16", types]


def test_full_precision_is_served_in_half_unless_it_is_asked_for() -> None:
    made = evolve(MODELS["llama"], dtype="float32")
    assert [served(made, dtype=dtype).block_bytes for dtype in ("auto", "float16", "float32")] == [32768, 32768, 65536]


def test_heads_are_divided_or_repeated() -> None:
    assert [rank_heads(8, tp) for tp in (1, 2, 8, 16, 64)] == [8, 4, 1, 1, 1]
    with pytest.raises(RefusedError):
        rank_heads(8, 12)


def test_a_block_of_context_parallel_ranks_stands_for_their_tokens_together() -> None:
    known = served(MODELS["qwen35"], tp=4, dcp=2, mamba_ssm_dtype="float32")
    attends = known.registration.groups[3].spec
    assert known.scheduler_blocks == (attends.block_size,) * 3 + (2 * attends.block_size,)
    assert known.registration.engine.dcp == 2


def test_a_quantised_checkpoint_asks_for_its_cache_unless_another_is_asked_for() -> None:
    quantised = evolve(MODELS["deepseekv2"], cache_dtype="fp8")
    asked, told = served(quantised), served(quantised, cache_dtype="bfloat16")
    assert (asked.deployment.cache_dtype, asked.user_block, asked.block_bytes) == ("fp8", 64, 3 * 64 * 576)
    assert (told.deployment.cache_dtype, told.user_block, told.block_bytes) == ("bfloat16", 16, 3 * 16 * 2 * 576)


def test_rows_of_an_indexer_lie_beside_latent_rows() -> None:
    known = served(INDEXED, cache_dtype="fp8")
    (group,) = known.registration.groups
    indexer, latent = (group.leaves[name] for name in group.layers[:2])
    assert isinstance(group.spec, UniformSpec)
    assert isinstance(indexer, LatentSpec)
    assert isinstance(latent, LatentSpec)
    assert (indexer.content_bytes, indexer.proves_reading, latent.content_bytes) == (132, False, 656)
    assert known.block_bytes == 3 * 64 * (132 + 656)
    assert isinstance(plan(known.registration), Ok)


def test_each_stage_has_its_layers_and_the_groups_of_the_model() -> None:
    stages = [served(MODELS["gptoss"], pp=2, pp_rank=rank) for rank in (0, 1)]
    assert [list(stage.registration.caches) for stage in stages] == [
        ["model.layers.0.attn.attn", "model.layers.1.attn.attn"],
        ["model.layers.2.attn.attn", "model.layers.3.attn.attn"],
    ]
    assert {stage.stage_bytes for stage in stages} == {(8192, 8192)}
    assert [len(stage.registration.groups) for stage in stages] == [2, 2]


def test_an_alias_is_registered_where_its_layer_is_and_in_no_group() -> None:
    own = [attention(0), attention(1)]
    shares = AttentionLayer("model.layers.2.self_attn.attn", 4, 2, 64, 64, shares="model.layers.1.self_attn.attn")
    registration = served(model([*own, shares])).registration
    assert [group.layers for group in registration.groups] == [tuple(layer.name for layer in own)]
    assert registration.caches[shares.name] is registration.caches[own[1].name]
    assert plan(registration).unwrap().layers[shares.name].verdict == "alias"


def test_a_repeated_group_of_a_state_is_counted_once_a_rank() -> None:
    made = model(
        [
            StateLayer("model.layers.0.mixer", "MAMBA2", Mamba2(256, 1, 8, 32, 64, 4)),
            attention(1, heads=8, query_heads=8),
        ]
    )
    conv = [state(served(made, tp=tp)).fields[0].shape for tp in (1, 4)]
    assert conv == [(3, 256 + 2 * 64), (3, (256 + 2 * 4 * 64) // 4)]


def test_placements_of_any_number_of_blocks() -> None:
    (placement,) = served(MODELS["llama"]).registration.placements
    assert [format_size(size) for size in placement[1:] if size is not None] == ["32768n", "0", "8192n", "8192"]
    first = served(MODELS["llama"], layout="BLHNC").registration.caches["model.layers.1.self_attn.attn"]
    assert isinstance(first, RegisteredTensor)
    assert (first.strides, first.offset) == ((16384, 2048, 128, 1), 4096)


def test_a_cache_of_one_element_type_is_read_as_another() -> None:
    spec = served(MODELS["llama"], cache_dtype="fp8_e4m3").registration.groups[0].spec
    assert isinstance(spec, AttentionSpec)
    assert (spec.dtype, spec.content_bytes, spec.proves_reading) == ("uint8", 128, True)


@pytest.mark.engine
@pytest.mark.torch
def test_default_kernel_blocks_are_those_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = import_module("vllm.v1.attention.backends.fa_utils")
    for name in ("flash_attn_varlen_func", "get_scheduler_metadata"):  # a build for CPUs has none of them
        monkeypatch.setattr(kernels, name, None, raising=False)
    backends = {
        "flash_attn.FlashAttentionBackend": served(MODELS["llama"]).deployment.kernel_block_sizes,
        "mla.flashattn_mla.FlashAttnMLABackend": served(MODELS["deepseekv2"]).deployment.kernel_block_sizes,
        "mla.flashmla.FlashMLABackend": served(MODELS["deepseekv2"], cache_dtype="fp8").deployment.kernel_block_sizes,
        "mla.flashmla_sparse.FlashMLASparseBackend": served(INDEXED).deployment.kernel_block_sizes,
        "mla.indexer.DeepseekV32IndexerBackend": INDEXER,
        "cpu_attn.CPUAttentionBackend": served(MODELS["llama"], platform="cpu").deployment.kernel_block_sizes,
        "mla.amx_mla.AMXMLABackend": served(MODELS["deepseekv2"], platform="cpu").deployment.kernel_block_sizes,
    }
    for path, sizes in backends.items():
        module, _, name = path.rpartition(".")
        backend = getattr(import_module(f"vllm.v1.attention.backends.{module}"), name)
        assert backend.get_supported_kernel_block_sizes() == sizes_of(sizes), path
        assert backend.get_preferred_block_size(16) == preferred([sizes], 16), path


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.parametrize("word", sorted(CACHE_TYPES))
def test_bytes_of_a_row_are_those_that_the_backend_packs(word: str) -> None:
    interface, torch = import_module("vllm.v1.kv_cache_interface"), import_module("torch")
    types = import_module("vllm.utils.torch_utils").STR_DTYPE_TO_TORCH_DTYPE
    dtype = torch.bfloat16 if word == "auto" else types[word]
    name = "mla.flashmla_sparse.FlashMLASparseBackend" if word == "fp8_ds_mla" else "triton_attn.TritonAttentionBackend"
    module, _, made = name.rpartition(".")
    backend = getattr(import_module(f"vllm.v1.attention.backends.{module}"), made)
    mode = interface.get_kv_quant_mode(word)
    if word == "fp8_ds_mla":
        spec = served(INDEXED, cache_dtype="fp8").registration.groups[0].leaves["model.layers.0.self_attn.attn"]
        fields = {"head_size": 576, "num_kv_heads": 1, "state_content_bytes": 656, "cache_dtype_str": word}
        theirs = interface.MLAAttentionSpec(block_size=64, dtype=dtype, kv_quant_mode=mode, **fields)
    else:
        spec = served(MODELS["llama"], cache_dtype=word).registration.groups[0].spec
        theirs = interface.FullAttentionSpec(
            block_size=16, num_kv_heads=2, head_size=64, dtype=dtype, kv_quant_mode=mode
        )
    packed = backend.customize_spec(theirs)
    assert isinstance(spec, AttentionSpec | LatentSpec)
    assert (spec.page_bytes, spec.content_bytes) == (packed.page_size_bytes, packed.state_content_size_bytes)
    assert f"torch.{spec.dtype}" == str(packed.dtype)


@pytest.mark.engine
@pytest.mark.torch
def test_stages_and_kernel_blocks_are_vllms() -> None:
    indices = import_module("vllm.distributed.utils").get_pp_indices
    for depth in range(1, 40):
        for stages in range(1, min(depth, 9) + 1):
            assert list(bounds(depth, stages)) == [indices(depth, rank, stages) for rank in range(stages)]
    worker, random = import_module("vllm.v1.worker.utils"), Random(3)
    for _ in range(300):
        backends = [sizes(random) for _ in range(random.randint(1, 2))]
        block = random.choice([16, 32, 48, 64, 96, 128, 144, 544])
        theirs = [
            type(
                "B",
                (),
                {
                    "get_supported_kernel_block_sizes": staticmethod(lambda _=None, s=s: sizes_of(s)),
                    "get_name": staticmethod(lambda: "B"),
                },
            )
            for s in backends
        ]
        try:
            expected = worker.select_common_block_size(block, theirs)
        except ValueError:
            with pytest.raises(RefusedError):
                common(block, backends)
        else:
            assert common(block, backends) == expected
            assert all(takes(s, expected) for s in backends)


def sizes(random: Random) -> Sizes:
    found = tuple(
        KernelSize(random.choice([1, 16, 32, 48, 64]), multiple=random.random() < 0.3)
        for _ in range(random.randint(1, 3))
    )
    assert smallest(found) == min(size.tokens for size in found)
    return found


def test_a_policy_is_found_by_the_first_two_numbers_of_a_version() -> None:
    assert [policy_of(f"vllm-0.{minor}.1").facts.minor for minor in range(25, 34)] == list(range(25, 34))
    assert policy_of("vllm-0.32.0").version == "0.32.0"
    assert policy_of("vllm-0.32.1.dev3+g1a2b.cpu").facts.minor == 32
