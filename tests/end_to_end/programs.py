"""What an engine does in a process of its own, for a test: each function is one process, its result plain JSON."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.end_to_end import engine as engines
from tests.end_to_end.observing import Connector, transfer_config

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor

__all__ = ["answer_without_connector", "move_random_bytes", "retrieve_again", "retrieve_wrongly", "store_and_retrieve"]

POISON = 0x3D
LAST = engines.BLOCKS - 1  # kept free of requests where ids may be off by one
BLOCKS_OF_PROMPT = 3
#: Blocks of 16 tokens would make it shorter than the windows and the pages of all other cases.
SHORTEST = 384


def answer_without_connector(case: str, folder: str) -> dict[str, Any]:
    """Ask an engine that has no connector at all, and again when everything is forgotten.

    The first of the ``prompts`` is the one to store. The second begins like it, and is answered with the ``rest`` of
    the answer to it; what is computed of it after a retrieve is what was computed of the first. The third begins with
    two thirds of the first.
    """
    engine = engines.start(case, Path(folder))
    length = max(BLOCKS_OF_PROMPT * engine.block_tokens, SHORTEST)
    prompt = _tokens(length if engine.case.one_token_left else length + 2, seed=1)
    first = engine.ask(prompt)
    engine.forget(POISON)
    second = engine.ask(prompt)
    engine.forget(POISON)
    branch = [*prompt[: length * 2 // 3], *_tokens(len(prompt) - length * 2 // 3, seed=2)]
    branched = engine.ask(branch)
    if engine.case.one_token_left:
        continued, rest = [*prompt, first.tokens[0]], engines.Answer(first.tokens[1:], first.logprobs[1:], 0)
    else:
        continued, rest = prompt, first
    return {
        "prompts": [prompt, continued, branch],
        "first": attrs.asdict(first),
        "again": attrs.asdict(second),
        "rest": attrs.asdict(rest),
        "branched": attrs.asdict(branched),
        "prefix": length,
        "block_tokens": engine.block_tokens,
    }


def store_and_retrieve(case: str, folder: str, root: str, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Store, forget, retrieve; then retrieve for another prompt, and all but one layer, for each layer."""
    engine = engines.start(case, Path(folder), transfer_config(Path(root)))
    connector = Connector(engine)
    connector.switch(store=True)
    stored, stores = attrs.asdict(engine.ask(prompts[0])), _moves(connector)
    used = sorted({block for move in connector.moves for block in move.block_ids})
    result = _retrieve(engine, connector, prompts[1], tokens, used)
    branched = _retrieve(engine, connector, prompts[2], engines.TOKENS, used)
    without = {
        layer: _retrieve(engine, connector, prompts[1], tokens, used, untouched=[layer])["retrieved"]
        for layer in connector.layers
    }
    shapes = {layer: [list(part.shape) for part in parts] for layer, parts in engine.parts().items()}
    dtypes = {layer: [str(part.dtype) for part in parts] for layer, parts in engine.parts().items()}
    known = {"shapes": shapes, "dtypes": dtypes, "layers": connector.layers, "aliases": connector.aliases}
    more = {"used": used, "without": without, "branched": branched}
    return result | known | {"stored": stored, "stores": stores, **more}


def retrieve_again(
    *, case: str, folder: str, root: str, prompts: list[list[int]], tokens: int, used: list[int]
) -> dict[str, Any]:
    """Retrieve in an engine that has stored nothing, into other blocks than those that another process ``used``."""
    engine = engines.start(case, Path(folder), transfer_config(Path(root)))
    return _retrieve(engine, Connector(engine), prompts[1], tokens, used)


def retrieve_wrongly(case: str, folder: str, root: str, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Store and retrieve once without a fault, and once with each, and without again."""
    sabotage: Any = import_module("tests.end_to_end.sabotage")
    module, name = sabotage.__name__, sabotage.SabotagedConnector.__name__
    engine = engines.start(case, Path(folder), transfer_config(Path(root), module, name))
    connector, results = Connector(engine), {}
    for number, fault in enumerate(("none", *sabotage.FAULTS, "none at last")):
        sabotage.SabotagedConnector.choose(fault)
        connector.keep_pages_in(Path(root) / str(number))
        engine.forget(POISON)
        engine.occupy({LAST})
        connector.switch(store=True)
        engine.ask(prompts[0])
        stores = _moves(connector)
        used = {block for move in connector.moves for block in move.block_ids} | {LAST}
        results[fault] = {"stores": stores, **_retrieve(engine, connector, prompts[1], tokens, used)}
    return results


def move_random_bytes(case: str, folder: str) -> dict[str, Any]:
    """Fill the pool with random bytes, and move blocks of every layer; nothing is computed.

    Where a block lies is taken from the engine's own placement of its tensors, not from any view.
    """
    engine = engines.start(case, Path(folder), transfer_config(Path(folder)))
    connector = Connector(engine)
    return {layer: _move(engine, connector, layer) for layer in connector.layers}


def _move(engine: engines.Engine, connector: Connector, layer: str) -> dict[str, Any]:
    import torch

    transfer: Any = import_module("kvlayout.transfer")
    view, plan = connector.worker.views[layer], connector.worker.plan.layers[layer]
    draw, pool, parts = random.Random(3), engine.pool(), engine.parts()[layer]
    source, target = draw.sample(range(1, engines.BLOCKS), 6), draw.sample(range(1, engines.BLOCKS), 6)

    pool.random_()
    blocks = [pool[place].clone() for place in engine.pages(layer, source)]
    parts_before = [_blocks(part, source) for part in parts]
    data = transfer.store(view, source, layer=plan)
    size = len(data) // len(source)
    stored = torch.frombuffer(data, dtype=torch.uint8).view(len(source), size)

    pool.random_()
    expected = pool.clone()
    for place, block in zip(engine.pages(layer, target), blocks, strict=True):
        expected[place.start : place.start + size] = block[:size]
    transfer.retrieve(view, target, data, layer=plan)
    parts_after = [_blocks(part, target) for part in parts]
    return {
        "source": source,
        "target": target,
        "moved_bytes": size,
        "page_bytes": len(blocks[0]),
        "read_wrongly": sum(not torch.equal(block[:size], read) for block, read in zip(blocks, stored, strict=True)),
        "written_wrongly": int((pool != expected).sum()),
        "parts_that_differ": sum(not torch.equal(*pair) for pair in zip(parts_before, parts_after, strict=True)),
        "shapes": [list(part.shape) for part in parts],
    }


def _blocks(part: Tensor, blocks: list[int]) -> Tensor:
    """Return the bytes of blocks in a tensor of the engine, whose first axis counts blocks or pages of them."""
    import torch

    pages = part.shape[0] // engines.BLOCKS
    return torch.cat([part[block * pages : (block + 1) * pages] for block in blocks]).view(torch.uint8)


def _retrieve(
    engine: engines.Engine,
    connector: Connector,
    prompt: list[int],
    tokens: int,
    used: Collection[int],
    *,
    untouched: Collection[str] = (),
) -> dict[str, Any]:
    engine.forget(POISON)
    engine.occupy(used)
    connector.switch(load=True, untouched=untouched)
    answer = engine.ask(prompt, tokens)
    seen = {"matched": connector.matched, "null_blocks": connector.null_blocks}
    return {"retrieved": attrs.asdict(answer), "loads": _moves(connector), **seen}


def _moves(connector: Connector) -> list[dict[str, Any]]:
    return [attrs.asdict(move) for move in connector.moves]


def _tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 500), k=count)
