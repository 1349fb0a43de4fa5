from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.cli.wording import clean, names, ranges, shortened


@pytest.mark.parametrize(
    ("layers", "wanted"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a ... c"),
        (["a.0", "a.1"], "a.{0,1}"),
        ([f"l.{i}.attn" for i in (3, 7, 11, 15, 19, 23)], "l.{3,7,...,23}.attn"),
        ([f"l.{i}" for i in range(61)], "l.{0-60}"),
        (["l.0.attn", "l.1.mixer"], "l.0.attn, l.1.mixer"),
        (["l.0.1", "l.1.2"], "l.0.1, l.1.2"),
        (["l.0", "l.x"], "l.0, l.x"),
        (["l.1.a", "l.1.a"], "l.1.a, l.1.a"),
        (["l.1", "l.1.2"], "l.1, l.1.2"),
    ],
)
def test_many_names_read_as_one(layers: list[str], wanted: str) -> None:
    assert names(layers) == wanted


@given(st.lists(st.integers(0, 200), min_size=1, max_size=4))
def test_few_ranges_tell_every_number(numbers: list[int]) -> None:
    told: set[int] = set()
    for part in ranges(numbers).split(","):
        first, _, last = part.partition("-")
        told |= set(range(int(first), int(last or first) + 1))
    assert told == set(numbers)


@given(st.text(max_size=60), st.integers(28, 60))
def test_a_shortened_name_fits_and_keeps_its_end(text: str, width: int) -> None:
    short = shortened(text, width)
    assert len(short) <= width
    assert short == text or text.endswith(short.removeprefix("..."))


@given(st.text(max_size=60))
def test_clean_text_prints(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)
