"""What is planned: hybrids of three recurrent layers for each attention layer, with the pages of Qwen3.5-0.8B.

The numbers are those of vLLM 0.32 with a block of 640 tokens in ``align`` mode, attention in kernel pages of 32 tokens
(tests/data/registrations/qwen35-08b-geom-align-kp32.json).
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = ["HINTS", "AbsentError", "Hybrid", "document", "hybrid", "load", "prepare"]

PAGE: Final = 1_310_720  # bytes: 640 tokens of K and V, 2 heads of 256 in bfloat16
ROW: Final = 1_085_440  # bytes of state: [3, 6144] in bfloat16 and [16, 128, 128] in float32; the page has room left
TOKENS: Final = 640
KERNEL_PAGES: Final = 20  # of 32 tokens
HINTS: Final = {"kv_layout": "HND"}


class AbsentError(Exception):
    """A package that is not here, or that does not import."""


class Hybrid(NamedTuple):
    """What ``register_kv_caches`` knows, in vLLM's own classes."""

    config: KVCacheConfig
    caches: dict[str, Tensor]


def prepare() -> None:
    """Keep the engine quiet and off the network, and importable beside a torch for CPU (tests/cpu_site says why)."""
    for name, value in {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "LMCACHE_LOG_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    site = str(Path(__file__).parents[1] / "tests" / "cpu_site")
    if site not in sys.path:
        sys.path.append(site)
    importlib.import_module("cpu_build").install()


def load(*modules: str) -> None:
    """Import modules.

    Raises:
        AbsentError: the first that does not import, and why.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a build for another machine raises what it likes
            if isinstance(error, ModuleNotFoundError) and error.name == module:
                raise AbsentError(f"{module} is not installed") from error
            said = str(error).partition("\n")[0]
            raise AbsentError(f"{module} does not import ({type(error).__name__}: {said})") from error


def _named(layers: int) -> list[list[str]]:
    """Return the layers of the four groups; every fourth layer attends."""
    return [
        [f"model.layers.{i}.{'self_attn.attn' if kind == 3 else 'linear_attn'}" for i in range(kind, layers, 4)]
        for kind in range(4)
    ]


def hybrid(layers: int, blocks: int, *, placed: bool) -> Hybrid:
    """Return live caches of so many layers. No memory is touched, so the pools cost addresses only.

    Args:
        layers: how many, a multiple of 4; layers 4i to 4i + 3 share slot i, each with its own block ids.
        blocks: the block count N.
        placed: one pool, with vLLM 0.32's placements; else no placements, and a storage for each slot.
    """
    load("torch", "vllm", "vllm.v1.kv_cache_interface")
    import torch
    from vllm.v1 import kv_cache_interface as vllm

    slot_bytes, slots = blocks * PAGE, layers // 4
    count, held = (1, slots) if placed else (slots, 1)
    pools = [torch.empty(held * slot_bytes, dtype=torch.int8).untyped_storage() for _ in range(count)]
    row = ((blocks, 1, 1, ROW), (PAGE, ROW, ROW, 1))
    keys = ((blocks * KERNEL_PAGES, 2, 32, 512), (32 * 1024, 32 * 512, 512, 1))
    caches: dict[str, Tensor] = {}
    groups = _named(layers)
    for slot, names in enumerate(zip(*groups, strict=True)):
        pool, start = (pools[0], slot * slot_bytes) if placed else (pools[slot], 0)
        for name in names[:3]:
            caches[name] = torch.empty(0, dtype=torch.int8).set_(pool, start, *row)
        caches[names[3]] = torch.empty(0, dtype=torch.bfloat16).set_(pool, start // 2, *keys)
    states = [
        vllm.MambaSpec(
            block_size=TOKENS,
            shapes=((3, 6144), (16, 128, 128)),
            dtypes=(torch.bfloat16, torch.float32),
            page_size_padded=PAGE,
            mamba_cache_mode="align",
        )
        for _ in range(3)
    ]
    attention = vllm.FullAttentionSpec(block_size=TOKENS, num_kv_heads=2, head_size=256, dtype=torch.bfloat16)
    tensors = [
        vllm.KVCacheTensor(size=slots * slot_bytes, layers=names, layer_stride=slot_bytes, block_stride=PAGE)
        for names in (groups if placed else ())
    ]
    pairs = zip(groups, (*states, attention), strict=True)
    config = vllm.KVCacheConfig(blocks, tensors, [vllm.KVCacheGroupSpec(names, spec) for names, spec in pairs])
    return Hybrid(config, caches)


def document(layers: int, blocks: int | None) -> str:
    """Return the registration document of such a hybrid; ``None`` blocks is any number of them."""

    def times(count: int) -> int | str:
        return f"{count}n" if blocks is None else count * blocks

    def tensor(shape: list[int | str], stride: list[int], dtype: str, slot: int) -> dict[str, object]:
        return {
            "shape": shape,
            "stride": stride,
            "storage_offset": 0,
            "dtype": dtype,
            "storage": slot,
            "storage_nbytes": times(PAGE),
        }

    state = {
        "type": "MambaSpec",
        "fields": {
            "block_size": TOKENS,
            "shapes": [[3, 6144], [16, 128, 128]],
            "dtypes": ["bfloat16", "float32"],
            "page_size_padded": PAGE,
            "mamba_cache_mode": "align",
        },
    }
    attention = {
        "type": "FullAttentionSpec",
        "fields": {"block_size": TOKENS, "num_kv_heads": 2, "head_size": 256, "dtype": "bfloat16"},
    }
    groups = _named(layers)
    caches = {}
    for kind, names in enumerate(groups):
        for slot, name in enumerate(names):
            caches[name] = (
                tensor([times(KERNEL_PAGES), 2, 32, 512], [32 * 1024, 32 * 512, 512, 1], "bfloat16", slot)
                if kind == 3
                else tensor([times(1), 1, 1, ROW], [PAGE, ROW, ROW, 1], "int8", slot)
            )
    return json.dumps(
        {
            "format": "kvlayout/registration",
            "version": 1,
            "layout_hint": "HND",
            "groups": [
                {"layers": names, "spec": attention if kind == 3 else state} for kind, names in enumerate(groups)
            ],
            "caches": caches,
        }
        | ({} if blocks is None else {"num_blocks": blocks})
    )
