"""A hundred thousand random layouts and views: the kernel's answers against the enumerated bytes."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from kvlayout.algebra.kernel import Proved
from tests.algebra.drawing import draw_layout, draw_page, draw_pair, draw_symbolic, draw_tracks, draw_view
from tests.algebra.judging import (
    check_fibre,
    check_grain,
    check_injective,
    check_own,
    check_page,
    check_same,
    check_within,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvlayout.algebra.kernel import Verdict


def same(random: Random, *, symbolic: bool) -> Verdict:
    return check_same(*draw_pair(random, symbolic=symbolic))


def page(random: Random, *, symbolic: bool) -> Verdict:
    return check_page(*draw_page(random, symbolic=symbolic))


def own(random: Random, *, symbolic: bool) -> Verdict:
    _, pages, blocks = draw_page(random, symbolic=symbolic)
    room = pages.covered + random.choice((-1, 0, 0, 1, 3))
    return check_own(pages, max(room, 1), pages.covered + random.choice((-2, -1, 0, 0, 1)), blocks)


def grain(random: Random, *, symbolic: bool) -> Verdict:
    view, _, blocks = draw_page(random, symbolic=symbolic)
    rows = [extent for extent, axis in zip(view.shape, view.axes, strict=True) if axis.value in {"token", "state"}]
    if len(rows) > 1:  # another one: which of two rows is meant is shown elsewhere
        return grain(random, symbolic=symbolic)
    states = random.choice((1, 2, 3, None, *rows, *rows))
    return check_grain(view, blocks, states if isinstance(states, int) else None)


def within(random: Random, *, symbolic: bool) -> Verdict:
    return check_within(*draw_view(random, symbolic=symbolic))


def injective(random: Random, *, symbolic: bool) -> Verdict:
    return check_injective(draw_symbolic(random) if symbolic else draw_layout(random))


def fibre(random: Random, *, symbolic: bool) -> Verdict:
    return check_fibre(*draw_tracks(random, symbolic=symbolic))


#: How many cases of concrete numbers, and of numbers that depend on the block count, for each judgement.
CASES: dict[Callable[..., Verdict], tuple[int, int]] = {
    same: (25_000, 10_000),
    page: (20_000, 10_000),
    grain: (4_000, 3_000),
    within: (12_000, 6_000),
    injective: (12_000, 4_000),
    own: (5_000, 3_000),
    fibre: (10_000, 6_000),
}


def run_cases(judge: Callable[..., Verdict], cases: int, *, symbolic: bool) -> Counter[type]:
    """Run a judgement's check and count the answers."""
    random = Random(f"{judge.__name__} {symbolic}")
    return Counter(type(judge(random, symbolic=symbolic)) for _ in range(cases))


@pytest.mark.slow
@pytest.mark.parametrize("symbolic", [False, True], ids=["concrete", "symbolic"])
@pytest.mark.parametrize("judge", CASES, ids=lambda judge: judge.__name__)
def test_no_answer_is_false(judge: Callable[..., Verdict], symbolic: bool) -> None:
    cases = CASES[judge][symbolic]
    answers = run_cases(judge, cases, symbolic=symbolic)
    assert sum(answers.values()) == cases
    proved = answers[Proved] / cases
    assert 0.1 < proved < 0.9, answers  # drawn so that both answers are tested


def test_there_are_a_hundred_thousand_layouts_and_views() -> None:
    """Pages of bare numbers (own) and tracks (fibre) come on top of these."""
    about_layouts = (same, page, grain, within, injective)
    assert sum(sum(CASES[judge]) for judge in about_layouts) >= 100_000
