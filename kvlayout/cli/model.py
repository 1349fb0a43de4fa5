"""``kvlayout model``: from a config.json and a deployment to block sizes, the plan, capacity and settings.

The words are read by :mod:`kvlayout.cli.words`; what is printed for people is in :mod:`kvlayout.cli.model_tables`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cli.files import read_config
from kvlayout.cli.misplaced import for_model
from kvlayout.cli.output import PLANNED, REFUSED, put, put_json, unusable
from kvlayout.cli.words import Words, help_text, read_other, read_words, within_other
from kvlayout.errors import LayoutErrors
from kvlayout.offline.answering import answer
from kvlayout.offline.flags import in_flags, read_flags
from kvlayout.offline.reading import read_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvlayout.cli.checking import Checked
    from kvlayout.offline.answering import Answer
    from kvlayout.offline.comparing import Comparison
    from kvlayout.offline.model import Model

__all__ = ["run_model"]


def run_model(words: Sequence[str]) -> int:
    """Run the command on the words behind it and return its exit code."""
    as_json = "--json" in words
    read = read_words(words)
    if isinstance(read, Err):
        return unusable(read.error.errors, as_json=as_json)
    if "--help" in read.value.switches:
        put(help_text())
        return PLANNED
    if read.value.sweeps:
        from kvlayout.cli.sweeps import run_sweep

        loaded = _load(read.value)
        if isinstance(loaded, Err):
            return unusable(loaded.error.errors, as_json=as_json)
        return run_sweep(loaded.value.model, read.value)
    made = _report(read.value)
    if isinstance(made, Err):
        return unusable(made.error.errors, as_json=as_json)
    _show(made.value, as_json=as_json)
    return _code(made.value)


class Report(NamedTuple):
    """What there is to print."""

    answer: Answer
    comparison: Comparison | None
    checked: Checked | None


class Loaded(NamedTuple):
    """A config: its bytes, and the model that they describe."""

    text: bytes
    model: Model


def _load(words: Words, known: Loaded | None = None) -> Result[Loaded, LayoutErrors]:
    """Read a config; ``known`` is that of the first of a pair, since standard input can be read only once."""
    if known is not None:
        return Ok(known)
    text = read_config(words.config)
    if isinstance(text, Err):
        return text
    model = read_model(text.value, generic="--generic" in words.switches)
    if isinstance(model, Err):
        return Err(LayoutErrors(for_model(words.config, model.error.errors)))
    return Ok(Loaded(text.value, model.value))


def _report(words: Words) -> Result[Report, LayoutErrors]:
    """Return the answer, and where they were asked for the comparison and the engine's own word."""
    loaded = _load(words)
    if isinstance(loaded, Err):
        return loaded
    given, asks = words.given, words.given.get("engine") == "installed"
    if asks:
        from kvlayout.cli.checking import on_this_machine

        here = on_this_machine(given)
        if isinstance(here, Err):
            return here
        given = here.value
    first = _answered(loaded.value.model, given)
    if isinstance(first, Err):
        return first
    comparison = None
    if words.compare is not None:
        compared = _compared(words, loaded.value, given, first.value)
        if isinstance(compared, Err):
            return Err(LayoutErrors(map(within_other, compared.error.errors)))
        comparison = compared.value
    checked = None
    if asks:
        from kvlayout.cli.checking import check_engine

        derived = check_engine(loaded.value.text, first.value)
        if isinstance(derived, Err):
            return derived
        checked = derived.value
    return Ok(Report(first.value, comparison, checked))


def _answered(model: Model, given: dict[str, str]) -> Result[Answer, LayoutErrors]:
    read = read_flags(given)
    if isinstance(read, Err):
        return read
    made = answer(model, read.value)
    return Err(in_flags(made.error.errors)) if isinstance(made, Err) else made


def _compared(words: Words, loaded: Loaded, given: dict[str, str], first: Answer) -> Result[Comparison, LayoutErrors]:
    from kvlayout.offline.comparing import Side, compare

    other = read_other(words.compare or "", words)
    if isinstance(other, Err):
        return other
    same = other.value.config == words.config and ("--generic" in other.value.switches) == (
        "--generic" in words.switches
    )
    read = _load(other.value, loaded if same else None)
    if isinstance(read, Err):
        return read
    others, model = {**given, **other.value.given}, read.value.model
    second = _answered(model, others)
    if isinstance(second, Err):
        return second
    return Ok(compare(Side(loaded.model, given, first), Side(model, others, second.value)))


def _code(made: Report) -> int:
    refused = made.answer.errors or (made.comparison is not None and made.comparison.second.errors)
    return REFUSED if refused else PLANNED


def _show(made: Report, *, as_json: bool) -> None:
    if as_json:
        from kvlayout.cli.model_json import report_json

        put_json(report_json(made.answer, made.comparison, made.checked))
        return
    from kvlayout.cli.model_tables import show_pair, show_report

    if made.comparison is not None:
        put(show_pair(made.comparison, sys.stdout))
    else:
        put(show_report(made.answer, made.checked, sys.stdout))
