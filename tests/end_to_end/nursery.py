"""A process that has imported the engine and starts every engine of the tests as a child of its own, by fork.

Importing vLLM takes several times as long as starting a small engine. This process imports once what it is told to,
builds nothing, and runs one job at a time: a line of JSON on its standard input is a job, a line on its standard output
the exit status of the child that did it. It ends with its input, and no child outlives its time.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ENVIRONMENT", "main"]

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # engines run side by side; and a thread pool would not survive a fork
    "TORCHDYNAMO_DISABLE": "1",  # nothing here is worth a compiler
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
SECONDS_TO_IMPORT = 300


def main(modules: Sequence[str]) -> None:
    """Import modules, say so, and do jobs until there is no more input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an import prints is no answer
    signal.alarm(SECONDS_TO_IMPORT)
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # an engine collects often, and would look at a million objects each time
    signal.alarm(0)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answers.close()
            _work(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _work(*, module: str, function: str, arguments: dict[str, Any], result: str, log: str, seconds: int) -> NoReturn:
    """Call a function in this process, write what it returns, and end."""
    signal.alarm(seconds)  # its default action ends the process wherever it hangs
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        returned = getattr(importlib.import_module(module), function)(**arguments)
        Path(result).write_text(json.dumps(returned))
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it is; the log says what
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
