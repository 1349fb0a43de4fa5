"""What vLLM's own functions make of layer specs: groups, placement and tensors, with no model and no memory."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from kvlayout.engines.vllm import registration
from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.policy.v0_29 import HINTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvlayout.cache.registration import Registration
    from kvlayout.offline.policy.kernels import Sizes
    from kvlayout.offline.policy.values import LayerSpec

__all__ = ["REFUSALS", "Asked", "hashed", "made"]

#: What vLLM raises where a cache can't be made; not all of it is meant to be seen.
REFUSALS = (AssertionError, NotImplementedError, RuntimeError, StopIteration, TypeError, ValueError, ZeroDivisionError)


class Asked(NamedTuple):
    """Layers of each pipeline stage, and how they are laid out."""

    stages: Sequence[Mapping[str, LayerSpec]]
    layout: str
    sizes: Sizes
    indexer: Sizes
    blocks: int
    hybrid: bool = True

    def backend(self, spec: LayerSpec) -> Sizes:
        return self.indexer if spec.indexer else self.sizes


def sizes_of(sizes: Sizes) -> list[Any]:
    multiple = import_module("vllm.v1.attention.backend").MultipleOf
    return [multiple(size.tokens) if size.multiple else size.tokens for size in sizes]


def engine_spec(spec: LayerSpec) -> Any:
    """Return vLLM's spec of a layer."""
    interface, torch = import_module("vllm.v1.kv_cache_interface"), import_module("torch")
    if spec.kind == "state":
        # only Mamba-2 layers take checkpoints in the middle of a prefill, and that keeps layers apart
        backends = import_module("vllm.v1.attention.backends.registry").MambaAttentionBackendEnum
        return interface.MambaSpec(
            block_size=spec.block,
            shapes=tuple(field.shape for field in spec.fields),
            dtypes=tuple(getattr(torch, field.dtype) for field in spec.fields),
            page_size_padded=spec.padded,
            mamba_type=backends[spec.backend],
            mamba_cache_mode=spec.cache_mode,
            num_prefill_checkpoint_blocks=int(spec.backend == "MAMBA2"),
            prefill_checkpoint_alignment=1 if spec.backend == "MAMBA2" else None,
        )
    align = spec.align
    if isinstance(align, KernelSize):
        align = import_module("vllm.v1.attention.backend").MultipleOf(align.tokens)
    item = getattr(torch, spec.dtype).itemsize
    dense = (spec.head_size + spec.head_size_v) * item
    common: dict[str, Any] = {
        "block_size": spec.block,
        "num_kv_heads": spec.heads,
        "head_size": spec.head_size,
        "dtype": getattr(torch, spec.dtype),
        "page_size_padded": spec.padded,
        "block_stride_alignment": align,
        "state_content_bytes": None if spec.content == dense else spec.content,
        "kv_quant_mode": interface.get_kv_quant_mode(spec.mode or "auto"),
    }
    role = interface.SparseCacheRole.INDEXER if spec.indexer else interface.SparseCacheRole.SPARSE
    latent = {"cache_dtype_str": spec.mode, "cache_role": role, "is_index_group_leader": spec.leader}
    match spec.kind:
        case "full":
            return interface.FullAttentionSpec(**common, head_size_v=spec.head_size_v)
        case "sliding":
            return interface.SlidingWindowSpec(**common, head_size_v=spec.head_size_v, sliding_window=spec.window)
        case "chunked":
            return interface.ChunkedLocalAttentionSpec(**common, attention_chunk_size=spec.chunk)
        case "latent":
            return interface.MLAAttentionSpec(**common, **latent)
        case "sliding-latent":
            return interface.SlidingWindowMLASpec(**common, sliding_window=spec.window, cache_dtype_str=spec.mode)
        case _:
            return interface.CrossAttentionSpec(**common)


