"""Store and retrieve through the views of plans: every layer of every document, and views that are not the plan's."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

import kvlayout
from kvlayout.errors import Code, LayoutErrors
from kvlayout.plans import LayerPlan
from kvlayout.transfer import retrieve, store
from tests.documents.enumeration import addresses, view_block
from tests.documents.test_documents import PATHS, concrete, printed, read, served, symbolic
from tests.rules.building import attention, one, tensor
from tests.rules.test_cases import ALL, Case, unknown

pytest.importorskip("torch")
import torch

from tests.applying.live import Pools, configured
from tests.transfer.enumerating import random_pool

if TYPE_CHECKING:
    from pathlib import Path

    from kvlayout.applying import Applied
    from tests.rules.building import Json

pytestmark = pytest.mark.torch

BLOCKS = 5

#: Element types that nothing but a document has.
LIVE = [case for case in ALL if case.name != "a planar indexer in lower case"]
every_form = pytest.mark.parametrize("form", ["lmcache", "bytes"])
every_document = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@cache
def small(path: Path) -> Json:
    """Return a document with five blocks, whatever it had."""
    made = read(path)
    return concrete(symbolic(made), BLOCKS) | {"num_blocks": BLOCKS}


def filled(made: Json, seed: int) -> Pools:
    pools = Pools(made, slack=1 << 16)
    for storage, pool in pools.pools.items():
        pool.copy_(random_pool(pool.numel(), seed + 7 * storage))
    return pools


def applied(made: Json, pools: Pools, form: Any) -> Applied:
    engine = made["engine"]
    return kvlayout.plan_then_apply(
        configured(made),
        pools.caches,
        {"kv_layout": made["layout_hint"] or "none"},
        engine_version=engine["version"],
        platform=engine["platform"],
        dcp=engine.get("dcp", 1),
        presentation=form,
    )


def pool_of(pools: Pools, view: torch.Tensor) -> torch.Tensor:
    return next(pool for pool in pools.pools.values() if pool.data_ptr() == view.untyped_storage().data_ptr())


def places(facts: Json, ids: list[int]) -> list[torch.Tensor]:
    """Return the byte addresses of blocks in the order in which they are read, from the numbers of a printed view."""
    return [torch.from_numpy(addresses(slab.key) + slab.start) for slab in (view_block(facts, i) for i in ids)]


def moves(made: Json, form: Any, ids: list[int], others: list[int]) -> int:
    """Store blocks of every layer and retrieve them elsewhere, each against its bytes; return how many layers
    it was: two of each shape."""
    source, target = filled(made, 1), filled(made, 2)
    one, other = applied(made, source, form), applied(made, target, form)
    layers = printed(made, form)["layers"]
    seen: Counter[str] = Counter()
    for layer, facts in served(layers):
        shape = str([facts[word] for word in ("shape", "strides", "dtype")])
        if seen[shape] == 2:  # the first, and one at another offset
            continue
        seen[shape] += 1
        view, there = one.views[layer], other.views[layer]
        assert isinstance(view, torch.Tensor)
        assert isinstance(there, torch.Tensor)
        pages = store(view, ids, layer=one.plan.layers[layer])
        flat, pool = torch.frombuffer(pages, dtype=torch.uint8), pool_of(source, view)
        assert torch.equal(flat, torch.cat([pool[where] for where in places(facts, ids)])), layer
        pool = pool_of(target, there)
        expected, parts = pool.clone(), flat.chunk(len(ids))
        for where, part in zip(places(facts, others), parts, strict=True):
            expected[where] = part
        retrieve(there, others, pages, layer=other.plan.layers[layer])
        assert torch.equal(pool, expected), layer
    return seen.total()


@every_form
@every_document
def test_every_layer_of_every_document_moves_its_own_bytes(path: Path, form: Any) -> None:
    made = small(path)
    if printed(made, form)["errors"]:
        with pytest.raises(LayoutErrors):
            moves(made, form, [3, 1], [2, 4])
    else:
        assert moves(made, form, [3, 1], [2, 4]) >= 1


def test_most_documents_move() -> None:
    assert sum(not printed(small(path))["errors"] for path in PATHS) >= 0.8 * len(PATHS)


@every_form
@pytest.mark.parametrize("case", LIVE, ids=lambda case: case.name)
def test_every_case_of_a_rule_moves_its_own_bytes(case: Case, form: Any) -> None:
    count = case.document["num_blocks"]
    assert moves(case.document, form, [count - 1], [0]) >= 1


# ------------------------------------------------------------------------------------------ a view that is not planned


def planes_first(blocks: int = 2) -> Json:
    """Return keys and values that lie apart, in two kernel pages a block."""
    return one(attention(), tensor([2, 2 * blocks, 32, 2, 8]), blocks)


def code_of(view: torch.Tensor, plan: LayerPlan) -> Code:
    with pytest.raises(LayoutErrors) as caught:
        store(view, [1], layer=plan)
    with pytest.raises(LayoutErrors):
        retrieve(view, [1], b"", layer=plan)
    (error,) = caught.value.errors
    assert error.layer == plan.layer
    return error.code


@every_form
def test_two_blocks_of_two_planes_are_told_apart_by_the_plan(form: Any) -> None:
    pools = filled(planes_first(), 3)
    found = applied(planes_first(), pools, form)
    view, layer = found.views["a"], found.plan.layers["a"]
    assert isinstance(view, torch.Tensor)
    assert view.shape[:2] == (2, 2)
    key, value = (bytes(part.contiguous().view(torch.uint8).flatten().tolist()) for part in view[:, 1])
    assert store(view, [1], layer=layer) == key + value
    with pytest.raises(LayoutErrors, match="pass layer="):
        store(view, [1])


@every_form
def test_a_view_of_another_layer_is_refused(form: Any) -> None:
    made = one(attention(), tensor([12, 2, 16, 16]))
    pools = filled(made, 4)
    found = applied(made, pools, form)
    view, layer = found.views["a"], found.plan.layers["a"]
    assert isinstance(view, torch.Tensor)
    beside = view[1:], view[:, 1:], view.as_strided(view.shape, view.stride(), 1), view.flatten(0, 1)
    for wrong in (*beside, pools.caches["a"], view.unsqueeze(0), view[0, 0]):
        assert code_of(wrong, layer) is Code.STALE_PLAN
    assert len(store(view, [1], layer=layer)) == 2 * 64 * 16 * 2


def test_a_layer_without_a_view_can_t_be_moved() -> None:
    excluded = LayerPlan("draft.attn", 0, "excluded", None, ())
    assert code_of(torch.zeros(4, 8), excluded) is Code.STALE_PLAN


def test_an_alias_moves_the_bytes_of_its_layer() -> None:
    made = one(attention(), tensor([12, 2, 16, 16]))
    made["caches"]["b"] = made["caches"]["a"]
    found = applied(made, filled(made, 5), "bytes")
    view = found.views["b"]
    assert isinstance(view, torch.Tensor)
    assert store(view, [2], layer=found.plan.layers["b"]) == store(view, [2], layer=found.plan.layers["a"])


def test_a_plan_for_any_number_of_blocks_is_held_against_the_tensors_own() -> None:
    made = one(attention(), tensor([12, 2, 16, 16]))
    loose = kvlayout.plan(kvlayout.Registration.from_json(json.dumps(unknown(made))).unwrap()).unwrap()
    pools = filled(made, 6)
    view = kvlayout.apply(loose, pools.caches)["a"]
    assert isinstance(view, torch.Tensor)
    assert store(view, [2], layer=loose.layers["a"]) == store(view, [2])
    assert code_of(view[:, :1], loose.layers["a"]) is Code.STALE_PLAN
