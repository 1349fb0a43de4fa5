"""What a refusal says: the reason, the block count, the index and the two bytes; and what is never let out."""

from __future__ import annotations

import pytest

from kvlayout.algebra import affine, kernel, refuting
from kvlayout.algebra.affine import BLOCK_COUNT, Affine, Size, parse_size, size
from kvlayout.algebra.claims import Pages, Refuted, Track, Undecided, Witness
from kvlayout.algebra.kernel import Proved, Verdict
from kvlayout.algebra.layout import Axis, Layout
from tests.algebra.judging import check_fibre, check_injective, check_page, check_same, check_within
from tests.brute import make

N = BLOCK_COUNT
B, P, T = Axis.BLOCK, Axis.PLANE, Axis.TOKEN
ONE, OTHER = frozenset({0}), frozenset({1})


def refuted(verdict: Verdict) -> tuple[str, Witness]:
    assert isinstance(verdict, Refuted), verdict
    return verdict.reason, verdict.witness


def undecided(verdict: object) -> str:
    assert isinstance(verdict, Undecided), verdict
    return verdict.reason


# ------------------------------------------------------------------------------------------------------------- same


def test_padded_kernel_pages_are_no_blocks() -> None:
    """Kernel pages of 100 bytes with 3 blocks' worth of padding: the fifth page is not where blocks would have it."""
    reason, witness = refuted(check_same(make((3, 5, 100), (512, 100, 1)), make((15, 100), (100, 1))))
    assert reason == "the canonical forms differ at mode 0"
    assert witness == Witness(1, 500, 512, 500)


def test_a_shift_is_seen_at_the_first_byte() -> None:
    assert refuted(check_same(make((3, 4), (4, 1)), make((3, 4), (4, 1), 7))) == (
        "the offsets differ",
        Witness(3, 0, 0, 7),
    )


def test_a_missing_byte_is_no_byte() -> None:
    reason, witness = refuted(check_same(make((3, 4), (8, 1)), make((2, 4), (8, 1))))
    assert reason == "the canonical forms differ at mode 1"
    assert witness == Witness(1, 8, 16, None)
    assert refuted(check_same(make((2, 4), (8, 1)), make((3, 4), (8, 1))))[1] == Witness(1, 8, None, 16)
    assert refuted(check_same(make((1, 4), (8, 1)), make((2, 4), (8, 1))))[1] == Witness(1, 4, None, 8)


def test_another_order_is_seen_where_it_begins() -> None:
    assert refuted(check_same(make((4, 2, 3), (6, 3, 1)), make((4, 2, 3), (6, 1, 2))))[1] == Witness(4, 1, 1, 2)


def test_layouts_that_agree_at_some_block_counts_are_told_apart_at_another() -> None:
    """With one block its stride is not seen; with two, 2n bytes are 4; so the first count to differ is 3."""
    reason, witness = refuted(check_same(make((N, 2), (N * 2, 1)), make((N, 2), (4, 1))))
    assert (reason, witness) == ("the canonical forms differ at mode 1", Witness(3, 2, 6, 4))


def test_layouts_that_agree_at_many_block_counts_are_told_apart() -> None:
    offset = N - 40
    assert refuted(check_same(make((N, 2), (2, 1), offset), make((N, 2), (2, 1), -3)))[1].blocks == 1
    far = make((N, 2, 2), (size(100, -1) * 2, 2, 1)), make((N, 2, 2), (198, 2, 1))
    assert refuted(check_same(*far))[1].blocks == 3


def test_two_block_counts_in_one_size_are_undecided() -> None:
    reason = undecided(check_same(make((N, N), (N, 1)), make((N, 1), (1, 1))))
    assert reason == "sizes 1+1m and 1+1m merge, and their product is not affine"


def test_layouts_of_two_block_counts_are_compared_as_they_are() -> None:
    assert refuted(check_same(make((4, 2), (2, 1)), make((5, 2), (2, 1))))[1] == Witness(1, 8, None, 8)


@pytest.mark.parametrize("slope", [-2, -1, 1, 2])
def test_an_axis_that_continues_another_with_one_block_only_is_no_part_of_it(slope: int) -> None:
    view, whole = make((3, 2, 4), (size(8, slope), 4, 1)), make((3, 8), (8, 1))
    assert refuted(check_same(whole, view))[1] == Witness(2, 8, 8, 8 + slope)
    assert refuted(check_same(view, whole))[1] == Witness(2, 8, 8 + slope, 8)


