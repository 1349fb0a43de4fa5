"""Engines in processes of their own, from a test: one call, one process, one result, or the log of what went wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.end_to_end.nursery import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["EngineError", "Engines", "running"]

ROOT = Path(__file__).parents[2]
LOG_LINES = 60
VLLM = ("vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker")


class EngineError(Exception):
    """The process of an engine ended without a result."""


class Engines:
    """Starts engines, one at a time, each in a process that nobody used before.

    All of them are forks of one interpreter, which is started with the first and has imported ``modules``.
    """

    def __init__(self, folder: Path, modules: tuple[str, ...]) -> None:
        self._folder, self._modules, self._count = folder, modules, 0
        self._nursery: subprocess.Popen[str] | None = None

    def run(self, program: Callable[..., Any], *, seconds: int = 120, **arguments: Any) -> Any:
        """Call a function of a module in a new process, and return its result; all of it must be JSON.

        Raises:
            EngineError: It raised, crashed, or took longer than ``seconds``.
        """
        self._count += 1
        name = program.__name__
        stem = self._folder / f"{self._count:02}-{name}"
        result, log = stem.with_suffix(".json"), stem.with_suffix(".log")
        job = {"module": program.__module__, "function": name, "arguments": arguments, "seconds": seconds}
        status = self._ask(json.dumps(job | {"result": str(result), "log": str(log)}))
        if status != "0":
            raise EngineError(_report(name, status, seconds, log))
        return json.loads(result.read_text())

    @property
    def group(self) -> int | None:
        """The process group of all of them, while they can be started."""
        return None if self._nursery is None else self._nursery.pid

    def _ask(self, line: str) -> str:
        if self._nursery is None:
            self._nursery = self._start()
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        print(line, file=self._nursery.stdin, flush=True)
        return self._nursery.stdout.readline().strip()

    def _start(self) -> subprocess.Popen[str]:
        log = self._folder / "nursery.log"
        home = {"VLLM_CACHE_ROOT": str(self._folder / "cache")}
        paths = [str(ROOT), str(ROOT / "tests" / "cpu_site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("w") as output:
            nursery = subprocess.Popen(
                [sys.executable, "-m", "tests.end_to_end.nursery", *self._modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=self._folder,
                env=os.environ | ENVIRONMENT | home | {"PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        assert nursery.stdout is not None
        if nursery.stdout.readline().strip() != "ready":
            nursery.wait()
            raise EngineError(_report("import", str(nursery.returncode), 0, log))
        return nursery

    def close(self) -> None:
        """End the process that starts the others, and whatever they have left running."""
        if self._nursery is None:
            return
        with self._nursery as nursery:
            assert nursery.stdin is not None
            nursery.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                nursery.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(nursery.pid, signal.SIGKILL)
        self._nursery = None


@contextmanager
def running(folder: Path, modules: tuple[str, ...] = VLLM) -> Iterator[Engines]:
    """Give engines whose files are in a folder, and clean up behind them."""
    made = Engines(folder, modules)
    try:
        yield made
    finally:
        made.close()


def _report(program: str, status: str, seconds: int, log: Path) -> str:
    ended = {"": "its nursery died", str(-signal.SIGALRM): f"not done after {seconds} s"}
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    tail = "\n".join(lines[-LOG_LINES:])
    return f"{program}: {ended.get(status, f'exit status {status}')}; the end of {log}:\n{tail}"
