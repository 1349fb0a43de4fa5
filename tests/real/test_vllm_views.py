"""vLLM writes through its own views, and ours read the same bytes: every layout that it accepts, every block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvlayout
from kvlayout.algebra.layout import Axis
from kvlayout.applying import Applied
from kvlayout.errors import Code, LayoutErrors
from kvlayout.plans import Semantic
from tests.real.models import HINTS, LAYOUTS, MODELS, Allocated, allocate

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = [pytest.mark.engine, pytest.mark.torch]

POISON = 0xA5
KERNELS = (None, 32, 64)
#: Their pages are together in every layout, but the form of their states needs a hint, and there is none.
STATES_OF_ONE_HEAD = ("kimi-linear", "qwen3-next in small groups")


def refused_by_vllm(model: str, layout: str, kernel: int | None) -> bool:
    mixed_pages = model == "deepseek-v3.2"
    if mixed_pages and layout in ("LHBNC", "BHLNC"):
        return True
    if kernel is None or (mixed_pages and kernel == 64):
        return False
    one_layer, one_head = model == "qwen3-next in small groups", model in ("kimi-linear", "deepseek")
    dense = {"LHBNC": one_head, "BLHNC": one_layer, "BLNHC": one_layer, "BHLNC": False}
    return not dense.get(layout, True)


def separates_heads(model: str, layout: str) -> bool:
    """Tell whether the heads of a block are not together: there is more than one, and blocks or layers lie between."""
    one_head = model in ("kimi-linear", "deepseek", "deepseek-v3.2")
    one_layer = model == "qwen3-next in small groups"
    return not one_head and (layout == "LHBNC" or (layout == "BHLNC" and not one_layer))


COMBINATIONS = [(model, layout, kernel) for model in MODELS for layout in LAYOUTS for kernel in KERNELS]
ACCEPTED = [combination for combination in COMBINATIONS if not refused_by_vllm(*combination)]
NAMED = [combination for combination in ACCEPTED if combination[1] in HINTS]

every_combination = pytest.mark.parametrize(("model", "layout", "kernel"), ACCEPTED)
every_named_combination = pytest.mark.parametrize(("model", "layout", "kernel"), NAMED)
every_model = pytest.mark.parametrize("model", MODELS)


@pytest.mark.parametrize(("model", "layout", "kernel"), [c for c in COMBINATIONS if c not in ACCEPTED])
def test_what_is_left_out_is_what_vllm_refuses(model: str, layout: str, kernel: int | None) -> None:
    # RuntimeError: one layer a group under BHLNC passes vLLM's check of dense blocks by chance
    with pytest.raises((ValueError, RuntimeError)):
        allocate(model, layout, kernel)


def applied(live: Allocated, layout: str, **options: Any) -> Applied:
    hint = HINTS.get(layout)
    return kvlayout.plan_then_apply(live.config, live.caches, {"kv_layout": hint} if hint else {}, **options)


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a copy of the bytes of a tensor in the order in which it is read."""
    import torch

    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).flatten()


def engine_block(live: Allocated, layer: str, block: int) -> Tensor:
    pages = live.kernel_pages[layer]
    return live.caches[layer].narrow(0, block * pages, pages)


def put(block: Tensor, data: Tensor) -> None:
    """Write bytes through a view, in the order in which it is read."""
    import torch

    block.copy_(data.view(torch.uint8).view(block.dtype).reshape(block.shape))


@every_combination
@pytest.mark.parametrize("form", ["lmcache", "bytes"])
def test_what_vllm_writes_we_read_and_nothing_else(model: str, layout: str, kernel: int | None, form: Any) -> None:
    import torch

    live = allocate(model, layout, kernel)
    rows_without_hint = form == "lmcache" and layout not in HINTS and model in STATES_OF_ONE_HEAD
    if separates_heads(model, layout) or rows_without_hint:
        with pytest.raises(LayoutErrors) as caught:
            applied(live, layout, presentation=form)
        assert {error.code for error in caught.value.errors} == {Code.UNSUPPORTED_LAYOUT}
        return
    result = applied(live, layout, presentation=form)
    torch.manual_seed(0)
    for layer, cache in live.caches.items():
        view, planned = result.views[layer], result.plan.layers[layer]
        assert isinstance(view, torch.Tensor)
        assert planned.view is not None
        axis = planned.view.axes.index(Axis.BLOCK)
        page, meant = live.specs[layer].page_size_bytes, isinstance(planned.content, Semantic)
        for block in range(3):
            live.pool.fill_(POISON)
            theirs = engine_block(live, layer, block)
            payload = as_bytes(theirs).numel()
            data = torch.randint(0, 256, (payload,), dtype=torch.uint8)
            put(theirs, data)
            mine = as_bytes(view.narrow(axis, block, 1))
            assert payload <= mine.numel() <= page
            if meant and live.kernel_pages[layer] == 1:
                assert torch.equal(mine, data)
            padding = torch.zeros(256, dtype=torch.int64)
            padding[POISON] = mine.numel() - payload
            assert torch.equal(mine.bincount(minlength=256), data.bincount(minlength=256) + padding)
            # written back through our view, the pool is as vLLM left it: no byte of a neighbour was in the block
            before = live.pool.clone()
            live.pool.fill_(POISON)
            put(view.narrow(axis, block, 1), mine)
            assert torch.equal(live.pool, before)
            # and with other bytes, nothing outside the layer's own page changes
            put(view.narrow(axis, block, 1), ~mine)
            changed = torch.nonzero(live.pool != before).flatten()
            start = theirs.storage_offset() * theirs.element_size()
            assert changed.numel() == mine.numel()
            assert int(changed.min()) == start
            assert int(changed.max()) < start + page
        assert cache.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("model", "layout", "kernel"), [c for c in ACCEPTED if c[1] not in HINTS and c[0] in ("kimi-linear", "deepseek")]
)
def test_one_head_is_together_in_every_layout(model: str, layout: str, kernel: int | None) -> None:
    """A page of one head is one interval there too; only a form that needs a hint is refused, for want of one."""
    live = allocate(model, layout, kernel)
    if model == "kimi-linear":
        with pytest.raises(LayoutErrors) as caught:
            applied(live, layout)
        codes = {(error.code, error.layer) for error in caught.value.errors}
        assert codes == {(Code.UNSUPPORTED_LAYOUT, "kda.0"), (Code.UNSUPPORTED_LAYOUT, "kda.1")}
    else:
        views = applied(live, layout).views
        assert all(len(view.shape) == 4 for view in views.values())  # type: ignore[union-attr]
    for hint in ("NHD", "HND"):
        assert kvlayout.plan_then_apply(live.config, live.caches, {"kv_layout": hint}).views


