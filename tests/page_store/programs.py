"""What an engine with the page store does in a process of its own, for a test: its result is plain JSON."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.end_to_end import engine as engines
from tests.end_to_end.observing import Connector, transfer_config
from tests.page_store.faults import FAULTS, POISON, Asking, Lines, files_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["be_killed_while_storing", "go_through_faults", "serve_a_crowd", "store"]

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
    return len(files_of(Path(root)))


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
    asking = Asking(connector, engine, _prompt(engine), Path(root))
    left = [path.name for path in files_of(Path(killed)) if path.suffix == ".tmp"]
    results = {"killed": asking.load(Path(killed)), "foreign": asking.load(Path(foreign))}
    for name, fault in FAULTS.items():
        results[name] = fault(asking)
    foreigner = files_of(Path(foreign))[-1]
    results["planted"] = asking.stored(lambda pages: [shutil.copy(foreigner, page) for page in pages])
    return {"plain": asking.plain["answer"], "results": results, "left": left, "block_tokens": engine.block_tokens}


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
