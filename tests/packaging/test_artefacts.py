from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import kvlayout

ROOT = Path(__file__).parents[2]
PACKAGE = Path(kvlayout.__file__).parent
TOP = "kvlayout-0.1.0"


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one wheel and one sdist: what make built (KVLAYOUT_DIST), or what is built here."""
    if "KVLAYOUT_DIST" in os.environ:
        return Path(os.environ["KVLAYOUT_DIST"])
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="session")
def wheel(artefacts: Path) -> dict[str, bytes]:
    (path,) = artefacts.glob("*.whl")
    assert path.name == f"{TOP}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="session")
def sdist(artefacts: Path) -> set[str]:
    (path,) = artefacts.glob("*.tar.gz")
    assert path.name == f"{TOP}.tar.gz"
    with tarfile.open(path) as archive:
        return {str(PurePosixPath(member.name).relative_to(TOP)) for member in archive if member.isfile()}


def sources() -> dict[str, bytes]:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(PurePosixPath("kvlayout", path.relative_to(PACKAGE))): path.read_bytes() for path in files}


def test_wheel_holds_the_package_its_metadata_and_nothing_else(wheel: dict[str, bytes]) -> None:
    inside = {name: data for name, data in wheel.items() if name.startswith("kvlayout/")}
    assert inside == sources()
    rest = set(wheel) - set(inside)
    assert rest == {
        f"{TOP}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }


def test_wheel_says_that_it_is_typed(wheel: dict[str, bytes]) -> None:
    assert wheel["kvlayout/py.typed"] == b""
    assert b"Classifier: Typing :: Typed" in wheel[f"{TOP}.dist-info/METADATA"]


def test_wheel_carries_licence_readme_and_command(wheel: dict[str, bytes]) -> None:
    metadata = wheel[f"{TOP}.dist-info/METADATA"].decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert (ROOT / "README.md").read_text().strip() in metadata
    assert b"Apache License" in wheel[f"{TOP}.dist-info/licenses/LICENSE"]
    assert "kvlayout = kvlayout.cli:main" in wheel[f"{TOP}.dist-info/entry_points.txt"].decode()


def test_wheel_offers_the_extras(wheel: dict[str, bytes]) -> None:
    metadata = wheel[f"{TOP}.dist-info/METADATA"].decode().splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in metadata if line.startswith("Provides-Extra: ")}
    assert extras >= {"torch", "vllm", "lmcache", "cli", "plot", "transfer", "oracles", "test"}


def test_sdist_holds_what_is_needed_to_build_and_test(sdist: set[str]) -> None:
    assert sdist >= {"pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/conftest.py"}
    assert sdist >= set(sources())
    data = ROOT / "tests" / "data"
    assert sdist >= {str(PurePosixPath(path.relative_to(ROOT))) for path in data.rglob("*.json")}


def test_sdist_holds_nothing_made_by_machine(sdist: set[str]) -> None:
    made = {".venv", ".venv-wheel", "build", "dist", "__pycache__", ".mypy_cache", ".ruff_cache", ".git"}
    assert [name for name in sdist if made & set(PurePosixPath(name).parts)] == []
