"""A KV connector for vLLM 0.32 that keeps the pages of prompts in a local directory.

    kv_transfer_config = {
        "kv_connector": "PageStoreConnector",
        "kv_connector_module_path": "examples.page_store_connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"root": "/var/cache/pages"},  # "store" or "load": False to switch a side off
    }

kvlayout knows where a block's bytes lie (`plan_then_apply`) and moves them (`store`, `retrieve`). What is left for a
connector to decide is how pages are named (`page_names.py`), when they are whole (`page_files.py`), and what follows
here: which blocks move when.

* Recurrent state exists only where a step ended at the end of a block. It is stored there alone, and a prompt is
  served up to such a block only. vLLM puts its null block, id 0, wherever a group keeps nothing: it never moves.
* Loads are asynchronous: before a synchronous one, vLLM has already copied the state on to the request's next block.
* A page that was whole at the look-up may be gone at the load. Then nothing of the request is loaded and the request
  is reported as failed, which vLLM computes under the policy above, and ends with an error under its default, `fail`.
* Whatever goes wrong with a store costs that store, and a line in the log when it begins.
* Requests with images, adapters, embeddings or input that is still to come are left alone: their tokens don't say all.
* Each rank keeps pages of its own, and a prompt is served up to where all ranks have them.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from examples.page_files import PageFiles
from examples.page_names import Group, Job, Prefix, Served, Work, digest, model_digest
from kvlayout import plan_then_apply
from kvlayout.transfer import retrieve, store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from kvlayout.plans import LayerPlan, Plan

__all__ = ["PageStoreConnector"]

logger = logging.getLogger(__name__)

NULL_BLOCK = 0
RESTORED_BY_THE_ENGINE = ("scratch", "encoder-only")  # as after a hit in its own prefix cache


class PageStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """Stores what prompts leave in the cache, and loads it for prompts that begin alike."""

    asynchronous = True  # False is sound for models without recurrent layers only
    requires_kv_delivery = False  # a store that is dropped is a miss, and nothing worse

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = self._kv_transfer_config.kv_connector_extra_config
        self.files = PageFiles(Path(options["root"]))
        self.storing, self.loading = bool(options.get("store", True)), bool(options.get("load", True))
        # Of the scheduler: the groups with one entry a rank, and what it knows of requests that are not finished.
        self._groups: dict[int, list[Group]] = {}
        self._requests: dict[str, tuple[Request, Prefix]] = {}
        self._computed: dict[str, int] = {}
        self._given_up: set[str] = set()
        self._loads: list[Job] = []
        self._salt = b""
        # Of the worker: the plan, its views, its groups, and what became of loads since it was last asked.
        self.plan: Plan
        self.views: dict[str, torch.Tensor] = {}
        self._served: dict[int, Group] = {}
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._stores_fail = False
        if role is KVConnectorRole.WORKER:
            self.files.sweep()

    # ------------------------------------------------------------------- the worker has the tensors, and so the plan

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Plan views whose block i is the engine's block i.

        Raises:
            LayoutErrors: no such views can be proved. The engine must not start with this connector then.
        """
        config = self._vllm_config
        dcp = config.parallel_config.decode_context_parallel_size
        applied = plan_then_apply(self._kv_cache_config, kv_caches, presentation="bytes", dcp=dcp)
        self.plan = applied.plan
        self.views = {layer: view for layer, view in applied.views.items() if isinstance(view, torch.Tensor)}
        model = model_digest(config)
        self._served = {group.index: Group.of(group, model) for group in self.plan.groups if group.reason is None}
        for group in self.plan.groups:
            if group.reason not in (None, *RESTORED_BY_THE_ENGINE):
                logger.warning("page store: group %d is %s: nothing is stored or loaded", group.index, group.reason)
                self._served = {}

    def get_handshake_metadata(self) -> Served:
        """Tell the scheduler what this rank serves."""
        return Served(tuple(self._served.values()))

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        """Load what the scheduler found: for each request everything, or nothing."""
        del forward_context, kwargs
        for job in self._work().loads:
            self._received.add(job.request_id)
            if not self._load(job):
                logger.warning("page store: pages of request %s are gone: it is not loaded", job.request_id)
                self._failed.add(job.request_id)
                self._bad_blocks.update(block for blocks in job.blocks.values() for _, block in blocks)

    def _load(self, job: Job) -> bool:
        found: list[tuple[Group, list[int], list[memoryview]]] = []
        for index, blocks in job.blocks.items():
            group = self._served.get(index)
            if group is not None:  # a rank of a pipeline may have no layer of it
                pages = [page for key, _ in blocks if (page := self.files.read(group.name(key))) is not None]
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
        """Store what this step completed. Where that fails, the engine goes on without."""
        jobs = self._work().stores
        try:
            stored = [self._store(group, jobs) for group in self._served.values()]
            self._stores_fail &= not any(stored)
        except OSError as error:
            if not self._stores_fail:
                logger.warning("page store: nothing is stored until this is over: %s", error)
            self._stores_fail = True

    def _store(self, group: Group, jobs: Sequence[Job]) -> bool:
        named = {group.name(key): block for job in jobs for key, block in job.blocks[group.index]}
        absent = {name: block for name, block in named.items() if not self.files.path(name).exists()}
        if not absent:
            return False
        ids = self._block_ids(list(absent.values()))
        layers: list[tuple[memoryview, int]] = []
        for layer, size in self._sizes(group.index):
            data = store(self.views[layer], ids, layer=self._planned(layer), null_block=NULL_BLOCK)
            layers.append((memoryview(data), size))
        for i, name in enumerate(absent):
            self.files.write(name, [data[i * size : (i + 1) * size] for data, size in layers])
        return True

    def _sizes(self, group: int) -> list[tuple[str, int]]:
        """Return the layers of a group in the order of their bytes in a page, with the bytes of a block of each."""
        layers = self.plan.groups[group].layers
        return [(layer, self.views[layer].nbytes // self._kv_cache_config.num_blocks) for layer in layers]

    def _planned(self, layer: str) -> LayerPlan | None:
        """Return the plan of a layer, which `store` and `retrieve` hold its view against."""
        return self.plan.layers[layer]

    def _block_ids(self, ids: list[int]) -> list[int]:
        """Return the ids to move: all pass here before they reach `store` or `retrieve`."""
        return ids

    def _work(self) -> Work:
        return work if isinstance(work := self._get_connector_metadata(), Work) else Work()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Report asynchronous loads by request: a block id alone does not say which group it is of."""
        del finished_req_ids
        received, failed = self._received, self._failed
        self._received, self._failed = set(), set()
        if not self.asynchronous:
            return KVConnectorTransferResults()
        return KVConnectorTransferResults(finished_recving=received, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Report synchronous loads that failed, which vLLM can make good for models of one group."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return set() if self.asynchronous else bad

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads are over when `start_load_kv` returns."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: object, **kwargs: object) -> None:
        """Do nothing: all layers are stored at the end of the step."""

    # ------------------------------------------------------------- the scheduler has the tokens and their block ids

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Learn what the ranks serve: without one of them, nothing is."""
        ranks = [rank.groups for rank in metadata.values() if isinstance(rank, Served)]
        for group in (group for groups in ranks if all(ranks) for group in groups):
            self._groups.setdefault(group.index, []).append(group)

    def on_new_request(self, request: Request) -> None:
        """Remember a request whose pages depend on nothing but its tokens and its salt."""
        more = request.mm_features or request.lora_request or request.prompt_embeds is not None or request.resumable
        if self._groups and request.prompt_token_ids and not more:
            unit = math.gcd(*(ranks[0].block_tokens for ranks in self._groups.values()))
            salt = digest(self._salt, request.cache_salt)
            self._requests[request.request_id] = request, Prefix(request.prompt_token_ids, salt, unit)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Return how many tokens can be loaded beyond those that the engine has."""
        if not self.loading or request.request_id not in self._requests or request.request_id in self._given_up:
            return 0, False
        self._computed[request.request_id] = num_computed_tokens
        matched = self._longest(*self._requests[request.request_id], num_computed_tokens) - num_computed_tokens
        return matched, self.asynchronous and matched > 0

    def _longest(self, request: Request, prefix: Prefix, computed: int) -> int:
        """Return the end of the longest prefix that can be loaded; one token at least is left to compute."""
        whole = functools.cache(self.files.whole)
        step = math.lcm(*(ranks[0].block_tokens for ranks in self._groups.values()))
        last = min(request.num_prompt_tokens, request.num_tokens - 1)
        for end in range(last // step * step, computed, -step):
            pages = (
                group.name(prefix.until((block + 1) * group.block_tokens))
                for ranks in self._groups.values()
                for group in ranks
                for block in reversed(group.needed(computed, end))
            )
            if all(map(whole, pages)):
                return end
        return computed

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Note the blocks that a request has got for what it was promised."""
        if num_external_tokens:
            start = self._computed[request.request_id]
            spans = {
                index: ranks[0].blocks(start, start + num_external_tokens) for index, ranks in self._groups.items()
            }
            self._loads.append(self._job(request.request_id, blocks.get_block_ids(), spans))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Work:
        """Say what this step loads, and which blocks of prompts it completes."""
        work, self._loads = Work(self._loads), []
        state = scheduler_output.kv_connector_block_state
        for request_id, count in scheduler_output.num_scheduled_tokens.items():
            ids = state.get_block_ids(request_id) if state is not None and request_id in self._requests else None
            if ids is not None and self.storing:
                request, _ = self._requests[request_id]
                start, prompt = request.num_computed_tokens, request.num_prompt_tokens
                spans = {i: ranks[0].completed(start, start + count, prompt) for i, ranks in self._groups.items()}
                work.stores.append(self._job(request_id, ids, spans))
        return work

    def _job(self, request_id: str, ids: Sequence[Sequence[int]], spans: dict[int, range]) -> Job:
        """Return the blocks of a request at given positions, apart from null blocks."""
        _, prefix = self._requests[request_id]
        job = Job(request_id, {})
        for index, span in spans.items():
            size = self._groups[index][0].block_tokens
            placed = [(prefix.until((block + 1) * size), ids[index][block]) for block in span]
            job.blocks[index] = [(key, block) for key, block in placed if block != NULL_BLOCK]
        return job

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Try no second load for a request whose load failed."""
        self._given_up |= connector_output.failed_recving

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, object] | None]:
        """Forget a request. Its blocks are free at once, since a step's stores are over when the step is."""
        del block_ids
        self._requests.pop(request.request_id, None)
        self._computed.pop(request.request_id, None)
        self._given_up.discard(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Serve nothing that was stored so far, as the engine asks for when its weights have changed."""
        self._salt = os.urandom(16)
        return True
