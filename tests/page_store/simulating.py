"""vLLM's own scheduler and caches, with the page store, and a model whose every byte is known in advance.

What the model keeps of a token is a digest of all tokens up to it, and its next token is one, too. Before each step it
looks at everything that the step relies on (keys and values within reach, the state behind the last token), so a page
that was stored, named, loaded or left out wrongly is found where it first matters, in whatever order requests come,
are preempted, aborted, or fail to load. It stands in for the worker's model alone: blocks, null blocks, preemptions and
asynchronous loads are the scheduler's own, bytes move in tensors that vLLM allocated.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from hashlib import blake2b
from importlib import import_module
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.page_store.modelling import BLOCK, CHUNK, MODELS, VOCABULARY, WINDOW, allocated, configured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["simulate"]

POISON = 0x3D


def simulate(models: Sequence[str], seeds: Sequence[int], folder: str) -> dict[str, Any]:
    """Run one random history of requests for each model and seed, and return what was seen."""
    vllm, result = configured(Path(folder)), {}
    for model in models:
        seen: Counter[str] = Counter()
        wrong: list[str] = []
        for seed in seeds:
            engine = Simulated(vllm, model, seed, Path(folder))
            try:
                engine.run()
            except AssertionError as error:
                wrong.append(f"seed {seed}: {error}")
            seen += engine.seen
        result[model] = {"wrong": wrong, "seen": dict(seen)}
    return result


class Simulated:
    """An engine whose model is a digest."""

    def __init__(self, vllm: Any, model: str, seed: int, folder: Path) -> None:
        self.draw = random.Random(f"{model} {seed}")
        self.root = folder / model.replace(" ", "-") / str(seed // 4)  # what one history stored, the next one finds
        self.seen: Counter[str] = Counter()
        blocks = len(MODELS[model]) * self.draw.choice((11, 15, 30))
        self.vllm = vllm
        vllm.cache_config.num_gpu_blocks = blocks
        vllm.scheduler_config.max_num_batched_tokens = self.draw.choice((32, 64, 200))
        vllm.scheduler_config.max_num_scheduled_tokens = None
        vllm.kv_transfer_config.kv_connector_extra_config["root"] = str(self.root)
        self.kv, self.caches, self.specs = allocated(MODELS[model], blocks)
        self._start()
        self.digests: dict[str, list[bytes]] = {}
        self.values: dict[tuple[str, str], bytes] = {}
        self.count = 0
        # The same blocks behind one another in any order: what a block holds depends on all before it.
        self.blocks = [self._tokens(BLOCK) for _ in range(2)]

    def _start(self) -> None:
        """Make the scheduler and the worker's half of its connector."""
        base: Any = import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
        connector: Any = import_module("examples.page_store_connector")
        core: Any = import_module("vllm.v1.core.kv_cache_utils")
        scheduling: Any = import_module("vllm.v1.core.sched.scheduler")
        hashing: Any = import_module("vllm.utils.hashing")
        self.worker = connector.PageStoreConnector(self.vllm, base.KVConnectorRole.WORKER, self.kv)
        self.worker.register_kv_caches(dict(self.caches))
        size, unit = core.resolve_kv_cache_block_sizes(self.kv, self.vllm)
        grammars = SimpleNamespace(accept_tokens=lambda *_: True)  # nobody asks for any
        self.scheduler = scheduling.Scheduler(self.vllm, self.kv, grammars, size, unit)
        handshake = {(0, 0): self.worker.get_handshake_metadata()}
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(handshake)
        core.init_none_hash(hashing.sha256)
        self.hasher = core.get_request_block_hasher(unit, hashing.sha256)
        self.byte = import_module("torch").uint8
        for cache in self.caches.values():
            cache.view(self.byte).fill_(POISON)

    # ------------------------------------------------------------------------------------------------- what happens

    def run(self) -> None:
        """Let requests come and go, and damage pages now and then."""
        for _ in range(self.draw.randint(5, 40)):
            for _ in range(self.draw.choice((0, 1, 1, 4))):
                self.add()
            self.step()
            if self.draw.random() < 0.1:
                self.damage(sorted(self.root.glob("*/*")))
            if self.draw.random() < 0.05 and self.scheduler.requests:
                self.abort()
        for _ in range(3000):
            if not self.scheduler.requests:
                break
            self.step()
        self.step()
        assert not self.scheduler.requests, "requests that never end"
        half = self.scheduler.connector
        assert not any((half._requests, half._computed, half._given_up, half._loads)), "requests that nobody forgot"
        assert not list(self.root.glob("*/*.tmp"))

    def add(self) -> None:
        request: Any = import_module("vllm.v1.request")
        parameters: Any = import_module("vllm.sampling_params")
        blocks = self.draw.choices(self.blocks, k=self.draw.randint(1, 5))
        prompt = [*itertools.chain(*blocks), *self._tokens(self.draw.choice((0, 0, 1, 5, 16, 40)))]
        sampling = parameters.SamplingParams(max_tokens=self.draw.choice((1, 4, 30)), ignore_eos=True, temperature=0)
        sampling.update_from_generation_config({}, None)
        self.count += 1
        made = request.Request(f"r{self.count}", prompt, sampling, None, block_hasher=self.hasher)
        self.scheduler.add_request(made)

    def abort(self) -> None:
        status: Any = import_module("vllm.v1.request").RequestStatus
        self.scheduler.finish_requests([self.draw.choice(list(self.scheduler.requests))], status.FINISHED_ABORTED)
        self.seen["aborted"] += 1

    def damage(self, pages: Sequence[Path]) -> None:
        """Cut, flip or remove a page."""
        present = [page for page in pages if page.exists()]
        if present:
            page = self.draw.choice(present)
            fault = self.draw.choice(("cut", "flip", "gone"))
            data = bytearray(page.read_bytes())
            if fault == "gone":
                page.unlink()
            else:
                data[self.draw.randrange(len(data))] ^= 1
                page.write_bytes(data[: len(data) // 2] if fault == "cut" else data)

    def _loaded(self, job: Any) -> list[Path]:
        """Return the pages that a job is about to load."""
        files, served = self.worker.files, self.worker._served
        return [files.path(served[i].name(key)) for i, blocks in job.blocks.items() for key, _ in blocks]

    # --------------------------------------------------------------------------------------------------- one step

    def step(self) -> None:
        outputs: Any = import_module("vllm.v1.outputs")
        before = {r.request_id: r.num_preemptions for r in self.scheduler.requests.values()}
        scheduled = self.scheduler.schedule()
        self._note(before, scheduled)
        tokens = self.forward(scheduled)
        self.worker.bind_connector_metadata(scheduled.kv_connector_metadata)
        for job in scheduled.kv_connector_metadata.loads:
            if self.draw.random() < 0.2:  # after they were looked up
                self.damage(self._loaded(job))
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(scheduled.finished_req_ids)
        self.worker.clear_connector_metadata()
        self.seen["failed"] += len(results.failed_recving)
        moved = outputs.KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
        )
        ids = list(tokens)
        done = outputs.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: i for i, name in enumerate(ids)},
            sampled_token_ids=[tokens[name] for name in ids],
            kv_connector_output=moved,
        )
        running = set(self.scheduler.requests)
        self.scheduler.update_from_output(scheduled, done)
        self.seen["finished"] += len(running - set(self.scheduler.requests))

    def _note(self, before: dict[str, int], scheduled: Any) -> None:
        after = {r.request_id: r.num_preemptions for r in self.scheduler.requests.values()}
        self.seen["preempted"] += sum(after[name] - count for name, count in before.items() if name in after)
        for job in scheduled.kv_connector_metadata.loads:
            self.seen["loaded"] += 1
            moved = [block for blocks in job.blocks.values() for _, block in blocks]
            assert 0 not in moved, f"{job.request_id} loads the null block"

    def forward(self, scheduled: Any) -> dict[str, list[int]]:
        """Prepare blocks as the worker does, check what the step reads, write what it computes; return its tokens."""
        for cache in self.caches.values():
            blocks = cache.view(self.byte)
            for block in scheduled.new_block_ids_to_zero or ():
                blocks[block] = 0
            for copy in scheduled.kv_cache_block_copies or ():
                blocks[copy.dst_block_id] = blocks[copy.src_block_id]
        sampled: dict[str, list[int]] = {}
        for name, count in scheduled.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            digests = self._digests(name, request.all_token_ids)
            end = request.num_computed_tokens  # the scheduler counts a step when it is scheduled
            table = self.scheduler.kv_cache_manager.get_block_ids(name)
            for group, ids in zip(self.kv.kv_cache_groups, table, strict=True):
                for layer in group.layer_names:
                    self._layer(name, layer, ids, end - count, end)
            sampled[name] = [digests[-1][0] % VOCABULARY] if end == len(digests) else []
        return sampled

    def _layer(self, name: str, layer: str, ids: list[int], start: int, end: int) -> None:
        """Check what a layer reads at ``start``, and write what it keeps of the tokens up to ``end``."""
        import torch

        cache, kind = self.caches[layer].view(self.byte), type(self.specs[layer]).__name__
        if kind == "MambaSpec":
            values = self._values(name, layer, cache[0].shape)
            if start:
                held = cache[ids[(start - 1) // BLOCK]]
                assert held.equal(values[start - 1]), f"{name} reads another state than that of {start} tokens"
            block = ids[(end - 1) // BLOCK]
            assert block, f"{name} keeps a state in the null block"
            cache[block] = values[end - 1]
            return
        first = {"FullAttentionSpec": 0, "SlidingWindowSpec": max(0, start - WINDOW + 1)}
        positions = torch.arange(first.get(kind, start // CHUNK * CHUNK), end)
        blocks, slots = torch.tensor(ids)[positions // BLOCK], positions % BLOCK
        values = self._values(name, layer, cache[0, :, 0].shape)[positions]
        old = positions < start
        assert cache[blocks, :, slots][old].equal(values[old]), f"{name} reads other rows of {layer} than it has before"
        assert blocks[~old].all(), f"{name} keeps rows in the null block"
        cache[blocks[~old], :, slots[~old]] = values[~old]

    # ------------------------------------------------------------------------------------------------- what is right

    def _digests(self, name: str, tokens: Sequence[int]) -> list[bytes]:
        """Return a digest of each token of a request with all before it."""
        found = self.digests.setdefault(name, [])
        for token in tokens[len(found) :]:
            found.append(blake2b((found[-1] if found else b"") + bytes([token]), digest_size=16).digest())
        return found

    def _values(self, name: str, layer: str, shape: Sequence[int]) -> Tensor:
        """Return what a layer keeps of each token of a request."""
        import torch

        digests, size = self.digests[name], prod(shape)
        found = self.values.get((name, layer), b"")
        for digest in digests[len(found) // size :]:
            unit = blake2b(digest + layer.encode(), digest_size=64).digest()
            found += (unit * (size // 64 + 1))[:size]
        self.values[name, layer] = found
        return torch.frombuffer(bytearray(found), dtype=torch.uint8).view(len(digests), *shape)

    def _tokens(self, count: int) -> list[int]:
        return self.draw.choices(range(VOCABULARY), k=count)
