"""The table: rows in sections, each with what was measured, what was wanted, and whether it was met."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.timing import Ratio, over, tenths

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

__all__ = ["Row", "Section", "added", "compared", "left_out", "render", "spread", "timed"]


class Row(NamedTuple):
    """One measurement. ``met`` is ``None`` where nothing was wanted of it, ``note`` says why one is left out."""

    what: str
    middle: str = ""
    least: str = ""
    ratio: str = ""
    spread: str = ""
    target: str = ""
    met: bool | None = None
    note: str = ""


class Section(NamedTuple):
    """Rows that were measured in turns with each other."""

    title: str
    rows: tuple[Row, ...]


def timed(what: str, taken: Sequence[float], most: float | None = None) -> Row:
    """Return the row of a time in microseconds, held against the most that it may be."""
    middle = median(taken)
    row = Row(what, _time(middle), _time(min(taken)))
    return row if most is None else row._replace(target=f"<= {_time(most)}", met=middle <= most)


def compared(what: str, ours: Sequence[float], theirs: Sequence[float], most: float | None = None) -> Row:
    """Return the row of another's time, with ours as a multiple of it."""
    found = over(ours, theirs)
    row = timed(what, theirs)._replace(ratio=f"{found.middle:.2f}", spread=spread(found))
    return row if most is None else row._replace(target=f"<= {most:.2f}", met=found.middle <= most)


def added(what: str, ours: Sequence[float], beneath: Sequence[float], most: float) -> Row:
    """Return a row of what a process takes beyond another, of times in microseconds; ``most`` is in milliseconds."""
    between = (median(ours) - median(beneath)) / 1e3
    low, high = tenths([(one - other) / 1e3 for one, other in zip(ours, beneath, strict=True)])
    return Row(
        what,
        f"{between:.1f} ms",
        f"{(min(ours) - min(beneath)) / 1e3:.1f} ms",
        spread=f"{low:.0f} to {high:.0f} ms",
        target=f"<= {most} ms",
        met=between <= most,
    )


def left_out(what: str, reason: str) -> Row:
    """Return the row of something that can't be measured here."""
    return Row(what, note=f"left out: {reason}")


def _time(microseconds: float) -> str:
    if microseconds >= 10_000:
        return f"{microseconds / 1e3:,.1f} ms"
    return f"{microseconds:,.0f} us" if microseconds >= 100 else f"{microseconds:.1f} us"


def spread(found: Ratio) -> str:
    """Return between which values the middle eight of ten rounds lie."""
    return f"{found.low:.2f} to {found.high:.2f}"


def render(title: str, sections: Iterable[Section], caption: str) -> Table:
    """Return the whole table; a title row above each section, the reason under each row that is left out."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, title_justify="left", caption_justify="left")
    table.add_column("", width=58, overflow="fold")
    for heading in ("median", "least", "ratio", "8 of 10", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    marks = {None: Text(), True: Text("met", "green"), False: Text("missed", "bold red")}
    for section in sections:
        table.add_section()
        table.add_row(Text(section.title, "bold"))
        for row in section.rows:
            name = Text(f"  {row.what}")
            if row.note:
                name.append(f"\n    {row.note}", "yellow")
            table.add_row(name, *map(Text, row[1:6]), marks[row.met])
    return table
