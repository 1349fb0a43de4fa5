"""The commands, from words to exit codes. What is printed for people is in :mod:`kvlayout.cli.tables`."""
# ruff: noqa: TID253 - main imports this module when it runs, and nothing else imports it

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, CycloptsError, Parameter

from kvlayout.algebra.result import Err
from kvlayout.cache.document import read_registration
from kvlayout.cli.files import read_document, write_whole
from kvlayout.cli.misplaced import for_check, for_plan
from kvlayout.cli.output import PLANNED, REFUSED, UNUSABLE, complain, plan_document, put, put_json, unusable
from kvlayout.errors import Code
from kvlayout.planning import attempt
from kvlayout.plans import Plan
from kvlayout.rules.presentation import Form

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["run"]

_EXIT_CODES: Final = "Exit codes: 0 planned (or the stored plan holds), 2 refused, 1 unusable input."

# A hyphen is standard input, so words that start with one are names.
Document = Annotated[str, Parameter(allow_leading_hyphen=True, help="A registration document; - is standard input.")]
Stored = Annotated[str, Parameter(allow_leading_hyphen=True, help="A plan that --out wrote; - is standard input.")]
AsJson = Annotated[
    bool, Parameter("--json", negative=(), show_default=False, help="Print JSON, and nothing else, on standard output.")
]
Out = Annotated[str | None, Parameter(metavar="FILE", help="Store the plan in this file, if there is one.")]
Presented = Annotated[Form, Parameter(help="Pages as LMCache reads them, or as rows of bytes.")]


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; a mistake in the words is unusable input."""
    try:
        code = _application()(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        complain(f"kvlayout: {error}\nTry: kvlayout --help")
        return UNUSABLE
    return code if isinstance(code, int) else PLANNED


def _application() -> App:
    app = App(
        name="kvlayout",
        help="Proved views of paged KV-cache tensors: block i is exactly the bytes of block i.",
        help_epilogue=_EXIT_CODES,
        help_format="plaintext",
        version=_version,
        result_action="return_value",
    )
    app.command(plan, help_epilogue=_EXIT_CODES, sort_key=0)
    app.command(model, help_epilogue=_EXIT_CODES, sort_key=1)
    app.command(check, help_epilogue=_EXIT_CODES, sort_key=2)

    @app.default
    def other(*words: Annotated[str, Parameter(show=False)]) -> int:
        if words:
            complain(f"kvlayout: {words[0]!r} is no command\nTry: kvlayout --help")
        else:
            app.help_print([])
        return UNUSABLE

    return app


def _version() -> str:
    try:
        return version("kvlayout")
    except PackageNotFoundError:  # a checkout that is not installed
        return "not installed"


def plan(doc: Document, /, *, as_json: AsJson = False, out: Out = None, presentation: Presented = "lmcache") -> int:
    """Plan a registration: a proved view for every layer, or every reason why not."""
    text = read_document(doc)
    read = text if isinstance(text, Err) else read_registration(text.value)
    if isinstance(read, Err):
        errors = read.error.errors if isinstance(text, Err) else for_plan(doc, text.value, read.error.errors)
        return unusable(errors, as_json=as_json)
    made = attempt(read.value, presentation=presentation)
    code = REFUSED if made.errors else PLANNED
    if out is not None and not _stored(out, doc, made.plan if code == PLANNED else None):
        code = code or UNUSABLE
    if as_json:
        put_json(plan_document(made.plan, made.errors))
    else:
        from kvlayout.cli.tables import show_plan

        put(show_plan(made.plan, made.errors))
    return code


def model(*words: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> int:
    """Plan a model from its config.json and a deployment: block sizes, pages, capacity, settings."""
    from kvlayout.cli.model import run_model  # main gets there without this module; here it is listed among the others

    return run_model(words)


def check(stored: Stored, /, *, as_json: AsJson = False) -> int:
    """Prove a stored plan again: it holds, or it is refused or stale."""
    text = read_document(stored)
    read = text if isinstance(text, Err) else Plan.from_json(text.value)
    if isinstance(read, Err):
        errors = read.error.errors
        if any(error.code is Code.BAD_DOCUMENT for error in errors):
            errors = errors if isinstance(text, Err) else for_check(stored, text.value, errors)
            return unusable(errors, as_json=as_json)
        if as_json:
            put_json(plan_document(None, errors))
        else:
            from kvlayout.cli.tables import show_errors

            put(show_errors(errors, sys.stdout))
        return REFUSED
    if as_json:
        put_json(plan_document(read.value, ()))
    else:
        from kvlayout.cli.tables import show_check

        put(show_check(read.value))
    return PLANNED


def _stored(out: str, doc: str, made: Plan | None) -> bool:
    """Store a plan; tell on standard error why it is not stored."""
    why = None
    if made is None:
        why = "the registration is refused"
    elif out == "-" or (doc != "-" and os.path.exists(out) and os.path.samefile(out, doc)):  # noqa: PTH110, PTH121
        why = "name a file other than the document"
    else:
        try:
            write_whole(out, made.to_json())
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
    if why is not None:
        complain(f"kvlayout: {out} is not written: {why}")
    return why is None
