"""Paired timing: in every round each call takes its turn, so a machine that slows down slows all of them alike.

The clock is this thread's CPU time. On an idle machine that is the time on the wall, for calls that wait for nothing
and start no threads; on a busy one it leaves out what other processes took.

>>> taken = in_turns({"a": list, "b": dict}, rounds=3, repeat=10)
>>> sorted(taken), len(taken["a"])
(['a', 'b'], 3)
>>> over([3.0, 4.0, 8.0], [1.0, 2.0, 2.0])
Ratio(middle=2.0, low=2.0, high=4.0)
"""

from __future__ import annotations

import gc
from statistics import median
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Ratio", "in_turns", "over", "tenths"]


class Ratio(NamedTuple):
    """The ratio of two medians, and the first and last tenth of the ratios of each round."""

    middle: float
    low: float
    high: float


def in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, repeat: int = 1, untimed: int = 0
) -> dict[str, list[float]]:
    """Return the microseconds of each call in each round, a b c a b c ...

    Args:
        calls: what to time; each is called a few times before, so that first times (imports, caches) don't count.
        rounds: how many times each takes its turn.
        repeat: calls a turn, for calls of a few microseconds; their mean is the turn's time.
        untimed: calls of its own before each turn, after which the processor's caches are warm.
    """
    for _ in range(min(rounds, 10)):
        for call in calls.values():
            call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()  # a collection falls on whoever runs when the counter is full; here on no one
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                for _ in range(untimed):
                    call()
                start = thread_time()
                for _ in range(repeat):
                    call()
                taken[name].append((thread_time() - start) * 1e6 / repeat)
            gc.collect(0)
    finally:
        if collecting:
            gc.enable()
    return taken


def over(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return how many times their time ours is."""
    low, high = tenths([one / other for one, other in zip(ours, theirs, strict=True)])
    return Ratio(median(ours) / median(theirs), low, high)


def tenths(values: Sequence[float]) -> tuple[float, float]:
    """Return the values below and above which a tenth of them lies."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    return ordered[cut], ordered[-1 - cut]
