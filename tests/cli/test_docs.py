from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest

from kvlayout.errors import Code, LayoutError, explain, remedy
from kvlayout.offline import cautions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ROW = re.compile(r"^\| `([a-z-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def test_the_table_of_errors_is_complete() -> None:
    rows = ROW.findall((ROOT / "docs" / "errors.md").read_text())
    wanted = [(code.value, explain(LayoutError(code)), remedy(code)) for code in Code]
    assert [(code, meaning, fix) for code, meaning, _, fix in rows] == wanted
    assert all(len(example) > 4 for _, _, example, _ in rows)


def test_the_table_of_what_to_look_at_twice_is_complete() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| .+ \|$", (ROOT / "docs" / "offline.md").read_text(), re.MULTILINE)
    source = inspect.getsource(cautions)
    assert set(rows) == set(re.findall(r"Caution\(\s*\"([a-z-]+)\"", source))
    assert len(rows) == len(set(rows)) > 5


def test_the_pages_that_docstrings_name_are_there() -> None:
    import kvlayout

    sources = "".join(path.read_text() for path in Path(kvlayout.__file__).parent.rglob("*.py"))
    named = set(re.findall(r"docs/[a-z]+\.md", sources))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_theorems_that_docstrings_name_are_there() -> None:
    text = (ROOT / "docs" / "proofs.md").read_text()
    for name in ("T1", "T1'", "T2", "T3", "T4", "T5"):
        assert f"**{name}.**" in text
    assert "\n## 2 Any number of blocks\n" in text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_read_well_as_text(path: Path) -> None:
    text = path.read_text()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert long == []
    assert text.count("```") % 2 == 0


@pytest.mark.torch
def test_the_example_of_a_connector_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "connector.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "viewed as [3, 256, 1, 256]" in out
    assert "kernel pages that it wrote: [4, 5, 6, 7]" in out
