"""Import time, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.table import Row, Section, timed
from benchmarks.timing import tenths

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        rows.append(_over(f"kvlayout over attrs, {name} time", attrs, ours))
    return Section(f"import, in {rounds} fresh processes each", tuple(rows))


def _over(what: str, attrs: Sequence[float], ours: Sequence[float]) -> Row:
    between = (median(ours) - median(attrs)) / 1e3
    low, high = tenths([(one - other) / 1e3 for one, other in zip(ours, attrs, strict=True)])
    return Row(
        what,
        f"{between:.1f} ms",
        f"{(min(ours) - min(attrs)) / 1e3:.1f} ms",
        spread=f"{low:.0f} to {high:.0f} ms",
        target=f"<= {MOST_OVER} ms",
        met=between <= MOST_OVER,
    )


def _import(module: str) -> tuple[float, float]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(module)], capture_output=True, text=True, check=True, env=kept
    )
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu
