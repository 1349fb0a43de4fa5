"""The command ``kvlayout model``, each time in a process of its own, and a sweep of a thousand deployments."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.table import Section, added, timed
from benchmarks.timing import in_turns
from kvlayout.offline.reading import read_model
from kvlayout.offline.sweeping import axes, rows

__all__ = ["MOST_OVER", "MOST_SWEEP", "models"]

MOST_OVER = 150  # milliseconds
MOST_SWEEP = 5_000_000  # microseconds
CONFIG = Path(__file__).parents[1] / "examples" / "qwen3.5-0.8b.json"
_FLAGS = ("--tp", "4", "--cache-memory", "8GiB")
#: A thousand deployments.
_SWEPT = (
    ("tp", ("1", "2", "4", "8", "16")),
    ("block_size", tuple(str(16 * count) for count in range(1, 51))),
    ("cache_dtype", ("auto", "fp8")),
    ("max_model_len", ("8192", "65536")),
)


def models(rounds: int) -> Section:
    """Time the command over an interpreter that does nothing, and the sweep, in this process."""
    command = ["-m", "kvlayout.cli", "model", str(CONFIG), *_FLAGS]
    calls = {"nothing": ["-c", "pass"], "tables": command, "json": [*command, "--json"]}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for words in calls.values():  # byte code is written once
        _run(words)
    for _ in range(rounds):
        for name, words in calls.items():
            taken[name].append(_run(words))
    return Section(
        f"kvlayout model, CPU time of {rounds} fresh processes each",
        (
            timed("an interpreter that does nothing", taken["nothing"]),
            added("kvlayout model, over that", taken["tables"], taken["nothing"], MOST_OVER),
            added("kvlayout model --json, over that", taken["json"], taken["nothing"], MOST_OVER),
            timed("a sweep of 1,000 deployments, in this process", _sweep(), MOST_SWEEP),
        ),
    )


def _run(words: list[str]) -> float:
    """Return the microseconds of CPU time that a process takes."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True, env=kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e6


def _sweep() -> list[float]:
    model, given = read_model(CONFIG.read_bytes()).unwrap(), {"cache_memory": "8GiB"}
    over = axes(given, _SWEPT).unwrap()
    return in_turns({"sweep": lambda: sum(1 for _ in rows(model, given, over))}, rounds=2)["sweep"]
