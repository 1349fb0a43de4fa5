"""Documents in, plans out: reading that is bounded, writing that is whole or not at all.

Files are opened by name where a command reads its input: importing pathlib takes 3 ms.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Final, NamedTuple, TextIO

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.errors import Code, LayoutError, LayoutErrors

__all__ = ["CONFIG_LIMIT", "LIMIT", "read_config", "read_document", "write_whole"]

#: Bytes of the largest document that is read: a registration of 100,000 layers has a tenth of them.
LIMIT: Final = 256 * 1024 * 1024

#: Bytes of the largest config.json that is read: those of the largest models have a thousandth of them.
CONFIG_LIMIT: Final = 16 * 1024 * 1024

#: How files start that people give instead of a config.json, and what they are.
_OTHERS: Final = (
    (b"GGUF", "a GGUF file"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"PK\x03\x04", "a zip archive, or a torch file"),
    (b"\x1f\x8b", "a compressed file"),
    (b"%PDF", "a PDF"),
    (b"\x80\x02", "a pickle"),
)


def read_config(name: str) -> Result[bytes, LayoutErrors]:
    """Read a config.json, the one of a folder, or standard input for ``-``; what is no text is ``bad-config``.

    A file that is too large is refused by its size, before it is read.

    >>> read_config("no/such/folder").error.errors[0].actual
    'No such file or directory'
    """
    path = os.path.join(name, "config.json") if name != "-" and os.path.isdir(name) else name  # noqa: PTH112, PTH118
    found = _sized(path) or _read(path, CONFIG_LIMIT)
    if isinstance(found, _Unread):
        return _no_config(path, found)
    kind = next((what for start, what in _OTHERS if found.startswith(start)), None)
    return Ok(found) if kind is None else _no_config(path, _Unread("the text of a config.json", kind))


def _no_config(name: str, why: _Unread) -> Err[LayoutErrors]:
    fix = "name the model's config.json, the folder that it is in, or - for standard input"
    return Err(
        LayoutErrors((LayoutError(Code.BAD_CONFIG, expected=why.expected, actual=why.actual, fix=fix, path=name),))
    )


def _sized(name: str) -> _Unread | None:
    try:
        found = os.stat(name)  # noqa: PTH116
    except (OSError, ValueError):
        return None  # reading says why
    if stat.S_ISREG(found.st_mode) and found.st_size > CONFIG_LIMIT:
        return _Unread(_at_most(CONFIG_LIMIT), f"{found.st_size:,}")
    return None


def read_document(name: str) -> Result[bytes, LayoutErrors]:
    """Read a file, or standard input for ``-``; a document that can't be read is ``bad-document``.

    >>> read_document("no/such/file").error.errors[0].actual
    'No such file or directory'
    """
    found = _read(name, LIMIT)
    if not isinstance(found, _Unread):
        return Ok(found)
    fix, (expected, actual) = "name a registration document, or - for standard input", found
    return Err(LayoutErrors((LayoutError(Code.BAD_DOCUMENT, expected=expected, actual=actual, fix=fix, path=name),)))


class _Unread(NamedTuple):
    """Why there is nothing: what was expected, and what was there."""

    expected: str
    actual: str


def _read(name: str, limit: int) -> bytes | _Unread:
    expected = "a file that can be read"
    try:
        if name == "-":
            stream: TextIO | None = getattr(sys, "stdin", None)  # None where the process was started without one
            if stream is None:
                return _Unread(expected, "no standard input")
            text = stream.buffer.read(limit + 1)
        else:
            with open(name, "rb") as file:  # noqa: PTH123
                text = file.read(limit + 1)
    except OSError as error:
        return _Unread(expected, error.strerror or type(error).__name__)
    except ValueError as error:  # a name with a null character
        return _Unread(expected, str(error))
    return text if len(text) <= limit else _Unread(_at_most(limit), "more than that")


def _at_most(limit: int) -> str:
    return f"at most {limit} bytes"


def write_whole(name: str, text: str) -> None:
    """Write a file so that a reader finds the old content or the new one, never a part.

    Devices and pipes are written to directly.

    Raises:
        OSError: it could not be written; the old content is still there.
    """
    from pathlib import Path

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
