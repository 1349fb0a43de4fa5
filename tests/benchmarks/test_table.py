"""Every row of the table can be measured and has the right target; how long anything takes is no test's business."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.connector import bare_loop, connector, lmcache_edits
from benchmarks.documents import documents
from benchmarks.hybrids import HINTS, AbsentError, document, hybrid, load
from benchmarks.imports import imports
from benchmarks.models import models
from benchmarks.proofs import COUNTS, algebra, proofs
from benchmarks.table import Row, Section, compared, left_out, render, timed
from benchmarks.timing import in_turns, over
from kvlayout import Registration, plan, plan_then_apply


def test_calls_take_turns_in_every_round() -> None:
    order: list[str] = []
    taken = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, repeat=2)
    assert order[-12:] == ["a", "a", "b", "b"] * 3
    assert [len(found) for found in taken.values()] == [3, 3]


def test_a_ratio_is_of_medians_and_its_spread_is_of_rounds() -> None:
    ours = [10.0, *[2.0] * 18, 1.0]
    assert over(ours, [1.0] * 20) == (2.0, 2.0, 2.0)
    assert over([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(("most", "met"), [(2.0, True), (1.9, False), (None, None)])
def test_a_target_is_met_up_to_its_bound(most: float | None, met: bool | None) -> None:
    assert timed("a", [1.0, 2.0, 3.0], most).met is met
    assert compared("a", [4.0] * 3, [2.0] * 3, most).met is met


def test_rows_are_printed_with_their_targets() -> None:
    rows = (timed("ours", [2000.0]), compared("theirs", [2000.0], [8000.0], 0.3), left_out("it", "not here"))
    said = io.StringIO()
    Console(file=said, width=132).print(render("costs", [Section("one", rows)], "a machine"))
    lines = [" ".join(line.split()) for line in said.getvalue().splitlines()]
    assert "ours 2,000 us 2,000 us" in lines
    assert "theirs 8,000 us 8,000 us 0.25 0.25 to 0.25 <= 0.30 met" in lines
    assert lines[lines.index("it") + 1] == "left out: not here"


def test_proofs_are_timed_at_every_size() -> None:
    rows = proofs(2).rows
    assert len(rows) == 3 * (len(COUNTS) + 1)
    assert all(row.target for row in rows)


@pytest.mark.parametrize("blocks", [8, None])
def test_the_document_is_one_that_plans(blocks: int | None) -> None:
    made = plan(Registration.from_json(document(30, blocks)).unwrap()).unwrap()
    assert sum(len(run.layers) for run in made.runs) == 30
    assert {run.shape.rule for run in made.runs} == {"mamba-unified-view", "subpaged-attention-view"}


def test_documents_and_imports_have_rows() -> None:
    assert len(documents(2).rows) == 4
    assert [row.target for row in imports(2).rows] == ["", "", "<= 40 ms"] * 2


def test_the_command_and_its_sweep_have_targets() -> None:
    pytest.importorskip("rich")
    nothing, tables, as_json, sweep = models(2).rows
    assert nothing.met is None
    assert {tables.target, as_json.target} == {"<= 150 ms"}
    assert sweep.target == "<= 5,000.0 ms"
    assert all(row.middle for row in (nothing, tables, as_json, sweep))


def test_tensor_layouts_rows_compare() -> None:
    pytest.importorskip("tensor_layouts")
    assert any(row.ratio for row in algebra(2).rows)


def reasons(section: Section) -> list[str]:
    return [row.note for row in section.rows if row.note]


@pytest.mark.parametrize("package", ["torch", "vllm"])
def test_without_an_engine_its_rows_say_why(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (row,) = connector(8, 3, 2, placed=False).rows
    assert row.note == f"left out: {package} is not installed"


def test_without_tensor_layouts_its_rows_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensor_layouts", None)
    (reason,) = reasons(algebra(2))
    assert reason == "left out: tensor_layouts is not installed"


@pytest.mark.engine
def test_without_lmcache_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmcache", None)
    *measured, alone = connector(8, 3, 2, placed=True).rows
    for ours, theirs, bare in (measured[:3], measured[3:]):
        assert theirs.note == "left out: lmcache is not installed"
        assert (ours.note, bare.note, alone.note) == ("", "", "")
        assert bare.target == "<= 2.50"


@pytest.mark.engine
@pytest.mark.lmcache
@pytest.mark.parametrize("placed", [False, True])
def test_live_rows_have_both_targets(placed: bool) -> None:
    section = connector(8, 3, 2, placed=placed)
    assert reasons(section) == []
    assert [row.target for row in section.rows] == ["", "<= 0.30", "<= 2.50"] * 2 + [""]


@pytest.mark.engine
@pytest.mark.lmcache
@pytest.mark.parametrize("placed", [False, True])
def test_all_three_calls_do_the_same_work(placed: bool) -> None:
    from torch import Tensor

    subject = hybrid(8, 3, placed=placed)
    ours = plan_then_apply(subject.config, subject.caches, HINTS).views
    pages = [
        [
            (name, view.data_ptr(), view.shape[0], view.stride(0) * view.element_size(), view.nbytes)
            for name, view in found
            if isinstance(view, Tensor)
        ]
        for found in (ours.items(), lmcache_edits(subject)().items(), bare_loop(subject)().items())
    ]
    assert len(pages[0]) == 8
    assert pages[0] == pages[1] == pages[2]


def test_a_row_without_a_target_has_no_verdict() -> None:
    assert Row("it").met is None


def test_a_package_that_fails_while_it_is_imported_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "built_elsewhere.py").write_text("raise OSError('libcudart.so.13: no such file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        AbsentError, match=r"built_elsewhere does not import \(OSError: libcudart.so.13: no such file\)"
    ):
        load("built_elsewhere")
