"""Import time, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.table import Row, Section, added, timed

__all__ = ["MOST_OVER", "imports"]

MOST_OVER = 40  # milliseconds
_TIMED = """
from time import perf_counter as wall, process_time as cpu
start = wall(), cpu()
import {}
print((wall() - start[0]) * 1e6, (cpu() - start[1]) * 1e6)
"""


def imports(rounds: int) -> Section:
    """Time ``import attrs`` and ``import kvlayout``, which imports attrs too, in fresh processes in turns."""
    taken: dict[str, list[tuple[float, float]]] = {"attrs": [], "kvlayout": []}
    for module in taken:  # byte code is written once
        _import(module)
    for _ in range(rounds):
        for module, found in taken.items():
            found.append(_import(module))
    rows: list[Row] = []
    for clock, name in enumerate(("wall", "CPU")):
        attrs, ours = ([times[clock] for times in taken[module]] for module in ("attrs", "kvlayout"))
        rows += timed(f"import attrs, {name} time", attrs), timed(f"import kvlayout, {name} time", ours)
        rows.append(added(f"kvlayout over attrs, {name} time", ours, attrs, MOST_OVER))
    return Section(f"import, in {rounds} fresh processes each", tuple(rows))


def _import(module: str) -> tuple[float, float]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(module)], capture_output=True, text=True, check=True, env=kept
    )
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu
