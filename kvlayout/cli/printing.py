"""What all tables have in common: the console, lines that only print, an empty table, and how refusals are shown.

Column widths are settled by those who fill a table, not left to wrapping. A number that is cut is another number, so a
table is wider than the terminal where it must be.
"""
# ruff: noqa: TID253 - imported by the commands that print tables, when they print them

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvlayout.cli.refusals import Refusal, refusals
from kvlayout.cli.wording import clean, counted, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvlayout.errors import LayoutError
    from kvlayout.warning import PlanWarning

__all__ = ["console_of", "refusal_parts", "rendered", "table_of", "text_of", "texts_of", "warning_parts"]

_PIPED: Final = 100
_LEAST: Final = 60
#: Columns between those of a table, and the longest word that is not folded.
_GAP: Final = 2
_LONG: Final = 40
_ENDLESS: Final = 10_000


def console_of(stream: TextIO) -> Console:
    """Return a console: coloured on a terminal only, and of one width where it is none."""
    terminal = stream.isatty()
    asked = os.environ.get("COLUMNS", "")
    width = None if terminal else int(asked) if asked.isdecimal() and len(asked) < 5 else _PIPED
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    console.width = max(console.width, _LEAST)
    return console


def rendered(console: Console, parts: Iterable[RenderableType]) -> str:
    """Return what a console would show, no line with spaces at its end; a table may be wider, so as to cut nothing."""
    width = console.width
    with console.capture() as capture:
        for part in parts:
            console.width = _ENDLESS  # cells are measured as they are, not as they would fit
            console.width = max(width, _settle(console, part, width) if isinstance(part, Table) else 0)
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _settle(console: Console, table: Table, room: int) -> int:
    """Give every column its width, the widest ones less than they want; return the table's, if need be above the room.

    No number and no word is broken, but for words that are longer than any column should be.
    """
    widths, least = [], []
    for column in table.columns:
        sizes = [console.measure(cell) for cell in (column.header, *column.cells)]
        widest = column.width or max(size.maximum for size in sizes)
        words = min(max(size.minimum for size in sizes), _LONG)
        widths.append(widest)
        least.append(widest if column.no_wrap or column.width else words)
    gaps = _GAP * (len(widths) - 1)
    while sum(widths) + gaps > room and (loose := [i for i, width in enumerate(widths) if width > least[i]]):
        widths[max(loose, key=widths.__getitem__)] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
    return sum(widths) + gaps


def text_of(text: str, style: str = "") -> Text:
    """Return text that only prints."""
    return Text(clean(text), style)


def texts_of(lines: Iterable[str]) -> Text:
    """Return lines that only print."""
    return Text("\n".join(map(clean, lines)))


def table_of(columns: Sequence[tuple[str, bool]]) -> Table:
    """Return an empty table; a column is its heading, and whether it holds numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading, numeric in columns:
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    return table


def warning_parts(warnings: Iterable[PlanWarning]) -> Iterable[RenderableType]:
    """Return what LMCache would make of views that are right."""
    for one in warnings:
        place = "" if one.group is None else f"group {one.group}: "
        count = f"{counted(len(one.layers), 'layer')} " if len(one.layers) > 1 else ""
        yield Text.assemble((one.code, "bold yellow"), f": {clean(one.message)}")
        yield Padding(text_of(f"where  {place}{count}{names(one.layers)}"), (0, 0, 1, 2))


def refusal_parts(errors: Sequence[LayoutError]) -> Iterable[RenderableType]:
    """Return every refusal, those that say the same of several places as one."""
    for code, meaning, alike in refusals(errors):
        yield Text.assemble((code, "bold red"), f": {meaning}")
        for one in alike:
            yield Padding(_facts(one), (0, 0, 1, 2))


def _facts(one: Refusal) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in one.rows:
        table.add_row(label, text_of(text, "bold" if label == "to do" else ""))
    return table
