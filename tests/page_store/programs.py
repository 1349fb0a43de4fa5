"""What an engine with the page store does in a process of its own, for a test: its result is plain JSON."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import resource
import shutil
import signal
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import attrs

from tests.end_to_end import engine as engines
from tests.end_to_end.observing import Connector, transfer_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["FAULTS", "be_killed_while_storing", "go_through_faults", "serve_a_crowd", "store"]

POISON = 0x3D
BLOCKS_OF_PROMPT = 3
REQUESTS = 50
TOKENS = 8


def be_killed_while_storing(case: str, folder: str, root: str, pages: int) -> None:
    """Store some pages, and be killed when the next one is written but for its last step."""
    connector, engine = _started(case, folder, root)
    connector.switch(store=True)
    stored = itertools.count()
    fsync = os.fsync

    def killing(file: Any) -> None:
        fsync(file)
        if next(stored) == pages:
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(os, "fsync", killing):
        engine.ask(_prompt(engine))


def store(case: str, folder: str, root: str) -> int:
    """Store a prompt, and return how many pages there are then."""
    connector, engine = _started(case, folder, root)
    connector.switch(store=True)
    engine.ask(_prompt(engine))
    return len(_files(Path(root)))


def go_through_faults(case: str, folder: str, killed: str, foreign: str, root: str) -> dict[str, Any]:
    """Ask the same again and again, with another fault each time; a fault's pages are its own.

    Args:
        case: the engine's case.
        folder: where models are.
        killed: pages of a process that was killed while it stored.
        foreign: pages of an engine whose pages of the same prompt mean something else.
        root: a folder for all others.
    """
    connector, engine = _started(case, folder, killed)
    asking = Asking(connector, engine, Path(root))
    left = [path.name for path in _files(Path(killed)) if path.suffix == ".tmp"]
    results = {"killed": asking.load(Path(killed)), "foreign": asking.load(Path(foreign))}
    for name, fault in FAULTS.items():
        results[name] = fault(asking)
    foreigner = _files(Path(foreign))[-1]
    results["planted"] = asking.stored(lambda pages: [shutil.copy(foreigner, page) for page in pages])
    return {"plain": asking.plain["answer"], "results": results, "left": left, "block_tokens": engine.block_tokens}


class Asking:
    """One prompt, asked of one engine under many circumstances."""

    def __init__(self, connector: Connector, engine: engines.Engine, root: Path) -> None:
        self.connector, self.engine, self._root, self._count = connector, engine, root, itertools.count()
        self._prompt, self.lines, self._names = _prompt(engine), Lines(), dict[bytes, None]()
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
        return self.load(root) | {"files": len(_files(root))}

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
        result["files"] = len(_files(root))
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


def serve_a_crowd(case: str, folder: str, root: str, **options: Any) -> dict[str, Any]:
    """Answer fifty requests: one by one without pages, at once while pages are stored, and with all of them there."""
    connector, engine = _started(case, folder, root, **options)
    prompts = _crowd(engine.block_tokens)
    preempted: list[str] = []
    preempt = engine.scheduler._preempt_request

    def counted(request: Any, *arguments: Any, **named: Any) -> Any:
        preempted.append(request.request_id)
        return preempt(request, *arguments, **named)

    engine.scheduler._preempt_request = counted
    lines, results = Lines(), {}
    connector.switch()
    alone = [answer for prompt in prompts for answer in _ask_alone(engine, prompt)]
    for name, store, load in (("cold", True, True), ("warm", False, True)):
        engine.forget(POISON)
        connector.switch(store=store, load=load)
        preempted.clear()
        answers = _ask_all(engine, prompts)
        matched = [tokens for tokens, _ in connector.matched if tokens]
        results[name] = {"answers": answers, "preempted": len(preempted), "matched": matched}
    return {"alone": alone, "results": results, "lines": list(lines)}


def _crowd(block: int) -> list[list[int]]:
    """Return prompts of one or two blocks, and some more, that begin alike in many ways, some of them the same."""
    draw = random.Random(5)
    stems = [draw.choices(range(3, 500), k=2 * block) for _ in range(4)]
    stems += [stem[:block] + draw.choices(range(3, 500), k=block) for stem in stems]
    tails = (0, 1, 3, block - TOKENS // 2)  # the last one's answer needs a further block, which may take a preemption
    prompts = [
        draw.choice(stems)[: draw.choice((1, 2)) * block] + draw.choices(range(3, 500), k=draw.choice(tails))
        for _ in range(REQUESTS - 5)
    ]
    return prompts + draw.sample(prompts, 5)


def _ask_alone(engine: engines.Engine, prompt: Sequence[int]) -> list[list[int]]:
    engine.forget(POISON)
    return _ask_all(engine, [prompt])


def _ask_all(engine: engines.Engine, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    vllm: Any = import_module("vllm")
    sampling = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    return [list(done.outputs[0].token_ids) for done in engine.llm.generate(asked, sampling, use_tqdm=False)]


def _started(case: str, folder: str, root: str, **options: Any) -> tuple[Connector, engines.Engine]:
    config = transfer_config(Path(root)) | {"kv_load_failure_policy": "recompute"}
    engine = engines.start(case, Path(folder), config, **options)
    return Connector(engine), engine


def _prompt(engine: engines.Engine) -> list[int]:
    return random.Random(1).choices(range(3, 500), k=BLOCKS_OF_PROMPT * engine.block_tokens + 2)


def _files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*"))
