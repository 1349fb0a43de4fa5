"""A missing package is a skip on a small machine and a failure in `make test`: never a silent pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
MARKED = """
import pytest

@pytest.mark.oracles
def test_marked(): pass

def test_plain(): pass
"""


def run(folder: Path, *, require: str) -> subprocess.CompletedProcess[str]:
    """Run two tests under this suite's conftest, made to believe that the oracles are not installed."""
    text = CONFTEST.read_text()
    assert text.count('("islpy", "z3")') == 1
    (folder / "conftest.py").write_text(text.replace('("islpy", "z3")', '("no_such_package",)'))
    (folder / "test_two.py").write_text(MARKED)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = oracles\n")
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "test_two.py"]
    environment = {**os.environ, "KVLAYOUT_REQUIRE": require}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_a_missing_package_skips_its_tests(tmp_path: Path) -> None:
    done = run(tmp_path, require="")
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout
    assert "not installed: no_such_package" in done.stdout


def test_a_required_missing_package_stops_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, require="oracles")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "KVLAYOUT_REQUIRE is not met: oracles needs no_such_package" in done.stderr


def test_a_requirement_that_names_no_marker_stops_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, require="oracle")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "names no marker of this suite: oracle" in done.stderr
