"""Tensors and arguments that no engine hands over: a typed refusal or a right view, and never a changed tensor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import kvlayout
from kvlayout.errors import Code, LayoutErrors
from tests.rules.building import attention, document, group, mamba, one, state_row, tensor

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")
from tests.applying.live import configured  # noqa: E402 - imports torch

pytestmark = pytest.mark.torch

KV = attention(16, 2, 8)
WIDE = attention(16, 2, 8, "float32")
ROW = mamba(16, shapes=[[100]], dtypes=["int8"], page=1024)
CONFIG: Any = configured(one(KV, tensor([12, 2, 4, 16])))
HINTS = {"kv_layout": "NHD"}


def plain() -> Any:
    return torch.zeros(12, 2, 4, 16, dtype=torch.bfloat16)


def refusals(config: object, caches: Any, hints: Any = HINTS, **options: Any) -> list[tuple[Code, str, str | None]]:
    with pytest.raises(LayoutErrors) as caught:
        kvlayout.plan_then_apply(config, caches, hints, **options)
    assert str(caught.value)
    return [(error.code, error.path, error.layer) for error in caught.value.errors]


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return plain()


SUBCLASS: Any = type("Subclass", (torch.Tensor,), {})

SERVED: dict[str, Callable[[], Any]] = {
    "plain": plain,
    "on meta": lambda: torch.zeros(12, 2, 4, 16, dtype=torch.bfloat16, device="meta"),
    "fake": fake,
    "requires a gradient": lambda: plain().requires_grad_(),
    "of a gradient": lambda: plain().requires_grad_() * 1,
    "parameter": lambda: torch.nn.Parameter(plain()),
    "subclass": lambda: plain().as_subclass(SUBCLASS),
    "inference": torch.inference_mode()(plain),
}


@pytest.mark.parametrize("form", ["lmcache", "bytes"])
@pytest.mark.parametrize("name", list(SERVED))
def test_any_tensor_with_the_right_numbers_is_served(name: str, form: Any) -> None:
    cache = SERVED[name]()
    facts = cache.shape, cache.stride(), cache.storage_offset(), cache.dtype, cache.requires_grad
    applied = kvlayout.plan_then_apply(CONFIG, {"a": cache}, HINTS, presentation=form)
    view: Any = applied.views["a"]
    expected = ((3, 16, 1, 32), (512, 32, 32, 1)) if form == "lmcache" else ((3, 1024), (1024, 1))
    assert (tuple(view.shape), view.stride()) == expected
    assert view.untyped_storage()._cdata == cache.untyped_storage()._cdata
    assert (cache.shape, cache.stride(), cache.storage_offset(), cache.dtype, cache.requires_grad) == facts


REFUSED: dict[str, tuple[Code, Callable[[], Any]]] = {
    "no blocks": (Code.AXES_MISMATCH, lambda: torch.zeros(0, 2, 4, 16, dtype=torch.bfloat16)),
    "no heads": (Code.AXES_MISMATCH, lambda: torch.zeros(12, 0, 4, 16, dtype=torch.bfloat16)),
    "a number": (Code.AXES_MISMATCH, lambda: torch.zeros((), dtype=torch.bfloat16)),
    "ragged": (
        Code.AXES_MISMATCH,
        lambda: torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)], layout=torch.jagged),
    ),
    "blocks in one place": (Code.PAGE_NOT_CONTIGUOUS, lambda: plain()[:1].expand(12, 2, 4, 16)),
    "heads in one place": (Code.PAGE_NOT_CONTIGUOUS, lambda: plain()[:, :1].expand(12, 2, 4, 16)),
    "a list of one": (Code.AXES_MISMATCH, lambda: [plain()]),
    "sparse": (Code.BAD_CONFIG, lambda: plain().to_sparse()),
    "a list in a list": (Code.BAD_CONFIG, lambda: [[plain()]]),
    "no tensor": (Code.BAD_CONFIG, lambda: None),
}


@pytest.mark.parametrize("form", ["lmcache", "bytes"])
@pytest.mark.parametrize("name", list(REFUSED))
def test_what_has_no_pages_is_refused(name: str, form: Any) -> None:
    code, make = REFUSED[name]
    assert [(found, layer) for found, _, layer in refusals(CONFIG, {"a": make()}, presentation=form)] == [(code, "a")]


def test_what_torch_does_not_view_is_refused_for_every_layer_at_once() -> None:
    made = document([group(["a", "b"], WIDE)], {layer: tensor([12, 2, 4, 16], dtype="float32") for layer in "ab"})
    caches = {layer: torch.zeros(12, 2, 4, 8, dtype=torch.complex64).conj() for layer in "ab"}
    found = refusals(configured(made), caches, presentation="bytes")
    assert found == [(Code.DTYPE_MISALIGNED, "", "a"), (Code.DTYPE_MISALIGNED, "", "b")]


@pytest.mark.parametrize("form", ["lmcache", "bytes"])
def test_storages_of_two_sizes_that_start_at_one_byte(form: Any) -> None:
    numpy = pytest.importorskip("numpy")
    pool = numpy.zeros(3 * 1024, "int8")
    whole, short = (
        torch.from_numpy(part).as_strided((3, 1, 1, 100), (1024, 100, 100, 1)) for part in (pool, pool[:2148])
    )
    config: Any = configured(document([group(["a"], ROW), group(["b"], ROW)], dict.fromkeys("ab", state_row(ROW, 3))))
    assert refusals(config, {"a": whole, "b": short}, presentation=form) == [(Code.STORAGE_OVERRUN, "", "b")]


class Gone:
    """An entry that ends a configuration's list of layers, and that no dictionary holds."""

    __hash__ = None  # type: ignore[assignment]


