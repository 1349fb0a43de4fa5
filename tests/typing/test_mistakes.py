"""mypy finds every deliberate mistake, with the code that is written beside it, and finds nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MISTAKES = Path(__file__).with_name("mistakes.py")
FOUND = re.compile(r"^.*mistakes\.py:(\d+)(?::\d+)?: error: .*\[([a-z-]+)\]$")


def expected() -> set[tuple[int, str]]:
    made = set()
    for number, line in enumerate(MISTAKES.read_text().splitlines(), start=1):
        _, flag, codes = line.partition("  # E: ")
        made |= {(number, code.strip()) for code in codes.split(",") if flag}
    return made


def test_every_mistake_is_found_and_nothing_else() -> None:
    from mypy import api

    config = ROOT / "pyproject.toml"
    cache = ROOT / ".mypy_cache"  # that of the ordinary run: warm, this takes a second
    options = ["--config-file", str(config), "--cache-dir", str(cache), "--no-error-summary", "--hide-error-context"]
    out, problems, _ = api.run([*options, "--no-pretty", "--show-error-codes", str(MISTAKES)])
    assert problems == ""
    errors = [line for line in out.splitlines() if ": note: " not in line]
    found = {(int(match[1]), match[2]) for match in map(FOUND.match, errors) if match}
    assert len(errors) == len([line for line in errors if FOUND.match(line)]), out
    assert found == expected()


def test_the_file_of_mistakes_covers_the_table() -> None:
    codes = {code for _, code in expected()}
    assert codes >= {
        "operator",
        "arg-type",
        "return-value",
        "return",
        "call-arg",
        "exhaustive-match",
        "union-attr",
        "misc",
    }
    assert len(expected()) >= 60
