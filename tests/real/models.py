"""Small models with the specs of real ones, in vLLM's own classes, placed and allocated by vLLM."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
HINTS = {"LBHNC": "HND", "LBNHC": "NHD", "BLHNC": "BLHNC", "BLNHC": "BLNHC"}
MODELS = ("llama", "gemma", "qwen3-next", "qwen3-next in small groups", "kimi-linear", "deepseek", "deepseek-v3.2")


def made(name: str, **fields: Any) -> KVCacheSpec:
    """Return a spec of vLLM's class of this name."""
    interface: Any = import_module("vllm.v1.kv_cache_interface")
    result: KVCacheSpec = getattr(interface, name)(**fields)
    return result


def groups_of(model: str) -> list[tuple[dict[str, KVCacheSpec], int | None]]:
    """Return the groups of a model: the spec of each layer, and the block size of its attention (None for states)."""
    if model == "llama":
        return [(layers("attn", attention(), 3), 128)]
    if model == "gemma":
        sliding = attention("SlidingWindowSpec", sliding_window=64)
        return [(layers("local", sliding), 128), (layers("more", sliding), 128), (layers("full", attention()), 128)]
    if model.startswith("qwen3-next"):
        count = 1 if "small" in model else 2
        states = [(layers(f"gdn{i}", state(16384), count), None) for i in range(3)]
        return [*states, (layers("attn", attention(), count), 128)]
    if model == "kimi-linear":
        return [(layers("kda", state(12288)), None), (layers("mla", latent()), 128)]
    if model == "deepseek":
        return [(layers("mla", latent(), 3), 128)]
    return [({"": sparse()}, 64)]


def layers(prefix: str, spec: KVCacheSpec, count: int = 2) -> dict[str, KVCacheSpec]:
    return {f"{prefix}.{i}": spec for i in range(count)}


def attention(name: str = "FullAttentionSpec", **fields: Any) -> KVCacheSpec:
    """Return keys and values of two heads: a page of 16384 bytes."""
    return made(
        name, **{"block_size": 128, "num_kv_heads": 2, "head_size": 16, "dtype": torch_type("bfloat16")} | fields
    )


def latent(**fields: Any) -> KVCacheSpec:
    """Return latent rows: a page of 12288 bytes."""
    defaults = {"block_size": 128, "num_kv_heads": 1, "head_size": 48, "dtype": torch_type("bfloat16")}
    return made("MLAAttentionSpec", **defaults | fields)


def state(page: int) -> KVCacheSpec:
    """Return recurrent states of 4672 bytes in a page."""
    dtypes = (torch_type("bfloat16"), torch_type("float32"))
    fields = {"page_size_padded": page, "mamba_cache_mode": "align", "block_size": 128}
    return made("MambaSpec", shapes=((3, 96), (4, 16, 16)), dtypes=dtypes, **fields)


def sparse() -> KVCacheSpec:
    """Return packed latent rows and their indexer, of unequal pages, as one group."""
    interface: Any = import_module("vllm.v1.kv_cache_interface")
    rows = {"block_size": 64, "dtype": torch_type("uint8")}
    indexer = latent(head_size=132, cache_role=interface.SparseCacheRole.INDEXER, **rows)
    specs = layers("mla", latent(head_size=656, **rows)) | layers("indexer", indexer)
    found: KVCacheSpec | None = interface.UniformTypeKVCacheSpecs.from_specs(specs)
    assert found is not None
    return found


def torch_type(name: str) -> Any:
    return getattr(import_module("torch"), name)


class Allocated(NamedTuple):
    """A model's configuration, its tensors, the one pool below them, and the kernel pages a block of each layer."""

    config: KVCacheConfig
    caches: dict[str, Tensor]
    pool: Tensor
    kernel_pages: Mapping[str, int]
    specs: Mapping[str, Any]


def allocate(model: str, layout: str, kernel: int | None, blocks: int = 3) -> Allocated:
    """Let vLLM place and allocate a model.

    Raises:
        ValueError: vLLM itself refuses this layout, or kernel pages under it.
    """
    import torch

    core: Any = import_module("vllm.v1.core.kv_cache_utils")
    interface: Any = import_module("vllm.v1.kv_cache_interface")
    worker: Any = import_module("vllm.v1.worker.utils")
    named = interface.KVCacheGroupSpec
    order: Any = import_module("vllm.v1.kv_cache_layout").KVCacheLayout[layout]
    groups: list[Any] = []
    kernels: list[int] = []
    specs: dict[str, Any] = {}
    for members, block in groups_of(model):
        first: Any = next(iter(members.values()))
        leaves = getattr(first, "kv_cache_specs", members)
        specs.update(leaves)
        groups.append(named(list(leaves), first))
        kernels.append(first.block_size if block is None or kernel is None else kernel)
    vllm = SimpleNamespace(
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: order,
            num_gpu_blocks_override=blocks,
            prefix_cache_retention_interval=None,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
    )
    config = core.get_kv_cache_config_from_groups(vllm, groups, 1 << 30)
    config.kv_cache_layout = layout
    caches = worker.allocate_kv_cache(config, torch.device("cpu"), order, kernels)
    pool = torch.empty(0, dtype=torch.uint8)
    pool.set_(next(iter(caches.values())).untyped_storage())
    ratios = {
        layer: group.kv_cache_spec.block_size // size
        for group, size in zip(groups, kernels, strict=True)
        for layer in group.layer_names
    }
    return Allocated(config, caches, pool, ratios, specs)
