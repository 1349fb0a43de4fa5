"""A KV connector for vLLM 0.32 that keeps pages in a local directory.

    kv_transfer_config = {
        "kv_connector": "PageStoreConnector", "kv_connector_module_path": "examples.page_store_connector",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"root": "/var/cache/pages"},
    }

A page is what one rank keeps of one block of one group: the blocks of its layers, one behind the other, in one file.
kvlayout knows where these bytes lie (`plan_then_apply`) and moves them (`store`, `retrieve`); the rest of this module
is what every connector has to decide: how pages are named, when they are whole, and which of them a request needs.

* A name covers the tokens from the start of the prompt, the model and its weights, the rank, the layers and the plan's
  fingerprint. So a page under its name has the meaning that its reader expects; anything else there is a miss.
* Pages are of prompts. Recurrent state exists only where a step ended at the end of a block, so it is stored there
  alone, and a prefix is served only up to such a block.
* Loads are asynchronous: before a synchronous one, vLLM has already copied a request's state on to its next block.
* A page that was whole when it was looked up may be gone when it is loaded. Then the request is reported as failed,
  and computed as if nothing had been stored (with `kv_load_failure_policy` as above; vLLM's default fails it).
* Whatever goes wrong with a store costs that store and one line in the log.

Ranks of tensor and pipeline parallelism each keep pages of their own, and a prefix is served if all ranks have it.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import struct
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from kvlayout import plan_then_apply
from kvlayout.transfer import retrieve, store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from kvlayout.plans import LayerPlan, Plan

__all__ = ["Group", "Job", "PageFiles", "PageStoreConnector", "Ranked", "Work"]

logger = logging.getLogger(__name__)

NULL_BLOCK = 0  # vLLM's placeholder for blocks that a group does not keep
HEADER = struct.Struct("<8s32sQ32s")  # magic and version, the page's name, bytes of the pages, checksum of all that
MAGIC = b"KVPAGE\x00\x01"
WINDOWED = ("sliding_window", "sliding_window_mla", "chunked_local_attention")
RESTORED_BY_THE_ENGINE = ("scratch", "encoder-only")  # as after a hit of its own prefix cache
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


@dataclass(frozen=True)
class Group:
    """What the scheduler asks of a group on one rank: only workers have tensors, so only they have a plan."""

    index: int
    tag: bytes
    block_tokens: int
    recurrent: bool
    window: int | None


@dataclass(frozen=True)
class Ranked(KVConnectorHandshakeMetadata):
    """What a rank tells the scheduler: its groups, none if it can't serve the model."""

    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Job:
    """Blocks of a request that move: for each group, the keys of their prefixes and their ids."""

    request_id: str
    blocks: dict[int, list[tuple[bytes, int]]]


@dataclass
class Work(KVConnectorMetadata):
    """What a step loads and stores."""

    loads: list[Job] = field(default_factory=list)
    stores: list[Job] = field(default_factory=list)


