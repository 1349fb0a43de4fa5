"""The connector's two halves without an engine: a worker over tensors that vLLM allocated, and a scheduler's half."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.real.models import allocate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["BLOCK", "PROMPT", "Rank", "Scheduling", "config", "stored"]

BLOCK = 128
PROMPT = list(range(3 * BLOCK + 5))


def config(root: Path, **changes: Any) -> Any:
    """Return what the connector reads of vLLM's configuration."""
    model = {
        "model": "org/model",
        "revision": None,
        "dtype": "torch.bfloat16",
        "quantization": None,
        "seed": 0,
        "hf_config": SimpleNamespace(to_json_string=lambda: "{}", _commit_hash="abc"),
    }
    parallel = {"rank": 0, "world_size": 1, "tensor_parallel_size": 1, "decode_context_parallel_size": 1}
    cache, load = {"cache_dtype": "auto"}, {"load_format": "auto"}
    parts = [
        {name: changes.get(name, value) for name, value in part.items()} for part in (model, parallel, cache, load)
    ]
    transfer = {"root": str(root), **changes.get("options", {})}
    names = ("model_config", "parallel_config", "cache_config", "load_config")
    made = {
        name: SimpleNamespace(**{key: changes.get(key, value) for key, value in part.items()})
        for name, part in zip(names, parts, strict=True)
    }
    return SimpleNamespace(**made, kv_transfer_config=SimpleNamespace(kv_connector_extra_config=transfer))


class Rank:
    """A worker over tensors that vLLM allocated."""

    def __init__(self, root: Path, model: str = "qwen3-next in small groups", **changes: Any) -> None:
        self.allocated = allocate(model, "LBHNC", None, blocks=9)
        module: Any = import_module("examples.page_store_connector")
        self.kv = self.allocated.config
        for group in changes.pop("groups", {}).items():
            setattr(self.kv.kv_cache_groups[group[0]], *group[1])
        self.connector = module.PageStoreConnector(config(root, **changes), module.KVConnectorRole.WORKER, self.kv)
        self.connector.register_kv_caches(dict(self.allocated.caches))
        self.allocated.pool.random_(0, 256)

    def work(self, loads: Sequence[Any] = (), stores: Sequence[Any] = ()) -> Any:
        names: Any = import_module("examples.page_names")
        self.connector.bind_connector_metadata(names.Work(list(loads), list(stores)))
        self.connector.start_load_kv(None)
        self.connector.wait_for_save()
        return self.connector.get_transfer_results(set())


class Scheduling:
    """A scheduler's half, and the requests that it is told of."""

    def __init__(self, root: Path, ranks: Sequence[Rank], **changes: Any) -> None:
        module: Any = import_module("examples.page_store_connector")
        self.connector = module.PageStoreConnector(
            config(root, **changes), module.KVConnectorRole.SCHEDULER, ranks[0].kv
        )
        handshakes = {(0, rank): each.connector.get_handshake_metadata() for rank, each in enumerate(ranks)}
        self.connector.set_xfer_handshake_metadata_pp_aware(handshakes)
        self.groups = len(ranks[0].kv.kv_cache_groups)

    def request(self, name: str = "r", tokens: Sequence[int] = PROMPT, **changes: Any) -> Any:
        made = {
            "request_id": name,
            "prompt_token_ids": list(tokens),
            "num_prompt_tokens": len(tokens),
            "num_tokens": len(tokens),
            "num_computed_tokens": 0,
            "prompt_embeds": None,
            "mm_features": [],
            "lora_request": None,
            "cache_salt": None,
            "resumable": False,
        }
        request = SimpleNamespace(**(made | changes))
        self.connector.on_new_request(request)
        return request

    def step(self, scheduled: dict[str, int], ids: Sequence[Sequence[int]] | None = None) -> Any:
        """Return the work of a step in which requests compute so many tokens."""
        table = ids or [[0, 0, 5]] * (self.groups - 1) + [[1, 2, 3]]
        state = SimpleNamespace(get_block_ids=lambda _: table)
        return self.connector.build_connector_meta(
            SimpleNamespace(num_scheduled_tokens=scheduled, kv_connector_block_state=state)
        )

    def promise(self, request: Any, tokens: int, ids: Sequence[Sequence[int]]) -> Any:
        """Let a request have blocks for what it was promised, and return the work."""
        blocks = SimpleNamespace(get_block_ids=lambda: tuple(ids))
        self.connector.update_state_after_alloc(request, blocks, tokens)
        return self.step({})


def stored(root: Path, **changes: Any) -> tuple[Rank, Scheduling]:
    """Return the halves of a connector that has stored the prompt."""
    rank = Rank(root, **changes)
    half = Scheduling(root, [rank])
    half.request("first")
    work = half.step({"first": 3 * BLOCK})
    rank.work(stores=work.stores)
    return rank, half
