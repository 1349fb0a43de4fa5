"""Views over live tensors: every byte of the engine's block, no byte of a neighbour, and no copy."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

import kvlayout
from kvlayout.algebra.layout import Axis
from kvlayout.algebra.result import Err, Ok
from kvlayout.applying import Applied
from kvlayout.errors import Code, LayoutErrors
from kvlayout.plans import Plan
from tests.documents.enumeration import page_bytes_of, read_rows, spec_for
from tests.rules.building import (
    Json,
    attention,
    document,
    group,
    latent,
    mamba,
    one,
    planned,
    registered,
    state_list,
    state_row,
    tensor,
)
from tests.rules.test_cases import ALL, Case, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

torch_ = pytest.importorskip("torch")
from tests.applying.live import Pools, configured, listed, read, same_storage  # noqa: E402 - imports torch

pytestmark = pytest.mark.torch

KV = attention()
STATE = mamba(page=1024)
FORMS = ("lmcache", "bytes")
every_form = pytest.mark.parametrize("form", FORMS)

#: Its channels are not its last axis in memory, so the dtype view needs another axis order first.
LOOSE = "rank 5, channels outside heads in memory"

#: Element types that nothing but a document has.
LIVE = [case for case in ALL if case.name not in ("a planar indexer in lower case", LOOSE)]
cases = pytest.mark.parametrize("case", LIVE, ids=[case.name for case in LIVE])


def live(made: Json) -> Pools:
    return Pools(made)


def fake_apply(made: Json, pools: Pools, **options: Any) -> Applied:
    engine = made["engine"]
    return kvlayout.plan_then_apply(
        configured(made),
        pools.caches,
        {"kv_layout": made["layout_hint"] or "none"},
        engine_version=engine["version"],
        platform=engine["platform"],
        **options,
    )


def engine_blocks(made: Json, pools: Pools, layer: str, block: int) -> list[torch.Tensor]:
    """Return the engine's own view of a block: its kernel pages, or its states."""
    spec, cache = spec_for(made, layer), made["caches"][layer]
    if spec["type"] == "MambaSpec":
        return [part.narrow(0, block, 1) for part in listed(pools.caches[layer])]
    rows = read_rows(spec, cache)
    return [pools.caches[layer].narrow(rows.block, block * rows.kernel_pages, rows.kernel_pages)]


def writes_its_own_page(made: Json, pools: Pools, layer: str, view: Any, axis: int, *, exact: bool) -> None:
    """Check that a write through each block of the view changes the engine's block, and nothing but its page."""
    page = page_bytes_of(spec_for(made, layer))
    blocks = view.shape[axis]
    for block in range(blocks):
        theirs = pools.changed(*engine_blocks(made, pools, layer, block))
        mine = pools.changed(view.narrow(axis, block, 1))
        assert len(theirs) > 0
        assert theirs <= mine
        assert mine == theirs if exact else mine <= theirs.page(page)


@cases
@every_form
def test_a_write_through_a_view_is_a_write_to_the_engine_s_block(case: Case, form: Any) -> None:
    made = case.document
    pools = live(made)
    applied = fake_apply(made, pools, presentation=form)
    view = applied.views["a"]
    layout = applied.plan.layers["a"].view
    assert isinstance(view, torch_.Tensor)
    assert layout is not None
    if form == "lmcache":
        assert list(view.shape) == case.shape
        assert str(view.dtype) == f"torch.{case.dtype}"
    spec = spec_for(made, "a")
    whole = spec["type"] == "MambaSpec" or (form == "bytes" and page_bytes_of(spec) > 4096)
    axis = layout.axes.index(Axis.BLOCK)
    writes_its_own_page(made, pools, "a", view, axis, exact=not whole)


def test_bytes_of_a_tensor_whose_channels_are_not_last_in_memory() -> None:
    made = next(case.document for case in ALL if case.name == LOOSE)
    pools = live(made)
    view = fake_apply(made, pools, presentation="bytes").views["a"]
    writes_its_own_page(made, pools, "a", view, 0, exact=True)
    assert list(fake_apply(made, pools).views["a"].shape) == [3, 2, 64, 1, 16]  # type: ignore[union-attr]