def test_the_same_layouts_have_no_witness() -> None:
    layout = make((4, 2), (2, 1))
    assert refuting.unlike(layout, layout) == Undecided("same", "no block count tells the layouts apart")


# ------------------------------------------------------------------------------------------------------------- page


def page(view: Layout, pages: Pages, blocks: Size) -> tuple[str, Witness]:
    return refuted(check_page(view, pages, blocks))


def test_blocks_with_another_stride() -> None:
    expected = ("the blocks lie elsewhere", Witness(2, 1, 16, 8))
    assert page(make((N, 8), (8, 1)), Pages((0,), 16, 8), N) == expected
    assert page(make((4, 8), (8, 1)), Pages((0,), 16, 8), 4)[1] == Witness(4, 1, 16, 8)


def test_blocks_that_are_too_many_or_too_few() -> None:
    assert page(make((3, 8), (8, 1)), Pages((0,), 8, 8), 4) == ("the blocks lie elsewhere", Witness(4, 3, 24, None))
    assert page(make((5, 8), (8, 1)), Pages((0,), 8, 8), 4)[1] == Witness(4, 4, None, 32)
    assert page(make((N * 2, 8), (8, 1)), Pages((0,), 8, 8), N)[1] == Witness(2, 2, None, 16)
    assert page(make((2, 8), (8, 1)), Pages((0,), 8, 8), N)[1] == Witness(3, 2, 16, None)
    assert page(make((1, 8), (8, 1)), Pages((0,), 8, 8), N)[1] == Witness(2, 1, 8, None)
    assert page(make((2, 8), (8, 1)), Pages((0,), 8, 8), 1)[1] == Witness(1, 1, None, 8)


def test_one_block_may_have_any_stride() -> None:
    assert isinstance(check_page(make((1, 8), (-5, 1)), Pages((0,), 8, 8), 1), Proved)


def test_one_block_of_another_stride_is_only_free_where_there_is_one_block() -> None:
    assert isinstance(check_page(make((1, 8), (8, 1)), Pages((0,), 8, 8), 2), Refuted)


def test_planes_apart_by_another_distance() -> None:
    view = make((2, N, 8), (N * 8, 8, 1), 0, 1, (P, B, T))
    assert isinstance(check_page(view, Pages((0, N * 8), 8, 8), N), Proved)
    reason, witness = page(view, Pages((0, N * 16), 8, 8), N)
    assert (reason, witness) == ("the planes lie elsewhere", Witness(1, 1, 16, 8))


def test_a_third_plane_is_nobody_s() -> None:
    view = make((3, N, 8), (N * 8, 8, 1), 0, 1, (P, B, T))
    with pytest.raises(ValueError, match="too many values"):
        kernel.page(view, Pages((0, N * 8, N * 16), 8, 8), N)
    assert page(view, Pages((0, N * 8), 8, 8), N) == ("the planes lie elsewhere", Witness(1, 2, None, 16))


def test_a_page_with_too_many_or_too_few_bytes() -> None:
    assert page(make((4, 8), (8, 1)), Pages((0,), 8, 7), 4) == ("another number of bytes", Witness(4, 7, None, 7))
    assert page(make((4, 8), (8, 1)), Pages((0,), 8, 9), 4) == ("another number of bytes", Witness(4, 8, 8, None))


def test_a_page_that_starts_elsewhere() -> None:
    assert page(make((4, 8), (8, 1), 3), Pages((2,), 8, 8), 4) == ("the page starts elsewhere", Witness(4, 0, 2, 3))
    assert page(make((N, 8), (8, -1), 3), Pages((2,), 8, 8), N) == ("the page starts elsewhere", Witness(1, 0, 9, 3))
    assert page(make((N, 8), (8, 1), N), Pages((1,), 8, 8), N)[1] == Witness(2, 0, 1, 2)
    backwards = make((4, 2, 4), (8, -4, 1), 3)  # the second half of a page first: index 0 is its fifth byte
    assert page(backwards, Pages((2,), 8, 8), 4) == ("the page starts elsewhere", Witness(4, 0, 6, 3))


def test_a_page_read_backwards_is_its_page() -> None:
    assert isinstance(check_page(make((N, 2, 4), (8, 4, -1), 12), Pages((9,), 8, 8), N), Proved)


