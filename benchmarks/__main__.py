"""Print the table of measurements; a benchmark reports, it does not fail."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import subjects
from benchmarks.timing import import_milliseconds, in_turns, ratio
from kvlayout import Registration, apply, plan, plan_then_apply
from kvlayout.algebra.affine import BLOCK_COUNT, Size
from kvlayout.algebra.canonical import canonical, modes_of
from kvlayout.algebra.claims import Pages
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.kernel import prove, same
from kvlayout.algebra.layout import Axis, Layout, dense_strides
from kvlayout.algebra.units import Bytes

DOCUMENT = Path(__file__).parents[1] / "tests" / "data" / "registrations" / "qwen35-08b-geom-align-kp32.json"


class Row(NamedTuple):
    """One line of the table."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None


def page(blocks: Size, shape: tuple[int, ...], axes: tuple[Axis, ...]) -> Layout:
    """Return a dense page of bfloat16 a block."""
    inner = dense_strides(shape, 2)
    size = inner[0] * shape[0]
    return Layout((blocks, *shape), (size, *inner), Bytes(0), DTYPES["bfloat16"], size, (Axis.BLOCK, *axes))


RANK5 = (Axis.PLANE, Axis.TOKEN, Axis.HEAD, Axis.CHANNEL)


def proofs(rounds: int) -> Iterator[Row]:
    """Time one proof: exact pages, its own, of the right grain."""
    counts: dict[str, Size] = {"N symbolic": BLOCK_COUNT, "N = 10^3": 10**3, "N = 10^9": 10**9}

    def one(blocks: Size) -> Callable[[], object]:
        view = page(blocks, (2, 544, 1, 512), RANK5)
        pages = Pages((0,), 1_114_112, 1_114_112)
        return lambda: prove(view, pages, 1_114_112, 1_085_440, blocks, 544)

    times = in_turns({name: one(blocks) for name, blocks in counts.items()}, rounds, calls=20)
    middles = {name: median(found) for name, found in times.items()}
    for name, middle in middles.items():
        yield Row(f"one proof, {name}", f"{middle:.1f} us", "at most 20 us", middle <= 20)
    spread = max(middles.values()) / min(middles.values()) - 1
    yield Row("one proof, between the three", f"{spread:.1%} apart", "within 10 %", spread <= 0.10)


def algebra(rounds: int) -> Iterator[Row]:
    """Compare coalescing and view equality with a library of layouts in pure Python."""
    try:
        import tensor_layouts as other
    except ImportError:
        yield Row("coalescing against tensor-layouts", "left out: tensor-layouts is not installed")
        return
    ours = page(4096, (2, 544, 1, 512), RANK5)
    flat = page(4096, (544 * 1024,), (Axis.CHANNEL,))
    modes = modes_of(ours)
    theirs = other.Layout((512, 1, 544, 2, 4096), (1, 512, 512, 278_528, 557_056))  # its leftmost mode is the fastest
    single = other.Layout((557_056, 4096), (1, 557_056))
    times = in_turns(
        {
            "coalesce": lambda: canonical(modes),
            "coalesce, tensor-layouts": lambda: other.coalesce(theirs),
            "same": lambda: same(flat, ours),
            "same, tensor-layouts": lambda: other.coalesce(theirs) == other.coalesce(single),
        },
        rounds,
        calls=20,
    )
    for name in ("coalesce", "same"):
        found = ratio(times, name, f"{name}, tensor-layouts")
        what = "coalescing" if name == "coalesce" else "view equality, with its proof,"
        theirs_us = median(times[f"{name}, tensor-layouts"])
        yield Row(
            f"{what} against tensor-layouts", f"{median(times[name]):.1f} us to {theirs_us:.1f} us: {found.middle:.2f}"
        )


def live(layers: int, rounds: int, *, placed: bool) -> Iterator[Row]:
    """Compare ``plan_then_apply`` with LMCache's edits and with the bare loop, on the same tensors."""
    title = f"{layers} layers, {'one pool with placements' if placed else 'a storage a slot'}"
    try:
        subjects.quiet()
        subject = subjects.make(layers, placed=placed)
    except ImportError as error:
        yield Row(f"plan_then_apply, {title}", f"left out: {error}")
        return
    candidates = {"ours": subject.plan_then_apply, "bare": subjects.bare_loop(subject)}
    try:
        candidates["lmcache"] = subjects.lmcache_edits(subject)
        candidates["lmcache"]()
    except (ImportError, ValueError) as error:
        candidates.pop("lmcache", None)
        yield Row(f"LMCache's edits, {title}", f"left out: {type(error).__name__}: {error}")
    times = in_turns(candidates, rounds)
    for name, label in (("ours", "plan_then_apply"), ("lmcache", "LMCache 0.5.6's edits"), ("bare", "the bare loop")):
        if name in times:
            yield Row(f"{label}, {title}", f"{median(times[name]):.0f} us")
    for name, label, bound in (("lmcache", "LMCache's time", 0.30), ("bare", "the bare loop's time", 2.5)):
        if name in times:
            found = ratio(times, "ours", name)
            spread = f"{found.middle:.2f} ({found.low:.2f} to {found.high:.2f})"
            yield Row(f"  times {label}", spread, f"at most {bound:.2f}", found.middle <= bound)


def documents(rounds: int) -> Iterator[Row]:
    """Time a document of 24 layers: reading, planning, applying."""
    text = DOCUMENT.read_text()
    registration = Registration.from_json(text).unwrap()
    layers = len(json.loads(text)["caches"])
    times = in_turns({"read": lambda: Registration.from_json(text), "plan": lambda: plan(registration)}, rounds)
    for name, found in times.items():
        yield Row(f"{name} a document of {layers} layers", f"{median(found):.0f} us")
    try:
        subject = subjects.make(64, placed=True)
    except ImportError:
        return
    made = plan_then_apply(subject.config, subject.caches, subjects.HINTS).plan
    alone = in_turns({"apply": lambda: apply(made, subject.caches)}, rounds)["apply"]
    yield Row("apply a plan to 64 layers, planned and proved anew", f"{median(alone):.0f} us")


def imports(rounds: int) -> Iterator[Row]:
    """Time the import of kvlayout over that of attrs."""
    found = import_milliseconds(("import attrs", "import attrs, kvlayout"), rounds)
    attrs, both = found["import attrs"], found["import attrs, kvlayout"]
    over = both - attrs
    yield Row(
        "import kvlayout, over import attrs", f"{over:.0f} ms (attrs {attrs:.0f} ms)", "at most 40 ms", over <= 40
    )


def main() -> None:
    """Measure everything, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="rounds of the 64-layer comparison (default: 300)")
    rounds = max(parser.parse_args().rounds, 4)
    rows = [
        *live(64, rounds, placed=False),
        *live(64, rounds, placed=True),
        *live(1000, max(rounds // 15, 4), placed=False),
        *proofs(rounds),
        *algebra(rounds),
        *documents(rounds),
        *imports(max(rounds // 15, 4)),
    ]
    table = Table(title="medians of one run, candidates in turns", title_justify="left")
    for heading in ("what", "measured", "target", ""):
        table.add_column(heading, overflow="fold")
    for row in rows:
        verdict = "" if row.met is None else "met" if row.met else "missed"
        table.add_row(row.what, row.measured, row.target, verdict, style="red" if row.met is False else "")
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)


if __name__ == "__main__":
    main()