@cases
@every_form
def test_no_view_is_a_copy(case: Case, form: Any) -> None:
    pools = live(case.document)
    before = {storage: pool.clone() for storage, pool in pools.pools.items()}
    applied = fake_apply(case.document, pools, presentation=form)
    for layer, view in applied.views.items():
        for part in listed(view):
            assert same_storage(part, listed(pools.caches[layer])[0])
    for storage, pool in pools.pools.items():
        assert torch_.equal(pool, before[storage])


@cases
def test_a_plan_of_the_document_makes_the_same_views(case: Case) -> None:
    pools = live(case.document)
    direct = fake_apply(case.document, pools).views["a"]
    plan = planned(case.document).plan
    stored = Plan.from_json(plan.to_json()).unwrap()
    loose = planned(unknown(case.document)).plan if case.document["num_blocks"] == 3 else plan
    for made in (plan, stored, loose):
        view = kvlayout.apply(made, pools.caches)["a"]
        assert isinstance(view, torch_.Tensor)
        assert isinstance(direct, torch_.Tensor)
        assert (view.shape, view.stride(), view.storage_offset(), view.dtype) == (
            direct.shape,
            direct.stride(),
            direct.storage_offset(),
            direct.dtype,
        )
        if case.rule is None:
            assert view is pools.caches["a"]


@pytest.mark.parametrize("case", [case for case in ALL if case.content == "semantic"], ids=lambda case: case.name)
def test_a_view_with_meaning_reads_rows_in_their_order(case: Case) -> None:
    made = case.document
    pools = live(made)
    for pool in pools.pools.values():
        pool.copy_(torch_.randint(0, 256, pool.shape, dtype=torch_.uint8))
    view = fake_apply(made, pools).views["a"]
    assert isinstance(view, torch_.Tensor)
    rows = read_rows(spec_for(made, "a"), made["caches"]["a"])
    axis = rows.block
    for block in range(made["num_blocks"]):
        (engine,) = engine_blocks(made, pools, "a", block)
        in_rows = engine.movedim(rows.block, rows.row - 1)
        assert read(view.narrow(axis, block, 1)) == read(in_rows)


# ----------------------------------------------------------------------------------------------------- all or nothing