def test_a_page_with_a_hole() -> None:
    assert page(make((4, 2, 3), (16, 4, 1)), Pages((0,), 16, 6), 4) == ("the page is no interval", Witness(4, 3, 3, 4))
    backwards = make((4, 2, 3), (16, -3, 2), 3)  # the outer axis lies well, and the inner one has holes
    assert page(backwards, Pages((0,), 16, 6), 4) == ("the page is no interval", Witness(4, 1, 4, 5))


def test_a_page_read_twice() -> None:
    reason, witness = page(make((4, 2, 3), (16, 0, 1)), Pages((0,), 16, 6), 4)
    assert reason == "the page is no interval"
    assert witness.actual == 0


def test_a_view_without_blocks_is_undecided() -> None:
    assert (
        undecided(check_page(make((4, 8), (8, 1), 0, 1, (T, T)), Pages((0,), 8, 8), 4)) == "the view has no block axis"
    )
    view = make((N, 8), (8, 1), 0, 1, (B, T))
    assert undecided(check_page(view, Pages((0, 8), 8, 8), N)) == "the view has no plane axis"


@pytest.mark.parametrize("numbers", [((N, N), (8, 1)), ((N, 8), (8, N))])
def test_a_page_of_no_constant_size_is_undecided(numbers: tuple[tuple[Size, Size], tuple[Size, Size]]) -> None:
    reason = undecided(check_page(make(*numbers), Pages((0,), 8, 8), N))
    assert reason == "an axis inside the page depends on the block count"


def test_an_axis_of_one_has_no_stride_and_decides_nothing() -> None:
    """Planes outermost, and only one of them: its stride depends on the block count, and no byte does."""
    view = make((1, N, 8), (N * 8, 8, 1), 0, 1, (P, B, T))
    assert isinstance(check_page(view, Pages((0,), 8, 8), N), Proved)
    assert page(view, Pages((0,), 8, 7), N)[1] == Witness(1, 7, None, 7)
    assert page(view, Pages((1,), 8, 8), N)[1] == Witness(1, 0, 1, 0)


def test_a_refutation_that_does_not_re_evaluate_is_not_let_out() -> None:
    """The view's count is symbolic and happens to be the 4 asked for: nothing shows that they differ."""
    reason = undecided(kernel.page(make((N, 8), (8, 1)), Pages((0,), 8, 8), 4))
    assert reason == "the blocks lie elsewhere, but no witness at index 2 re-evaluates"
    assert undecided(refuting.no_interval(0, 0, ([8], [1]), 8, 4)).startswith("the page is no interval, but no witness")


# ------------------------------------------------------------------------------------------------------- own, grain


@pytest.mark.parametrize(
    ("pages", "page_bytes", "payload", "reason", "witness"),
    [
        (Pages((10,), 8, 6), 8, 7, "payload is left out", Witness(3, 6, 16, None)),
        (Pages((10,), 8, 7), 6, 6, "more than the page", Witness(3, 6, None, 16)),
        (Pages((10,), 7, 6), 8, 6, "the page runs into the next block", Witness(3, 7, None, 17)),
        (Pages((10,), 0, 6), 8, 6, "the page runs into the next block", Witness(3, 0, None, 10)),
        (Pages((10,), -8, 6), 8, 6, "the page runs into the next block", Witness(3, 0, None, 10)),
    ],
)
def test_own_names_the_first_byte_that_is_wrong(
    pages: Pages,
    page_bytes: int,
    payload: int,
    reason: str,
    witness: Witness,
) -> None:
    assert refuted(kernel.own(pages, page_bytes, payload, 3)) == (reason, witness)
    symbolic = refuted(kernel.own(pages, page_bytes, payload, N))
    assert symbolic == (reason, Witness(2, witness.index, witness.expected, witness.actual))


def test_one_block_may_be_longer_than_its_stride() -> None:
    assert isinstance(kernel.own(Pages((0,), 0, 8), 8, 8, 1), Proved)
    assert isinstance(kernel.own(Pages((0,), 8, 8), 9, 8, 1), Proved)


def test_a_block_stride_that_depends_on_the_count_is_undecided() -> None:
    assert undecided(kernel.own(Pages((0,), N * 8, 8), 8, 8, N)) == "the block stride depends on the block count"
    assert isinstance(kernel.own(Pages((0,), N * 8, 8), 8, 8, 1), Proved)