@every_named_combination
def test_rules_and_content(model: str, layout: str, kernel: int | None) -> None:
    live = allocate(model, layout, kernel)
    plan = applied(live, layout, platform="cuda").plan
    for layer, planned in plan.layers.items():
        name = layer.partition(".")[0].rstrip("0123")
        split = live.kernel_pages[layer] > 1
        latent = name in ("mla", "indexer")
        expected = (
            "mamba-unified-view"
            if name in ("gdn", "kda")
            else None
            if not split
            else "subpaged-mla-attention-view"
            if latent
            else "subpaged-attention-view"
        )
        assert planned.rule == expected
        assert planned.verdict == ("view" if expected else "same")
        semantic = name == "mla" or (not latent and expected is None)
        assert planned.content is not None
        assert planned.content.tag == ("semantic" if semantic else "opaque"), layer
        assert {claim.name for claim in planned.claims} >= {"page", "own", "grain", "fibre", "within"}


def test_on_a_cpu_keys_and_values_are_not_what_their_shape_says() -> None:
    plan = applied(allocate("llama", "LBHNC", None), "LBHNC").plan
    assert {layer.content.tag for layer in plan.layers.values() if layer.content} == {"opaque"}


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("layout", list(HINTS))
@every_model
def test_few_blocks(model: str, layout: str, blocks: int) -> None:
    live = allocate(model, layout, 64 if layout.startswith("LB") else None, blocks)
    result = applied(live, layout)
    for layer in live.caches:
        for block in range(blocks):
            view, planned = result.views[layer], result.plan.layers[layer].view
            assert planned is not None
            live.pool.fill_(POISON)
            theirs = engine_block(live, layer, block)
            theirs.fill_(1)
            mine = as_bytes(view.narrow(planned.axes.index(Axis.BLOCK), block, 1))  # type: ignore[union-attr]
            assert int((mine != POISON).sum()) == as_bytes(theirs).numel()
            assert int((live.pool != POISON).sum()) == as_bytes(theirs).numel()


@pytest.mark.parametrize("model", MODELS)
def test_a_layer_that_shares_the_cache_of_another_shares_its_view(model: str) -> None:
    live = allocate(model, "LBNHC", 64)
    names = list(live.caches)
    shared: Any = {"first": live.caches[names[-1]], **live.caches, "last": live.caches[names[0]]}
    views = kvlayout.plan_then_apply(live.config, shared, {"kv_layout": "NHD"}).views
    # groups may overlay each other with equal tensors, and the first layer of those is what the alias is of
    for alias, name in (("first", names[-1]), ("last", names[0])):
        tensor = live.caches[name]
        equal = [
            n for n in names if (live.caches[n].shape, live.caches[n].data_ptr()) == (tensor.shape, tensor.data_ptr())
        ]
        assert views[alias] is views[equal[0]]


def test_a_dump_of_the_live_engine_plans_the_same() -> None:
    from kvlayout.cache.registration import Registration
    from kvlayout.engines.vllm import dump

    for model in MODELS:
        live = allocate(model, "LBNHC", 64)
        direct = applied(live, "LBNHC").plan
        document = dump(live.config, live.caches, {"kv_layout": "NHD"})
        again = kvlayout.plan(Registration.from_json(document).unwrap()).unwrap()
        assert again.to_json() == direct.to_json()
        views = kvlayout.apply(kvlayout.Plan.from_json(again.to_json()).unwrap(), live.caches)
        assert list(views) == list(live.caches)
