"""vLLM 0.32's own specs, configurations and allocators give the registration that their numbers say."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvlayout.algebra.result import Ok
from kvlayout.cache.reading import family_of
from kvlayout.cache.registration import RegisteredTensor, Registration
from kvlayout.cache.spec import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    LatentSpec,
    RawSpec,
    RingSpec,
    StateSpec,
    UniformSpec,
)
from kvlayout.engines.vllm import dump, facts, registration

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.kv_cache_layout import KVCacheLayout

DOCUMENTS = [
    path
    for path in sorted((Path(__file__).parents[1] / "data" / "registrations").glob("*.json"))
    if json.loads(path.read_text())["engine"]["version"] == "0.32.0"
]
ATTENTION: dict[str, Any] = {"block_size": 128, "num_kv_heads": 4, "head_size": 64}

pytestmark = pytest.mark.engine


def spec_class(name: str) -> Any:
    import vllm.v1.kv_cache_interface as interface

    return getattr(interface, name)


def spec(name: str, **fields: Any) -> KVCacheSpec:
    """Return a spec of vLLM's own class; element types and enumerations by name."""
    import torch
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
    from vllm.v1.kv_cache_interface import KVQuantMode, SparseCacheRole

    made: dict[str, Callable[[Any], Any]] = {
        "dtype": lambda name: getattr(torch, name),
        "dtypes": lambda names: tuple(getattr(torch, name) for name in names),
        "shapes": lambda shapes: tuple(map(tuple, shapes)),
        "kv_quant_mode": lambda name: KVQuantMode[name],
        "cache_role": lambda name: SparseCacheRole[name],
        "mamba_type": lambda name: MambaAttentionBackendEnum[name],
    }
    arguments = {key: made[key](value) if key in made else value for key, value in fields.items()}
    result: KVCacheSpec = spec_class(name)(**arguments)
    return result


def attention(name: str = "FullAttentionSpec", **fields: Any) -> KVCacheSpec:
    return spec(name, **ATTENTION | {"dtype": "bfloat16"} | fields)


def latent(name: str = "MLAAttentionSpec", **fields: Any) -> KVCacheSpec:
    return attention(name, **{"num_kv_heads": 1, "head_size": 576} | fields)


def mamba(**fields: Any) -> KVCacheSpec:
    defaults = {"block_size": 256, "shapes": [[3, 512], [4, 64, 64]], "dtypes": ["bfloat16", "float32"]}
    return spec("MambaSpec", **defaults | fields)


def configuration(*groups: tuple[list[str], KVCacheSpec], blocks: int = 4, layout: str | None = None) -> KVCacheConfig:
    """Return a configuration of groups over no tensors."""
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    made = [KVCacheGroupSpec(names, spec) for names, spec in groups]
    return KVCacheConfig(blocks, [], made, kv_cache_layout=layout)


def read(config: KVCacheConfig, caches: Any = None) -> Registration:
    """Return the registration, after checking that a dump of the same objects reads back as it."""
    result = registration(config, caches or {}, {"kv_layout": "NHD"})
    assert isinstance(result, Ok), result
    assert Registration.from_json(dump(config, caches or {}, {"kv_layout": "NHD"})) == result
    return result.value


def only(live: KVCacheSpec) -> Any:
    return read(configuration((["a"], live))).groups[0].spec


# ------------------------------------------------------------------------------------------------ every class of specs


