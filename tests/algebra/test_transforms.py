"""The moves and the transforms: what each keeps, what each refuses, and with which numbers."""

from __future__ import annotations

from random import Random

import pytest

from kvlayout.algebra import kernel
from kvlayout.algebra.affine import BLOCK_COUNT, Affine, parse_size
from kvlayout.algebra.claims import Pages
from kvlayout.algebra.dtype import DTYPES, INT8
from kvlayout.algebra.kernel import Proved
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.transforms import (
    Refusal,
    beside_rows,
    coalesce_kernel_pages,
    extend,
    flatten_page,
    join_rows,
    merge,
    merge_mla_tiles,
    permute,
    reinterpret_page,
    retype,
    settle,
    split,
)
from kvlayout.algebra.units import Bytes, raw
from tests.algebra.drawing import draw_layout, draw_symbolic
from tests.brute import COUNTS, bytes_of, make, spread, steps_of

B, P, H, T, C, K, Y = (
    Axis.BLOCK,
    Axis.PLANE,
    Axis.HEAD,
    Axis.TOKEN,
    Axis.CHANNEL,
    Axis.KERNEL_PAGE,
    Axis.BYTES,
)
N17 = parse_size("17n") or BLOCK_COUNT


def refusal(result: Result[Layout, Refusal]) -> Refusal:
    assert isinstance(result, Err)
    return result.error


def kernel_paged() -> Layout:
    """Qwen3-Next's attention on a GPU: 17 kernel pages of 32 tokens a block, K and V in each, one head of 128."""
    return make((N17, 2, 32, 1, 128), (16384, 8192, 256, 256, 2), 64, 2, (B, P, T, H, C))


def test_split_keeps_every_byte_in_order() -> None:
    random = Random("split")
    for _ in range(500):
        layout = draw_symbolic(random)
        i, inner = random.randrange(len(layout.shape)), random.randint(1, 3)
        result = split(layout, i, inner, (H, C))
        if isinstance(result, Ok):
            assert result.value.axes[i : i + 2] == (H, C)
            assert all(bytes_of(result.value, n) == bytes_of(layout, n) for n in COUNTS)
            assert isinstance(kernel.same(layout, result.value), Proved)
        else:
            extent = layout.shape[i]
            assert isinstance(extent, Affine) or extent % inner
            assert result.error == Refusal("split", layout.axes[i].value, f"a multiple of {inner}", str(extent))


def test_merge_keeps_every_byte_in_order_and_is_refused_only_where_it_would_not() -> None:
    random = Random("merge")
    merged = 0
    for _ in range(3000):
        layout = draw_layout(random)
        if len(layout.shape) < 2:
            continue
        i = random.randrange(len(layout.shape) - 1)
        result = merge(layout, i, Y)
        if isinstance(result, Ok):
            merged += 1
            assert result.value.axes[i] is Y
            assert bytes_of(result.value) == bytes_of(layout)
            continue
        near = raw(layout.strides[i + 1] * layout.shape[i + 1])
        far = raw(layout.strides[i])
        assert result.error == Refusal("merge", layout.axes[i].value, f"a stride of {near} bytes", str(far))
        assert far != near
        assert layout.shape[i] != 1
        assert layout.shape[i + 1] != 1
    assert merged > 300


def test_merge_of_an_axis_of_one_takes_the_other_s_stride() -> None:
    assert steps_of(merge(make((4, 1), (8, 999)), 0, B).unwrap()) == (8,)
    assert steps_of(merge(make((1, 4), (999, 8)), 0, B).unwrap()) == (8,)


def test_merge_undoes_split() -> None:
    layout = kernel_paged()
    again = split(layout, 0, 17, (B, K)).then(lambda it: merge(it, 0, B))
    assert again == Ok(layout)


def test_permute_moves_axes_with_their_numbers() -> None:
    random = Random("permute")
    for _ in range(300):
        layout = draw_layout(random)
        order = list(range(len(layout.shape)))
        random.shuffle(order)
        moved = permute(layout, order).unwrap()
        ours = sorted((tuple(index[i] for i in order), byte) for index, byte in spread(layout, 1))
        assert ours == sorted(spread(moved, 1))


@pytest.mark.parametrize("order", [(0,), (0, 0), (0, 2), (1, 0, 2)])
def test_permute_takes_each_axis_once(order: tuple[int, ...]) -> None:
    layout = make((2, 3), (3, 1))
    assert refusal(permute(layout, order)) == Refusal("permute", "all", "each of 0 to 1 once", str(order))


