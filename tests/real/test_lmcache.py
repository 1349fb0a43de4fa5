"""LMCache 0.5.6 on the same tensors: the same view wherever LMCache is right."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import kvlayout
from tests.real.models import HINTS, allocate, made
from tests.real.test_vllm_views import NAMED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

pytestmark = [pytest.mark.engine, pytest.mark.lmcache, pytest.mark.torch]


def theirs(config: Any, caches: Mapping[str, Any], hint: str) -> dict[str, Tensor]:
    edits: Any = import_module("lmcache.integration.vllm.kv_cache_group_edits")
    result: dict[str, Tensor] = edits.apply_kv_cache_group_edits(config, caches, {"kv_layout": hint})
    return result


def ours(config: Any, caches: Mapping[str, Any], hint: str) -> dict[str, Any]:
    return dict(kvlayout.plan_then_apply(config, caches, {"kv_layout": hint}).views)


def facts(view: Tensor) -> tuple[object, ...]:
    """Return what a view is; strides of axes of size 1 are nobody's business."""
    strides = [step for step, size in zip(view.stride(), view.shape, strict=True) if size != 1]
    return tuple(view.shape), strides, view.storage_offset(), view.dtype, view.untyped_storage().data_ptr()


@pytest.mark.parametrize(("model", "layout", "kernel"), [c for c in NAMED if "qwen" in c[0] or "kimi" in c[0]])
def test_hybrid_models(model: str, layout: str, kernel: int | None) -> None:
    live = allocate(model, layout, kernel)
    mine, other = (edit(live.config, live.caches, HINTS[layout]) for edit in (ours, theirs))
    assert list(mine) == list(other)
    for layer, view in mine.items():
        if layer.startswith("attn") and kernel:
            # theirs is rank 5 under every hint, which LMCache itself reads as one slot a block under HND; the bytes
            # of a block are the same
            assert other[layer].shape == (3, 2, 128, 1, 32)
            assert view.shape == ((3, 128, 1, 64) if HINTS[layout] in ("NHD", "BLNHC") else (3, 1, 128, 64))
            assert (view.stride(0), view.storage_offset()) == (other[layer].stride(0), other[layer].storage_offset())
        else:
            assert facts(view) == facts(other[layer])
        if view is live.caches[layer]:
            assert other[layer] is view


def hybrid(*groups: tuple[list[str], Any], blocks: int) -> Any:
    interface: Any = import_module("vllm.v1.kv_cache_interface")
    return interface.KVCacheConfig(blocks, [], [interface.KVCacheGroupSpec(names, spec) for names, spec in groups])


@pytest.mark.parametrize("blocks", [1, 3, 4])
def test_what_vllm_registered_up_to_0_25(blocks: int) -> None:
    """A list of states, and kernel pages of rank 5, under NHD: both give rank 5."""
    import torch

    state = made(
        "MambaSpec",
        block_size=128,
        shapes=((3, 96), (4, 16, 16)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=16384,
        mamba_cache_mode="align",
    )
    attention = made("FullAttentionSpec", block_size=128, num_kv_heads=2, head_size=16, dtype=torch.bfloat16)
    pool = torch.zeros(blocks * 16384, dtype=torch.int8)
    conv = pool.view(torch.bfloat16).as_strided((blocks, 3, 96), (8192, 96, 1), 0)
    ssm = pool.view(torch.float32).as_strided((blocks, 4, 16, 16), (4096, 256, 16, 1), 144)
    keys = torch.zeros(blocks * 4, 2, 32, 2, 16, dtype=torch.bfloat16)
    caches: dict[str, Any] = {"gdn": [conv, ssm], "attn": keys}
    config = hybrid((["gdn"], state), (["attn"], attention), blocks=blocks)
    mine, other = (edit(config, caches, "NHD") for edit in (ours, theirs))
    for layer in caches:
        assert mine[layer].shape == (blocks, 2, 128, 1, 32)
        assert facts(mine[layer]) == facts(other[layer])


@pytest.mark.parametrize("shape", [(12, 32, 48), (12, 1, 32, 48), (12, 32, 1, 48)])
def test_latent_tiles(shape: tuple[int, ...]) -> None:
    import torch

    state = made(
        "MambaSpec",
        block_size=128,
        shapes=((4, 16),),
        dtypes=(torch.float32,),
        page_size_padded=12288,
        mamba_cache_mode="all",
    )
    latent = made("MLAAttentionSpec", block_size=128, num_kv_heads=1, head_size=48, dtype=torch.bfloat16)
    row = torch.zeros(3, 12288, dtype=torch.int8).as_strided((3, 1, 1, 256), (12288, 256, 256, 1))
    caches = {"kda": row, "mla": torch.zeros(shape, dtype=torch.bfloat16)}
    config = hybrid((["kda"], state), (["mla"], latent), blocks=3)
    for hint in ("NHD", "HND"):
        mine, other = (edit(config, caches, hint) for edit in (ours, theirs))
        for layer in caches:
            assert facts(mine[layer]) == facts(other[layer])


def test_where_lmcache_leaves_kernel_pages_we_do_not() -> None:
    """Its gate on recurrent layers: a plain model with kernel pages keeps pages that are no blocks."""
    live = allocate("llama", "LBNHC", 32)
    other = theirs(live.config, live.caches, "NHD")
    assert all(other[layer] is live.caches[layer] for layer in live.caches)
    for view in ours(live.config, live.caches, "NHD").values():
        assert view.shape == (3, 128, 1, 64)


def test_both_pass_everything_through_without_a_configuration() -> None:
    caches = {"a": SimpleNamespace()}
    assert theirs(None, caches, "NHD") == ours(None, caches, "NHD") == caches
