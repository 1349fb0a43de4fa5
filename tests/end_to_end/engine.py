"""An engine in this process: a tiny model with random weights on vLLM's CPU backend, and what tests do with it.

Runs in a child of the nursery. What vLLM is told otherwise than out of the box:

* Weights. Its dummy ones are so small that an answer hardly depends on what was read before. Here they are drawn from
  ±0.12, each parameter by a seed of its own name, so that every process draws the same.
* Kernel pages, where a case asks for them: the CPU backend takes any multiple of 32 and so never splits a block. Told
  to advertise 32 only, vLLM splits, and computes with split blocks. One function of the CPU runner does not expect
  that: it zeroes new blocks by their id in a tensor of kernel pages, and is replaced.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import zlib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.end_to_end.configs import CASES, Case, config_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

__all__ = ["Answer", "Engine", "start"]

WEIGHTS = 0.12
BLOCKS = 96
TOKENS = 16
#: Engines end with their process. Shut down before, they would collect garbage for longer than they ran.
ALIVE: list[Engine] = []
LOGPROBS = 10


@attrs.frozen
class Answer:
    """What an engine wrote, and how many tokens of the prompt it had not to compute.

    Log-probabilities are of the ten likeliest tokens at each place, and hexadecimal: equal means bitwise equal.
    """

    tokens: list[int]
    logprobs: list[list[tuple[int, str]]]
    cached_tokens: int


class Engine:
    """A running engine, its pool of pages, and its connector if it has one."""

    def __init__(self, llm: Any, case: Case) -> None:
        self.llm, self.case = llm, case
        self.core = llm.llm_engine.engine_core.engine_core
        self.worker = self.core.model_executor.driver_worker.worker
        self.scheduler = self.core.scheduler
        self._occupied: list[Any] = []

    @property
    def block_tokens(self) -> int:
        return int(self.llm.llm_engine.vllm_config.cache_config.block_size)

    def parts(self) -> dict[str, list[Tensor]]:
        """Return the tensors that each layer reads and writes: one, or the parts of a state."""
        context = self.worker.model_runner.compilation_config.static_forward_context
        held = {name: layer.kv_cache for name, layer in context.items() if hasattr(layer, "kv_cache")}
        return {name: list(cache) if isinstance(cache, (list, tuple)) else [cache] for name, cache in held.items()}

    def pool(self) -> Tensor:
        """Return all bytes of the one storage below the caches of all layers."""
        import torch

        storages = {}
        for part in itertools.chain.from_iterable(self.parts().values()):
            storages[part.untyped_storage().data_ptr()] = part.untyped_storage()
        (storage,) = storages.values()
        pool = torch.empty(0, dtype=torch.uint8)
        pool.set_(storage)
        return pool

    def pages(self, layer: str, blocks: Sequence[int]) -> list[slice]:
        """Return where the engine has placed blocks of a layer in its pool."""
        config = self.worker.model_runner.kv_cache_config
        (spec,) = [group.kv_cache_spec for group in config.kv_cache_groups if layer in group.layer_names]
        (placed,) = [tensor for tensor in config.kv_cache_tensors if layer in tensor.layers]
        start = placed.offset + placed.layers.index(layer) * placed.layer_stride
        size = getattr(spec, "kv_cache_specs", {layer: spec})[layer].page_size_bytes
        return [slice(at, at + size) for at in (start + block * placed.block_stride for block in blocks)]

    def forget(self, poison: int) -> None:
        """Drop every cached prefix, and overwrite every page: nothing that was computed is left."""
        self._free(self._occupied)
        self._occupied = []
        assert self.llm.reset_prefix_cache()
        self.pool().fill_(poison)

    def occupy(self, block_ids: Collection[int]) -> None:
        """Keep blocks from requests until the next :meth:`forget`; the others are handed out in no order."""
        blocks = self.scheduler.kv_cache_manager.block_pool
        taken = blocks.get_new_blocks(blocks.get_num_free_blocks())
        self._occupied = [block for block in taken if block.block_id in block_ids]
        free = [block for block in taken if block.block_id not in block_ids]
        random.Random(0).shuffle(free)
        self._free(free)

    def _free(self, blocks: list[Any]) -> None:
        self.scheduler.kv_cache_manager.block_pool.free_blocks(blocks)

    def ask(self, prompt: Sequence[int], tokens: int = TOKENS) -> Answer:
        """Let the engine continue a prompt, always with the likeliest token."""
        vllm: Any = import_module("vllm")
        sampling = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=LOGPROBS
        )
        (request,) = self.llm.generate([{"prompt_token_ids": list(prompt)}], sampling, use_tqdm=False)
        (written,) = request.outputs
        logprobs = [sorted((t, p.logprob.hex()) for t, p in at.items()) for at in written.logprobs]
        return Answer(list(written.token_ids), logprobs, request.num_cached_tokens or 0)


def start(name: str, folder: Path, connector: dict[str, Any] | None = None, **options: Any) -> Engine:
    """Start the engine of a case; ``connector`` is its kv_transfer_config, with a class of this repository."""
    case = CASES[name]
    vllm: Any = import_module("vllm")
    _register_weights()
    _inspect_models_here()
    _split_blocks(case)
    if case.model == "kimilinear":
        _build_what_cannot_run()
    given = {
        "model": str(_write_model(case.model, folder)),
        "load_format": "random_by_name",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "num_gpu_blocks_override": BLOCKS,
        "disable_log_stats": True,
        "enable_prefix_caching": True,
        "seed": 0,
    }
    if connector is not None:
        given["kv_transfer_config"] = {"kv_role": "kv_both"} | connector
    engine = Engine(vllm.LLM(**given | case.options | options), case)
    ALIVE.append(engine)
    return engine


def _write_model(model: str, folder: Path) -> Path:
    target = folder / "models" / model
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config_of(model)))
    (target / "generation_config.json").write_text("{}")
    return target


def _register_weights() -> None:
    loading: Any = import_module("vllm.model_executor.model_loader")
    methods = {"download_model": lambda _self, _config: None, "load_weights": _draw_weights}
    loading.register_model_loader("random_by_name")(type("RandomByName", (loading.BaseModelLoader,), methods))


def _draw_weights(self: Any, model: Any, model_config: Any) -> None:
    import torch

    del self, model_config
    for name, weight in model.state_dict().items():
        if weight.is_floating_point():
            drawn = torch.rand(weight.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
            weight.copy_((drawn * 2 - 1) * WEIGHTS)


def _inspect_models_here() -> None:
    """vLLM looks at a model's class in a process of its own, to keep off CUDA; there is none here."""
    registry: Any = import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda look: look()


