from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.cache.reading import read_spec
from kvlayout.cache.registration import Group
from kvlayout.cache.spec import Spec
from kvlayout.offline.capacity import Capacity, Growth, batched, capacity, group_growth, growth, in_flight
from kvlayout.offline.deployment import Deployment

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheSpec

ROWS: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "bfloat16"}
STATE: dict[str, Any] = {"block_size": 544, "shapes": [[16, 128, 128]], "dtypes": ["float32"]}
GIB = 1 << 30


def spec(name: str = "FullAttentionSpec", **fields: Any) -> Spec:
    return read_spec(name, (), None, (STATE if name == "MambaSpec" else ROWS) | fields, {})


def group(*specs: Spec) -> Group:
    layers = tuple(f"layer.{i}" for i in range(len(specs)))
    return Group(layers, specs[0], dict(zip(layers, specs, strict=True)) if len(set(specs)) > 1 else {})


def fitted(*groups: Group, block_bytes: int = 65536, **fields: Any) -> Capacity:
    settings: dict[str, Any] = {"max_model_len": 32768, "max_batched_tokens": 2048, "cache_memory": GIB}
    found = capacity(groups, Deployment(**settings | fields), block_bytes)
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------ what a request holds


def test_full_attention_holds_every_token() -> None:
    assert growth(spec(), 1, 8192) == Growth(16)
    assert growth(spec(sliding_window=512), 1, 8192) == Growth(16)  # promoted: its window is the kernel's matter
    assert growth(spec("MLAAttentionSpec"), 4, 0) == Growth(64)
    assert growth(spec(dcp_sharded=False), 4, 0) == Growth(16)


def test_a_window_holds_what_it_sees_and_what_is_in_flight() -> None:
    held = growth(spec("SlidingWindowSpec", sliding_window=1024), 1, 4096)
    assert held == Growth(16, 1023 + 4096, 1)
    assert [held.blocks(tokens) for tokens in (1, 16, 5119, 5120, 10**9)] == [2, 2, 321, 321, 321]
    assert growth(spec("ChunkedLocalAttentionSpec", attention_chunk_size=8192), 1, 4096) == Growth(16, 12288)


@pytest.mark.parametrize(
    ("mode", "held"), [("none", Growth(fixed=1)), ("align", Growth(fixed=2)), ("all", Growth(544))]
)
def test_the_cache_mode_says_how_many_states_are_held(mode: str, held: Growth) -> None:
    assert growth(spec("MambaSpec", mamba_cache_mode=mode), 8, 4096) == held


def test_what_tokens_do_not_tell_has_no_growth() -> None:
    cross = spec("CrossAttentionSpec")
    assert growth(cross, 1, 0) is None
    assert group_growth(group(spec(), cross), 1, 0) is None
    assert capacity([group(spec()), group(cross)], Deployment(), 4096) is None
    assert capacity([], Deployment(), 4096) is None


def test_layers_without_a_cache_and_rings_do_not_grow() -> None:
    assert growth(spec("EncoderOnlyAttentionSpec"), 1, 0) == Growth()
    assert growth(spec("CircularBufferSpec"), 1, 0) == Growth(fixed=1)


def test_a_group_holds_what_its_most_demanding_layer_does() -> None:
    near, far = (spec("SlidingWindowSpec", sliding_window=window) for window in (128, 4096))
    assert group_growth(group(near, far), 1, 0) == growth(far, 1, 0)


@pytest.mark.parametrize(
    ("engine", "platform", "pp", "steps"),
    [
        ("vllm-0.25", "cuda", 4, 1),
        ("vllm-0.28", "cpu", 1, 1),
        ("vllm-0.29", "cuda", 1, 2),
        ("vllm-0.32", "cuda", 4, 5),
        ("vllm-0.32", "cpu", 1, 1),
        ("vllm-0.32", "cpu", 4, 4),
    ],
)
def test_steps_that_run_at_once_have_a_batch_each(engine: str, platform: Any, pp: int, steps: int) -> None:
    deployment = Deployment(engine=engine, platform=platform, pp=pp, max_batched_tokens=2048)
    assert in_flight(deployment) == steps * 2048


