"""Store and retrieve against one byte after the other: the right ones, in order, and no other ones."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.errors import Code, LayoutErrors
from kvlayout.transfer import retrieve, store

pytest.importorskip("torch")
import torch

from tests.transfer.enumerating import DEVICES, DTYPES, Drawn, drawn, listed, random_pool

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

every_device = pytest.mark.parametrize("device", DEVICES)


def pages_of(view: Drawn, pool: list[int], ids: list[int]) -> bytes:
    """Return the bytes of blocks, one after the other."""
    return bytes(pool[address] for block in ids for address in view.addresses(block))


def code_of(call: Callable[[], object]) -> Code:
    with pytest.raises(LayoutErrors) as caught:
        call()
    (error,) = caught.value.errors
    return error.code


# --------------------------------------------------------------------------------------------------- any strided view


@every_device
@settings(max_examples=150)
@given(view=drawn(), data=st.data())
def test_a_store_reads_the_bytes_of_each_block_in_the_view_s_order(
    device: str, view: Drawn, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, view.shape[0] - 1), max_size=5))
    pool = random_pool(view.pool).to(device)
    before = listed(pool)
    pages = store(view.over(pool), ids)
    assert bytes(pages) == pages_of(view, before, ids)
    assert listed(pool) == before


@every_device
@settings(max_examples=150)
@given(view=drawn(), data=st.data())
def test_a_retrieve_writes_the_bytes_of_each_block_and_no_other(device: str, view: Drawn, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, view.shape[0] - 1), unique=True))
    pool = random_pool(view.pool).to(device)
    addresses = [address for block in ids for address in view.addresses(block)]
    pages = bytes(listed(random_pool(len(addresses), seed=1)))
    expected = listed(pool)
    for address, value in zip(addresses, pages, strict=True):
        expected[address] = value
    retrieve(view.over(pool), ids, pages)
    assert listed(pool) == expected


@every_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_moves_bit_by_bit(device: str, dtype: torch.dtype) -> None:
    """Also where a float is no number, or a bool is no truth value."""
    item = dtype.itemsize
    view = Drawn((4, 3, 2), (8 * item, 2 * item, item), 2 * item, dtype, 40 * item)
    pool = torch.full((view.pool,), 0xFF, dtype=torch.uint8, device=device)
    pages = store(view.over(pool), [3, 1])
    assert pages == b"\xff" * (12 * item)
    other = torch.zeros_like(pool)
    retrieve(view.over(other), [0, 2], pages)
    written = {address for block in (0, 2) for address in view.addresses(block)}
    assert listed(other) == [0xFF if address in written else 0 for address in range(view.pool)]


def test_the_types_under_test_are_those_of_caches() -> None:
    assert {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.float32} <= {*DTYPES}


@given(view=drawn(dtypes=[torch.int8, torch.bfloat16]), data=st.data())
def test_one_page_can_be_cut_out_of_many(view: Drawn, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, view.shape[0] - 1), min_size=1, max_size=4))
    tensor = view.over(random_pool(view.pool))
    pages = store(tensor, ids)
    size = len(pages) // len(ids)
    assert [pages[i * size : (i + 1) * size] for i in range(len(ids))] == [store(tensor, [block]) for block in ids]


# -------------------------------------------------------------------------------------------------------- how it moves


def operations(call: Callable[[], object]) -> list[str]:
    """Return the names of the operations of torch that a call runs."""
    names: list[str] = []

    def ran(mode: object, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        del mode, types
        names.append(function._schema.name.removeprefix("aten::"))
        return function(*args, **(kwargs or {}))

    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
    with type("Counting", (base,), {"__torch_dispatch__": ran})():
        call()
    return names


MOVES = ("index", "copy", "clone", "gather", "scatter", "contiguous", "cat", "put", "fill")


def test_a_layer_is_one_gather_and_one_scatter() -> None:
    tensor = torch.zeros(9, 4, 6, 8, dtype=torch.bfloat16)[:, :, 1:5]
    for call in (
        lambda: store(tensor, [7, 2, 5]),
        lambda: retrieve(tensor, [7, 2, 5], bytearray(3 * 4 * 4 * 8 * 2)),
    ):
        moves = [name for name in operations(call) if any(move in name for move in MOVES)]
        assert len(moves) == 1
        assert moves[0] in ("index_select", "index_copy_")


BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "a view of bytes": memoryview,
    "a slice off the element size": lambda data: memoryview(bytearray(b"x" + data))[1:],
    "a slice of bytes off the element size": lambda data: memoryview(b"x" + data)[1:],
    "a view with gaps": lambda data: memoryview(bytearray(b"".join(bytes([byte, 0]) for byte in data)))[::2],
    "a view of integers": lambda data: memoryview(array("I", data)),
    "a table": lambda data: memoryview(bytearray(data)).cast("B", (4, len(data) // 4)),
}


@pytest.mark.parametrize("made", BUFFERS.values(), ids=list(BUFFERS))
def test_pages_come_in_any_buffer(made: Callable[[bytes], Any]) -> None:
    pages = bytes(range(48))
    tensor = torch.zeros(5, 6, dtype=torch.int32)
    retrieve(tensor, [4, 1], made(pages))
    assert store(tensor, [4, 1, 0]) == pages + bytes(24)


def test_what_is_stored_is_a_copy() -> None:
    tensor = torch.ones(3, 4, dtype=torch.uint8)
    pages = store(tensor, [1])
    tensor.zero_()
    assert pages == b"\x01" * 4
    retrieve(tensor, [2], pages)
    pages[0] = 9
    pages.extend(b"more")  # nothing holds the buffer
    assert tensor.tolist() == [[0] * 4, [0] * 4, [1] * 4]


@every_device
def test_no_blocks_are_no_bytes(device: str) -> None:
    tensor = torch.ones(3, 4, dtype=torch.uint8, device=device)
    assert store(tensor, []) == b""
    retrieve(tensor, [], b"")
    assert tensor.tolist() == [[1] * 4] * 3


def test_a_view_that_learns_is_moved_like_any_other() -> None:
    tensor = torch.ones(3, 4, requires_grad=True)
    assert len(store(tensor, [0, 2])) == 32


# ------------------------------------------------------------------------------------------------------------ refusals

WRONG_IDS: dict[str, list[Any]] = {
    "negative": [1, -1],
    "the block count": [4],
    "far beyond": [10**30],
    "True": [True],
    "a float": [1.0],
    "a text": ["1"],
    "nothing": [None],
}


@pytest.mark.parametrize("ids", WRONG_IDS.values(), ids=list(WRONG_IDS))
def test_ids_that_are_no_blocks_are_refused(ids: list[Any]) -> None:
    tensor = torch.zeros(4, 8, dtype=torch.uint8)
    assert code_of(lambda: store(tensor, ids)) is Code.BAD_BLOCK_IDS
    assert code_of(lambda: retrieve(tensor, ids, b"\x01" * 8 * len(ids))) is Code.BAD_BLOCK_IDS
    assert not tensor.any()


@pytest.mark.parametrize("ids", [torch.tensor([3, 1]), [torch.tensor(3), torch.tensor(1)], (3, 1), iter([3, 1])])
def test_whole_numbers_are_ids_however_they_come(ids: Any) -> None:
    assert store(torch.arange(8, dtype=torch.uint8).reshape(4, 2), ids) == bytes([6, 7, 2, 3])


@pytest.mark.parametrize("ids", [torch.tensor([1.0]), torch.tensor([True]), torch.tensor([[1]]), torch.tensor([4])])
def test_other_tensors_are_no_ids(ids: Any) -> None:
    assert code_of(lambda: store(torch.zeros(4, 8, dtype=torch.uint8), ids)) is Code.BAD_BLOCK_IDS


@pytest.mark.parametrize(("view", "layer"), [([torch.zeros(4)], None), (b"1", None), (torch.zeros(4), "layer")])
def test_what_is_no_view_and_no_layer_is_told_apart(view: Any, layer: Any) -> None:
    with pytest.raises(TypeError, match="is to be"):
        store(view, [0], layer=layer)


def test_two_pages_for_one_block_are_refused_and_nothing_is_written() -> None:
    tensor = torch.zeros(4, 8, dtype=torch.uint8)
    assert code_of(lambda: retrieve(tensor, [1, 2, 1], b"\x01" * 24)) is Code.BAD_BLOCK_IDS
    assert not tensor.any()
    assert store(tensor, [1, 2, 1]) == bytes(24)


@pytest.mark.parametrize("length", [0, 1, 15, 17, 32])
def test_data_of_another_length_are_refused_and_nothing_is_written(length: int) -> None:
    tensor = torch.zeros(4, 8, dtype=torch.uint8)
    assert code_of(lambda: retrieve(tensor, [1, 2], b"\x01" * length)) is Code.BAD_BLOCK_IDS
    assert not tensor.any()


def test_data_for_no_blocks_are_refused() -> None:
    assert code_of(lambda: retrieve(torch.zeros(4, 8), [], b"\x01")) is Code.BAD_BLOCK_IDS


def test_the_null_block_is_refused_where_it_is_known() -> None:
    tensor = torch.zeros(4, 8, dtype=torch.uint8)
    assert code_of(lambda: store(tensor, [1, 0], null_block=0)) is Code.BAD_BLOCK_IDS
    assert code_of(lambda: retrieve(tensor, [1, 0], b"\x01" * 16, null_block=0)) is Code.BAD_BLOCK_IDS
    assert not tensor.any()
    assert store(tensor, [1, 0]) == bytes(16)


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 2, 8), (2, 2, 64, 2, 16)])
def test_a_first_axis_of_two_may_be_planes(shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    assert code_of(lambda: store(tensor, [1])) is Code.AXES_AMBIGUOUS
    assert code_of(lambda: retrieve(tensor, [1], bytes(tensor[0].nbytes))) is Code.AXES_AMBIGUOUS


def test_two_blocks_of_bytes_are_blocks() -> None:
    assert len(store(torch.zeros(2, 8, dtype=torch.int8), [1])) == 8


def test_elements_that_no_integer_is_as_wide_as_are_refused() -> None:
    assert code_of(lambda: store(torch.zeros(4, 8, dtype=torch.complex128), [1])) is Code.UNKNOWN_DTYPE


def test_a_single_element_has_no_blocks() -> None:
    assert code_of(lambda: store(torch.tensor(1), [0])) is Code.BAD_BLOCK_IDS


def test_a_refusal_says_which_ids_and_what_to_do() -> None:
    with pytest.raises(LayoutErrors) as caught:
        store(torch.zeros(4, 8), [1, 4, 5, 6, 7, 8])
    text = str(caught.value)
    assert "blocks 0 to 3" in text
    assert "blocks 4, 5, 6, 7 and 1 more" in text
    assert "to do" in text


def test_a_block_of_one_element_is_no_part_of_a_wider_integer() -> None:
    tensor = torch.arange(16, dtype=torch.uint8)
    assert store(tensor, [9, 3]) == bytes([9, 3])
    retrieve(tensor, [0], b"\xff")
    assert tensor.tolist() == [255, *range(1, 16)]