@pytest.mark.parametrize(
    ("name", "fields", "kind", "window"),
    [
        ("FullAttentionSpec", {}, "full_attention", None),
        ("FullAttentionSpec", {"sliding_window": 1024}, "full_attention", 1024),
        ("FullAttentionSpec", {"attention_chunk_size": 512}, "full_attention", 512),
        ("RSWASpec", {"rswa_window": 256}, "full_attention", 256),
        ("SlidingWindowSpec", {"sliding_window": 128}, "sliding_window", 128),
        ("ChunkedLocalAttentionSpec", {"attention_chunk_size": 8192}, "chunked_local_attention", 8192),
        ("SinkFullAttentionSpec", {"sink_len": 4}, "sink_full_attention", None),
    ],
)
def test_attention(name: str, fields: dict[str, Any], kind: str, window: int | None) -> None:
    made = only(attention(name, **fields))
    assert isinstance(made, AttentionSpec)
    assert (made.type, made.kind, made.window_tokens) == (name, kind, window)
    assert (made.heads, made.states, made.content_bytes, made.page_bytes) == (4, 128, 256, 131072)
    assert (made.head_size, made.head_size_v, made.dtype) == (64, 64, "bfloat16")
    assert made.dcp_sharded
    assert made.proves_reading


@pytest.mark.parametrize(
    ("name", "fields", "kind"),
    [
        ("MLAAttentionSpec", {}, "mla_attention"),
        ("HiddenStateCacheSpec", {"page_size_padded": 1 << 20}, "mla_attention"),
        ("SlidingWindowMLASpec", {"sliding_window": 512}, "sliding_window_mla"),
    ],
)
def test_latent_rows(name: str, fields: dict[str, Any], kind: str) -> None:
    made = only(latent(name, **fields))
    assert isinstance(made, LatentSpec)
    assert (made.type, made.kind, made.window_tokens) == (name, kind, fields.get("sliding_window"))
    assert (made.heads, made.states, made.content_bytes) == (1, 128, 1152)
    assert made.page_bytes == fields.get("page_size_padded", 147456)


def test_packed_content_is_what_the_spec_declares() -> None:
    deepseek = only(latent(state_content_bytes=584, dtype="uint8", alignment=576, head_size=512))
    assert (deepseek.content_bytes, deepseek.page_bytes, deepseek.payload_bytes) == (584, 74880, 74752)
    assert not deepseek.proves_reading
    nvfp4 = only(attention(num_head_slots=8, state_content_bytes=36, dtype="uint8", kv_quant_mode="NVFP4"))
    assert (nvfp4.heads, nvfp4.content_bytes, nvfp4.page_bytes) == (8, 36, 8 * 128 * 36)


def test_an_indexer_and_a_bounded_replay() -> None:
    indexer = only(latent(cache_role="INDEXER", head_size=132, dtype="uint8"))
    assert (indexer.content_bytes, indexer.proves_reading) == (132, False)
    replay = only(latent("SlidingWindowMLASpec", sliding_window=128, bounded_replay=True))
    assert not replay.prefix_cacheable


@pytest.mark.parametrize(
    ("tokens", "states", "ratio"),
    [(1, 128, (1, 1)), (4, 32, (4, 1)), (Fraction(1, 4), 512, (1, 4)), (Fraction(2, 1), 64, (2, 1))],
)
def test_tokens_of_a_state(tokens: int | Fraction, states: int, ratio: tuple[int, int]) -> None:
    made = only(attention(tokens_per_state=tokens))
    assert (made.states, made.tokens_per_state) == (states, ratio)
    assert made.page_bytes == 4 * states * 256


@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_recurrent_states(mode: str) -> None:
    made = only(mamba(page_size_padded=131072, mamba_cache_mode=mode, mamba_type="GDN_ATTN"))
    assert isinstance(made, StateSpec)
    assert (made.kind, made.cache_mode, made.block_size) == ("mamba", mode, 256)
    assert (made.content_bytes, made.page_bytes, made.dcp_sharded) == (68608, 131072, False)
    assert made.fields == (((3, 512), "bfloat16"), ((4, 64, 64), "float32"))


