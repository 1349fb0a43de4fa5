"""Sizes, units, element types, layouts and results: the values that everything else is made of."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from attrs.exceptions import FrozenInstanceError

from kvlayout.algebra import affine, kernel, refuting
from kvlayout.algebra import canonical as canonical_form
from kvlayout.algebra.affine import (
    BLOCK_COUNT,
    Affine,
    NotAffineError,
    Size,
    at,
    divide,
    format_size,
    nonneg,
    pair,
    parse_size,
    size,
)
from kvlayout.algebra.canonical import address, canonical, refine
from kvlayout.algebra.claims import Pages
from kvlayout.algebra.dtype import DTYPES, INT8
from kvlayout.algebra.layout import Axis, dense_strides
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.units import Bytes, Elements, all_in_bytes, in_bytes, in_elements, raw
from tests.brute import make


@pytest.mark.parametrize("module", [affine, canonical_form, kernel, refuting])
def test_a_module_has_what_it_names(module: ModuleType) -> None:
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n", (1, 1)),
        ("1n", (1, 1)),
        ("17n", (17, 17)),
        ("64+2n", (66, 2)),
        ("64+n", (65, 1)),
        ("0+2n", (2, 2)),
        ("9999999999999999999n", (9999999999999999999, 9999999999999999999)),
    ],
)
def test_a_symbolic_size_is_read(text: str, value: tuple[int, int]) -> None:
    read = parse_size(text)
    assert read is not None
    assert (read.a, read.b) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "0n",
        "7+0n",
        "n17",
        "-1n",
        "1n+2",
        "+n",
        "1 n",
        "n\n",
        "2N",
        "\u0661n",
        "1" * 20 + "n",
        "1" * 20 + "+n",
    ],
)
def test_anything_else_is_no_size(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize("text", ["1n", "17n", "64+2n", "-3+4n"])
def test_a_size_is_written_as_it_is_read(text: str) -> None:
    constant, _, slope = text.rpartition("+")
    value = BLOCK_COUNT * int(slope[:-1]) + int(constant or 0)
    assert format_size(value) == str(value) == text


def test_a_constant_is_written_as_a_number() -> None:
    assert format_size(-7) == "-7"


def test_a_size_without_a_slope_is_a_plain_number() -> None:
    assert size(7, 0) == 7
    assert isinstance(BLOCK_COUNT - BLOCK_COUNT, int)
    assert isinstance(BLOCK_COUNT * 0, int)
    assert isinstance(size(1, 1), Affine)
    assert pair(5) == (5, 0)
    assert pair(BLOCK_COUNT) == (1, 1)


def test_the_block_count_is_one_more_than_m() -> None:
    assert [at(BLOCK_COUNT, n) for n in (1, 2, 7)] == [1, 2, 7]
    assert at(12, 7) == 12


def test_a_product_of_two_block_counts_is_no_size() -> None:
    with pytest.raises(NotAffineError, match=r"\(1n\) \* \(3\+2n\) is not affine in the block count"):
        _ = BLOCK_COUNT * (BLOCK_COUNT * 2 + 3)


@pytest.mark.parametrize(
    ("value", "holds"),
    [(0, True), (-1, False), (size(0, 1), True), (size(-1, 9), False), (size(9, -1), False), (size(0, -1), False)],
)
def test_nonneg_asks_for_every_block_count(value: Size, holds: bool) -> None:
    assert nonneg(value) is holds


@pytest.mark.parametrize(
    ("value", "divisor", "quotient"),
    [(12, 4, 3), (12, 5, None), (size(4, 8), 4, size(1, 2)), (size(4, 6), 4, None), (size(6, 4), 4, None), (-8, 4, -2)],
)
def test_divide_is_exact_for_every_block_count(value: Size, divisor: int, quotient: Size | None) -> None:
    assert divide(value, divisor) == quotient


def test_units_are_plain_numbers_at_run_time() -> None:
    assert raw(Bytes(3)) == 3
    assert raw(Elements(3)) == 3
    assert raw(in_bytes(Elements(BLOCK_COUNT), 2)) == BLOCK_COUNT * 2
    assert in_elements(Bytes(BLOCK_COUNT * 6), 3) == Elements(BLOCK_COUNT * 2)
    assert in_elements(Bytes(BLOCK_COUNT), 2) is None
    assert tuple(map(raw, all_in_bytes((BLOCK_COUNT, 3, 1), 4))) == (BLOCK_COUNT * 4, 12, 4)


def test_an_unknown_element_type_is_absent() -> None:
    assert "float7" not in DTYPES
    assert INT8 is DTYPES["int8"]
    assert {dtype.itemsize for dtype in DTYPES.values()} == {1, 2, 4, 8, 16}


def test_a_layout_needs_as_many_strides_and_axes_as_sizes() -> None:
    with pytest.raises(ValueError, match="2 sizes, 1 strides and 2 axes"):
        make((2, 3), (1,))
    with pytest.raises(ValueError, match="2 sizes, 2 strides and 1 axes"):
        make((2, 3), (3, 1), axes=(Axis.BLOCK,))


@pytest.mark.parametrize("extent", [0, -1, size(0, 1), size(5, -1)])
def test_a_layout_addresses_something_on_every_axis(extent: Size) -> None:
    with pytest.raises(ValueError, match="addresses nothing"):
        make((2, extent), (3, 1))


def test_a_layout_is_a_value() -> None:
    layout = make((2, 3), (3, 1))
    assert layout == make((2, 3), (3, 1))
    assert hash(layout) == hash(make((2, 3), (3, 1)))
    frozen: Any = layout
    with pytest.raises(FrozenInstanceError):
        frozen.shape = (1,)


def test_a_layout_binds_to_a_block_count() -> None:
    layout = make((2, BLOCK_COUNT, 4), (BLOCK_COUNT * 4, 4, 1), BLOCK_COUNT + 2, 2)
    assert layout.bind(5) == make((2, 5, 4), (20, 4, 1), 7, 2)


def test_a_layout_shifts_as_a_whole() -> None:
    assert make((2,), (1,), 3).shifted(Bytes(4)) == make((2,), (1,), 7)


def test_the_bytes_of_one_block() -> None:
    assert make((BLOCK_COUNT, 3, 5), (99, 5, 1), 0, 2).inner_bytes == 30
    assert make((3, 5), (5, 1), 0, 2, (Axis.TOKEN, Axis.HEAD)).inner_bytes == 30
    assert make((2, BLOCK_COUNT), (1, 1), 0, 1, (Axis.BLOCK, Axis.HEAD)).inner_bytes == BLOCK_COUNT
    assert make((2, 3), (1, 1)).where(Axis.TOKEN) is None


def test_element_strides_where_the_item_size_divides() -> None:
    assert make((BLOCK_COUNT, 2), (BLOCK_COUNT * 4, 2), 0, 2).element_strides() == (BLOCK_COUNT * 2, 1)
    assert make((2, 2), (5, 2), 0, 2).element_strides() is None


def test_dense_strides_of_any_shape() -> None:
    assert dense_strides((), 2) == ()
    assert tuple(map(raw, dense_strides((3, 1, 4), 2))) == (8, 8, 2)
    assert tuple(map(raw, dense_strides((2, BLOCK_COUNT, 4), 1))) == (BLOCK_COUNT * 4, 4, 1)


def test_pages_end_behind_the_last_block_of_the_last_interval() -> None:
    assert Pages((3,), 10, 4).end(2) == 17
    assert Pages((0, BLOCK_COUNT * 10), 10, 4).end(BLOCK_COUNT) == BLOCK_COUNT * 20 - 6
    assert Pages((0, 5), 10, 4).shifted(BLOCK_COUNT) == Pages((BLOCK_COUNT, BLOCK_COUNT + 5), 10, 4)


def test_a_size_below_one_has_no_address() -> None:
    assert address(5, [(0, 0, 1, 0)], 0) is None
    assert address(5, [(-2, 0, 1, 0)], 0) is None
    assert address(5, [], 0) == 5
    assert address(5, [], 1) is None


def test_a_canonical_form_with_two_block_counts_merged_is_none() -> None:
    with pytest.raises(NotAffineError, match=r"sizes 1\+1m and 1\+2m merge"):
        canonical([(1, 1, 1, 2), (1, 2, 1, 0)])


def test_a_stride_that_is_a_product_of_two_block_counts_is_no_continuation() -> None:
    modes = [(2, 0, 1, 2), (1, 1, 1, 1)]
    assert canonical(modes) == ((1, 1, 1, 1), (2, 0, 1, 2))


@pytest.mark.parametrize("slope", [-1, 1])
def test_a_mode_is_continued_for_every_block_count_or_not_at_all(slope: int) -> None:
    assert canonical([(2, 0, 4, slope), (4, 0, 1, 0)]) == ((4, 0, 1, 0), (2, 0, 4, slope))
    assert canonical([(2, 0, 4, 3 + slope), (2, 3, 2, 0)]) == ((2, 3, 2, 0), (2, 0, 4, 3 + slope))
    assert canonical([(2, 0, 4, 6), (2, 3, 2, 0)]) == ((4, 6, 2, 0),)
    assert canonical([(2, 0, 4, 6 + slope), (2, 0, 2, 3)]) == ((2, 0, 2, 3), (2, 0, 4, 6 + slope))
    assert canonical([(2, 0, 4, 6), (2, 0, 2, 3)]) == ((4, 0, 2, 3),)


def test_refine_says_which_axis_is_no_subdivision() -> None:
    form = canonical([(2, 0, 128, 0), (96, 0, 1, 0)])
    assert refine(form, (2, 3, 32)) == (128, 32, 1)
    assert refine(form, (2, 96, 1)) == (128, 1, 1)
    assert refine(form, (2, 1, 96)) == (128, 96, 1)
    assert refine(form, (1, 2, 96)) == (256, 128, 1)
    assert refine(form, (192,)) == 0
    assert refine(form, (3, 64)) == 1
    assert refine((), (1, 1)) == (1, 1)
    assert refine((), (2,)) == 0


def half(x: int) -> Result[int, str]:
    return Ok(x // 2) if x % 2 == 0 else Err(f"{x} is odd")


def test_a_pipeline_ends_with_its_first_refusal() -> None:
    assert Ok(12).then(half).then(half) == Ok(3)
    assert Ok(6).then(half).then(half).then(half) == Err("3 is odd")
    assert Ok(6).map(str) == Ok("6")
    assert half(3).map(str) == Err("3 is odd")


def test_unwrapping_a_refusal_raises_it() -> None:
    assert Ok(1).unwrap() == 1
    with pytest.raises(ValueError, match="3 is odd"):
        half(3).unwrap()
    with pytest.raises(KeyError):
        Err(KeyError("x")).unwrap()
