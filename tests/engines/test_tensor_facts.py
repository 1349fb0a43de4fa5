"""The facts of live tensors are torch's own, and storages are told apart by address."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.algebra.result import Err, Ok
from kvlayout.cache.registration import RegisteredTensor
from kvlayout.engines.tensors import device_type, entry_document, facts, read_caches
from tests.engines import fakes

if TYPE_CHECKING:
    import torch

PLAIN = fakes.Tensor([4, 64], [64, 1], 0, "int8", fakes.Storage(4096, 256))


def one(tensor: torch.Tensor) -> RegisteredTensor:
    made = facts({"a": tensor})["a"]
    assert isinstance(made, RegisteredTensor)
    return made


def storages(*tensors: torch.Tensor) -> list[int]:
    made = facts({str(i): tensor for i, tensor in enumerate(tensors)}).values()
    return [entry.storage for entry in made if isinstance(entry, RegisteredTensor)]


def test_facts_are_plain_values_in_the_order_of_registration() -> None:
    other = fakes.Tensor([4], [1], 8, "bfloat16", fakes.Storage(1 << 30, 512))
    made = facts({"b": other, "a": [PLAIN, other], "c": (PLAIN,)})
    plain = RegisteredTensor((4, 64), (64, 1), 0, "int8", 1, 256)
    offset = RegisteredTensor((4,), (1,), 8, "bfloat16", 0, 512)
    assert made == {"b": offset, "a": (plain, offset), "c": (plain,)}
    assert list(made) == ["b", "a", "c"]


def test_equal_bases_are_one_storage_whatever_the_offset_and_element_type() -> None:
    pool = fakes.Storage(4096, 65536)
    tensors = [fakes.Tensor([2], [8], offset, dtype, pool) for offset in (0, 24) for dtype in ("int8", "float32")]
    made = facts({str(i): tensor for i, tensor in enumerate(tensors)})
    assert {entry.storage for entry in made.values() if isinstance(entry, RegisteredTensor)} == {0}


def test_what_is_no_tensor_is_refused() -> None:
    text: Any = {"a": "kv"}
    with pytest.raises(AttributeError):
        facts(text)
    with pytest.raises(TypeError, match="an empty list"):
        facts({"a": []})


class Speechless:
    """An object that can't be shown."""

    def __repr__(self) -> str:
        raise ValueError("no words")


def test_what_is_no_tensor_is_shown_as_far_as_it_can_be() -> None:
    odd: Any = {"a": Speechless(), "b": PLAIN, "c": "x" * 99}
    found = read_caches(odd)
    assert isinstance(found, Err)
    assert [(error.layer, error.actual) for error in found.error.errors] == [
        ("a", "a Speechless"),
        ("c", "'" + 56 * "x" + "..."),
    ]


def test_the_device_is_that_of_the_first_tensor() -> None:
    assert device_type({"a": PLAIN}) == device_type({"a": [PLAIN]}) == "cuda"
    assert device_type({"a": []}) == device_type({}) == ""


def test_the_document_of_a_list_is_a_list() -> None:
    made = facts({"a": [PLAIN]})["a"]
    shape = {"shape": (4, 64), "stride": (64, 1), "storage_offset": 0, "dtype": "int8"}
    assert entry_document(made) == [shape | {"storage": 0, "storage_nbytes": 256}]


@pytest.mark.torch
def test_facts_of_a_torch_tensor() -> None:
    import torch

    pool = torch.zeros(1 << 12, dtype=torch.int8)
    view = pool.view(torch.bfloat16).as_strided((4, 2, 16), (256, 16, 1), 64)
    made = one(view)
    assert made == RegisteredTensor((4, 2, 16), (256, 16, 1), 64, "bfloat16", 0, 4096)
    assert [type(item) for item in made] == [tuple, tuple, int, str, int, int]


@pytest.mark.torch
def test_storages_of_torch_tensors_are_numbered_as_they_appear() -> None:
    import torch

    a, b = torch.zeros(64), torch.zeros(64)
    assert storages(b, a, b[3:], a.view(torch.int8)[4:], torch.zeros(64)) == [0, 1, 0, 1, 2]


@pytest.mark.torch
def test_tensors_without_memory_are_told_apart_by_their_storage() -> None:
    import torch

    a, b = torch.zeros(64, device="meta"), torch.zeros(64, device="meta")
    assert storages(a, a[5:], b, a.view(torch.int8)) == [0, 0, 1, 0]
    assert one(a[5:])[2:] == (5, "float32", 0, 256)


@pytest.mark.torch
def test_an_empty_tensor_is_of_the_storage_it_was_cut_from() -> None:
    import torch

    pool = torch.zeros(64)
    assert storages(pool, pool[5:5], torch.zeros(0)) == [0, 0, 1]


@pytest.mark.torch
def test_fake_tensors_have_facts_as_well() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with warnings.catch_warnings(), FakeTensorMode():
        warnings.simplefilter("ignore")
        import torch

        a = torch.zeros(64)
        assert storages(a, a[5:], torch.zeros(64)) == [0, 0, 1]


@pytest.mark.torch
@given(st.data())
def test_facts_address_the_bytes_that_torch_does(data: st.DataObject) -> None:
    import torch

    itemsize, dtype = data.draw(st.sampled_from([(1, torch.int8), (2, torch.bfloat16), (4, torch.float32)]))
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    strides = data.draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    offset = data.draw(st.integers(0, 50))
    pool = torch.zeros(1024, dtype=torch.int8)
    view = pool.view(dtype).as_strided(shape, strides, offset)
    made = one(view)
    index = tuple(data.draw(st.integers(0, extent - 1)) for extent in shape)
    address = itemsize * (offset + sum(i * s for i, s in zip(index, strides, strict=True)))
    view.view(torch.uint8 if itemsize == 1 else dtype)[index] = 1
    assert pool.nonzero()[:, 0].min() >= address
    assert pool[address : address + itemsize].any()
    assert made == RegisteredTensor(tuple(shape), tuple(strides), offset, str(dtype)[6:], 0, 1024)


@pytest.mark.torch
def test_no_tensor_is_touched_and_nothing_is_kept() -> None:
    import gc
    import weakref

    import torch

    tensor = torch.arange(64)
    before, version = tensor.clone(), tensor._version
    made = facts({"a": tensor})
    assert tensor.equal(before)
    assert tensor._version == version
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is None
    assert made


def test_reading_an_engine_imports_neither_torch_nor_vllm() -> None:
    code = """
import sys
from kvlayout.engines import specs, tensors, vllm
vllm.registration(object(), {})
print([name for name in ("torch", "vllm", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_no_refusal_is_without_a_reason() -> None:
    class Reluctant(dict[str, fakes.Tensor]):
        """Its entries can be had, its keys can't be walked through."""

        def __iter__(self) -> NoReturn:
            raise RuntimeError("not now")

    found = read_caches(Reluctant(a=PLAIN))
    assert isinstance(found, Ok)
    assert found.value == facts({"a": PLAIN})