def test_specs_that_are_never_served() -> None:
    ring = only(attention("CircularBufferSpec", block_size=8))
    assert (type(ring), ring.kind, ring.prefix_cacheable) == (RingSpec, "unknown", False)
    cross = only(attention("CrossAttentionSpec"))
    assert (type(cross), cross.kind) == (CrossAttentionSpec, "cross_attention")
    encoder = only(attention("EncoderOnlyAttentionSpec"))
    assert (type(encoder), encoder.kind) == (EncoderOnlySpec, "encoder_only_attention")
    for name, more in [("HiSparseHotSpec", {"blocks_per_request": 2}), ("HiSparseResidentSpec", {})]:
        raw = only(spec(name, block_size=64, page_size=4096, **more))
        assert (type(raw), raw.page_bytes, raw.block_size) == (RawSpec, 4096, 64)
        assert (raw.prefix_cacheable, raw.has_layer_views) == (False, False)


def test_a_uniform_group_has_the_specs_of_its_layers() -> None:
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    own = {"mla": latent(), "idx": latent(cache_role="INDEXER", head_size=132, dtype="uint8")}
    live = UniformTypeKVCacheSpecs(128, own)
    group = read(configuration((["idx", "mla"], live))).groups[0]
    assert isinstance(group.spec, UniformSpec)
    assert (group.spec.kind, group.spec.page_bytes) == ("mla_attention", 147456 + 128 * 132)
    assert {name: leaf.page_bytes for name, leaf in group.leaves.items()} == {"idx": 16896, "mla": 147456}


def test_every_class_of_the_installed_version_is_known_by_its_own_name() -> None:
    import vllm.v1.kv_cache_interface as interface

    specs = {
        name
        for name, made in vars(interface).items()
        if isinstance(made, type) and issubclass(made, interface.KVCacheSpec)
    }
    assert len(specs) == 17
    assert {name for name in specs if not family_of(name)} == {"KVCacheSpec", "AttentionSpec"}


def test_groups_of_hisparse() -> None:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupRole, KVCacheGroupSpec, KVCacheTensor

    hot = spec("HiSparseHotSpec", block_size=128, page_size=147456, blocks_per_request=2)
    source = KVCacheTensor(1 << 20, ["a"], 147456, 147456, host_resident=True)
    config = KVCacheConfig(
        4,
        [source, KVCacheTensor(1 << 20, ["a.hot"], 147456, 147456)],
        [
            KVCacheGroupSpec(["a"], latent(), role=KVCacheGroupRole.HISPARSE_SOURCE, host_resident=True),
            KVCacheGroupSpec(["a.hot"], hot, enable_kv_transfer=False),
            KVCacheGroupSpec(["d"], attention(), is_eagle_group=True),
        ],
        hisparse_host_num_blocks=8,
    )
    flags = [(g.host_resident, g.transferable, g.draft) for g in read(config).groups]
    assert flags == [(True, True, False), (False, False, False), (False, True, True)]


# ------------------------------------------------------------------------------------------------ captured documents


def rebuilt(document: dict[str, Any]) -> KVCacheConfig:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

    groups = [
        KVCacheGroupSpec(group["layers"], spec(group["spec"]["type"], **group["spec"]["fields"]))
        for group in document["groups"]
    ]
    tensors = [KVCacheTensor(**placement) for placement in document["placements"]]
    return KVCacheConfig(document["num_blocks"], tensors, groups, kv_cache_layout=document["kv_cache_layout"])


