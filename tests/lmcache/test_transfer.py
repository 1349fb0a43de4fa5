"""LMCache's own kernels (their reference in torch) move blocks through our views: the engine's bytes, and no others."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from tests.lmcache.reading import Managed, managed
from tests.lmcache.registered import live_model
from tests.lmcache.truth import applied, owned
from tests.real.models import HINTS
from tests.real.test_vllm_views import ACCEPTED

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = [pytest.mark.engine, pytest.mark.lmcache, pytest.mark.torch]

FROM, TO = 1, 2


def pool_of(tensor: Tensor) -> Tensor:
    """Return the storage below a tensor, as bytes."""
    import torch

    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def move(made: Managed, group: Any) -> None:
    """Store block 1 of a kernel group, and retrieve it into block 2."""
    import torch

    kernels: Any = import_module("lmcache.v1.platform.torch_ops.mp_mem_kernels")
    direction: Any = import_module("lmcache.lmcache_native").TransferDirection
    facts = import_module("lmcache.v1.gpu_connector.kv_format").get_spec_class(group.engine_kv_format)
    shape, layers = group.shape_desc, [made.tensors[i] for i in group.layer_indices]
    planes = (2,) if shape.kv_size == 2 else ()
    width = shape.hs if facts.is_mla else shape.nh * shape.hs
    page = torch.zeros((*planes, len(layers), shape.bs, width), dtype=group.dtype)
    for block, way in ((FROM, direction.D2H), (TO, direction.H2D)):
        kernels.multi_layer_block_kv_transfer(
            layers, [page], [block], "cpu", way, shape, shape.bs, group.engine_kv_format, 0
        )


@pytest.mark.parametrize(("model", "layout", "kernel"), [one for one in ACCEPTED if one[1] in HINTS])
def test_a_block_that_is_stored_and_retrieved(model: str, layout: str, kernel: int | None) -> None:
    import torch

    live = live_model(model, layout, kernel, 3)
    views: dict[str, Any] = dict(applied(live).views)
    made = managed(live.config.kv_cache_groups, views, live.hint, 1, -(1 << 20))
    pool = pool_of(next(iter(views.values())))
    generator = torch.Generator().manual_seed(7)
    for group in made.groups:
        # bits that no element type takes for "not a number", which a copy need not keep
        pool.copy_(torch.randint(0, 0x3C, pool.shape, generator=generator, dtype=torch.uint8))
        before, wanted = pool.clone(), pool.clone()
        move(made, group)
        for layer in (made.names[i] for i in group.layer_indices):
            ((start, end),), ((to, _),) = (owned(live.document, layer, block) for block in (FROM, TO))
            covered = views[layer][0].numel() * views[layer].element_size()
            assert covered <= end - start
            wanted[to : to + covered] = before[start : start + covered]
        assert torch.equal(pool, wanted), [made.names[i] for i in group.layer_indices]
