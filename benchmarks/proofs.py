"""One proof at every size of N, and coalescing and equality beside a library that has them too."""

from __future__ import annotations

from math import prod
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.hybrids import AbsentError, load
from benchmarks.table import Row, Section, compared, left_out, spread, timed
from benchmarks.timing import in_turns, over
from kvlayout import Layout
from kvlayout.algebra.affine import BLOCK_COUNT, Size, at
from kvlayout.algebra.canonical import canonical, modes_of
from kvlayout.algebra.claims import Pages
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.kernel import Proved, prove, same
from kvlayout.algebra.layout import Axis, dense_strides
from kvlayout.algebra.units import Bytes, raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["COUNTS", "algebra", "proofs"]

MOST_MICROSECONDS = 20.0
MOST_APART = 1.10
COUNTS: dict[str, Size] = {"any N": BLOCK_COUNT, "N = 10^3": 10**3, "N = 10^9": 10**9}
ITEM = 2  # bytes of bfloat16, of which all the layouts here are
BLOCK, PLANE, HEAD, TOKEN, CHANNEL = Axis.BLOCK, Axis.PLANE, Axis.HEAD, Axis.TOKEN, Axis.CHANNEL


def _paged(blocks: Size, page: tuple[int, ...], axes: tuple[Axis, ...]) -> Layout:
    """Return pages one behind another, each dense."""
    strides = dense_strides((1, *page), ITEM)
    return Layout((blocks, *page), strides, Bytes(0), DTYPES["bfloat16"], strides[0], (BLOCK, *axes))


class Subject(NamedTuple):
    """What a rule proves: the page of a view, the bytes of it that matter, and the page that it must read like."""

    page: tuple[int, ...]
    axes: tuple[Axis, ...]
    payload: int
    source: tuple[tuple[int, ...], tuple[Axis, ...]] | None = None

    def proof(self, blocks: Size) -> Callable[[], Proved]:
        """Return the call of the prover, which raises where there is no proof: its time would mean nothing."""
        view = _paged(blocks, self.page, self.axes)
        source = None if self.source is None else _paged(blocks, *self.source)
        page, rows = prod(self.page) * ITEM, self.page[self.axes.index(TOKEN)]
        pages = Pages((0,), page, page)

        def run() -> Proved:
            verdict = prove(view, pages, page, self.payload, blocks, rows, source)
            if not isinstance(verdict, Proved):
                raise TypeError(verdict)
            return verdict

        return run


#: Qwen3.5-0.8B's states and attention, and the latent of DeepSeek-like models in 12 kernel pages of 64 rows.
SUBJECTS = {
    "rank 5, state in a padded page": Subject((2, 544, 1, 512), (PLANE, TOKEN, HEAD, CHANNEL), 1_085_440),
    "rank 4, kernel pages joined": Subject((1, 640, 1024), (HEAD, TOKEN, CHANNEL), 1_310_720),
    "latent, in its tiles' order": Subject(
        (768, 576), (TOKEN, CHANNEL), 884_736, ((12, 64, 576), (Axis.KERNEL_PAGE, TOKEN, CHANNEL))
    ),
}


def proofs(rounds: int) -> Section:
    """Time the whole proof of each subject: exact pages, its own, of the right grain, in order where one is asked."""
    taken = in_turns(
        {f"{what}, {n}": subject.proof(count) for what, subject in SUBJECTS.items() for n, count in COUNTS.items()},
        rounds,
        repeat=20,
    )
    return Section("one proof", tuple(_proof_rows(taken)))


def _proof_rows(taken: dict[str, list[float]]) -> Iterator[Row]:
    for what in SUBJECTS:
        names = [f"{what}, {n}" for n in COUNTS]
        for name in names:
            yield timed(name, taken[name], MOST_MICROSECONDS)
        fastest, *_, slowest = sorted((taken[name] for name in names), key=median)
        apart = over(slowest, fastest)
        yield Row(
            f"{what}, slowest / fastest",
            ratio=f"{apart.middle:.2f}",
            spread=spread(apart),
            target=f"<= {MOST_APART:.2f}",
            met=apart.middle <= MOST_APART,
        )


#: Two layouts of one address function each: the same bytes in the same order, N = 4096.
PAIRS = {
    "dense page, rank 5": (
        _paged(4096, (2, 544, 1, 512), (PLANE, TOKEN, HEAD, CHANNEL)),
        _paged(4096, (557_056,), (CHANNEL,)),
    ),
    "latent tiles, rank 4": (
        _paged(4096, (12, 64, 576), (Axis.KERNEL_PAGE, TOKEN, CHANNEL)),
        _paged(4096, (768, 576), (TOKEN, CHANNEL)),
    ),
    "heads first": (
        _paged(4096, (2, 4, 128, 64), (PLANE, HEAD, TOKEN, CHANNEL)).arranged(
            (4096, 2, 128, 4, 64),
            (Bytes(131_072), Bytes(65_536), Bytes(128), Bytes(16_384), Bytes(2)),
            (BLOCK, PLANE, TOKEN, HEAD, CHANNEL),
        ),
    )
    * 2,
}


def algebra(rounds: int) -> Section:
    """Time the canonical form and equality beside tensor-layouts, both on layouts made before.

    Its own ``functionally_equal`` tries every index, 0.3 s for two blocks of 18,432 elements, so it is given the better
    way: its ``==`` on what it coalesced.
    """
    title = "layout algebra, beside tensor-layouts"
    try:
        load("tensor_layouts")
    except AbsentError as error:
        return Section(title, (left_out("all of it", str(error)),))
    return Section(
        title, tuple(row for what, (one, other) in PAIRS.items() for row in _beside(what, one, other, rounds))
    )


def _beside(what: str, one: Layout, other: Layout, rounds: int) -> Iterator[Row]:
    from tensor_layouts import coalesce

    first, second = _foreign(one), _foreign(other)
    if not isinstance(same(other, one), Proved) or coalesce(first) != coalesce(second):
        raise TypeError(f"{what}: not the same function, so there is nothing to compare")
    taken = in_turns(
        {
            "canonical": lambda: canonical(modes_of(one)),
            "coalesce": lambda: coalesce(first),
            "same": lambda: same(other, one),
            "equal": lambda: coalesce(first) == coalesce(second),
        },
        rounds,
        repeat=20,
    )
    yield timed(f"{what}: canonical(modes_of(a))", taken["canonical"])
    yield compared("tensor-layouts, coalesce(a)", taken["canonical"], taken["coalesce"])
    yield timed(f"{what}: kernel.same(a, b)", taken["same"])
    yield compared("tensor-layouts, coalesce(a) == coalesce(b)", taken["same"], taken["equal"])


def _foreign(layout: Layout) -> object:
    """Return a layout as tensor-layouts has it: in elements, and its first mode the fastest."""
    from tensor_layouts import Layout as Foreign

    shape = tuple(at(extent, 1) for extent in reversed(layout.shape))
    strides = tuple(at(raw(stride), 1) // ITEM for stride in reversed(layout.strides))
    made: object = Foreign(shape, strides)
    return made