def kernel_block_sizes(document: dict[str, Any]) -> list[int]:
    """Return the block size that the backend of each group chose: the states of a row of its tensor."""
    sizes = []
    for group in document["groups"]:
        block, tensor = group["spec"]["fields"]["block_size"], document["caches"][group["layers"][0]]
        sizes.append(block * document["num_blocks"] // tensor["shape"][0])
    return sizes


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_vllm_allocates_what_the_document_says(path: Path) -> None:
    import torch
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.worker.utils import allocate_kv_cache

    text = path.read_text()
    document = json.loads(text)
    config = rebuilt(document)
    layout = KVCacheLayout[document["kv_cache_layout"]]
    made = allocate_kv_cache(config, torch.device("meta"), layout, kernel_block_sizes(document))
    caches = {name: made[name] for name in document["caches"]}
    options = {"engine_version": "0.32.0", "platform": "cpu", "name": document["name"]}
    hints = {"kv_layout": document["layout_hint"]}
    live = registration(config, caches, hints, engine_version="0.32.0", platform="cpu", name=document["name"])
    assert live == Registration.from_json(text)
    assert Registration.from_json(dump(config, caches, hints, **options)) == live


# ------------------------------------------------------------------------------------------------ allocated tensors


def layouts() -> list[str]:
    return ["LBHNC", "LBNHC", "BLHNC", "BLNHC"]


def pool(layout: KVCacheLayout, blocks: int = 5) -> KVCacheConfig:
    """Return two groups of two layers that overlay each other, placed by the layout."""
    from vllm.v1.kv_cache_interface import KVCacheTensor

    full, state = attention(), mamba(page_size_padded=131072, block_size=128)
    config = configuration((["a", "b"], full), (["c", "d"], state), blocks=blocks, layout=layout.name)
    page = full.page_size_bytes
    strides = (blocks * page, page) if layout.name.startswith("L") else (page, 2 * page)
    tensors = [KVCacheTensor(2 * blocks * page, names, *strides) for names in (["a", "b"], ["c", "d"])]
    config.kv_cache_tensors.extend(tensors)
    return config


@pytest.mark.parametrize("name", layouts())
def test_facts_lie_where_the_placement_says(name: str) -> None:
    import torch
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.worker.utils import allocate_kv_cache

    layout = KVCacheLayout[name]
    config = pool(layout)
    caches = allocate_kv_cache(config, torch.device("cpu"), layout)
    made = read(config, caches)
    assert made.engine.platform == "cpu"
    for placement in made.placements:
        assert placement.offset == 0
        for index, layer in enumerate(placement.layers):
            entry, itemsize = made.caches[layer], caches[layer].element_size()
            assert isinstance(entry, RegisteredTensor)
            assert entry.storage == 0
            assert entry.storage_nbytes == placement.size == 2 * 5 * 131072
            assert entry.offset * itemsize == index * (placement.layer_stride or 0)
            assert entry.strides[0] * itemsize == placement.block_stride
    assert made.caches["a"][:2] == (tuple(caches["a"].shape), caches["a"].stride())


@pytest.mark.parametrize("kernel", [32, 64, 128])
def test_a_kernel_block_size_changes_the_tensor_and_not_the_spec(kernel: int) -> None:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheTensor, create_kv_cache_views
    from vllm.v1.kv_cache_layout import KVCacheLayout

    live = attention()
    page, blocks = live.page_size_bytes, 3
    placed = KVCacheTensor(2 * blocks * page, ["a", "b"], blocks * page, page)
    raw = torch.zeros(placed.size, dtype=torch.int8)
    views = create_kv_cache_views(raw, live, blocks, KVCacheLayout.LBHNC, placed, kernel)
    config = configuration((["a", "b"], live), blocks=blocks, layout="LBHNC")
    config.kv_cache_tensors.append(placed)
    made = read(config, dict(zip("ab", views, strict=True)))
    second = made.caches["b"]
    assert isinstance(second, RegisteredTensor)
    assert second.shape == (blocks * 128 // kernel, 4, kernel, 128)
    assert second.offset * 2 == blocks * page
    assert made.groups[0].spec == only(live)


def test_a_raw_buffer_is_registered_as_it_is() -> None:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheTensor
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.worker.utils import allocate_kv_cache

    hot = spec("HiSparseHotSpec", block_size=64, page_size=4096, blocks_per_request=2)
    config = configuration((["a.hot"], hot))
    config.kv_cache_tensors.append(KVCacheTensor(16384, ["a.hot"], 4096, 4096))
    caches = allocate_kv_cache(config, torch.device("cpu"), KVCacheLayout.LBNHC)
    assert facts(caches) == {"a.hot": RegisteredTensor((16384,), (1,), 0, "int8", 0, 16384)}


def test_version_is_that_of_the_loaded_package() -> None:
    import vllm

    assert read(configuration((["a"], attention()))).engine.version == vllm.__version__