def test_retype_keeps_every_byte_in_order() -> None:
    random = Random("retype")
    made = 0
    for _ in range(2000):
        layout = draw_layout(random)
        dtype = random.choice((DTYPES["int8"], DTYPES["float16"], DTYPES["float32"]))
        result = retype(layout, dtype)
        if isinstance(result, Ok):
            made += 1
            assert result.value.dtype == dtype
            assert bytes_of(result.value) == bytes_of(layout)
    assert made > 500


@pytest.mark.parametrize(
    ("layout", "axis", "expected", "actual"),
    [
        (make((), ()), "none", "a last stride of 1 bytes", "no axis"),
        (make((4, 4), (8, 2)), "channel", "a last stride of 1 bytes", "2"),
        (make((4, 3), (4, 1)), "channel", "a multiple of 2 bytes", "3"),
        (make((4, 4), (4, 1), 3), "offset", "a multiple of 2 bytes", "3"),
        (make((4, 4), (5, 1)), "block", "a multiple of 2 bytes", "5"),
        (make((BLOCK_COUNT, 4), (4, 1), BLOCK_COUNT), "offset", "a multiple of 2 bytes", "1n"),
    ],
)
def test_retype_says_which_number_does_not_divide(layout: Layout, axis: str, expected: str, actual: str) -> None:
    assert refusal(retype(layout, DTYPES["float16"])) == Refusal("retype", axis, expected, actual)


def test_retype_to_a_type_of_the_same_size_needs_nothing() -> None:
    layout = make((3,), (7,), 1, 2)
    assert steps_of(retype(layout, DTYPES["float16"]).unwrap()) == (7,)


def test_extend_grows_into_the_page_and_not_beyond() -> None:
    layout = Layout((4, 6), (Bytes(10), Bytes(1)), Bytes(0), INT8, Bytes(10), (B, Y))
    assert extend(layout, 1, 6) == Ok(layout)
    assert extend(layout, 1, 10).unwrap().shape == (4, 10)
    assert refusal(extend(layout, 1, 11)) == Refusal("extend", "bytes", "at most the page of 10 bytes", "11")
    assert refusal(extend(layout, 1, 5)) == Refusal("extend", "bytes", "at least 6", "5")


def test_kernel_pages_of_a_block_are_put_side_by_side() -> None:
    paged = coalesce_kernel_pages(kernel_paged(), 17).unwrap()
    assert paged.shape == (BLOCK_COUNT, 17, 2, 32, 1, 128)
    assert steps_of(paged)[:2] == (17 * 16384, 16384)
    assert paged.axes == (B, K, P, T, H, C)
    assert isinstance(kernel.same(kernel_paged(), paged), Proved)
    assert refusal(coalesce_kernel_pages(kernel_paged(), 16)) == Refusal("split", "block", "a multiple of 16", "17n")