def test_planes_of_one_layer_do_not_meet() -> None:
    assert isinstance(kernel.own(Pages((0, 8), 16, 6), 8, 6, N), Proved)
    assert isinstance(kernel.own(Pages((0, N * 8), 8, 6), 8, 6, N), Proved)
    verdict = kernel.own(Pages((0, 7), 16, 6), 8, 6, N)
    assert isinstance(verdict, Refuted)
    assert verdict.claim == "fibre"
    drifting = Pages((0, N * 8 - 4), 16, 4)
    assert undecided(kernel.own(drifting, 4, 4, N)) == "the distance depends on the block count"


def test_grain_counts_blocks_and_states() -> None:
    view = make((N, 16, 4), (64, 4, 1), 0, 1, (B, T, Axis.CHANNEL))
    assert isinstance(kernel.grain(view, N, 16), Proved)
    assert refuted(kernel.grain(view, N, 17)) == ("16 states, not 17", Witness(1, 16, 16, None))
    assert refuted(kernel.grain(view, N, 15)) == ("16 states, not 15", Witness(1, 15, None, 15))
    assert refuted(kernel.grain(view, N, None)) == ("16 states, not None", Witness(1, 0, None, 0))
    paged = make((N * 17, 4), (4, 1), 0, 1, (B, Axis.CHANNEL))
    assert refuted(kernel.grain(paged, N, None)) == ("17n blocks, not 1n", Witness(1, 2, None, 2))
    assert isinstance(kernel.grain(make((N, 4), (4, 1)), N, None), Proved)
    assert refuted(kernel.grain(make((N, 4), (4, 1)), N, 4)) == ("None states, not 4", Witness(1, 0, 0, None))


def test_grain_compares_numbers_and_not_objects() -> None:
    view = make((size(1, 1), int("1000")), (1000, 1), 0, 1, (B, T))
    assert isinstance(kernel.grain(view, size(1, 1), int("1000")), Proved)
    assert isinstance(kernel.grain(view, N, 1000), Proved)


def test_grain_of_a_known_count_shows_it_at_that_count() -> None:
    view = make((4, 16), (16, 1), 0, 1, (B, Axis.STATE))
    assert refuted(kernel.grain(view, 5, 16)) == ("4 blocks, not 5", Witness(5, 4, 4, None))
    assert refuted(kernel.grain(view, 4, 8)) == ("16 states, not 8", Witness(4, 8, None, 8))


def test_grain_of_a_view_for_any_count_is_shown_at_the_count_there_is() -> None:
    assert refuted(kernel.grain(make((N * 2, 4), (4, 1)), 9, None)) == ("2n blocks, not 9", Witness(9, 9, None, 9))


def test_grain_without_blocks() -> None:
    assert refuted(kernel.grain(make((4,), (1,), 0, 1, (T,)), 3, 4)) == ("None blocks, not 3", Witness(3, 0, 0, None))


def test_grain_asks_tokens_before_states() -> None:
    view = make((N, 16, 4), (64, 4, 1), 0, 1, (B, Axis.STATE, T))
    assert isinstance(kernel.grain(view, N, 4), Proved)


# ----------------------------------------------------------------------------------------------------------- within


def test_a_byte_in_front_of_the_storage() -> None:
    reason, witness = refuted(check_within(make((3, 4), (4, 1), -1), 100))
    assert (reason, witness) == ("an address outside the storage", Witness(3, 0, None, -1))
    assert refuted(check_within(make((3, 4), (-4, 1)), 100))[1] == Witness(3, 8, None, -8)


def test_a_byte_behind_the_storage() -> None:
    assert refuted(check_within(make((3, 4), (5, 1)), 13))[1] == Witness(3, 11, None, 13)
    assert isinstance(check_within(make((3, 4), (5, 1)), 14), Proved)


def test_the_lowest_byte_is_named_first_and_at_its_first_index() -> None:
    assert refuted(check_within(make((3, 4), (4, 1), -1), 5))[1] == Witness(3, 0, None, -1)
    assert refuted(check_within(make((2, 4), (0, 1), -1), 9))[1] == Witness(2, 0, None, -1)


