"""``kvlayout model --sweep``: many deployments as a table, as CSV or as JSON, with a progress bar on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from kvlayout.algebra.result import Err
from kvlayout.cli.model_json import field_json
from kvlayout.cli.output import PLANNED, REFUSED, UNUSABLE, put, put_json, unusable
from kvlayout.errors import Code
from kvlayout.offline.flags import read_flags
from kvlayout.offline.sweeping import Axis, Row, axes, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvlayout.cli.words import Words
    from kvlayout.offline.model import Model

__all__ = ["refusals_of", "run_sweep"]

#: What a row says, in the order of its columns; CSV and JSON have them under these names.
_COLUMNS: Final = ("block", "chunk", "page_bytes", "padding", "fixed_bytes", "token_bytes", "tokens", "requests")


def run_sweep(model: Model, words: Words) -> int:
    """Try every combination, print what became of each, and return the exit code.

    0 where any deployment planned, 2 where those that are usable are all refused, 1 where none is usable.
    """
    as_json = "--json" in words.switches
    over = axes(words.given, words.sweeps)
    if isinstance(over, Err):
        return unusable(over.error.errors, as_json=as_json)
    found = list(_watched(rows(model, words.given, over.value), over.value))
    if as_json:
        put_json({"rows": [_document(row, over.value) for row in found]})
    elif "--csv" in words.switches:
        put(_csv(found, over.value))
    else:
        from kvlayout.cli.sweep_tables import show_sweep

        put(show_sweep(found, over.value, sys.stdout))
    if all(row.block is None for row in found):
        return UNUSABLE
    return PLANNED if any(row.block is not None and not row.errors for row in found) else REFUSED


def _watched(found: Iterator[Row], over: Sequence[Axis]) -> Iterable[Row]:
    """Return the rows; on a terminal a bar on standard error counts them."""
    if not sys.stderr.isatty():
        return found
    from math import prod

    from rich.console import Console
    from rich.progress import track

    console, total = Console(file=sys.stderr), prod(len(axis.values) for axis in over)
    return track(found, "deployments", total=total, console=console, transient=True)


def refusals_of(row: Row) -> list[str]:
    """Return why a row is refused: each code once, an unusable deployment's with its field."""
    codes = (f"{one.code.value} {one.path}" if one.code is Code.BAD_CONFIG else one.code.value for one in row.errors)
    return list(dict.fromkeys(codes))


def _facts(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in _COLUMNS}


def _document(row: Row, over: Sequence[Axis]) -> dict[str, object]:
    asked = {axis.field: value for axis, value in zip(over, row.values, strict=True)}
    deployment = read_flags(asked).unwrap()  # every value was read before
    return {
        "deployment": {field: field_json(deployment, field) for field in asked},
        **_facts(row),
        "refused": refusals_of(row),
    }


def _csv(found: Sequence[Row], over: Sequence[Axis]) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(axis.field for axis in over), *_COLUMNS, "refused"])
    for row in found:
        facts = [
            f"{one:.4f}".rstrip("0").rstrip(".") if isinstance(one, float) else one for one in _facts(row).values()
        ]
        writer.writerow([*row.values, *facts, "; ".join(refusals_of(row))])
    return text.getvalue()