def test_a_page_is_read_in_memory_order_whatever_the_order_of_its_axes() -> None:
    random = Random("flatten")
    for _ in range(300):
        shape = [random.randint(1, 3) for _ in range(random.randint(0, 4))]
        order = list(range(len(shape)))
        random.shuffle(order)
        item = random.choice((1, 2, 4))
        strides, step = [0] * len(shape), item
        for i in order:
            strides[i] = step if shape[i] != 1 else 999
            step *= shape[i]
        layout = make(
            [BLOCK_COUNT, *shape], [step + 4, *strides], 3, item, [B, *[(H, T, C, K)[i] for i in range(len(shape))]]
        )
        flat = flatten_page(layout, (B,)).unwrap()
        assert flat == make((BLOCK_COUNT, step // item), (step + 4, item), 3, item, (B, Y))


def test_a_page_with_a_hole_or_two_intervals_is_not_flattened() -> None:
    holed = make((4, 3, 4), (64, 5, 1), 0, 1, (B, T, C))
    assert refusal(flatten_page(holed, (B,))) == Refusal("merge", "token", "a stride of 4 bytes", "5")
    assert refusal(reinterpret_page(holed, (12,), (Y,), INT8)) == refusal(flatten_page(holed, (B,)))
    twice = make((4, 2, 2), (16, 1, 1), 0, 1, (B, T, C))
    assert refusal(flatten_page(twice, (B,))) == Refusal("merge", "channel", "a stride of its own", "1")
    planes = make((2, BLOCK_COUNT, 4), (BLOCK_COUNT * 4, 4, 1), 0, 1, (P, B, C))
    assert refusal(flatten_page(planes, (B,))).move == "merge"
    assert flatten_page(planes, (B, P)).unwrap().shape == (2, BLOCK_COUNT, 4)


def test_a_state_row_becomes_rows_of_its_block_with_the_padding_it_needs() -> None:
    """A padded state row of 1,072 bytes in a page of 1,088, shown as 16 rows of 34 bfloat16."""
    row = Layout(
        (BLOCK_COUNT, 1, 1, 536),
        (Bytes(2176), Bytes(1072), Bytes(1072), Bytes(2)),
        Bytes(128),
        DTYPES["bfloat16"],
        Bytes(1088),
        (B, Axis.STATE, H, C),
    )
    view = reinterpret_page(row, (16, 1, 34), (T, H, C), DTYPES["bfloat16"]).unwrap()
    assert view.shape == (BLOCK_COUNT, 16, 1, 34)
    assert steps_of(view) == (2176, 68, 68, 2)
    assert isinstance(kernel.prove(view, Pages((128,), 2176, 1088), 1088, 1072, BLOCK_COUNT, 16), Proved)
    assert refusal(reinterpret_page(row, (16, 1, 36), (T, H, C), DTYPES["bfloat16"])).move == "extend"


def test_a_page_is_read_as_another_element_type_where_its_numbers_divide() -> None:
    row = Layout((BLOCK_COUNT, 6), (Bytes(16), Bytes(2)), Bytes(4), DTYPES["bfloat16"], Bytes(16), (B, T))
    wide = reinterpret_page(row, (4, 1), (T, C), DTYPES["float32"]).unwrap()
    assert (wide.shape, steps_of(wide), wide.dtype) == ((BLOCK_COUNT, 4, 1), (16, 4, 4), DTYPES["float32"])
    narrow = reinterpret_page(row, (16,), (Y,), INT8).unwrap()
    assert (narrow.shape, steps_of(narrow), raw(narrow.offset)) == ((BLOCK_COUNT, 16), (16, 1), 4)
    assert refusal(reinterpret_page(row, (2,), (T,), DTYPES["int64"])).move == "retype"


def test_pages_of_two_planes_stay_two_intervals() -> None:
    planes = make((2, BLOCK_COUNT, 4, 2, 8), (BLOCK_COUNT * 128, 128, 32, 16, 2), 0, 2, (P, B, T, H, C))
    view = reinterpret_page(planes, (4, 1, 16), (T, H, C), DTYPES["bfloat16"], (P, B)).unwrap()
    assert view.shape == (2, BLOCK_COUNT, 4, 1, 16)
    pages = Pages((0, BLOCK_COUNT * 128), 128, 128)
    assert isinstance(kernel.prove(view, pages, 128, 128, BLOCK_COUNT, 4), Proved)


def test_kernel_pages_join_their_rows_where_rows_lie_outside() -> None:
    latent = make((BLOCK_COUNT * 12, 64, 576), (73728, 1152, 2), 0, 2, (B, T, C))
    view = merge_mla_tiles(latent, 12).unwrap()
    assert view.shape == (BLOCK_COUNT, 768, 576)
    assert view.axes == (B, T, C)
    assert isinstance(kernel.same(latent, view), Proved)
    assert refusal(merge_mla_tiles(latent, 11)).move == "split"


def test_kernel_pages_with_heads_outside_rows_do_not_join() -> None:
    heads = make((BLOCK_COUNT * 2, 4, 16, 8), (512, 128, 8, 1), 0, 1, (B, H, T, C))
    paged = coalesce_kernel_pages(heads, 2).then(beside_rows).unwrap()
    assert paged.axes == (B, H, K, T, C)
    assert refusal(join_rows(paged)) == Refusal("merge", "kernel page", "a stride of 128 bytes", "512")


def test_settle_gives_axes_of_one_the_stride_of_what_lies_inside() -> None:
    loose = make((BLOCK_COUNT, 1, 16, 1, 8), (999, 7, 16, 3, 2), 0, 2)
    assert steps_of(settle(loose)) == (999, 256, 16, 16, 2)
    assert steps_of(settle(make((1,), (77,), 0, 4))) == (4,)
    assert steps_of(settle(make((1, BLOCK_COUNT, 4), (5, 4, 1)))) == (4, 4, 1)
    for layout in (make((2, 3), (50, 7)), make((1, 2), (2, 1))):
        assert settle(layout) is layout
    for layout in (loose, make((1, 3, 1), (9, 2, 9))):
        assert isinstance(kernel.same(layout, settle(layout)), Proved)