def pool_of_four(blocks: int = 3) -> Json:
    """Return four layers on one storage: kept, kernel-paged, a row and a list; and two aliases."""
    base = blocks * 4096
    caches = {
        "alias of rows": tensor([blocks * 4, 2, 16, 16], offset=base // 2),
        "kept": tensor([blocks, 2, 64, 16]),
        "rows": tensor([blocks * 4, 2, 16, 16], offset=base // 2),
        "state": state_row(STATE, blocks, base=2 * base),
        "list": state_list(STATE, blocks, 1024, base=2 * base + blocks * 1024),
        "alias of kept": tensor([blocks, 2, 64, 16]),
        "out": tensor([blocks, 2, 64, 16], storage=1),
        "alias of out": tensor([blocks, 2, 64, 16], storage=1),
    }
    groups = [group(["kept", "rows"], KV), group(["state", "list"], STATE), group(["out"], KV, transferable=False)]
    return document(groups, caches, blocks)


def test_views_come_in_the_order_of_the_caches() -> None:
    made = pool_of_four()
    pools = live(made)
    applied = fake_apply(made, pools)
    assert list(applied.views) == list(pools.caches)
    assert list(kvlayout.apply(applied.plan, pools.caches)) == list(pools.caches)
    turned = dict(reversed(pools.caches.items()))
    assert list(kvlayout.apply(applied.plan, turned)) == list(turned)


def test_untouched_layers_keep_their_object_and_aliases_share_one() -> None:
    made = pool_of_four()
    pools = live(made)
    for views in (fake_apply(made, pools).views, kvlayout.apply(planned(made).plan, pools.caches)):
        assert views["kept"] is pools.caches["kept"]
        assert views["alias of kept"] is views["kept"]
        assert views["alias of rows"] is views["rows"]
        assert views["rows"] is not pools.caches["rows"]
        assert views["out"] is pools.caches["out"]
        assert isinstance(views["list"], torch_.Tensor)


def test_an_excluded_alias_keeps_its_own_object() -> None:
    made = pool_of_four()
    pools = live(made)
    views = fake_apply(made, pools).views
    assert views["alias of out"] is pools.caches["alias of out"]


def test_the_caches_are_not_changed() -> None:
    made = pool_of_four()
    pools = live(made)
    before = dict(pools.caches)
    views = fake_apply(made, pools).views
    assert views is not pools.caches
    assert pools.caches == before
    assert all(pools.caches[name] is before[name] for name in before)


def tensors_made(act: Callable[[], object]) -> dict[str, int]:
    """Return how often each torch function gave a tensor."""
    from torch.overrides import TorchFunctionMode

    calls: dict[str, int] = {}

    class Count(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch_.Tensor):
                name = str(getattr(function, "__name__", function))
                calls[name] = calls.get(name, 0) + 1
            return result

    with Count():
        act()
    return calls


@every_form
def test_one_as_strided_a_layer_after_at_most_one_dtype_view(form: Any) -> None:
    made = pool_of_four()
    pools = live(made)
    calls = tensors_made(lambda: fake_apply(made, pools, presentation=form))
    views = 3 if form == "lmcache" else 4
    assert calls == {"as_strided": views} | ({} if form == "lmcache" else {"view": 3})
    plan = planned(made, form).plan
    assert tensors_made(lambda: kvlayout.apply(plan, pools.caches)) == calls


def test_none_for_a_layer_that_is_left_as_it_is() -> None:
    made = one(KV, tensor([3, 2, 64, 16]))
    pools = live(made)
    assert tensors_made(lambda: fake_apply(made, pools)) == {}


@pytest.mark.parametrize("bad", ["state", "list", "rows", "kept"])
def test_an_error_in_one_layer_leaves_all_untouched(bad: str) -> None:
    made = pool_of_four()
    entry = made["caches"][bad]
    for part in entry if isinstance(entry, list) else [entry]:
        part["shape"][-1] //= 2
    made["caches"] = {name: cache for name, cache in made["caches"].items() if not name.startswith("alias")}
    pools = live(made)

    def act() -> None:
        with pytest.raises(LayoutErrors) as caught:
            fake_apply(made, pools)
        assert [error.layer for error in caught.value.errors] == [bad]

    assert tensors_made(act) == {}


def test_all_errors_are_raised_at_once() -> None:
    made = pool_of_four()
    made["caches"]["kept"]["shape"][1] = 1
    made["caches"]["list"] = made["caches"]["list"][:1]
    pools = live(made)
    with pytest.raises(LayoutErrors) as caught:
        fake_apply(made, pools)
    assert [(error.code, error.layer) for error in caught.value.errors] == [
        (Code.AXES_MISMATCH, "kept"),
        (Code.AXES_MISMATCH, "list"),
        (Code.UNKNOWN_LAYER, "alias of kept"),
    ]
    assert isinstance(caught.value, ValueError)
    assert "2 layout errors" not in str(caught.value)
    assert "3 layout errors" in str(caught.value)


def test_no_configuration_passes_everything_through() -> None:
    caches: Any = {"b": torch_.zeros(3), "a": [torch_.zeros(2)], "c": object()}
    applied = kvlayout.plan_then_apply(None, caches, {})
    assert list(applied.views) == ["b", "a", "c"]
    assert all(applied.views[name] is caches[name] for name in caches)
    assert applied.views is not caches
    assert (applied.plan.groups, dict(applied.plan.layers)) == ((), {})


def test_a_broken_configuration_is_an_error_with_a_path() -> None:
    with pytest.raises(LayoutErrors) as caught:
        kvlayout.plan_then_apply(object(), {}, {"kv_layout": "NDH"})
    assert {error.code for error in caught.value.errors} == {Code.BAD_CONFIG}
    assert all(error.path for error in caught.value.errors)


def test_rules_of_others_are_applied() -> None:
    from kvlayout.rules.presentation import bytes_page
    from kvlayout.rules.rule import Registry
    from tests.rules.test_registry import answering

    made = one(KV, tensor([3, 2, 64, 16], offset=128))
    pools = live(made)
    rules = answering(bytes_page)
    assert isinstance(rules, Registry)
    applied = fake_apply(made, pools, rules=rules)
    view = applied.views["a"]
    assert isinstance(view, torch_.Tensor)
    assert (view.shape, view.dtype, view.storage_offset()) == ((3, 4096), torch_.int8, 256)
    again = kvlayout.apply(applied.plan, pools.caches)["a"]
    assert isinstance(again, torch_.Tensor)
    assert again.shape == view.shape


# ---------------------------------------------------------------------------------------------------------- stale plans


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        (lambda caches: caches.pop("rows"), ["rows"]),
        (lambda caches: caches.update(new=caches["kept"]), ["new"]),
        (lambda caches: caches.update(kept=caches["kept"][:2]), ["kept"]),
        (lambda caches: caches.update(kept=caches["kept"].transpose(1, 2)), ["kept"]),
        (lambda caches: caches.update(kept=caches["kept"].view(torch_.float16)), ["kept"]),
        (lambda caches: caches.update(state=caches["state"][..., 1:]), ["state"]),
        (lambda caches: caches.update(list=caches["list"][:1]), ["list"]),
        (lambda caches: caches.update(list=list(reversed(caches["list"]))), ["list"]),
        (lambda caches: caches.update(list=caches["list"][0]), ["list"]),
        (lambda caches: (caches.pop("rows"), caches.pop("kept")), ["kept", "rows"]),
    ],
)
def test_a_plan_of_other_tensors_is_stale(change: Callable[[dict[str, Any]], object], layers: list[str]) -> None:
    made = pool_of_four()
    pools = live(made)
    plan = planned(made).plan
    change(pools.caches)
    with pytest.raises(LayoutErrors) as caught:
        kvlayout.apply(plan, pools.caches)
    found = [(error.code, error.layer) for error in caught.value.errors]
    assert found == [(Code.STALE_PLAN, layer) for layer in layers]