# ------------------------------------------------------------------------------------------------------ what fits


def test_a_hybrid_costs_a_fixed_part_and_a_part_a_token() -> None:
    state, full = spec("MambaSpec", mamba_cache_mode="align"), spec(block_size=544)
    page = 544 * 2 * 128 * 2
    found = fitted(group(state), group(state), group(state), group(full), block_bytes=6 * page)
    assert (found.fixed_bytes, found.token_bytes) == (3 * 2 * 6 * page, 6 * 2 * 128 * 2)
    assert [fit.blocks for fit in found.fits] == [6 + 2, 6 + 8, 6 + 31, 6 + 61]
    assert [fit.tokens for fit in found.fits] == [1024, 4096, 16384, 32768]


def test_memory_decides_how_many_fit() -> None:
    found = fitted(group(spec()), block_bytes=65536)
    assert found.num_blocks == 16384
    assert [(fit.requests, fit.tokens_in_all) for fit in found.fits] == [
        (256, 262144),
        (64, 262144),
        (16, 262144),
        (8, 262144),
    ]
    assert found.longest == 32768
    assert fitted(group(spec()), block_bytes=65536, cache_memory=65536 * 101).longest == 1600  # one is the engine's
    assert fitted(group(spec()), block_bytes=65536, cache_memory=65535).longest == 0


def test_without_memory_there_are_bytes_and_no_counts() -> None:
    found = fitted(group(spec()), cache_memory=None)
    assert (found.num_blocks, found.longest) == (None, None)
    assert {fit.requests for fit in found.fits} == {None}
    assert found.fits[-1].bytes == 2048 * 65536


