"""The block that attention and states share, against vLLM's own alignment and against numbers that are known."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import pytest

from kvlayout.algebra.result import Err
from kvlayout.cache.spec import StateSpec
from kvlayout.offline.deployment import Deployment, KernelSize
from kvlayout.offline.model import (
    AttentionLayer,
    GatedDelta,
    KimiDelta,
    LatentLayer,
    Mamba2,
    Model,
    Recurrence,
    StateLayer,
)
from kvlayout.offline.policy.layers import PLAIN_TYPES
from kvlayout.offline.serving import Served, serve
from tests.offline.policy.engine import sizes_of
from tests.offline.policy.models import MODELS, model

SIZES = (
    (),
    (KernelSize(16, multiple=True),),
    (KernelSize(32),),
    (KernelSize(64),),
    (KernelSize(32), KernelSize(64)),
    (KernelSize(48), KernelSize(32)),
    (KernelSize(128),),
)


def hybrid(random: Random) -> Model:
    """Return a model with both kinds of layers."""
    recurrences: list[Recurrence] = [
        GatedDelta(random.choice([8, 16]), random.choice([16, 32]), 128, 128, 4),
        KimiDelta(random.choice([16, 32]), 128, 4),
        Mamba2(4096, random.choice([1, 8]), 64, 64, random.choice([64, 128]), 4),
    ]
    recurrence = random.choice(recurrences)
    kind = "MAMBA2" if isinstance(recurrence, Mamba2) else "GDN_ATTN"
    name = "model.layers.{}.self_attn.attn"
    latent, size, heads = random.random() < 0.4, random.choice([64, 96, 128, 256]), random.choice([1, 2, 4, 8])
    return model(
        StateLayer(name.format(i), kind, recurrence)
        if i % 4 != 3
        else LatentLayer(name.format(i), 512, 64)
        if latent
        else AttentionLayer(name.format(i), 32, heads, size, size)
        for i in range(8)
    )


def drawn(seed: int) -> tuple[Model, Deployment]:
    random = Random(seed)
    made = hybrid(random)
    return made, Deployment(
        tp=random.choice([1, 1, 2, 4, 8]),
        cache_dtype=random.choice(["auto", "auto", *PLAIN_TYPES]),
        block_size=random.choice([None, None, 16, 32, 64, 96, 256, 1024]),
        kernel_block_sizes=random.choice(SIZES[1:]),
        mamba_cache_mode=random.choice([None, "align", "none"]),
        mamba_ssm_dtype=random.choice([None, "float32", "bfloat16"]),
        max_model_len=4096,
    )


class Aligned(NamedTuple):
    """Tokens a block, the page that states are padded to (``None`` where it is theirs already), and their block."""

    tokens: int
    padded: int | None
    state_tokens: int | None


def by_vllm(made: Model, deployment: Deployment, served: Served) -> Aligned:
    """Return vLLM's own alignment of what was asked for; only the states' shapes are ours."""
    attention = next(layer for layer in made.layers if not isinstance(layer, StateLayer))
    state = served.registration.groups[0].spec
    assert isinstance(state, StateSpec)
    assert isinstance(attention, AttentionLayer | LatentLayer)
    torch, base = import_module("torch"), import_module("vllm.v1.attention.backend").AttentionBackend
    declared = {
        "get_supported_kernel_block_sizes": staticmethod(lambda _=None: sizes_of(deployment.kernel_block_sizes)),
        "get_name": staticmethod(lambda: "backend"),
    }
    backend = type("Backend", (base,), declared)
    block = {} if deployment.block_size is None else {"block_size": deployment.block_size}
    mode = served.deployment.mamba_cache_mode
    cache = import_module("vllm.config.cache").CacheConfig(
        **block, cache_dtype=deployment.cache_dtype, mamba_cache_mode=mode
    )
    config = SimpleNamespace(
        cache_config=cache,
        parallel_config=SimpleNamespace(tensor_parallel_size=deployment.tp),
        model_config=SimpleNamespace(
            is_hybrid=True,
            use_mla=isinstance(attention, LatentLayer),
            dtype=torch.bfloat16,
            architecture="Hybrid",
            get_num_kv_heads=lambda _: (
                1 if isinstance(attention, LatentLayer) else max(1, attention.heads // deployment.tp)
            ),
            get_head_size=lambda: 576 if isinstance(attention, LatentLayer) else attention.head_size,
        ),
    )
    built = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: tuple(field.shape for field in state.fields),
        get_mamba_state_dtype_from_config=lambda _: tuple(getattr(torch, field.dtype) for field in state.fields),
    )
    platform, models = import_module("vllm.platforms.interface").Platform, import_module("vllm.model_executor.models")
    with (
        patch.object(platform, "_find_non_ssm_backends", classmethod(lambda *_: [backend])),
        patch.object(type(models.ModelRegistry), "resolve_model_cls", lambda *_, **__: (built, "Hybrid")),
        patch.object(import_module("vllm.config.vllm"), "set_current_vllm_config", lambda *_: nullcontext()),
    ):
        platform.update_block_size_for_backend(config)
    return Aligned(cache.block_size, cache.mamba_page_size_padded, cache.mamba_block_size)


@pytest.mark.engine
@pytest.mark.torch
def test_blocks_of_hybrids_are_those_of_vllm() -> None:
    compared = 0
    for seed in range(400):
        made, deployment = drawn(seed)
        result = serve(made, deployment)
        if isinstance(result, Err):
            assert {error.path for error in result.error.errors} <= {"tp", "cache_dtype"}
            continue
        served = result.value
        theirs = by_vllm(made, deployment, served)
        states = served.registration.groups[0].spec
        assert isinstance(states, StateSpec)
        assert served.aligned_block == theirs.tokens, seed
        assert states.page_bytes == theirs.padded or (
            theirs.padded is None and states.page_bytes == states.content_bytes
        )
        if served.deployment.mamba_cache_mode == "align":
            assert states.block_size == theirs.state_tokens, seed
        compared += 1
    assert compared > 200


def test_block_sizes_of_the_0_8b_geometry_by_name() -> None:
    asked = Deployment(kernel_block_sizes=(KernelSize(32),), mamba_ssm_dtype="float32")
    known = serve(MODELS["qwen35-08b-geom"], asked).unwrap()
    state, attention = known.registration.groups[0].spec, known.registration.groups[3].spec
    assert isinstance(state, StateSpec)
    assert (known.user_block, known.aligned_block, known.hash_block) == (32, 544, 544)
    assert known.scheduler_blocks == (544,) * 4
    assert known.kernel_blocks == (None, None, None, 32)
    assert (state.page_bytes, attention.page_bytes) == (1_114_112, 1_114_112)
    assert state.content_bytes == 1_085_440
    assert known.block_bytes == 6 * 1_114_112


@pytest.mark.parametrize(("engine", "tokens"), [("vllm-0.26", 944), ("vllm-0.27", 1024), ("vllm-0.32", 1024)])
def test_a_latent_hybrid_counts_in_128_tokens(engine: str, tokens: int) -> None:
    # 1,085,440 bytes of state are 943 rows of 1,152 bytes: 59 kernel blocks of 16 tokens, or 8 units of 128
    layers = [StateLayer(f"model.layers.{i}.self_attn", "GDN_ATTN", KimiDelta(32, 128, 4)) for i in range(3)]
    made = model([*layers, LatentLayer("model.layers.3.self_attn.attn", 512, 64)])
    asked = Deployment(engine=engine, kernel_block_sizes=(KernelSize(16, multiple=True),), tp=2)
    assert serve(made, asked).unwrap().aligned_block == tokens


def test_ranks_divide_heads_and_states_unequally() -> None:
    # two key and value heads over four ranks are repeated, and states are divided: half a state, a quarter of a token
    made = MODELS["qwen35-08b-geom"]
    blocks = {
        tp: serve(made, Deployment(tp=tp, mamba_ssm_dtype="float32")).unwrap().aligned_block for tp in (1, 2, 4, 8)
    }
    assert blocks == {1: 544, 2: 544, 4: 272, 8: 144}
