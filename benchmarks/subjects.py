"""What is measured: the pool of a Qwen3.5-0.8B-like hybrid, as vLLM 0.32 registers it under 32-token kernel pages."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvlayout import plan_then_apply
from kvlayout.applying import Cache

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec

__all__ = ["BLOCKS", "HINTS", "Subject", "bare_loop", "lmcache_edits", "make"]

BLOCKS = 136
PAGE = 1_310_720  # bytes: 640 tokens of 2 heads of 256, keys and values, bfloat16
ROW = 1_085_440  # bytes: conv [3, 6144] in bfloat16, ssm [16, 128, 128] in float32
HINTS = {"kv_layout": "HND"}


class Subject(NamedTuple):
    """A configuration of vLLM's own classes, and the caches that go with it."""

    config: object
    caches: dict[str, Cache]

    def plan_then_apply(self) -> object:
        """Plan, prove, prove again and make the views."""
        return plan_then_apply(self.config, self.caches, HINTS)


def quiet() -> None:
    """Keep the engine's and the store's start-up messages out of the table."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    site = str(
        Path(__file__).parents[1] / "tests" / "cpu_site"
    )  # CUDA builds of torchvision and others beside a CPU torch
    if site not in sys.path:
        sys.path.insert(0, site)
    import cpu_build  # type: ignore[import-not-found,unused-ignore]

    cpu_build.install()


def make(layers: int, *, placed: bool) -> Subject:
    """Return three state layers for each kernel-paged attention layer, over pools that four groups share.

    Args:
        layers: a multiple of 4.
        placed: with vLLM 0.32's placements, over one pool; else each slot has a storage of its own, as before 0.29.
    """
    import torch
    from vllm.v1 import kv_cache_interface as vllm

    slots = layers // 4
    if placed:
        pool = torch.empty(BLOCKS * PAGE * slots, dtype=torch.int8)
        pools = [pool] * slots
    else:
        pools = [torch.empty(BLOCKS * PAGE, dtype=torch.int8) for _ in range(slots)]
    caches: dict[str, Cache] = {}
    names: list[list[str]] = [[], [], [], []]
    for i in range(layers):
        slot, kind = divmod(i, 4)
        base = slot * BLOCKS * PAGE if placed else 0
        attends = kind == 3
        name = f"model.layers.{i}.{'self_attn.attn' if attends else 'linear_attn'}"
        caches[name] = _attention(pools[slot], base) if attends else _state(pools[slot], base)
        names[kind].append(name)
    specs = [_mamba_spec() for _ in range(3)] + [
        vllm.FullAttentionSpec(block_size=640, num_kv_heads=2, head_size=256, dtype=torch.bfloat16),
    ]
    groups = [vllm.KVCacheGroupSpec(layer_names=n, kv_cache_spec=s) for n, s in zip(names, specs, strict=True)]
    size = BLOCKS * PAGE * slots
    tensors = [
        vllm.KVCacheTensor(size=size, layers=n, layer_stride=BLOCKS * PAGE, block_stride=PAGE, offset=0)
        for n in (names if placed else ())
    ]
    return Subject(vllm.KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=tensors, kv_cache_groups=groups), caches)


def _attention(pool: torch.Tensor, base: int) -> torch.Tensor:
    import torch

    return pool.view(torch.bfloat16).as_strided((BLOCKS * 20, 2, 32, 512), (32768, 16384, 512, 1), base // 2)


def _state(pool: torch.Tensor, base: int) -> torch.Tensor:
    return pool.as_strided((BLOCKS, 1, 1, ROW), (PAGE, ROW, ROW, 1), base)


def _mamba_spec() -> MambaSpec:
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec

    return MambaSpec(
        block_size=640,
        shapes=((3, 6144), (16, 128, 128)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=PAGE,
        mamba_cache_mode="align",
    )


def bare_loop(subject: Subject) -> Callable[[], object]:
    """Return the least that any such function does: read six facts of each tensor, and call ``as_strided``."""
    views = plan_then_apply(subject.config, subject.caches, HINTS).views
    known = {n: (tuple(v.shape), v.stride(), v.storage_offset()) for n, v in views.items() if not isinstance(v, list)}  # type: ignore[union-attr]
    caches = subject.caches

    def run() -> object:
        made = {}
        for name, tensor in caches.items():
            tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.data_ptr()  # type: ignore[union-attr]
            tensor.untyped_storage().nbytes()  # type: ignore[union-attr]
            shape, strides, offset = known[name]
            made[name] = tensor.as_strided(shape, strides, offset)  # type: ignore[union-attr]
        return made

    return run


def lmcache_edits(subject: Subject) -> Callable[[], object]:
    """Return LMCache's own edits of the same tensors."""
    from lmcache.integration.vllm import kv_cache_group_edits as edits

    edits.logger.setLevel(logging.ERROR)
    return lambda: edits.apply_kv_cache_group_edits(subject.config, subject.caches, HINTS)
