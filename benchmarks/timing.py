"""Paired timing: the candidates take turns, so that a change of the machine's speed hits all of them alike."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import NamedTuple

__all__ = ["Ratio", "import_milliseconds", "in_turns", "ratio"]


class Ratio(NamedTuple):
    """The median of paired ratios, and their quartiles."""

    middle: float
    low: float
    high: float


def in_turns(candidates: Mapping[str, Callable[[], object]], rounds: int, calls: int = 1) -> dict[str, list[float]]:
    """Return microseconds a call of each candidate: in every round each is called in turn, ``calls`` times."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        for _ in range(3):
            call()
    collecting = gc.isenabled()
    gc.disable()  # a collection would fall on whoever is running
    try:
        for _ in range(rounds):
            for name, call in candidates.items():
                start = perf_counter()
                for _ in range(calls):
                    call()
                times[name].append((perf_counter() - start) * 1e6 / calls)
            gc.collect(0)
    finally:
        if collecting:
            gc.enable()
    return times


def ratio(times: Mapping[str, list[float]], one: str, other: str) -> Ratio:
    """Return how many times the other's time the one takes, round by round."""
    paired = sorted(a / b for a, b in zip(times[one], times[other], strict=True))
    quarter = len(paired) // 4
    return Ratio(median(paired), paired[quarter], paired[-1 - quarter])


def import_milliseconds(statements: tuple[str, ...], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of statements, each in fresh processes that take turns."""
    times: dict[str, list[float]] = {statement: [] for statement in statements}
    for _ in range(rounds + 1):  # the first writes the byte code
        for statement in statements:
            code = f"from time import perf_counter as t; s = t(); {statement}; print((t() - s) * 1e3)"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            times[statement].append(float(done.stdout))
    return {statement: median(found[1:]) for statement, found in times.items()}
