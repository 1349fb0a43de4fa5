"""The command line: ``kvlayout plan``, ``kvlayout model`` and ``kvlayout check``.

Exit codes: 0 planned (or holds), 2 refused, 1 unusable input. The packages of the extra ``cli`` are imported when
a command needs them: the option parser by all but ``model``, tables only where tables are printed.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: words behind ``kvlayout``; those of the process by default.

    >>> main(["plan", "tests/data/no-such-document.json"])  # the diagnostic goes to standard error
    1
    """
    words = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        gc.disable()  # a process of a tenth of a second, which the collector would stretch by a tenth of that
    try:
        return _run(words)
    except ModuleNotFoundError as error:
        if error.name not in ("cyclopts", "rich"):
            raise
        sys.stderr.write("kvlayout: the command line needs its extra: pip install 'kvlayout[cli]'\n")
        return 1
    except OSError as error:  # of standard output alone: files that can't be read or written are answers
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit does not try again
            sys.stderr.write(f"kvlayout: standard output can't be written: {error.strerror}\n")
        return 1


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["model"]:
        from kvlayout.cli.model import run_model

        return run_model(words[1:])
    from kvlayout.cli.commands import run

    return run(words)
