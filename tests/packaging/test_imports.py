from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kvlayout

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "data" / "cases"
CONFIGS = ROOT / "examples"
HEAVY = ("torch", "numpy", "vllm", "lmcache")

LOADED = "import sys; print(*(name for name in {heavy!r} if sys.modules.get(name)), end='')"
PLAN = """
import pathlib, sys
import kvlayout
for path in sys.argv[1:]:
    result = kvlayout.plan(kvlayout.Registration.from_json(pathlib.Path(path).read_text()).unwrap())
    assert isinstance(result, kvlayout.Ok | kvlayout.Err), result
"""
MODEL = """
import sys
from kvlayout.cli import main
kinds = [[], ["--json"], ["--tp", "4", "--compare", "--tp 1"], ["--sweep", "tp=1,2", "--csv"]]
codes = [main(["model", path, *words]) for path in sys.argv[1:] for words in kinds]
assert set(codes) <= {0, 2}, codes
sys.stdout.flush()
print("\\n--")
"""
IMPORT_ALL = """
import importlib, pkgutil
import kvlayout
for module in pkgutil.walk_packages(kvlayout.__path__, "kvlayout."):
    if not module.name.startswith("kvlayout.engines.lmcache") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def run(code: str, *arguments: str) -> str:
    """Run code in a fresh interpreter that sees installed packages only (-I: no PYTHONPATH, no working directory)."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def heavy_after(code: str, *arguments: str) -> str:
    return run(code + "\n" + LOADED.format(heavy=HEAVY), *arguments)


def test_the_probe_sees_a_heavy_module() -> None:
    pytest.importorskip("numpy")
    assert heavy_after("import numpy") == "numpy"


def test_importing_kvlayout_brings_no_heavy_module() -> None:
    assert heavy_after("import kvlayout") == ""


def test_planning_documents_brings_no_heavy_module() -> None:
    documents = sorted(map(str, CASES.glob("*.json")))
    assert documents
    assert heavy_after(PLAN, *documents) == ""


def test_planning_a_model_from_its_config_brings_no_heavy_module() -> None:
    pytest.importorskip("rich")
    configs = sorted(map(str, CONFIGS.glob("*.json")))
    assert configs
    assert heavy_after(MODEL, *configs).rpartition("\n--\n")[2] == ""


def test_importing_every_room_brings_no_heavy_module() -> None:
    assert heavy_after(IMPORT_ALL) == ""


def test_importing_kvlayout_does_not_import_json_or_cli_packages() -> None:
    code = "import kvlayout, sys; print([m for m in ('json', 'rich', 'cyclopts') if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_public_names_are_few_distinct_and_there() -> None:
    names = kvlayout.__all__
    assert len(names) <= 15
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(kvlayout, name)] == []


def test_public_names_do_not_depend_on_import_order() -> None:
    code = (
        "import kvlayout; before = {n: getattr(kvlayout, n) for n in kvlayout.__all__}" + IMPORT_ALL + "\n"
        "print([n for n in before if getattr(kvlayout, n) is not before[n]])"
    )
    assert run(code).strip() == "[]"


def test_version_is_the_same_in_metadata_and_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert importlib.metadata.version("kvlayout") == project["version"]


def test_the_runtime_dependency_is_one() -> None:
    requirements = importlib.metadata.requires("kvlayout") or []
    names = [line.split(">")[0] for line in requirements if "extra ==" not in line]
    assert sorted(names) == ["attrs"]


def test_the_wheel_run_imports_the_wheel() -> None:
    if "KVLAYOUT_WHEEL_RUN" not in os.environ:
        pytest.skip("only in the wheel run")
    for origin in (Path(kvlayout.__file__), Path(run("import kvlayout; print(kvlayout.__file__)").strip())):
        assert origin.is_relative_to(sys.prefix)
    assert not (ROOT / "kvlayout").exists()