def test_a_stale_plan_says_what_it_was_for_and_what_there_is() -> None:
    made = one(KV, tensor([3, 2, 64, 16], nbytes=1 << 20))
    pools = live(made)
    pools.caches["a"] = pools.caches["a"].transpose(1, 2)
    with pytest.raises(LayoutErrors) as caught:
        kvlayout.apply(planned(made).plan, pools.caches)
    (error,) = caught.value.errors
    assert error.expected == "[3, 2, 64, 16] of bfloat16, strides (2048, 1024, 16, 1), offset 0"
    assert error.actual == "[3, 64, 2, 16] of bfloat16, strides (2048, 16, 1024, 1), offset 0"


def test_a_list_may_be_a_tuple() -> None:
    made = pool_of_four()
    pools = live(made)
    pools.caches["list"] = tuple(pools.caches["list"])
    assert isinstance(kvlayout.apply(planned(made).plan, pools.caches)["list"], torch_.Tensor)


def test_storages_may_have_other_sizes_but_must_hold_the_views() -> None:
    made = one(KV, tensor([12, 2, 16, 16], nbytes=1 << 30))
    plan = planned(made).plan
    pools = Pools(made, slack=0)
    assert isinstance(kvlayout.apply(plan, pools.caches)["a"], torch_.Tensor)
    padded = one(attention(page=5000), tensor([3, 2, 64, 16], [2500, 1024, 16, 1], nbytes=1 << 30))
    short = Pools(padded, slack=0)  # the padding of the last page is not there
    with pytest.raises(LayoutErrors) as caught:
        kvlayout.apply(planned(padded, "bytes").plan, short.caches)
    assert [error.code for error in caught.value.errors] == [Code.STORAGE_OVERRUN]


def test_layers_that_were_apart_and_share_a_storage_now() -> None:
    apart = document(
        [group(["a", "b"], KV)],
        {"a": tensor([3, 2, 64, 16], storage=0), "b": tensor([3, 2, 64, 16], order=(0, 2, 1, 3), storage=1)},
    )
    together = copy.deepcopy(apart)
    together["caches"]["b"]["storage"] = 0
    with pytest.raises(LayoutErrors) as caught:
        kvlayout.apply(planned(apart).plan, live(together).caches)
    assert [error.code for error in caught.value.errors] == [Code.PAGE_OVERLAP]


@pytest.mark.parametrize("blocks", [1, 2, 3, 9])
def test_a_plan_for_any_number_is_applied_to_the_tensors_of_one(blocks: int) -> None:
    made = pool_of_four(blocks)
    loose = registered_unknown(made)
    pools = live(made)
    views = kvlayout.apply(loose, pools.caches)
    direct = fake_apply(made, pools).views
    for name, view in views.items():
        other = direct[name]
        assert isinstance(view, torch_.Tensor)
        assert isinstance(other, torch_.Tensor)
        assert (view.shape, view.stride(), view.storage_offset()) == (
            other.shape,
            other.stride(),
            other.storage_offset(),
        )


