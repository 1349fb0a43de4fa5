"""Documents in, plans out: reading that is bounded, writing that is whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final, TextIO

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.errors import Code, LayoutError, LayoutErrors

__all__ = ["LIMIT", "read_document", "write_whole"]

#: Bytes of the largest document that is read: a registration of 100,000 layers has a tenth of them.
LIMIT: Final = 256 * 1024 * 1024


def read_document(name: str) -> Result[bytes, LayoutErrors]:
    """Read a file, or standard input for ``-``; a document that can't be read is ``bad-document``.

    >>> read_document("no/such/file").error.errors[0].actual
    'No such file or directory'
    """
    try:
        if name == "-":
            stream: TextIO | None = getattr(sys, "stdin", None)  # None where the process was started without one
            if stream is None:
                return _unreadable(name, "no standard input")
            text = stream.buffer.read(LIMIT + 1)
        else:
            with Path(name).open("rb") as file:
                text = file.read(LIMIT + 1)
    except OSError as error:
        return _unreadable(name, error.strerror or type(error).__name__)
    except ValueError as error:  # a name with a null character
        return _unreadable(name, str(error))
    if len(text) > LIMIT:
        return _unreadable(name, "more than that", f"at most {LIMIT} bytes")
    return Ok(text)


def _unreadable(name: str, actual: str, expected: str = "a file that can be read") -> Err[LayoutErrors]:
    fix = "name a registration document, or - for standard input"
    return Err(LayoutErrors((LayoutError(Code.BAD_DOCUMENT, expected=expected, actual=actual, fix=fix, path=name),)))


def write_whole(name: str, text: str) -> None:
    """Write a file so that a reader finds the old content or the new one, never a part.

    Devices and pipes are written to directly.

    Raises:
        OSError: it could not be written; the old content is still there.
    """
    target = Path(os.path.realpath(name))
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        target.write_text(text, encoding="utf-8")
        return
    part = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