def configuration(asked: Asked) -> Any:
    """Return what vLLM's cache functions read of its configuration."""
    cache = import_module("vllm.config.cache").CacheConfig(enable_prefix_caching=True)
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=not asked.hybrid, max_num_encoder_input_tokens=64
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=cache,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, tensor_parallel_size=1),
        model_config=SimpleNamespace(max_model_len=64, original_max_model_len=64),
        kv_transfer_config=None,
        speculative_config=None,
        num_prefill_lookahead_tokens=0,
        num_speculative_tokens=0,
        max_in_flight_tokens=64,
    )


def made(asked: Asked, stage: int) -> Registration:
    """Return what vLLM registers on one stage.

    Raises:
        Exception: one of ``REFUSALS``, where vLLM can't make such a cache.
    """
    core, worker = import_module("vllm.v1.core.kv_cache_utils"), import_module("vllm.v1.worker.utils")
    utils, torch = import_module("vllm.v1.attention.backends.utils"), import_module("torch")
    config = configuration(asked)
    config.cache_config.num_gpu_blocks_override = asked.blocks
    specs = [{name: engine_spec(spec) for name, spec in layers.items()} for layers in asked.stages]
    with ExitStack() as stack:
        stack.enter_context(patch.object(import_module("vllm.envs"), "VLLM_KV_CACHE_LAYOUT", asked.layout, create=True))
        layout = utils.resolve_kv_cache_layout(
            config, [[asked.layout]], [spec for layers in specs for spec in layers.values()]
        )
    import_module("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(config)
    # the memory of a request is not what is asked here
    with patch.object(core, "_check_enough_kv_cache_memory"):
        configs = core.get_kv_cache_configs(config, specs, [1 << 50] * len(specs))
    kernels = [worker.prepare_kernel_block_sizes(each, attention_groups(each, asked, worker)) for each in configs]
    allocated = [
        worker.allocate_kv_cache(each, torch.device("meta"), layout, sizes)
        for each, sizes in zip(configs, kernels, strict=True)
    ]
    configs[stage].kv_cache_layout = layout.name
    hint = HINTS.get(asked.layout)
    hints = {"kv_layout": hint} if hint else {}
    return registration(configs[stage], allocated[stage], hints, engine_version="0.32.0", platform="cuda").unwrap()


def hashed(asked: Asked, dcp: int) -> tuple[int, int]:
    """Return the tokens that vLLM schedules by and those of a hash, beside a store, for layers of one stage.

    Raises:
        Exception: one of ``REFUSALS``, where vLLM can't make such a cache.
    """
    core = import_module("vllm.v1.core.kv_cache_utils")
    config = configuration(asked)
    config.kv_transfer_config = SimpleNamespace()
    config.parallel_config.decode_context_parallel_size = dcp
    config.cache_config.kv_cache_layout = asked.layout
    groups = core.get_kv_cache_groups(config, {n: engine_spec(s) for n, s in asked.stages[0].items()})
    config.cache_config.block_size = min(each.kv_cache_spec.block_size for each in groups)
    found: tuple[int, int] = core.resolve_kv_cache_block_sizes(SimpleNamespace(kv_cache_groups=groups), config)
    return found


def attention_groups(config: Any, asked: Asked, worker: Any) -> list[list[Any]]:
    """Return the backends of each group, as vLLM looks for kernel block sizes."""
    every = {name: spec for layers in asked.stages for name, spec in layers.items()}

    def backend(layer: str) -> Any:
        sizes = sizes_of(asked.backend(every[layer]))
        return SimpleNamespace(
            get_name=lambda: "backend",
            get_supported_kernel_block_sizes=lambda _=None: sizes,
            key=tuple(map(str, sizes)),
        )

    groups = []
    for group in config.kv_cache_groups:
        leaves = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        groups.append(
            [
                worker.AttentionGroup(backend(name), [name], leaves.get(name, group.kv_cache_spec), 0)
                for name in group.layer_names
            ]
        )
    return groups
