"""How a model is served: what an engine's command line decides about its cache.

>>> Deployment(tp=4, cache_dtype="fp8").tp
4
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, final

from attrs import frozen

__all__ = ["CacheMode", "Deployment", "KernelSize", "LayoutName", "Platform"]

CacheMode: TypeAlias = Literal["none", "align", "all"]
LayoutName: TypeAlias = Literal["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
Platform: TypeAlias = Literal["cuda", "cpu"]


class KernelSize(NamedTuple):
    """A kernel block size in tokens that an attention backend accepts: exactly it, or any multiple of it."""

    tokens: int
    multiple: bool = False


@final
@frozen
class Deployment:
    """What decides the cache of a deployment; ``None`` is the engine's own choice.

    Attributes:
        engine: the engine and the first two parts of its version, as ``vllm-0.32``.
        platform: whose attention backends and defaults hold.
        tp: tensor-parallel ranks.
        pp: pipeline-parallel ranks.
        pp_rank: the one whose cache is planned.
        dcp: decode-context-parallel ranks.
        dtype: element type of the model, as the engine's ``--dtype``.
        cache_dtype: element type of attention caches, as the engine's ``--kv-cache-dtype``.
        block_size: tokens a block, as asked for.
        kernel_block_sizes: what the attention backend accepts; empty is the platform's default backend.
        mamba_cache_mode: which recurrent states are kept.
        mamba_cache_dtype: element type of convolution states.
        mamba_ssm_dtype: element type of recurrent states.
        layout: order of the axes in memory.
        cache_memory: bytes that one rank has for its cache.
        max_model_len: tokens of the longest request.
        max_batched_tokens: tokens of one scheduler step.
        chunk_size: tokens of one object of the store.
        prefix_caching: blocks are found again by their content.
    """

    engine: str = "vllm-0.32"
    platform: Platform = "cuda"
    tp: int = 1
    pp: int = 1
    pp_rank: int = 0
    dcp: int = 1
    dtype: str = "auto"
    cache_dtype: str = "auto"
    block_size: int | None = None
    kernel_block_sizes: tuple[KernelSize, ...] = ()
    mamba_cache_mode: CacheMode | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_dtype: str | None = None
    layout: LayoutName | None = None
    cache_memory: int | None = None
    max_model_len: int | None = None
    max_batched_tokens: int | None = None
    chunk_size: int | None = None
    prefix_caching: bool = True


def faults(deployment: Deployment) -> tuple[()]:
    return ()