def test_the_first_block_count_that_does_not_fit() -> None:
    """A storage of 1,000 bytes holds 100 blocks of 10 bytes and not 101; no small count would show it."""
    view = make((N, 10), (10, 1))
    assert refuted(kernel.within(view, 1000))[1] == Witness(101, 1009, None, 1009)
    assert refuted(kernel.within(view, size(10, 9)))[1] == Witness(2, 19, None, 19)
    assert refuted(kernel.within(view, 9))[1] == Witness(1, 9, None, 9)
    assert refuted(kernel.within(make((N, 10), (10, 1), 30), 5))[1] == Witness(1, 0, None, 30)
    assert refuted(kernel.within(make((N, 10), (10, 1), -1), N * 10))[1] == Witness(1, 0, None, -1)
    down = make((N, 10), (-10, 1), 1000)
    assert refuted(kernel.within(down, 10000))[1] == Witness(102, 1010, None, -10)


def test_the_over_requested_storage_of_vllm_54877() -> None:
    """Twice the blocks at half the padded stride reach one half block further than the storage."""
    view = make((N * 2, 96), (128, 1))
    assert isinstance(kernel.within(view, N * 256), Proved)
    assert isinstance(kernel.within(view, N * 256 - 33), Refuted)
    assert isinstance(kernel.within(view, N * 256 - 32), Proved)


def test_an_axis_that_turns_is_undecided() -> None:
    assert undecided(check_within(make((3,), (N - 3,)), 100)) == "an axis changes direction with the block count"
    assert "not affine" in undecided(check_within(make((N,), (N,)), 100))


def test_a_layout_that_fits_has_no_witness() -> None:
    verdict = refuting.outside(make((N, 10), (10, 1)), N * 10, 0)
    assert verdict == Undecided("within", "no corner re-evaluates to an address outside the storage")


def test_fits_is_about_both_ends() -> None:
    assert affine.fits(0, N * 8, N * 8)
    assert not affine.fits(-1, 8, N * 8)
    assert not affine.fits(1, N * 8, N * 8)


# -------------------------------------------------------------------------------------------------------- injective


def test_a_broadcast_axis_has_one_byte_at_two_indices() -> None:
    assert refuted(check_injective(make((4, 2, 3), (3, 0, 1)))) == ("index 3 has the same byte", Witness(4, 0, None, 0))
    assert isinstance(check_injective(make((2, 3), (0, 0))), Refuted)


def test_short_pages_meet() -> None:
    assert refuted(check_injective(make((4, 8), (6, 1)))) == ("index 6 has the same byte", Witness(4, 8, None, 6))
    assert refuted(check_injective(make((4, 8), (-6, 1), 18)))[1].actual is not None


def test_interleaved_strides_are_undecided() -> None:
    assert undecided(check_injective(make((2, 2, 2), (3, 5, 7), 0, 1))) == "the strides are not nested"
    assert "not affine" in undecided(check_injective(make((2, N), (N * N.a, N))))


def test_a_symbolic_overlap_is_shown_at_its_own_count() -> None:
    reason, witness = refuted(check_injective(make((N, 4), (2, 1))))
    assert (reason, witness) == ("index 2 has the same byte", Witness(2, 4, None, 2))


# ------------------------------------------------------------------------------------------------------------ fibre


def test_two_windows_of_one_group() -> None:
    x, y = Track(0, 16, 8, ONE), Track(7, 16, 8, ONE)
    reason, witness = refuted(check_fibre([x, y], 3))
    assert (reason, witness) == ("block 0 meets block 0 of another layer", Witness(3, 0, None, 7))
    assert isinstance(check_fibre([x, Track(7, 16, 8, OTHER)], 3), Proved)
    assert isinstance(check_fibre([x, Track(8, 16, 8, ONE)], N), Proved)


def test_layers_of_different_groups_meet_where_a_page_leaves_its_fibre() -> None:
    x, y = Track(0, 16, 8, ONE), Track(9, 16, 8, OTHER)
    reason, witness = refuted(check_fibre([x, y], N))
    assert (reason, witness) == ("block 1 meets block 0 of another layer", Witness(2, 1, None, 16))
    assert refuted(check_fibre([y, x], 2))[1] == Witness(2, 1, None, 16)
    assert isinstance(check_fibre([x, y], 1), Proved)