def registered_unknown(made: Json) -> Plan:
    result = planned(unknown(made))
    assert not result.errors, result.errors
    assert str(result.plan.blocks) == "1n"
    return result.plan


def test_tensors_of_no_number_of_blocks_are_stale() -> None:
    loose = planned(unknown(one(KV, tensor([12, 2, 16, 16])))).plan
    for rows in (13, 3):
        with pytest.raises(LayoutErrors) as caught:
            kvlayout.apply(loose, {"a": torch_.zeros(rows, 2, 16, 16, dtype=torch_.bfloat16)})
        assert [error.code for error in caught.value.errors] == [Code.STALE_PLAN]
    with pytest.raises(LayoutErrors):
        kvlayout.apply(loose, {})


def test_tensors_of_two_numbers_of_blocks_are_stale() -> None:
    rows = latent()
    made = document([group(["a", "b"], rows)], {"a": tensor([3, 64, 24]), "b": tensor([3, 64, 24], storage=1)})
    loose = planned(unknown(made)).plan
    caches = {"a": torch_.zeros(3, 64, 24, dtype=torch_.bfloat16), "b": torch_.zeros(4, 64, 24, dtype=torch_.bfloat16)}
    with pytest.raises(LayoutErrors) as caught:
        kvlayout.apply(loose, caches)
    assert [(error.code, error.layer) for error in caught.value.errors] == [(Code.STALE_PLAN, "b")]


# --------------------------------------------------------------------------------------------------------- stored plans


@pytest.mark.parametrize(
    "edit",
    [
        lambda stored: stored["layers"]["a"].update(shape=[12, 16, 1, 32]),
        lambda stored: stored["layers"]["a"].update(strides=[1024, 64, 64, 2]),
        lambda stored: stored["layers"]["a"].update(offset=1024),
        lambda stored: stored["layers"]["a"].update(content="semantic"),
        lambda stored: stored["layers"].update(b=stored["layers"]["a"]),
        lambda stored: stored["layers"].clear(),
        lambda stored: stored["groups"][0].update(fingerprint="0" * 32),
        lambda stored: stored["groups"].clear(),
    ],
)
def test_an_edited_plan_is_refused(edit: Callable[[Json], None]) -> None:
    stored = json.loads(planned(one(KV, tensor([12, 2, 16, 16]))).plan.to_json())
    edit(stored)
    result = Plan.from_json(json.dumps(stored))
    assert isinstance(result, Err)
    assert {error.code for error in result.error.errors} == {Code.STALE_PLAN}


def test_a_plan_whose_registration_was_edited_is_planned_anew() -> None:
    stored = json.loads(planned(one(KV, tensor([12, 2, 16, 16]))).plan.to_json())
    stored["registration"]["caches"]["a"]["shape"][0] = 13
    result = Plan.from_json(json.dumps(stored))
    assert isinstance(result, Err)
    assert [error.code for error in result.error.errors] == [Code.NOT_DIVISIBLE]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "kvlayout/plan", "version": 2}', b"\xff"])
def test_what_is_no_plan_is_a_bad_document(text: str | bytes) -> None:
    result = Plan.from_json(text)
    assert isinstance(result, Err)
    assert {error.code for error in result.error.errors} == {Code.BAD_DOCUMENT}
    assert all(error.path for error in result.error.errors)


def test_parts_of_a_plan_that_are_broken() -> None:
    good = json.loads(planned(one(KV, tensor([3, 2, 64, 16]))).plan.to_json())
    for key, value in (
        ("registration", 3),
        ("registration", {}),
        ("layers", []),
        ("groups", {}),
        ("presentation", "x"),
    ):
        result = Plan.from_json(json.dumps(good | {key: value}))
        assert isinstance(result, Err), key
        assert {error.code for error in result.error.errors} == {Code.BAD_DOCUMENT}
    assert isinstance(Plan.from_json(json.dumps(good)), Ok)


def test_a_plan_is_a_value() -> None:
    made = one(KV, tensor([12, 2, 16, 16]))
    assert planned(made).plan == planned(made).plan
    assert planned(made).plan != planned(made, "bytes").plan
    assert registered(made) == registered(made)
