"""Pages as files that are whole or absent: what `page_store_connector.py` keeps them in.

A file is `<root>/<two digits>/<name>`, where the name is a digest of all that a reader relies on. It is written beside
its place and then moved there, and begins with its own name, its length and a checksum. So a file that is torn, cut,
flipped, of another version or under a wrong name is a miss with a line in the log, and never data.
"""

from __future__ import annotations

import functools
import logging
import os
import struct
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["HEADER", "MAGIC", "PageFiles"]

logger = logging.getLogger(__name__)

MAGIC = b"KVPAGE\x00\x01"  # the last byte is the version
HEADER = struct.Struct("<8s32sQ32s")  # magic, name, bytes of the page, checksum of all of these
REMEMBERED = 1 << 16  # pages that are not read again before they are loaded, unless their file changes


class PageFiles:
    """The pages below one folder, which other processes may use and change at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checked = functools.lru_cache(REMEMBERED)(lambda name, _stat: self.read(name) is not None)

    def path(self, name: bytes) -> Path:
        """Return where a page is, or would be."""
        return self.root / name.hex()[:2] / name.hex()

    def whole(self, name: bytes) -> bool:
        """Return whether a page is there and whole; a file that has not changed since is not read again."""
        try:
            stat = self.path(name).stat()
        except OSError:
            return False
        return self._checked(name, (stat.st_ino, stat.st_mtime_ns, stat.st_size))

    def read(self, name: bytes) -> memoryview | None:
        """Return a page, or `None` where there is none; a file that is no page is reported and removed."""
        path = self.path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("page store: %s can't be read (%s): a miss", path, error)
            return None
        if flaw := _flaw(name, data):
            logger.warning("page store: %s is no page (%s): a miss, and removed", path, flaw)
            with suppress(OSError):
                path.unlink()
            return None
        return memoryview(data)[HEADER.size :]

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        """Write a page so that nobody ever finds half of it.

        Raises:
            OSError: it could not be written; nothing is left of it.
        """
        path = self.path(name)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        length = sum(map(len, parts))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(HEADER.pack(MAGIC, name, length, _checksum(name, length, parts)))
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise

    def sweep(self) -> None:
        """Remove what killed writers left. At worst a living writer on another machine loses a page that it writes."""
        for path in self.root.glob("*/*.tmp"):
            with suppress(OSError, ValueError):
                if not _alive(int(path.name.split(".")[-2])):
                    path.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, and alive
        pass
    return True


def _checksum(name: bytes, length: int, parts: Iterable[memoryview]) -> bytes:
    digest = blake2b(MAGIC + name + length.to_bytes(8, "little"), digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _flaw(name: bytes, data: bytes) -> str:
    """Return why a file is not the page of a name; nothing where it is."""
    if len(data) < HEADER.size:
        return f"{len(data)} bytes, and a header has {HEADER.size}"
    magic, named, length, checksum = HEADER.unpack_from(data)
    if magic != MAGIC:
        return "another format or version"
    if named != name:
        return f"it is page {named.hex()}"
    if len(data) != HEADER.size + length:
        return f"{len(data) - HEADER.size} bytes of {length}"
    intact = checksum == _checksum(name, length, [memoryview(data)[HEADER.size :]])
    return "" if intact else "its checksum differs"
