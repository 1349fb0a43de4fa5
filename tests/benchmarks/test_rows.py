"""Every row of the table can be measured; how long it takes is no test's business."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as table
from benchmarks.timing import in_turns, ratio


def test_paired_ratios_compare_round_by_round() -> None:
    found = ratio({"a": [1.0, 4.0, 9.0, 16.0], "b": [1.0, 2.0, 3.0, 4.0]}, "a", "b")
    assert found == (2.5, 2.0, 3.0)


def test_candidates_take_turns() -> None:
    order: list[str] = []
    in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order[6:] == ["a", "b", "a", "b"]


def test_proofs_and_documents_have_rows() -> None:
    rows = [*table.proofs(2), *table.algebra(2)]
    assert [row.what for row in rows][:3] == ["one proof, N symbolic", "one proof, N = 10^3", "one proof, N = 10^9"]
    assert all(row.measured for row in rows)


@pytest.mark.engine
@pytest.mark.lmcache
@pytest.mark.parametrize("placed", [False, True])
def test_live_rows_compare_with_lmcache_and_the_bare_loop(placed: bool) -> None:
    whats = [row.what.strip() for row in table.live(8, 2, placed=placed)]
    assert "times LMCache's time" in whats
    assert "times the bare loop's time" in whats
