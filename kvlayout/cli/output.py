"""What goes out: text for people, JSON for programs, and a word on standard error where there is neither."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvlayout.errors import LayoutError
    from kvlayout.plans import Plan
    from kvlayout.reporting import Json

__all__ = ["PLANNED", "REFUSED", "UNUSABLE", "complain", "plan_document", "put", "put_json", "unusable"]

#: Exit codes.
PLANNED: Final = 0
UNUSABLE: Final = 1
REFUSED: Final = 2


def put(text: str) -> None:
    """Print, whatever the encoding of the output; a reader that has left is no fault."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit does not try again


def put_json(document: object) -> None:
    """Print a document of one kind or another."""
    import json

    put(json.dumps(document, indent=1) + "\n")


def plan_document(made: Plan | None, errors: tuple[LayoutError, ...]) -> dict[str, Json]:
    """Return what ``--json`` prints of a plan, or where there is none, of the reasons."""
    from kvlayout.reporting import plan_json

    return plan_json(made, errors)


def unusable(errors: tuple[LayoutError, ...], *, as_json: bool) -> int:
    """Say why there is nothing to plan: as JSON on standard output, else in words on standard error."""
    if as_json:
        put_json(plan_document(None, errors))
    else:
        from kvlayout.cli.tables import show_errors

        complain(show_errors(errors, sys.stderr))
    return UNUSABLE


def complain(text: str) -> None:
    """Print on standard error."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding).rstrip() + "\n")
