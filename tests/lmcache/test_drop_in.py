"""LMCache's functions and ours are interchangeable: arguments, results, errors, and what is left alone."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import sys
from importlib import import_module
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from kvlayout.engines import lmcache
from kvlayout.engines.lmcache import AUX_POOLS, apply_kv_cache_group_edits, validate_kv_cache_groups
from kvlayout.errors import Code, LayoutErrors
from tests.applying.live import Pools, configured
from tests.lmcache.registered import documents, registered
from tests.rules.building import Json, attention, document, group, latent, mamba, state_list, state_row, tensor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NAMES = ("apply_kv_cache_group_edits", "validate_kv_cache_groups")
KV = attention(16, 2, 8)
STATE = mamba(16, page=1024)


def live(made: Json) -> tuple[Any, dict[str, Any]]:
    return configured(made), Pools(made).caches


def split(hint: str | None = "NHD", blocks: int = 3) -> Json:
    """Return kernel-paged attention, a layer that shares it, latent rows that are left alone, and states."""
    caches = {
        "shared": tensor([4 * blocks, 2, 4, 16]),
        "mla": tensor([blocks, 16, 24], storage=1),
        "kv": tensor([4 * blocks, 2, 4, 16]),
        "gdn": state_list(STATE, blocks, 1024, storage=2),
        "row": state_row(STATE, blocks, storage=3),
    }
    groups = [group(["kv"], KV), group(["mla"], latent(16, 24)), group(["gdn"], STATE), group(["row"], STATE)]
    return document(groups, caches, blocks, hint)


def test_no_configuration_passes_everything_through() -> None:
    caches = {"b": torch.zeros(2), "a": [torch.zeros(1)]}
    for hints in (None, {}, {"kv_layout": "NHD"}):
        found = apply_kv_cache_group_edits(None, caches, hints)
        assert found is not caches
        assert list(found) == ["b", "a"]
        assert all(found[layer] is caches[layer] for layer in caches)
    validate_kv_cache_groups(None)


def test_a_new_dict_in_the_order_of_the_old_one() -> None:
    config, caches = live(split())
    before = dict(caches)
    found: dict[str, Any] = apply_kv_cache_group_edits(config, caches, {"kv_layout": "NHD"})
    assert found is not caches
    assert list(found) == list(caches)
    assert all(caches[layer] is before[layer] for layer in before)
    assert found["mla"] is caches["mla"]
    assert found["shared"] is found["kv"]
    assert found["kv"].untyped_storage().data_ptr() == caches["kv"].untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("hint", "kv", "row"),
    [
        ("NHD", [3, 16, 1, 32], [3, 16, 1, 16]),
        ("BLNHC", [3, 16, 1, 32], [3, 16, 1, 16]),
        ("HND", [3, 1, 16, 32], [3, 1, 16, 16]),
        ("BLHNC", [3, 1, 16, 32], [3, 1, 16, 16]),
    ],
)
def test_the_four_layout_names(hint: str, kv: list[int], row: list[int]) -> None:
    config, caches = live(split())
    found: dict[str, Any] = apply_kv_cache_group_edits(config, caches, {"kv_layout": hint})
    assert (list(found["kv"].shape), list(found["row"].shape)) == (kv, row)


@pytest.mark.parametrize("hints", [None, {}, {"num_kv_heads": 2}, {"kv_layout": None}, {"kv_layout": "none"}])
def test_without_a_hint_what_needs_one_is_refused(hints: dict[str, object] | None) -> None:
    config, caches = live(split(None))
    with pytest.raises(ValueError, match="missing-layout-hint") as caught:
        apply_kv_cache_group_edits(config, caches, hints)
    assert isinstance(caught.value, LayoutErrors)
    assert {error.layer for error in caught.value.errors} == {"kv", "gdn", "row"}
    made = document([group(["mla"], latent(16, 24))], {"mla": tensor([3, 16, 24])}, 3, None)
    config, caches = live(made)
    assert apply_kv_cache_group_edits(config, caches, hints)["mla"] is caches["mla"]


def test_an_unknown_hint_is_refused() -> None:
    config, caches = live(split())
    with pytest.raises(LayoutErrors, match=r"layout_hints\.kv_layout"):
        apply_kv_cache_group_edits(config, caches, {"kv_layout": "NDH"})


def test_arguments_have_lmcaches_names() -> None:
    config, caches = live(split())
    found = apply_kv_cache_group_edits(kv_cache_config=config, kv_caches=caches, layout_hints={"kv_layout": "HND"})
    assert list(found) == list(caches)
    validate_kv_cache_groups(kv_cache_config=config)


def test_pools_of_lmcaches_own_are_left_where_they_are() -> None:
    config, caches = live(split())
    pool = torch.zeros(3, 16, 8)
    caches = {f"{AUX_POOLS}16": pool, **caches, f"{AUX_POOLS}32.x": pool}
    found: dict[str, Any] = apply_kv_cache_group_edits(config, caches, {"kv_layout": "NHD"})
    assert list(found) == list(caches)
    assert found[f"{AUX_POOLS}16"] is found[f"{AUX_POOLS}32.x"] is pool
    assert list(found["kv"].shape) == [3, 16, 1, 32]


@pytest.mark.parametrize("caches", [None, [("kv", 1)], iter(())])
def test_caches_are_a_mapping(caches: Any) -> None:
    config, _ = live(split())
    with pytest.raises(LayoutErrors, match="a mapping from layer names to tensors"):
        apply_kv_cache_group_edits(config, caches, {"kv_layout": "NHD"})


def test_a_name_that_is_no_text_is_refused() -> None:
    config, caches = live(split())
    odd: Any = {**caches, 5: caches["kv"]}
    with pytest.raises(LayoutErrors, match="a text for a layer's name"):
        apply_kv_cache_group_edits(config, odd, {"kv_layout": "NHD"})


def test_any_mapping_will_do() -> None:
    config, caches = live(split())
    found = apply_kv_cache_group_edits(config, MappingProxyType(caches), {"kv_layout": "NHD"})
    assert list(found) == list(caches)


def test_every_fault_is_in_one_error() -> None:
    made = split()
    made["caches"]["mla"]["shape"][1] = 15
    made["caches"]["kv"]["shape"][2] = 3
    config, caches = live(made)
    del caches["shared"]
    with pytest.raises(ValueError, match="2 layout errors") as caught:
        apply_kv_cache_group_edits(config, caches, {"kv_layout": "NHD"})
    assert isinstance(caught.value, LayoutErrors)
    assert [(error.group, error.layer) for error in caught.value.errors] == [(0, "kv"), (1, "mla")]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (KV | {"type": "CrossAttentionSpec", "kind": "cross_attention"}, Code.UNSUPPORTED_CROSS_ATTENTION),
        (mamba(16, mode="none"), Code.UNSUPPORTED_MAMBA_MODE),
        (KV | {"type": "OtherSpec", "bases": ["KVCacheSpec"]}, Code.UNSUPPORTED_SPEC),
    ],
)
def test_groups_are_refused_before_there_are_tensors(spec: Json, code: Code) -> None:
    made = document([group(["a"], KV), group(["b"], spec), group(["c"], spec)], {}, 3)
    config: Any = configured(made)
    bare = [
        SimpleNamespace(kv_cache_groups=config.kv_cache_groups, **more) for more in ({}, {"kv_cache_tensors": None})
    ]
    for form in (config, *bare):
        with pytest.raises(LayoutErrors) as caught:
            validate_kv_cache_groups(form)
        assert [(error.code, error.group) for error in caught.value.errors] == [(code, 1), (code, 2)]
        with pytest.raises(LayoutErrors):
            apply_kv_cache_group_edits(config, {}, {"kv_layout": "NHD"})


def test_groups_that_are_served_or_excluded_pass() -> None:
    hidden = group(["b"], KV | {"type": "CrossAttentionSpec", "kind": "cross_attention"}, transferable=False)
    validate_kv_cache_groups(configured(document([group(["a"], KV), group(["s"], STATE), hidden], {}, 3)))


def test_a_line_a_group_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    config, caches = live(split())
    with caplog.at_level(logging.INFO, logger="kvlayout"):
        apply_kv_cache_group_edits(config, caches, {"kv_layout": "NHD"})
    assert [record.getMessage() for record in caplog.records] == [
        "group 0 (1 x FullAttentionSpec): subpaged-attention-view, [12, 2, 4, 16] -> [3, 16, 1, 32]",
        "group 1 (1 x MLAAttentionSpec): left as it is, [3, 16, 24]",
        "group 2 (1 x MambaSpec): mamba-page-view, [3, 3, 8] + [3, 4, 4] -> [3, 2, 16, 1, 16]",
        "group 3 (1 x MambaSpec): mamba-unified-view, [3, 1, 1, 112] -> [3, 16, 1, 16]",
    ]
    assert {record.name for record in caplog.records} == {"kvlayout"}


def test_what_lmcache_would_misread_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = document(
        [group(["a"], KV), group(["b"], KV, transferable=False)],
        {"a": tensor([3, 2, 16, 16]), "b": tensor([3, 2, 16, 16], storage=1)},
    )
    config, caches = live(made)
    with caplog.at_level(logging.INFO, logger="kvlayout"):
        apply_kv_cache_group_edits(config, caches, {"kv_layout": "NHD"})
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [(text.partition(":")[0], text.rpartition(" (")[2]) for text in told] == [
        ("lmcache-misread", "layers a)"),
        ("lmcache-exclusion", "layers b)"),
    ]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert lines[1] == "group 1 (1 x FullAttentionSpec): excluded, not-transferable"


def unset() -> SimpleNamespace:
    raise AssertionError("not initialized")


@pytest.mark.parametrize(
    ("group_of", "told"),
    [(lambda: SimpleNamespace(world_size=2), ["lmcache-tokens"]), (unset, []), (lambda: None, []), (None, [])],
)
def test_the_ranks_of_this_process_are_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, group_of: object, told: list[str]
) -> None:
    made = document([group(["a"], attention(16, 2, 8, dcp_sharded=False))], {"a": tensor([3, 2, 16, 16])}, 3, "HND")
    config, caches = live(made)
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", SimpleNamespace(get_dcp_group=group_of))
    apply_kv_cache_group_edits(config, caches, {"kv_layout": "HND"})
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == told


@pytest.mark.engine
@pytest.mark.lmcache
class TestBesideLMCache:
    @pytest.mark.parametrize("name", NAMES)
    def test_signatures_are_equal(self, name: str) -> None:
        module = import_module("lmcache.integration.vllm.kv_cache_group_edits")
        theirs, ours = (inspect.signature(getattr(one, name)).parameters for one in (module, lmcache))
        assert list(theirs) == list(ours)
        for one, other in zip(theirs.values(), ours.values(), strict=True):
            assert (one.kind, one.default) == (other.kind, other.default)

    @pytest.mark.parametrize("name", sorted(documents()))
    def test_both_validate_the_same_groups(self, name: str) -> None:
        module: Any = importlib.import_module("lmcache.integration.vllm.kv_cache_group_edits")
        config = registered(json.loads(json.dumps(documents()[name]))).config
        answers = []
        for one in (module, lmcache):
            try:
                answers.append(one.validate_kv_cache_groups(config))
            except ValueError:
                answers.append("refused")
        assert answers[0] == answers[1]
