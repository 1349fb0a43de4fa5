"""Properties over whatever hypothesis thinks of: larger numbers, symbolic ones, and shrunk counter-examples."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.algebra.affine import BLOCK_COUNT, Affine, Size, at, divide, nonneg, pair, parse_size, size
from kvlayout.algebra.canonical import bind_modes, canonical, modes_of, refine
from kvlayout.algebra.claims import Pages, Track
from kvlayout.algebra.kernel import Proved
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.units import raw
from tests.algebra.judging import check_fibre, check_injective, check_own, check_page, check_same, check_within
from tests.brute import COUNTS, bytes_of, make

numbers = st.integers(-300, 300)
sizes = st.builds(size, numbers, st.integers(-20, 20))
some_counts: st.SearchStrategy[Size] = st.one_of(st.integers(1, 4), st.just(BLOCK_COUNT))
extents = st.one_of(
    st.integers(1, 5),
    st.just(BLOCK_COUNT),
    st.builds(size, st.integers(1, 4), st.integers(0, 3)),
)


@st.composite
def any_layouts(draw: st.DrawFn, *, symbolic: bool = True) -> Layout:
    shape = draw(st.lists(extents if symbolic else st.integers(1, 5), max_size=4))
    strides = [draw(sizes if symbolic and draw(st.integers(0, 3)) == 0 else numbers) for _ in shape]
    return make(shape, strides, draw(sizes if symbolic else numbers), draw(st.sampled_from((1, 2, 4))))


@st.composite
def same_bytes(draw: st.DrawFn, layout: Layout) -> Layout:
    """A layout of the same bytes: an axis split in two, and axes of size 1 put in."""
    shape, strides = list(layout.shape), [raw(stride) for stride in layout.strides]
    for i in draw(st.lists(st.integers(0, max(len(shape) - 1, 0)), max_size=3)):
        part = draw(st.integers(1, 4))
        quotient = divide(shape[i], part) if shape else None
        if quotient is not None:
            shape[i : i + 1] = [quotient, part]
            strides[i : i + 1] = [strides[i] * part, strides[i]]
    at_ = draw(st.integers(0, len(shape)))
    shape.insert(at_, 1)
    strides.insert(at_, draw(numbers))
    return make(shape, strides, raw(layout.offset), layout.dtype.itemsize)


@given(any_layouts(), any_layouts())
def test_same_of_any_two(one: Layout, other: Layout) -> None:
    check_same(one, other)


@given(st.data(), any_layouts(symbolic=False))
def test_splitting_an_axis_leaves_the_bytes_as_they_were(data: st.DataObject, layout: Layout) -> None:
    assert isinstance(check_same(layout, data.draw(same_bytes(layout))), Proved)


@given(st.data(), any_layouts())
def test_splitting_an_axis_of_any_size_is_never_refuted(data: st.DataObject, layout: Layout) -> None:
    """The two may be undecided, where a merged size is no affine number: "same" may not say that they differ."""
    other = data.draw(same_bytes(layout))
    assert all(bytes_of(layout, n) == bytes_of(other, n) for n in COUNTS)
    check_same(layout, other)


@given(any_layouts())
def test_a_symbolic_canonical_form_is_that_of_every_block_count_it_is_bound_to(layout: Layout) -> None:
    modes = modes_of(layout)
    try:
        form = canonical(modes)
    except ArithmeticError:
        return
    for n in COUNTS:
        assert canonical(bind_modes(form[::-1], n)) == canonical(bind_modes(modes, n))
        assert modes_of(layout.bind(n)) == bind_modes(modes, n)


@given(any_layouts(), sizes)
def test_within_of_any(layout: Layout, storage: Size) -> None:
    check_within(layout, storage)


@given(any_layouts(symbolic=False))
def test_the_storage_that_just_holds_a_layout_holds_it(layout: Layout) -> None:
    data = bytes_of(layout)
    lifted = make(layout.shape, [*map(raw, layout.strides)], raw(layout.offset) - min(data), layout.dtype.itemsize)
    length = max(data) - min(data) + 1
    assert isinstance(check_within(lifted, length), Proved)
    assert not isinstance(check_within(lifted, length - 1), Proved)


@given(any_layouts())
def test_injective_of_any(layout: Layout) -> None:
    check_injective(layout)


@st.composite
def any_pages(draw: st.DrawFn) -> tuple[Layout, Pages, Size]:
    """A dense page in any axis order, with any numbers after it."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), draw(st.sampled_from((1, 2)))
    itemsize = step
    for i in order:
        strides[i], step = step, step * shape[i]
    stride = step + draw(st.integers(0, 5))
    blocks = draw(some_counts)
    offset = draw(st.integers(0, 9))
    axes = [Axis.BLOCK, *[Axis.CHANNEL] * len(shape)]
    return make([blocks, *shape], [stride, *strides], offset, itemsize, axes), Pages((offset,), stride, step), blocks


