"""A sweep for people: a row a deployment."""
# ruff: noqa: TID253 - imported by the command that prints this table, when it prints it

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from rich.text import Text

from kvlayout.cli.printing import console_of, rendered, table_of, text_of
from kvlayout.cli.sweeps import refusals_of
from kvlayout.cli.wording import clean, counted, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvlayout.offline.sweeping import Axis, Row

__all__ = ["show_sweep"]

_WIDE: Final = 100
_ENDLESS: Final = 1000


def show_sweep(found: Sequence[Row], over: Sequence[Axis], stream: TextIO) -> str:
    """Return the table of a sweep: what was tried on the left, what it gives on the right."""
    console = console_of(stream)
    columns = _columns(found, wide=console.width >= _WIDE)
    refused = any(row.errors for row in found)
    heads = [(axis.field.replace("_", " "), True) for axis in over] + [(head, True) for head in columns]
    table = table_of([*heads, *([("refused", False)] * refused)])
    for row in found:
        cells = [*map(clean, row.values), *(show(row) for show in columns.values())]
        if refused:
            cells.append(", ".join(map(clean, refusals_of(row))))
        table.add_row(*cells, style="red" if row.errors else "")
    planned = sum(row.block is not None and not row.errors for row in found)
    last = text_of(f"{counted(len(found), 'deployment')}, {planned:,} planned", "green" if planned else "red")
    # Numbers that are cut say something else: a table of many axes is as wide as it must be.
    console.width = max(
        console.width, console.measure(table, options=console.options.update(max_width=_ENDLESS)).maximum
    )
    return rendered(console, [table, Text(), last])


def _columns(found: Sequence[Row], *, wide: bool) -> dict[str, Callable[[Row], str]]:
    """Return the columns that say something: chunks where they are no blocks, counts where there is memory."""
    columns: dict[str, Callable[[Row], str]] = {"block": lambda row: number(row.block)}
    if any(row.chunk != row.block for row in found):
        columns["chunk"] = lambda row: number(row.chunk)
    columns["page bytes"] = lambda row: number(row.page_bytes)
    columns["padding"] = lambda row: _share(row.padding)
    counts = any(row.requests is not None for row in found)
    if wide or not counts:
        columns["fixed bytes"] = lambda row: number(row.fixed_bytes)
        columns["bytes a token"] = lambda row: _decimal(row.token_bytes, 0)
    if counts:
        columns["tokens"] = lambda row: number(row.tokens)
        columns["requests"] = lambda row: _decimal(row.requests, 2)
    return columns


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
