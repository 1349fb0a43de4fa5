"""What can go wrong with pages, one fault after the other, in one engine that is asked the same again and again."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import resource
import shutil
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.end_to_end.engine import Engine
    from tests.end_to_end.observing import Connector

__all__ = ["FAULTS", "POISON", "Asking", "Lines", "files_of"]

POISON = 0x3D


class Asking:
    """One prompt, asked of one engine under many circumstances."""

    def __init__(self, connector: Connector, engine: Engine, prompt: Sequence[int], root: Path) -> None:
        self.connector, self.engine, self._root, self._count = connector, engine, root, itertools.count()
        self._prompt, self.lines, self._names = prompt, Lines(), dict[bytes, None]()
        self._note_names()
        connector.switch()
        self.plain = self._ask(Path("nowhere"))

    def _note_names(self) -> None:
        """Note which pages of attention are stored, in the order of their blocks."""
        scheduler = self.connector.scheduler
        build = scheduler.build_connector_meta

        def noted(scheduled: Any) -> Any:
            work = build(scheduled)
            for job, (group,) in itertools.product(work.stores, scheduler._groups.values()):
                if not group.recurrent:
                    self._names |= {group.name(key): None for key, _ in job.blocks[group.index]}
            return work

        scheduler.build_connector_meta = noted

    def _pages(self) -> list[Path]:
        """Return the pages of attention that were stored last."""
        return [self.connector.worker.files.path(name) for name in self._names]

    def new_folder(self) -> Path:
        return self._root / str(next(self._count))

    def load(self, root: Path, *, store: bool = False) -> dict[str, Any]:
        """Ask with what is in a folder."""
        self.connector.switch(load=True, store=store)
        return self._ask(root)

    def store(self, root: Path) -> dict[str, Any]:
        self.connector.switch(store=True)
        return self._ask(root)

    def stored(self, damage: Callable[[list[Path]], object]) -> dict[str, Any]:
        """Store, damage pages of attention, and load."""
        root = self.new_folder()
        self.store(root)
        damage(self._pages())
        return self.load(root) | {"files": len(files_of(root))}

    def while_loading(self, damage: Callable[[list[Path]], object]) -> dict[str, Any]:
        """Store, and damage the pages when they have been looked up and before they are loaded."""
        root, worker = self.new_folder(), self.connector.worker
        self.store(root)
        pages, load = self._pages(), worker.start_load_kv

        def damaged(*arguments: Any, **named: Any) -> None:
            if worker._get_connector_metadata().loads:
                damage(pages)
            load(*arguments, **named)

        worker.start_load_kv = damaged
        try:
            return self.load(root)
        finally:
            worker.start_load_kv = load

    def while_storing(self, trouble: AbstractContextManager[object], root: Path | None = None) -> dict[str, Any]:
        """Store in trouble, and then without: the second time, all pages must get there."""
        root = root or self.new_folder()
        with trouble:
            result = self.store(root)
        result["files"] = len(files_of(root))
        self.store(root)
        return result | {"afterwards": self.load(root)}

    def _ask(self, root: Path) -> dict[str, Any]:
        self.engine.forget(POISON)
        self.connector.keep_pages_in(root)
        self.lines.clear()
        self._names.clear()
        answer = attrs.asdict(self.engine.ask(self._prompt))
        return {"answer": answer, "lines": list(self.lines)}


class Lines(list[str]):
    """The lines that the connector logs."""

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("examples").addHandler(_Into(self))


class _Into(logging.Handler):
    """Adds each warning to a list."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def full_disk() -> AbstractContextManager[object]:
    return mock.patch.object(os, "fsync", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


@contextmanager
def quota() -> Iterator[None]:
    """Let the system end every file after four kilobytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def in_the_way(root: Path) -> Iterator[None]:
    """Let a file be where the folder should be, which not even an administrator can write to."""
    root.write_text("no folder")
    try:
        yield
    finally:
        root.unlink()


def flip(page: Path) -> None:
    data = bytearray(page.read_bytes())
    data[len(data) // 2] ^= 0x10
    page.write_bytes(data)


def remove_all(pages: list[Path]) -> None:
    for page in pages:
        page.unlink()


def gone_folder(asking: Asking) -> dict[str, Any]:
    """Store, remove the folder, store again into it, and load."""
    root = asking.new_folder()
    asking.store(root)
    shutil.rmtree(root)
    result = asking.load(root, store=True)
    return result | {"afterwards": asking.load(root)}


def folder_in_the_way(asking: Asking) -> dict[str, Any]:
    root = asking.new_folder()
    root.parent.mkdir(parents=True, exist_ok=True)
    return asking.while_storing(in_the_way(root), root)


FAULTS: dict[str, Callable[[Asking], dict[str, Any]]] = {
    "none": lambda asking: asking.stored(lambda _pages: None),
    "the last page is cut": lambda asking: asking.stored(
        lambda pages: os.truncate(pages[-1], pages[-1].stat().st_size // 2)
    ),
    "the first page is empty": lambda asking: asking.stored(lambda pages: os.truncate(pages[0], 0)),
    "a bit of the first page is flipped": lambda asking: asking.stored(lambda pages: flip(pages[0])),
    "two pages are exchanged": lambda asking: asking.stored(
        lambda pages: (pages[0].rename("x"), pages[-1].rename(pages[0]), Path("x").rename(pages[-1]))
    ),
    "a page is gone": lambda asking: asking.stored(lambda pages: pages[0].unlink()),
    "pages go before they are loaded": lambda asking: asking.while_loading(remove_all),
    "the last page flips before it is loaded": lambda asking: asking.while_loading(lambda pages: flip(pages[-1])),
    "the disk is full": lambda asking: asking.while_storing(full_disk()),
    "the quota is used up": lambda asking: asking.while_storing(quota()),
    "a file is in the place of the folder": folder_in_the_way,
    "the folder is gone": gone_folder,
    "none at last": lambda asking: asking.while_storing(nullcontext()),
}


def files_of(root: Path) -> list[Path]:
    """Return all files of a store."""
    return sorted(root.glob("*/*"))