def _build_what_cannot_run() -> None:
    """Let a model be built, and its caches allocated, that no CPU computes.

    Kimi-Linear's latent attention would need the tiles of AMX. A step after its weights are loaded fails, since the
    CPU's linear layers have packed one of them away. And what stands in for Triton's kernels trips over its modules.
    """
    import torch

    os.environ["VLLM_KIMI_K3_GEMM_AR"] = "0"
    torch.cpu._is_amx_tile_supported = lambda: True
    stand_ins: Any = import_module("vllm.triton_utils.dispatcher")
    stand_ins._rebind_kernels = lambda _kernels: None
    loader: Any = import_module("vllm.model_executor.model_loader.base_loader")
    original = loader.process_weights_after_loading

    def process_weights_after_loading(model: Any, *rest: Any, **named: Any) -> None:
        for module in model.modules():
            kind = type(module)
            if kind.__module__.startswith("vllm.models.kimi_k3") and "process_weights_after_loading" in vars(kind):
                kind.process_weights_after_loading = lambda *_rest, **_named: None
        original(model, *rest, **named)

    loader.process_weights_after_loading = process_weights_after_loading


def _split_blocks(case: Case) -> None:
    if case.kernel_tokens is None:
        return
    attention: Any = import_module("vllm.v1.attention.backends.cpu_attn")
    latent: Any = import_module("vllm.v1.attention.backends.mla.cpu_mla")
    tiled: Any = import_module("vllm.v1.attention.backends.mla.amx_mla")
    runner: Any = import_module("vllm.v1.worker.cpu_model_runner")
    for backend in (attention.CPUAttentionBackend, latent.CPUMLABackend, tiled.AMXMLABackend):
        backend.get_supported_kernel_block_sizes = staticmethod(lambda _spec=None: [case.kernel_tokens])
        backend.supports_block_size = classmethod(lambda _cls, size: size is None or size % case.kernel_tokens == 0)
    runner.CPUModelRunner._zero_block_ids = _zero_blocks
    if case.model == "deepseekv2":
        _let_mla_have_larger_blocks()


def _zero_blocks(self: Any, block_ids: Sequence[int]) -> None:
    """Zero the blocks of full attention, whatever their pages are."""
    full: Any = import_module("vllm.v1.kv_cache_interface").FullAttentionSpec
    config = self.kv_cache_config
    for group in config.kv_cache_groups:
        if isinstance(group.kv_cache_spec, full):
            for layer in group.layer_names:
                pages = self.compilation_config.static_forward_context[layer].kv_cache
                pages.unflatten(0, (config.num_blocks, -1))[list(block_ids)] = 0


def _let_mla_have_larger_blocks(tokens: int = 128) -> None:
    """The CPU platform sets blocks of 16 tokens for MLA, the size of its kernel's pages; here they are larger."""
    platform: Any = import_module("vllm.platforms.cpu").CpuPlatform
    original = platform.check_and_update_config

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        del cls
        original(vllm_config)
        vllm_config.cache_config.block_size = tokens

    platform.check_and_update_config = classmethod(check_and_update_config)
