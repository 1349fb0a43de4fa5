"""What holds for every test: markers and the packages they need, and the environment of engine tests.

A test marked ``torch``, ``engine``, ``lmcache`` or ``oracles`` is skipped where its package is not installed. The
environment variable ``KVLAYOUT_REQUIRE`` (a comma-separated list of these markers, set by ``make test``) forbids that:
the whole run stops at once when a required package is missing. Such a test imports its package inside the function, or
after ``pytest.importorskip``, so that it can be collected without.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import hypothesis
import pytest

PACKAGES = {
    "torch": ("torch",),
    "engine": ("vllm",),
    "lmcache": ("vllm", "lmcache"),
    "oracles": ("islpy", "z3"),
}
CPU_SITE = Path(__file__).parent / "cpu_site"

# Files of deliberate mistakes are for mypy; cpu_site is for other processes.
collect_ignore_glob = ["typing/mistakes*.py", "cpu_site/*"]

# The machine may be busy, so a slow example is no failure; a failing one is printed so that it can be replayed.
hypothesis.settings.register_profile("kvlayout", deadline=None, print_blob=True)
hypothesis.settings.load_profile("kvlayout")


def missing(marker: str) -> tuple[str, ...]:
    """Return the packages of a marker that are not installed."""
    return tuple(package for package in PACKAGES[marker] if importlib.util.find_spec(package) is None)


def prepare_engine() -> None:
    """Make the CPU build importable, here and in child processes, and keep it off the network."""
    if str(CPU_SITE) not in sys.path:
        sys.path.append(str(CPU_SITE))
    importlib.import_module("cpu_build").install()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(CPU_SITE), *filter(None, paths)]))
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "LMCACHE_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)


def pytest_configure(config: pytest.Config) -> None:
    """Stop at once where a required package is missing."""
    del config
    required = [name for name in os.environ.get("KVLAYOUT_REQUIRE", "").split(",") if name]
    if unknown := [name for name in required if name not in PACKAGES]:
        raise pytest.UsageError(f"KVLAYOUT_REQUIRE names no marker of this suite: {', '.join(unknown)}")
    if absent := {name: missing(name) for name in required if missing(name)}:
        lines = [f"{name} needs {', '.join(packages)}" for name, packages in absent.items()]
        raise pytest.UsageError(f"KVLAYOUT_REQUIRE is not met: {'; '.join(lines)} (not installed)")
    if not missing("engine"):
        prepare_engine()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what can't run here."""
    reasons = {marker: ", ".join(missing(marker)) for marker in PACKAGES}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"not installed: {reason}"))
