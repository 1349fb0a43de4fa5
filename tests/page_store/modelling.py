"""Small models for vLLM's scheduler: their groups, their caches, and a configuration; none is ever built."""

from __future__ import annotations

import json
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["BLOCK", "CHUNK", "MODELS", "VOCABULARY", "WINDOW", "allocated", "configured"]

BLOCK = 16
WINDOW = 40
CHUNK = 48  # vLLM relies on whole blocks a chunk
VOCABULARY = 50
#: Groups of each model, as (name, layers).
MODELS = {
    "full": (("full", 2),),
    "windows": (("window", 1), ("full", 1), ("window", 1)),
    "chunks": (("chunk", 1), ("full", 1)),
    "hybrid": (("state", 1), ("full", 1), ("state", 1)),
    "all of them": (("state", 1), ("window", 1), ("full", 1)),
}


def configured(folder: Path) -> Any:
    """Return a configuration of vLLM for a small model that is never built."""
    arguments: Any = import_module("vllm.engine.arg_utils")
    registry: Any = import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda look: look()  # a process of its own is for models that touch CUDA
    target = folder / "model"
    target.mkdir(parents=True, exist_ok=True)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "torch_dtype": "bfloat16"}
    (target / "config.json").write_text(json.dumps(model | small | {"num_key_value_heads": 1, "head_dim": 32}))
    made = arguments.EngineArgs(
        model=str(target),
        skip_tokenizer_init=True,
        max_model_len=256,
        max_num_seqs=6,
        enable_prefix_caching=True,
        block_size=BLOCK,
        disable_log_stats=True,
        async_scheduling=False,
        kv_transfer_config={
            "kv_connector": "PageStoreConnector",
            "kv_connector_module_path": "examples.page_store_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"root": "elsewhere"},
        },
    ).create_engine_config()
    made.cache_config.mamba_cache_mode = "align"
    return made


def allocated(groups: Sequence[tuple[str, int]], blocks: int) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """Let vLLM place and allocate the caches of some groups."""
    import torch

    core: Any = import_module("vllm.v1.core.kv_cache_utils")
    interface: Any = import_module("vllm.v1.kv_cache_interface")
    worker: Any = import_module("vllm.v1.worker.utils")
    order: Any = import_module("vllm.v1.kv_cache_layout").KVCacheLayout["LBHNC"]
    made: list[Any] = []
    specs: dict[str, Any] = {}
    for index, (kind, count) in enumerate(groups):
        layers = [f"{kind}{index}.{i}" for i in range(count)]
        spec = _spec(interface, kind)
        specs |= dict.fromkeys(layers, spec)
        made.append(interface.KVCacheGroupSpec(layers, spec))
    planning = SimpleNamespace(
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: order,
            num_gpu_blocks_override=blocks,
            prefix_cache_retention_interval=None,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
    )
    config = core.get_kv_cache_config_from_groups(planning, made, 1 << 30)
    config.kv_cache_layout = "LBHNC"
    return config, worker.allocate_kv_cache(config, torch.device("cpu"), order, [BLOCK] * len(made)), specs


def _spec(interface: Any, kind: str) -> Any:
    """Return a spec whose page has 2048 bytes."""
    import torch

    rows = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 16, "dtype": torch.bfloat16}
    if kind == "full":
        return interface.FullAttentionSpec(**rows)
    if kind == "window":
        return interface.SlidingWindowSpec(**rows, sliding_window=WINDOW)
    if kind == "chunk":
        return interface.ChunkedLocalAttentionSpec(**rows, attention_chunk_size=CHUNK)
    return interface.MambaSpec(
        shapes=((3, 96), (4, 8, 8)),
        dtypes=(torch.bfloat16, torch.float32),
        block_size=BLOCK,
        page_size_padded=2048,
        mamba_cache_mode="align",
    )
