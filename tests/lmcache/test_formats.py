"""What kvlayout says of LMCache's detection is what LMCache's detection says, of any tensor."""

from __future__ import annotations

from importlib import import_module
from itertools import permutations, product
from math import prod
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.engines.lmcache_formats import HINTS, UNSUPPORTED_LAYOUTS, VERSION, Reading, Tensor, detect, layout_hint
from tests.lmcache.reading import slot_stride
from tests.rules.building import ITEM

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

pytestmark = [pytest.mark.engine, pytest.mark.lmcache, pytest.mark.torch]

NAMES = sorted(set(HINTS.values()))


def real(tensor: Tensor) -> Any:
    import torch

    end = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True)) + 1
    return torch.empty(end, dtype=getattr(torch, tensor.dtype)).as_strided(tensor.shape, tensor.strides)


def theirs(tensors: Sequence[Tensor], hint: str) -> list[Any] | str:
    """Return what LMCache's detection says of a list of layers: facts of each, or that it refuses them."""
    kv_format: Any = import_module("lmcache.v1.gpu_connector.kv_format")
    engine: Any = import_module("lmcache.utils").EngineType.VLLM
    try:
        form, settled = kv_format.detect_format([real(one) for one in tensors], engine, {"kv_layout": hint})
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        return str(error)
    utils: Any = import_module("lmcache.v1.gpu_connector.utils")
    facts = kv_format.get_spec_class(form)
    strided = form in utils._BLOCK_AXIS_FORMATS
    return [
        (
            form.name,
            utils.get_kv_size(settled, form),
            utils.get_num_blocks([one], form),
            utils.get_block_size(settled, form, i),
            utils.get_num_heads(settled, form, i),
            utils.get_head_size(settled, form, i),
            slot_stride(facts, one) * ITEM[tensors[i].dtype],
            one.stride(0) if strided else 0,
        )
        for i, one in enumerate(settled)
    ]


def ours(tensors: Sequence[Tensor], hint: str) -> list[Any]:
    return [
        (one.format, one.planes, one.blocks, one.slots, one.heads, one.width, one.slot_stride, one.block_stride)
        if isinstance(one, Reading)
        else one
        for one in detect(tensors, hint)
    ]


def agree(tensors: Sequence[Tensor], hint: str) -> None:
    found, wanted = ours(tensors, hint), theirs(tensors, hint)
    if isinstance(wanted, str):
        assert any(isinstance(one, str) for one in found), (tensors, hint, found, wanted)
    else:
        assert found == wanted, (tensors, hint)


def strided(shape: Sequence[int], order: Iterable[int], padding: int, single: int | None) -> tuple[int, ...]:
    """Return strides in an order of the axes, the outermost one padded; ``single``: the stride of axes of size 1."""
    step, strides = 1, [0] * len(shape)
    outermost, *inner = order
    for axis in reversed(inner):
        strides[axis] = step if shape[axis] != 1 or single is None else single
        step *= shape[axis]
    strides[outermost] = step + padding
    return tuple(strides)


@pytest.mark.parametrize("hint", NAMES)
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_small_tensors_in_every_order(rank: int, hint: str) -> None:
    sizes = {3: (1, 2, 3, 132), 4: (1, 2, 3), 5: (1, 2, 3)}[rank]
    for shape in product(sizes, repeat=rank):
        orders = [tuple(range(rank)), *([tuple(reversed(range(rank)))] if rank == 5 else permutations(range(rank)))]
        for order, padding in product(dict.fromkeys(orders), (0, 5)):
            agree([Tensor(shape, strided(shape, order, padding, None), "uint8", 1)], hint)


@st.composite
def layers(draw: st.DrawFn) -> list[Tensor]:
    """Draw layers of one shape and element type, with strides of their own."""
    rank = draw(st.sampled_from((3, 4, 5)))
    shape = tuple(draw(st.sampled_from((1, 2, 3, 4, 7, 132))) for _ in range(rank))
    if prod(shape) > 1 << 16:
        shape = (*shape[:-2], 2, 2)
    dtype = draw(st.sampled_from(("uint8", "bfloat16", "float8_e4m3fn")))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(range(rank)))
        padding = draw(st.sampled_from((0, 0, 16, shape[-1])))
        single = draw(st.sampled_from((None, None, 1, 24, shape[-1], prod(shape))))
        made.append(Tensor(shape, strided(shape, order, padding, single), dtype, ITEM[dtype]))
    return made


@settings(max_examples=600)
@given(layers(), st.sampled_from(NAMES))
def test_any_layers(tensors: list[Tensor], hint: str) -> None:
    agree(tensors, hint)


def test_a_block_is_where_a_kernel_copies_it() -> None:
    """Of all formats that our views can have: block 1, in bytes."""
    fused = detect([Tensor((4, 16, 2, 32), (2048, 64, 32, 1), "bfloat16", 2)], "NHD")[0]
    planes = detect([Tensor((2, 4, 16, 2, 16), (2048, 512, 32, 16, 1), "bfloat16", 2)], "NHD")[0]
    pairs = detect([Tensor((4, 2, 16, 2, 16), (1024, 512, 32, 16, 1), "bfloat16", 2)], "NHD")[0]
    assert isinstance(fused, Reading)
    assert fused.block(1) == ((4096, 6144),)
    assert isinstance(planes, Reading)
    assert planes.block(1) == ((1024, 2048), (5120, 6144))
    assert isinstance(pairs, Reading)
    assert pairs.block(1) == ((2048, 4096),)


def test_names_and_version() -> None:
    types: Any = import_module("lmcache.v1.gpu_connector.kv_format.types")
    utils: Any = import_module("lmcache.integration.vllm.utils")
    assert set(HINTS.values()) == set(types.KV_LAYOUT_NAMES)
    assert {name: utils.translate_vllm_kv_cache_layout(name) for name in HINTS} == HINTS
    for name in UNSUPPORTED_LAYOUTS:
        with pytest.raises(NotImplementedError):
            utils.translate_vllm_kv_cache_layout(name)
    assert import_module("lmcache").__version__ == VERSION


@pytest.mark.parametrize(("platform", "on_cpu"), [("cpu", True), ("cuda", False)])
def test_the_hint_that_is_not_given(platform: str, on_cpu: bool) -> None:
    detector: Any = import_module("lmcache.v1.gpu_connector.kv_format.detectors.vllm")
    assert layout_hint(None, None, platform) == detector.resolve_vllm_kv_layout({}, cpu_attention_backend=on_cpu)
    assert layout_hint("BLNHC", "LBHNC", platform) == "BLNHC"
