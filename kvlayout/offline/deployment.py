"""How a model is served: what an engine's command line decides about its cache.

>>> Deployment(tp=4, cache_dtype="fp8").tp
4
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, final, get_args

from attrs import frozen

from kvlayout.errors import Code, LayoutError

__all__ = ["CacheMode", "Deployment", "KernelSize", "LayoutName", "Platform", "faults"]

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
        hybrid_manager: kinds of layers are managed apart; an engine turns it off for a connector that can't take that.
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
    hybrid_manager: bool = True


#: Numbers of a deployment stay far below 64 bits, so that the bytes of a page do as well.
_MOST: Final = 2**40

_COUNTS: Final = ("tp", "pp", "dcp")
_TOKENS: Final = ("block_size", "max_model_len", "max_batched_tokens", "chunk_size", "cache_memory")
_CHOICES: Final[Mapping[str, tuple[str | None, ...]]] = {
    "platform": get_args(Platform),
    "mamba_cache_mode": (None, *get_args(CacheMode)),
    "mamba_cache_dtype": ("auto", "float32", "float16", "bfloat16"),
    "mamba_ssm_dtype": (None, "auto", "float32", "float16", "bfloat16"),
    "layout": (None, *get_args(LayoutName)),
    "dtype": ("auto", "bfloat16", "float16", "float32"),
}


def faults(deployment: Deployment) -> tuple[LayoutError, ...]:
    """Return everything that no engine takes: sizes below 1, words that it does not know.

    >>> [(fault.path, fault.actual) for fault in faults(Deployment(tp=0, block_size=-16))]
    [('tp', '0'), ('block_size', '-16')]
    """
    found: list[LayoutError] = []

    def note(path: str, expected: str, actual: object) -> None:
        text = repr(actual) if isinstance(actual, str) else str(actual)
        fix = f"set --{path.replace('_', '-')}"
        found.append(LayoutError(Code.BAD_CONFIG, expected=expected, actual=text, path=path, fix=fix))

    for path in _COUNTS + _TOKENS:
        number: int | None = getattr(deployment, path)
        if number is not None and not 1 <= number <= _MOST:
            note(path, "a whole number from 1", number)
    if not 0 <= deployment.pp_rank < max(deployment.pp, 1):
        note("pp_rank", f"a pipeline rank below {deployment.pp}", deployment.pp_rank)
    for size in deployment.kernel_block_sizes:
        if not 1 <= size.tokens <= _MOST:
            note("kernel_block_sizes", "a whole number from 1", size.tokens)
    for path, words in _CHOICES.items():
        word: str | None = getattr(deployment, path)
        if word not in words:
            note(path, f"one of {', '.join(known for known in words if known)}", word)
    return tuple(found)