def config(**changes: object) -> Any:
    names = ("num_blocks", "kv_cache_tensors", "kv_cache_groups", "kv_cache_layout")
    return SimpleNamespace(**{name: getattr(CONFIG, name, None) for name in names} | changes)


@pytest.mark.parametrize("names", [[Gone()], [1], ["a", None], [["a"]]])
def test_names_of_layers_are_texts(names: list[object]) -> None:
    spec = CONFIG.kv_cache_groups[0].kv_cache_spec
    for whole in (spec, SimpleNamespace(block_size=16, kv_cache_specs={"a": spec})):
        made = config(kv_cache_groups=[SimpleNamespace(layer_names=names, kv_cache_spec=whole)])
        assert (Code.BAD_CONFIG, "kv_cache_groups[0].layer_names", None) in refusals(made, {"a": plain()})
    numbers = {"size": 3, "offset": 0, "layer_stride": 0, "block_stride": 0, "host_resident": True}
    made = config(kv_cache_tensors=[SimpleNamespace(layers=names, **numbers)])
    assert refusals(made, {"a": plain()}) == [(Code.BAD_CONFIG, "kv_cache_tensors[0].layers", None)]
    assert refusals(CONFIG, {"a": plain(), 5: plain()}) == [(Code.BAD_CONFIG, "kv_caches[5]", None)]


@pytest.mark.parametrize("hints", ["NHD", ["NHD"], {"NHD"}, 5, [("kv_layout", "NHD")]])
def test_hints_are_a_mapping(hints: object) -> None:
    assert refusals(CONFIG, {"a": plain()}, hints) == [(Code.BAD_CONFIG, "layout_hints", None)]


@pytest.mark.parametrize("caches", [None, 5, [("a", 3)], iter(())])
def test_caches_are_a_mapping(caches: object) -> None:
    assert (Code.BAD_CONFIG, "kv_caches", None) in refusals(CONFIG, caches)


@pytest.mark.parametrize("caches", [None, {"a": None}, {"a": []}])
def test_a_plan_is_not_applied_to_what_is_no_tensor(caches: Any) -> None:
    plan = kvlayout.plan_then_apply(CONFIG, {"a": plain()}, HINTS).plan
    with pytest.raises(LayoutErrors, match="kv_caches"):
        kvlayout.apply(plan, caches)


@pytest.mark.parametrize("dcp", [0, -1, 1 << 63, 2.0, True, "2", None])
def test_ranks_are_a_number(dcp: Any) -> None:
    assert refusals(CONFIG, {"a": plain()}, dcp=dcp) == [(Code.BAD_CONFIG, "dcp", None)]