@given(
    st.lists(st.sampled_from(["full", "window", "chunk", "align", "none", "all"]), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(1, 5000),
)
def test_the_longest_request_fits_and_a_longer_one_does_not(kinds: list[str], pool: int, served: int) -> None:
    made = {
        "full": spec(),
        "window": spec("SlidingWindowSpec", sliding_window=100),
        "chunk": spec("ChunkedLocalAttentionSpec", attention_chunk_size=64),
    } | {mode: spec("MambaSpec", mamba_cache_mode=mode) for mode in ("align", "none", "all")}
    fields: dict[str, Any] = {"cache_memory": pool * 100, "max_model_len": served, "max_batched_tokens": 32}
    found = fitted(*(group(made[kind]) for kind in kinds), block_bytes=100, **fields)

    def fits(tokens: int) -> bool:
        return sum(one.blocks(tokens) for one in found.growths) <= pool - 1

    assert found.longest is not None
    assert found.longest == 0 or fits(found.longest)
    assert found.longest == served or not fits(found.longest + 1)


# ------------------------------------------------------------------------------------------- the engine's own count


def drawn(kind: str, block: int, heads: int, reach: int, mode: str) -> KVCacheSpec:
    import torch
    from vllm.v1 import kv_cache_interface as vllm

    rows: dict[str, Any] = {"block_size": block, "num_kv_heads": heads, "head_size": 64, "dtype": torch.bfloat16}
    if kind == "window":
        return vllm.SlidingWindowSpec(sliding_window=reach, dcp_sharded=False, **rows)
    if kind == "chunk":
        return vllm.ChunkedLocalAttentionSpec(attention_chunk_size=reach, **rows)
    if kind == "latent":
        return vllm.MLAAttentionSpec(**rows | {"num_kv_heads": 1, "head_size": 576})
    if kind == "state":
        shapes, dtypes = ((3, 6144), (heads, 128, 128)), (torch.bfloat16, torch.float32)
        return vllm.MambaSpec(shapes=shapes, dtypes=dtypes, block_size=block, mamba_cache_mode=mode)
    return vllm.FullAttentionSpec(dcp_sharded=kind == "full", **rows)


KINDS = st.sampled_from(["full", "replicated", "window", "chunk", "latent", "state"])
GROUPS = st.lists(
    st.tuples(KINDS, st.sampled_from([16, 64, 528, 1056]), st.integers(1, 8), st.integers(1, 20000), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


@pytest.mark.engine
@settings(max_examples=150)
@given(
    GROUPS,
    st.sampled_from(["align", "none"]),
    st.builds(
        Deployment,
        dcp=st.sampled_from([1, 2, 4]),
        max_model_len=st.integers(1, 200_000),
        max_batched_tokens=st.integers(1, 16384),
        cache_memory=st.integers(1 << 26, 1 << 36),
    ),
)
def test_tokens_and_requests_are_those_that_vllm_reports(
    groups: list[tuple[str, int, int, int, int]], mode: str, deployment: Deployment
) -> None:
    from vllm.v1 import kv_cache_interface as interface
    from vllm.v1.core import kv_cache_utils as vllm
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from kvlayout.engines.specs import read_live

    theirs, ours = [], []
    for at, (kind, block, heads, reach, layers) in enumerate(groups):
        made = drawn(kind, block, heads, reach, mode)
        names = [f"{at}.{i}" for i in range(layers)]
        theirs.append(interface.KVCacheGroupSpec(names, made))
        ours.append(Group(tuple(names), read_live(made), {}))
    memory = deployment.cache_memory
    assert memory is not None
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=deployment.max_model_len),
        parallel_config=SimpleNamespace(decode_context_parallel_size=deployment.dcp),
        cache_config=SimpleNamespace(mamba_cache_mode=mode, get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC),
        attention_config=SimpleNamespace(hisparse_config=None),
        max_in_flight_tokens=in_flight(deployment),
    )
    a_block = vllm._get_kv_cache_bytes_per_block(theirs, KVCacheLayout.LBHNC)
    found = capacity(ours, deployment, a_block)
    assert found is not None
    assert found.num_blocks == memory // a_block
    whole = interface.KVCacheConfig(num_blocks=found.num_blocks, kv_cache_tensors=[], kv_cache_groups=theirs)
    tokens, requests = vllm.get_kv_cache_capacity(config, whole)
    assert (found.fits[-1].tokens_in_all, found.fits[-1].requests) == (tokens, requests)
    assert found.fits[-1].bytes == vllm._max_memory_usage_bytes_from_groups(config, theirs)
    assert found.longest == vllm._estimate_max_model_len_from_groups(config, theirs, memory - a_block)


CONFIGURED = """
import json, sys
import cpu_build
cpu_build.install()
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
for stages in (1, 2):
    arguments = EngineArgs(sys.argv[1], skip_tokenizer_init=True, load_format="dummy", pipeline_parallel_size=stages,
                           distributed_executor_backend="mp" if stages > 1 else None)
    made = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    print(json.dumps([stages, made.scheduler_config.max_num_batched_tokens, made.max_in_flight_tokens]))
"""


@pytest.mark.engine
@pytest.mark.slow
def test_the_steps_of_a_server_are_those_of_vllm(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((Path(__file__).parent / "configs" / "gemma3.json").read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", CONFIGURED, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [stages for stages, _, _ in found] == [1, 2]
    for stages, batch, flying in found:
        deployment = Deployment(platform="cpu", pp=stages)
        assert (batched(deployment), in_flight(deployment)) == (batch, flying)


@pytest.mark.engine
@pytest.mark.parametrize("kinds", [("window", "window"), ("full", "full"), ("latent", "latent")])
def test_a_group_of_unequal_layers_holds_what_vllm_says(kinds: tuple[str, ...]) -> None:
    from vllm.v1 import kv_cache_interface as interface

    from kvlayout.engines.specs import read_live

    made = {f"layer.{i}": drawn(kind, 64, i + 1, 1024, "align") for i, kind in enumerate(kinds)}
    uniform: Any = interface.UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs=made)
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=10_000),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        max_in_flight_tokens=4096,
    )
    layers = tuple(made)
    ours = Group(layers, read_live(uniform), {name: read_live(one) for name, one in made.items()})
    held = group_growth(ours, 1, 4096)
    assert held is not None
    assert held.blocks(10_000) * uniform.page_size_bytes == uniform.max_memory_usage_bytes(config)