@given(any_pages())
def test_a_dense_page_is_proved_in_every_order_of_its_axes(case: tuple[Layout, Pages, Size]) -> None:
    assert isinstance(check_page(*case), Proved)


@given(any_pages(), st.integers(0, 5), st.integers(-3, 3))
def test_a_page_with_one_stride_changed_is_never_proved_falsely(
    case: tuple[Layout, Pages, Size],
    position: int,
    step: int,
) -> None:
    view, pages, blocks = case
    strides = [*map(raw, view.strides)]
    i = position % len(strides)
    strides[i] = strides[i] + step
    check_page(make(view.shape, strides, raw(view.offset), view.dtype.itemsize, view.axes), pages, blocks)


@given(
    st.tuples(numbers, st.one_of(st.none(), sizes)),
    st.integers(-2, 40),
    st.tuples(*[st.integers(1, 40)] * 3),
    some_counts,
)
def test_own_of_any(
    bases: tuple[int, Size | None],
    stride: int,
    extents: tuple[int, int, int],
    blocks: Size,
) -> None:
    base, other = bases
    payload, covered, page_bytes = extents
    if other is not None and isinstance(blocks, int):
        other = at(other, blocks)
    check_own(Pages((base,) if other is None else (base, other), stride, covered), page_bytes, payload, blocks)


@st.composite
def any_tracks(draw: st.DrawFn) -> tuple[list[Track], Size]:
    blocks = draw(some_counts)
    stride = draw(st.integers(2, 30))
    tracks = []
    for _ in range(draw(st.integers(0, 4))):
        page = draw(st.integers(1, stride))
        step = draw(st.sampled_from((stride, stride, stride, stride + 1, 2 * stride)))
        slope = draw(st.sampled_from((0, 0, 0, stride, -stride, 1))) if isinstance(blocks, Affine) else 0
        base = size(draw(st.integers(-60, 60)), slope)
        tracks.append(Track(base, step, page, draw(st.frozensets(st.integers(0, 2), min_size=1))))
    return tracks, blocks


@given(any_tracks())
def test_fibre_of_any(case: tuple[list[Track], Size]) -> None:
    check_fibre(*case)


@given(st.lists(st.integers(1, 6), max_size=4), st.data())
def test_refine_undoes_a_view(shape: list[int], data: st.DataObject) -> None:
    strides = [data.draw(st.integers(0, 40)) for _ in shape]
    form = canonical([(s, 0, d, 0) for s, d in zip(shape, strides, strict=True)])
    refined = refine(form, shape)
    assert not isinstance(refined, int)
    assert bytes_of(make(shape, refined)) == bytes_of(make(shape, strides))


@given(sizes, sizes, st.integers(-9, 9), st.integers(1, 9))
def test_arithmetic_of_sizes_is_that_of_their_values(x: Size, y: Size, factor: int, divisor: int) -> None:
    for n in COUNTS:
        assert at(x + y, n) == at(x, n) + at(y, n)
        assert at(x - y, n) == at(x, n) - at(y, n)
        assert at(-x, n) == -at(x, n)
        assert at(x * factor, n) == at(factor * x, n) == at(x, n) * factor
        assert at(factor - x, n) == factor - at(x, n)
        quotient = divide(x, divisor)
        assert quotient is None or at(quotient, n) * divisor == at(x, n)
    if divide(x, divisor) is None:
        assert any(at(x, n) % divisor for n in COUNTS)


@given(sizes)
def test_a_size_is_at_least_0_for_every_count_exactly_when_both_its_coefficients_are(x: Size) -> None:
    assert nonneg(x) == (at(x, 1) >= 0 and at(x, 10**9) >= 0)
    assert isinstance(x, int) == (pair(x)[1] == 0)


@settings(max_examples=50)
@given(st.integers(0, 10**19 - 1), st.integers(1, 10**19 - 1))
def test_a_size_is_read_as_it_is_written(constant: int, slope: int) -> None:
    value = BLOCK_COUNT * slope + constant
    assert str(value) == (f"{constant}+{slope}n" if constant else f"{slope}n")
    assert parse_size(str(value)) == value