class PageFiles:
    """Files that are whole or absent: `<root>/<two digits>/<name>`, each with a checksum."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checked = functools.lru_cache(1 << 16)(lambda name, _stat: self.read(name) is not None)

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
        """Return a page, or `None` where there is no such page; a file that is none is reported and removed."""
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
        """Write a page so that no one ever sees half of it. OSError: it could not be written."""
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
        """Remove what killed writers left behind. At worst, a live writer of another machine loses one page."""
        for path in self.root.glob("*/*.tmp"):
            with suppress(OSError, ValueError):
                if not _alive(int(path.name.split(".")[1])):
                    path.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
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
        return f"{len(data)} bytes are less than a header"
    magic, named, length, checksum = HEADER.unpack_from(data)
    if magic != MAGIC:
        return "another format or version"
    if named != name:
        return f"it is the page {named.hex()}"
    if len(data) != HEADER.size + length:
        return f"{len(data) - HEADER.size} bytes of {length}"
    intact = checksum == _checksum(name, length, [memoryview(data)[HEADER.size :]])
    return "" if intact else "its checksum differs"


def _digest(*parts: object) -> bytes:
    """Return a digest of texts, with their lengths, so that no two lists of texts run together."""
    texts = [str(part).encode() for part in parts]
    return blake2b(b"".join(len(text).to_bytes(8, "little") + text for text in texts), digest_size=32).digest()


def _model(config: VllmConfig) -> bytes:
    """Return a digest of all that gives the same tokens other pages, apart from what the plan knows."""
    model, parallel = config.model_config, config.parallel_config
    folder = Path(model.model)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    weights = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.suffix in WEIGHTS]
    facts = (model.model, model.revision, weights, model.dtype, model.quantization, model.hf_config.to_json_string())
    ranks = (parallel.world_size, parallel.tensor_parallel_size, parallel.decode_context_parallel_size, parallel.rank)
    return _digest(*facts, config.load_config.load_format, model.seed, config.cache_config.cache_dtype, *ranks)


class PageStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """Stores what prompts left in the cache, and loads it for prompts that begin alike."""

    asynchronous = True  # False for an engine without recurrent layers only
    requires_kv_delivery = False  # a store that is dropped is a miss, nothing worse

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = self._kv_transfer_config.kv_connector_extra_config
        self.files = PageFiles(Path(options["root"]))
        self.storing, self.loading = bool(options.get("store", True)), bool(options.get("load", True))
        # The scheduler's side.
        self._groups: dict[int, list[Group]] = {}
        self._requests: dict[str, Request] = {}
        self._keys: dict[str, list[bytes]] = {}
        self._offers: dict[str, int] = {}
        self._given_up: set[str] = set()
        self._loads: list[Job] = []
        # The worker's side.
        self.plan: Plan  # with `views`, from `register_kv_caches` on
        self.views: dict[str, torch.Tensor] = {}
        self._served: dict[int, Group] = {}
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._store_failed = False
        if role is KVConnectorRole.WORKER:
            self.files.sweep()

    # The worker: it has the tensors, and so the plan.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Plan views whose block i is the engine's block i. LayoutErrors: the engine must not start with this model."""
        config = self._vllm_config
        dcp = config.parallel_config.decode_context_parallel_size
        applied = plan_then_apply(self._kv_cache_config, kv_caches, presentation="bytes", dcp=dcp)
        self.plan = applied.plan
        self.views = {layer: view for layer, view in applied.views.items() if isinstance(view, torch.Tensor)}
        for group in applied.plan.groups:
            if group.disposition == "served" and group.block_tokens:
                tag = _digest(vllm.__version__, _model(config), group.index, *group.layers, group.fingerprint)
                window = group.window_tokens if group.kind in WINDOWED else None
                self._served[group.index] = Group(group.index, tag, group.block_tokens, group.recurrent, window)
            elif group.reason not in RESTORED_BY_THE_ENGINE:
                logger.warning("page store: group %d is %s, so nothing is stored or loaded", group.index, group.reason)
                self._served.clear()
                break

    def get_handshake_metadata(self) -> Ranked:
        """Tell the scheduler what this rank serves."""
        return Ranked(tuple(self._served.values()))

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        """Load what the scheduler found: for each request everything or nothing."""
        del forward_context, kwargs
        for job in self._work().loads:
            loaded = self._load(job)
            if self.asynchronous:
                self._received.add(job.request_id)
            if not loaded:
                logger.warning("page store: pages of request %s are gone: it is computed", job.request_id)
                self._failed.add(job.request_id)
                self._bad_blocks.update(block for blocks in job.blocks.values() for _, block in blocks)

    def _load(self, job: Job) -> bool:
        found: list[tuple[Group, list[int], list[memoryview]]] = []
        for index, blocks in job.blocks.items():
            group = self._served.get(index)
            if group is not None and blocks:
                pages = [page for key, _ in blocks if (page := self.files.read(_name(key, group))) is not None]
                if len(pages) < len(blocks):
                    return False
                found.append((group, self._block_ids([block for _, block in blocks]), pages))
        for group, ids, pages in found:
            start = 0
            for layer, size in self._sizes(group.index):
                data = b"".join(page[start : start + size] for page in pages)
                retrieve(self.views[layer], ids, data, layer=self._planned(layer), null_block=NULL_BLOCK)
                start += size
        return True

    def wait_for_save(self) -> None:
        """Store what this step completed. Whatever fails, the engine goes on."""
        try:
            for index, group in self._served.items():
                blocks = [block for job in self._work().stores for block in job.blocks.get(index, ())]
                self._store(group, blocks)
        except OSError as error:
            if not self._store_failed:
                logger.warning("page store: nothing is stored until this is over: %s", error)
            self._store_failed = True

    def _store(self, group: Group, blocks: Iterable[tuple[bytes, int]]) -> None:
        names = {_name(key, group): block for key, block in blocks}
        missing = {name: block for name, block in names.items() if not self.files.path(name).exists()}
        if not missing:
            return
        ids, parts = self._block_ids(list(missing.values())), []
        for layer, size in self._sizes(group.index):
            data = store(self.views[layer], ids, layer=self._planned(layer), null_block=NULL_BLOCK)
            parts.append((memoryview(data), size))
        for i, name in enumerate(missing):
            self.files.write(name, [data[i * size : (i + 1) * size] for data, size in parts])
        self._store_failed = False

    def _sizes(self, group: int) -> Iterator[tuple[str, int]]:
        """Yield the layers of a group, with the bytes that a view of each covers of a block."""
        for layer in self.plan.groups[group].layers:
            yield layer, self.views[layer].nbytes // self._kv_cache_config.num_blocks

    def _planned(self, layer: str) -> LayerPlan | None:
        """Return a layer's plan, which `store` and `retrieve` hold its view against."""
        return self.plan.layers[layer]

    def _block_ids(self, ids: list[int]) -> list[int]:
        """Return the ids to move: every id passes here before it reaches `store` or `retrieve`."""
        return ids

    def _work(self) -> Work:
        work = self._get_connector_metadata()
        return work if isinstance(work, Work) else Work()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Report asynchronous loads, by request: a block id alone does not say of which group it is."""
        del finished_req_ids
        failed, self._failed = (self._failed if self.asynchronous else set()), set()
        received, self._received = self._received, set()
        return KVConnectorTransferResults(finished_recving=received, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Report synchronous loads that failed; vLLM accepts this of models with one group only."""
        bad, self._bad_blocks = (set() if self.asynchronous else self._bad_blocks), set()
        return bad

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are over when `start_load_kv` returns."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: object, **kwargs: object) -> None:
        """All layers are stored at once, when the step is over."""

    # The scheduler: it has the tokens and the block ids.

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Learn what the ranks serve."""
        ranks = [rank.groups for rank in metadata.values() if isinstance(rank, Ranked)]
        for group in (group for rank in ranks if all(ranks) for group in rank):
            self._groups.setdefault(group.index, []).append(group)

    def on_new_request(self, request: Request) -> None:
        """Remember a request whose pages depend on nothing but its tokens and its salt."""
        if not (request.mm_features or request.lora_request or request.prompt_embeds is not None or request.resumable):
            self._requests[request.request_id] = request

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Return how many tokens can be loaded beyond those that the engine has."""
        if not self.loading or request.request_id not in self._requests or request.request_id in self._given_up:
            return 0, False
        matched = self._prefix(request, num_computed_tokens) - num_computed_tokens
        self._offers[request.request_id] = num_computed_tokens
        return matched, self.asynchronous and matched > 0

    def _prefix(self, request: Request, computed: int) -> int:
        """Return the end of the longest prefix that all ranks have; one token at least is left to compute."""
        whole = functools.cache(self.files.whole)
        step = math.lcm(*(ranks[0].block_tokens for ranks in self._groups.values()))
        last = min(request.num_prompt_tokens, request.num_tokens - 1)
        for end in range(last // step * step, computed if self._groups else last, -step):
            pages = (
                _name(key, group)
                for ranks in self._groups.values()
                for key, _ in reversed(self._needed(request, ranks[0], computed, end))
                for group in ranks
            )
            if all(map(whole, pages)):
                return end
        return computed

    def _needed(self, request: Request, group: Group, start: int, end: int) -> list[tuple[bytes, int]]:
        """Return the blocks that a group needs to go on at `end`, where all have what comes before `start`.

        Each is the key of its prefix and its position. vLLM allocates no others: it fills up with the null block.
        """
        first = end - group.block_tokens if group.recurrent else end - (group.window or end)
        return self._blocks(request, group, max(start, first), end)

    def _blocks(self, request: Request, group: Group, start: int, end: int) -> list[tuple[bytes, int]]:
        """Return the blocks of a group that end behind `start`, and at `end` or before."""
        size, unit = group.block_tokens, math.gcd(*(ranks[0].block_tokens for ranks in self._groups.values()))
        keys = self._keys.get(request.request_id)
        if keys is None:
            keys = self._keys[request.request_id] = _prefix_keys(request, unit)
        return [(keys[(i + 1) * size // unit - 1], i) for i in range(start // size, end // size)]

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Note which blocks a request that was promised a load has got for it."""
        if num_external_tokens:
            start = self._offers.pop(request.request_id)
            self._loads.append(self._job(request, blocks.get_block_ids(), start, start + num_external_tokens))

    def _job(self, request: Request, ids: Sequence[Sequence[int]], start: int, end: int) -> Job:
        """Return all blocks of a request between two positions, apart from null blocks."""
        job = Job(request.request_id, {})
        for index, ranks in self._groups.items():
            blocks = [(key, ids[index][i]) for key, i in self._blocks(request, ranks[0], start, end)]
            job.blocks[index] = [(key, block) for key, block in blocks if block != NULL_BLOCK]
        return job

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Work:
        """Say what this step loads, and which blocks of prompts it completes."""
        work, self._loads = Work(self._loads), []
        state = scheduler_output.kv_connector_block_state
        for request_id, count in scheduler_output.num_scheduled_tokens.items() if self.storing and state else ():
            request = self._requests.get(request_id)
            ids = state.get_block_ids(request_id) if state else None
            if request is None or ids is None:
                continue
            start, end = request.num_computed_tokens, request.num_computed_tokens + count
            job = self._job(request, ids, start, min(end, request.num_prompt_tokens))
            for index, (group, *_) in self._groups.items():
                if group.recurrent and (end % group.block_tokens or end > request.num_prompt_tokens):
                    job.blocks[index] = []
                elif group.recurrent:
                    job.blocks[index] = job.blocks[index][-1:]
            if any(job.blocks.values()):
                work.stores.append(job)
        return work

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Try no second load for a request whose load failed."""
        self._given_up |= connector_output.failed_recving

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, object] | None]:
        """Forget a request; its blocks can be freed, since stores are over when their step is."""
        del block_ids
        for known in (self._requests, self._keys, self._offers):
            known.pop(request.request_id, None)
        self._given_up.discard(request.request_id)
        return False, None


def _name(key: bytes, group: Group) -> bytes:
    """Return the name of the page of a prefix, of one group on one rank."""
    return blake2b(key + group.tag, digest_size=32).digest()


def _prefix_keys(request: Request, unit: int) -> list[bytes]:
    """Return a key for each prefix of a prompt that is a multiple of `unit` tokens: a chain, so it tells all before."""
    key, keys = _digest(request.cache_salt), []
    tokens = array("q", request.prompt_token_ids or ())
    for end in range(unit, len(tokens) + 1, unit):
        key = blake2b(key + tokens[end - unit : end].tobytes(), digest_size=32).digest()
        keys.append(key)
    return keys