def test_two_strides_on_one_stretch_are_refused_though_no_byte_is_shared() -> None:
    x, y = Track(0, 16, 4, ONE), Track(4, 32, 4, OTHER)
    reason, witness = refuted(check_fibre([x, y], 3))
    assert (reason, witness) == ("two block strides on one stretch of storage", Witness(3, 0, None, 4))
    assert isinstance(check_fibre([x, Track(36, 32, 4, ONE)], 3), Proved)
    assert isinstance(check_fibre([x, y], 1), Proved)
    assert refuted(check_fibre([x, y], N))[1].blocks == 2
    assert refuted(check_fibre([x, Track(32, 32, 4, OTHER)], N))[1] == Witness(4, 0, None, 32)
    assert refuted(check_fibre([x, Track(1600, 8, 4, OTHER)], N))[1] == Witness(102, 0, None, 1600)


def test_stretches_that_only_touch_at_some_block_count_are_told_apart_there() -> None:
    """With two blocks the second track ends at 14, where the first begins; with three they meet."""
    x, y = Track(14, 16, 4, ONE), Track(N * 2 - 2, 8, 4, OTHER)
    assert refuted(check_fibre([x, y], N))[1] == Witness(3, 0, None, 14)
    assert refuted(check_fibre([x._replace(base=15), y], N))[1] == Witness(3, 0, None, 15)


def test_only_the_pairs_that_meet_are_named_where_layers_lie_one_behind_another() -> None:
    a, b, c = Track(0, 16, 16, ONE), Track(N * 16, 16, 16, ONE), Track(N * 8 - 4, 16, 16, ONE)
    assert [item.tracks for item in refuting.overlaps([a, b, c], N)] == [(a, c), (c, b)]


def test_layers_side_by_side_are_not_compared_pair_by_pair() -> None:
    """Two groups of 200 layers in one fibre: one pass, and not 80,000 comparisons."""
    tracks = [Track(5 + 8 * layer, 1600, 8, group) for group in (ONE, OTHER) for layer in range(200)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refuting, "_meet", None)
        for blocks in (7, N):
            assert isinstance(kernel.fibre(tracks, blocks), Proved)


def test_blocks_far_from_each_other_meet_as_soon_as_there_are_enough() -> None:
    """In steps of 16 bytes, 1,600 bytes are 100 blocks: no small block count shows that the two meet."""
    x, y = Track(5, 16, 8, ONE), Track(1609, 16, 8, OTHER)
    reason, witness = refuted(kernel.fibre([x, y], N))
    assert (reason, witness) == ("block 100 meets block 0 of another layer", Witness(102, 100, None, 1609))
    assert isinstance(kernel.fibre([x, Track(1613, 16, 8, ONE)], N), Proved)
    assert isinstance(kernel.fibre([x, y], 100), Proved)
    assert isinstance(kernel.fibre([x, y], 101), Refuted)


def test_layers_first_spans_never_meet() -> None:
    tracks = [Track(N * 16 * layer, 16, 16, ONE if layer % 2 else OTHER) for layer in range(5)]
    assert isinstance(check_fibre(tracks, N), Proved)
    assert isinstance(check_fibre([*tracks, Track(N * 16 + 4, 16, 4, ONE)], N), Refuted)


def test_a_distance_that_depends_on_the_count_is_undecided_where_nothing_meets() -> None:
    x, y = Track(0, 16, 4, ONE), Track(N * 8 - 4, 16, 4, ONE)
    reason = undecided(check_fibre([x, y], N))
    assert reason == "the distance depends on the block count"
    assert next(refuting.overlaps([x, y], N)).tracks == (x, y)
    down, up = Track(12 - N * 8, 16, 4, ONE), Track(N * 8 - 16, 16, 4, ONE)
    assert undecided(check_fibre([down, up], N)) == "the distance depends on the block count"


def test_good_pairs_of_a_bad_fibre_are_not_named() -> None:
    a, b, c = Track(0, 16, 4, ONE), Track(4, 16, 4, ONE), Track(6, 16, 4, ONE)
    for blocks in (3, N):
        assert [item.tracks for item in refuting.overlaps([c, b, a], blocks)] == [(b, c)]


