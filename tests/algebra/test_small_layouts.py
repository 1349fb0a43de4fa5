"""Every layout up to rank 3 and size 4, over a few strides: nothing is left out, so nothing needs luck."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kvlayout.algebra.affine import BLOCK_COUNT, Size
from kvlayout.algebra.canonical import address, canonical, count, modes_of, refine
from kvlayout.algebra.claims import Pages, Refuted, Track
from kvlayout.algebra.kernel import Proved
from kvlayout.algebra.layout import Axis, Layout
from tests.algebra.judging import check_fibre, check_injective, check_own, check_page, check_same, check_within
from tests.brute import bytes_of, make, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZES = (1, 2, 3, 4)


def layouts(rank: int, sizes: Sequence[int], strides: Sequence[int]) -> Iterator[Layout]:
    for shape in itertools.product(sizes, repeat=rank):
        for steps in itertools.product(strides, repeat=rank):
            yield make(shape, steps)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_canonical_forms_are_equal_exactly_where_the_bytes_are(rank: int) -> None:
    forms: dict[tuple[int, ...], object] = {}
    functions: dict[object, tuple[int, ...]] = {}
    for layout in layouts(rank, SIZES, (-2, -1, 0, 1, 2, 3, 4)):
        data, form = tuple(bytes_of(layout)), canonical(modes_of(layout))
        assert forms.setdefault(data, form) == form
        assert functions.setdefault(form, data) == data
    assert len(forms) == len(functions)


def test_a_canonical_form_has_nothing_left_to_drop_or_merge() -> None:
    for layout in layouts(3, SIZES, (-2, 0, 1, 2, 3, 4)):
        form = canonical(modes_of(layout))
        assert all(size > 1 for size, _, _, _ in form)
        assert all(y[2] != x[0] * x[2] for x, y in itertools.pairwise(form))


def test_an_address_is_the_byte_at_its_index() -> None:
    for layout in layouts(3, (1, 2, 4), (-2, 0, 1, 3)):
        modes, data = modes_of(layout), bytes_of(layout)
        assert [address(0, modes, i) for i in range(len(data))] == data
        assert address(0, modes, len(data)) is None
        assert count(modes) == len(data)


def test_refine_gives_the_only_strides_there_are_and_refuses_where_there_are_none() -> None:
    """A shape is a view of a layout when some strides give the same bytes; all strides are tried."""
    shapes = [s for s in itertools.product((1, 2, 3, 4, 6, 8), repeat=2) if s[0] * s[1] in {4, 6, 8, 12}]
    for layout in layouts(2, (2, 3, 4), (0, 1, 2, 3, 4, 6)):
        data = bytes_of(layout)
        form = canonical(modes_of(layout))
        for shape in shapes:
            if shape[0] * shape[1] != len(data):
                continue
            # In a view the first step of each axis is seen in the bytes, so its stride can be read off them.
            guess = (data[shape[1] % len(data)] - data[0], data[1 % len(data)] - data[0])
            possible = bytes_of(make(shape, guess)) == data
            strides = refine(form, shape)
            assert (not isinstance(strides, int)) == possible
            if isinstance(strides, int):
                assert 0 <= strides < len(shape)
            else:
                assert bytes_of(make(shape, strides)) == data


def test_same_of_every_two_layouts() -> None:
    small = [*layouts(0, (), ()), *layouts(1, (1, 2, 3), (-1, 0, 1, 2)), *layouts(2, (1, 2, 3), (0, 1, 2, 3))]
    answers = Counter(type(check_same(x, y)) for x, y in itertools.product(small, repeat=2))
    assert sum(answers.values()) == len(small) ** 2
    assert set(answers) == {Proved, Refuted}


@pytest.mark.parametrize("symbolic", [False, True], ids=["concrete", "symbolic"])
def test_page_of_every_view_with_two_axes_inside(symbolic: bool) -> None:
    answers: Counter[type] = Counter()
    for n, a, b in itertools.product((1,) if symbolic else SIZES, SIZES, SIZES):
        for da, db in itertools.product((-4, -3, -2, -1, 0, 1, 2, 3, 4), repeat=2):
            covered, start = a * b, min(0, (a - 1) * da) + min(0, (b - 1) * db)
            blocks: Size = BLOCK_COUNT if symbolic else n
            view = make((blocks, a, b), (covered + 2, da, db), -start)
            answers[type(check_page(view, Pages((0,), covered + 2, covered), blocks))] += 1
    assert set(answers) == {Proved, Refuted}


def test_every_number_of_page_is_looked_at() -> None:
    """A right answer, and each of its numbers changed by one in either direction."""
    for symbolic, planes in itertools.product((False, True), repeat=2):
        blocks: Size = BLOCK_COUNT if symbolic else 3
        shape: list[Size] = [blocks, 2, 3]
        strides: list[Size] = [8, 3, 1]
        axes = [Axis.BLOCK, Axis.TOKEN, Axis.CHANNEL]
        bases: tuple[Size, ...] = (40, 40 + blocks * 8) if planes else (40,)
        if planes:
            shape, strides, axes = [2, *shape], [bases[1] - 40, *strides], [Axis.PLANE, *axes]
        pages = Pages(bases, 8, 6)
        assert isinstance(check_page(make(shape, strides, 40, 1, axes), pages, blocks), Proved)
        for i, step in itertools.product(range(len(shape)), (-1, 1)):
            for sizes, steps in (
                ([*shape[:i], shape[i] + 1, *shape[i + 1 :]], strides),
                (shape, [*strides[:i], strides[i] + step, *strides[i + 1 :]]),
            ):
                assert isinstance(check_page(make(sizes, steps, 40, 1, axes), pages, blocks), Refuted)
        for step in (-1, 1):
            view = make(shape, strides, 40, 1, axes)
            for wrong in (
                Pages(tuple(base + step for base in bases), 8, 6),
                Pages((bases[0], *[base + step for base in bases[1:]]), 8 + (not planes), 6),
                Pages(bases, 8 + step, 6),
                Pages(bases, 8, 6 + step),
            ):
                assert isinstance(check_page(view, wrong, blocks), Refuted)


def test_own_of_every_chain() -> None:
    for payload, covered, page_bytes, stride in itertools.product(range(5), (1, 2, 3), (1, 2, 3, 4), range(-2, 5)):
        for blocks in (1, 2, 3, BLOCK_COUNT):
            check_own(Pages((7,), stride, covered), page_bytes, payload, blocks)


def test_own_of_every_two_planes() -> None:
    for covered, page_bytes, apart in itertools.product((1, 2), (2, 3), range(-13, 14)):
        for blocks in (1, 2, 3, BLOCK_COUNT):
            check_own(Pages((20, 20 + apart), 5, covered), page_bytes, 1, blocks)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_within_of_every_layout(rank: int) -> None:
    for layout in layouts(rank, SIZES, (-3, -1, 0, 1, 2, 5) if rank < 3 else (-2, 0, 1, 5)):
        data = bytes_of(layout)
        for offset, slack in itertools.product((-1, 0, 1), repeat=2) if rank < 3 else ((0, 0), (-1, 1), (0, -1)):
            lifted = make(layout.shape, steps_of(layout), offset - min(data))
            check_within(lifted, max(data) - min(data) + 1 + slack)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_injective_of_every_layout(rank: int) -> None:
    for layout in layouts(rank, SIZES, (-2, -1, 0, 1, 2, 3, 4, 6) if rank < 3 else (0, 1, 2, 3, -4)):
        answer = check_injective(layout)
        chain = sorted(abs(da) for sa, _, da, _ in modes_of(layout) if sa != 1 or da == 1)
        if all(a and b % a == 0 for a, b in itertools.pairwise(chain)):
            assert isinstance(answer, Proved | Refuted)  # on divisor chains the test is exact


def test_fibre_of_every_two_tracks() -> None:
    groups = (frozenset({0}), frozenset({1}), frozenset({0, 1}))
    for apart, t, x, y in itertools.product(range(-9, 10), (4, 5), (1, 2, 4), (1, 3, 4)):
        for group in groups:
            tracks = [Track(20, 4, x, frozenset({0})), Track(20 + apart, t, y, group)]
            for blocks in (1, 2, 3, 4, BLOCK_COUNT):
                check_fibre(tracks, blocks)


def test_fibre_of_two_tracks_whose_distance_depends_on_the_block_count() -> None:
    """Layers first: the next layer starts behind all blocks of the one before."""
    for slope, apart, page in itertools.product((-8, -4, -1, 1, 4, 8), range(-5, 6), (1, 3, 4)):
        for group in (frozenset({0}), frozenset({1})):
            tracks = [Track(0, 4, page, frozenset({0})), Track(BLOCK_COUNT * slope + apart, 4, 3, group)]
            check_fibre(tracks, BLOCK_COUNT)


def test_fibre_of_one_block_has_no_stride() -> None:
    for s, t, apart, group in itertools.product((-4, 0, 1, 9), (0, 9), range(-4, 5), (frozenset({0}), frozenset({1}))):
        check_fibre([Track(8, s, 2, frozenset({0})), Track(8 + apart, t, 3, group)], 1)
