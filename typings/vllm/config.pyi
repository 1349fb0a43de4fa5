from typing import Any

import torch

class ModelConfig:
    model: str
    revision: str | None
    dtype: torch.dtype
    quantization: str | None
    seed: int
    hf_config: Any

class CacheConfig:
    block_size: int
    cache_dtype: str

class LoadConfig:
    load_format: str

class ParallelConfig:
    rank: int
    world_size: int
    tensor_parallel_size: int
    decode_context_parallel_size: int

class KVTransferConfig:
    kv_connector_extra_config: dict[str, Any]
    kv_load_failure_policy: str

class VllmConfig:
    model_config: ModelConfig
    cache_config: CacheConfig
    load_config: LoadConfig
    parallel_config: ParallelConfig
    kv_transfer_config: KVTransferConfig | None