@pytest.mark.parametrize(
    ("track", "blocks"),
    [
        (Track(0, 4, 5, ONE), 3),
        (Track(0, 4, 5, ONE), N),
        (Track(0, 0, 5, ONE), N),
        (Track(0, -8, 5, ONE), 2),
        (Track(0, 8, 0, ONE), 2),
        (Track(0, 8, -1, ONE), 1),
        (Track(0, N, 1, ONE), N),
        (Track(N, 8, 1, ONE), 3),
    ],
)
def test_what_own_would_not_prove_is_no_track(track: Track, blocks: Size) -> None:
    """A page that its stride does not hold meets its own next block; fibre does not go on from there."""
    verdict = kernel.fibre([track, Track(100, 8, 8, ONE)], blocks)
    assert verdict == Undecided("fibre", "a page that its block stride does not hold", (track, track))
    others = [Track(100, 8, 8, ONE), Track(101, 8, 8, ONE)]
    assert [item.tracks for item in refuting.overlaps([track, *others], blocks)] == [(track, track), tuple(others)]


def test_no_tracks_meet() -> None:
    assert isinstance(check_fibre([], N), Proved)
    assert isinstance(check_fibre([Track(0, 8, 8, ONE)], N), Proved)


# ------------------------------------------------------------------------------------------------------------ prove


def test_prove_gives_the_first_answer_that_is_no_proof() -> None:
    view, pages = make((N, 16, 4), (64, 4, 1), 0, 1, (B, T, Axis.CHANNEL)), Pages((0,), 64, 64)
    other = make((N, 16, 4), (64, 1, 16), 0, 1, (B, T, Axis.CHANNEL))
    assert isinstance(kernel.prove(view, pages, 64, 64, N, 16, view), Proved)
    claims = [
        kernel.prove(view, Pages((0,), 64, 65), 64, 65, N, 15, other),
        kernel.prove(view, pages, 63, 64, N, 15, other),
        kernel.prove(view, pages, 64, 64, N, 15, other),
        kernel.prove(view, pages, 64, 64, N, 16, other),
        kernel.prove(make((N,), (64,), 0, 1, (T,)), pages, 64, 64, N, 16),
    ]
    assert [claim.claim for claim in claims if not isinstance(claim, Proved)] == [
        "page",
        "own",
        "grain",
        "same",
        "page",
    ]


def test_block_counts_are_tried_from_one() -> None:
    assert list(refuting.tried(N)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(refuting.tried(4)) == [4]
    assert isinstance(parse_size("n"), Affine)


def test_the_block_count_of_a_view_is_its_own_or_any() -> None:
    assert refuting.blocks_of(make((4, 2), (2, 1))) == 4
    assert refuting.blocks_of(make((2,), (1,), 0, 1, (T,))) == 1
    assert refuting.blocks_of(make((4, 2), (2, 1), N)) is N
    assert refuting.blocks_of(make((4, 2), (N, 1))) is N
    assert refuting.blocks_of(make((4, N * 2), (2, 1))) is N


@pytest.mark.parametrize(
    ("windows", "blocks", "apart"),
    [
        ([], 3, True),
        ([(0, 0, 8, 6)], 3, True),
        ([(0, 0, 8, 6), (0, 22, 8, 6)], 3, True),  # the first ends at byte 2 * 8 + 6
        ([(0, 0, 8, 6), (0, 30, 8, 6)], 3, True),
        ([(0, 0, 8, 6), (0, 21, 8, 6)], 3, False),
        ([(0, 22, 8, 6), (0, 0, 8, 6)], 3, True),
        ([(0, 0, 8, 6), (0, 22, 8, 6)], 4, False),
        ([(0, 0, 8, 6), (0, 22, 8, 6), (0, 44, 8, 6)], 3, True),
        ([(0, 0, 8, 6), (0, 22, 8, 6), (0, 43, 8, 6)], 3, False),
        ([(0, 0, 8, 6), (1, 0, 8, 6)], 3, True),
        ([(1, 0, 8, 6), (0, 0, 8, 6), (0, 21, 8, 6)], 3, False),
        ([(0, 0, 8, 6), (0, 0, 8, 6)], 3, False),
        ([(0, 0, 8, 6), (0, 22, 8, 6)], N, False),  # at a glance only: overlaps finds that
        ([(0, 0, 8, 6), (0, N * 8, 8, 6)], 3, False),
        ([(0, 0, N, 6), (0, 100, 8, 6)], 3, False),
    ],
)
def test_stretches_of_storage_that_are_apart_at_a_glance(
    windows: list[tuple[int, Size, Size, int]], blocks: Size, apart: bool
) -> None:
    assert refuting.strung(windows, blocks) is apart
    for storage in (0, 1) if apart else ():
        tracks = [Track(*window[1:], ONE) for window in windows if window[0] == storage]
        assert not list(refuting.overlaps(tracks, blocks))
