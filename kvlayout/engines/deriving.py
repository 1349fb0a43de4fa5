"""A process that lets an installed vLLM derive registrations: its own configuration, model and allocation, no weights.

vLLM keeps state in its modules (parallel groups, environment, caches), so it runs in a process of its own. A job is one
line of JSON on standard input, its answer one line on standard output; what vLLM prints goes to standard error. The
model is built on the meta device with process groups that talk to nobody, so any parallel size can be derived on one
machine. Only :mod:`kvlayout.engines.installed` starts this.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO, TypeAlias
from unittest.mock import patch

from kvlayout.engines.pretending import NoStream, alone, declared_by, inspection_in_process, mend, silent
from kvlayout.engines.specs import spec_document
from kvlayout.engines.vllm import dump

__all__ = ["main"]

#: An object of vLLM's; what it has is vLLM's matter, and the answer is an error where a version lacks it.
_Live: TypeAlias = Any
_Deployment: TypeAlias = Mapping[str, Any]

#: Blocks of the derived caches: enough for the longest request, and a prime, so that no other number is taken for it.
_BLOCKS: Final = 1_000_003

#: Memory that is never asked for: the number of blocks is set, and the tensors have none.
_PLENTY: Final = 1 << 60

#: Arguments of the engine by their names in a deployment.
_ARGUMENTS: Final = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dcp": "decode_context_parallel_size",
    "dtype": "dtype",
    "cache_dtype": "kv_cache_dtype",
    "block_size": "block_size",
    "mamba_cache_mode": "mamba_cache_mode",
    "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_ssm_dtype": "mamba_ssm_cache_dtype",
    "max_model_len": "max_model_len",
    "max_batched_tokens": "max_num_batched_tokens",
    "prefix_caching": "enable_prefix_caching",
}

_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_KIMI_K3_GEMM_AR": "0",  # a fused kernel whose import needs a GPU
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}


def main() -> None:
    """Answer jobs until there are no more."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for package in ("torchvision", "torchaudio", "torchcodec"):
        mend(package)
    for line in sys.stdin:
        _answer(json.loads(line), answers)


def _answer(job: _Deployment, answers: TextIO) -> None:
    try:
        answer = {"document": _derived(job["config"], job["deployment"], layers=job["layers"])}
    except Exception as error:  # noqa: BLE001 - whatever vLLM has against it is the answer
        answer = {"error": f"{type(error).__name__}: {error}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _derived(config: str, deployment: _Deployment, *, layers: bool) -> str:
    """Return the registration document of one pipeline stage, or its layers before they are grouped."""
    with tempfile.TemporaryDirectory(prefix="kvlayout-") as folder, ExitStack() as stack:
        if deployment["amx"] is not None:
            amx = deployment["amx"]
            stack.enter_context(patch.object(import_module("torch").cpu, "_is_amx_tile_supported", lambda: amx))
        Path(folder, "config.json").write_text(config, encoding="utf-8")
        Path(folder, "generation_config.json").write_text("{}", encoding="utf-8")
        stack.enter_context(inspection_in_process())
        if deployment["layout"]:
            stack.enter_context(patch.dict(os.environ, VLLM_KV_CACHE_LAYOUT=deployment["layout"]))
        stages = [_stage(folder, deployment, rank, stack) for rank in range(deployment["pp"])]
        return _alone_layers(stages[deployment["pp_rank"]]) if layers else _registered(stages, deployment)


class _Stage(NamedTuple):
    """A pipeline stage: vLLM's configuration, the backends and specs of its layers, and whose cache others read."""

    config: _Live
    backends: Mapping[str, _Live]
    specs: Mapping[str, _Live]
    shared: Mapping[str, str]


def _stage(folder: str, deployment: _Deployment, rank: int, stack: ExitStack) -> _Stage:
    config = _engine_config(folder, deployment)
    with import_module("vllm.config").set_current_vllm_config(config):
        _build(config, rank)
        base = import_module("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
        layers = import_module("vllm.config").get_layers_from_vllm_config(config, base)
        backends = {name: layer.get_attn_backend() for name, layer in layers.items()}
        for backend in set(backends.values()):
            declared_by(backend, deployment, stack)
        import_module("vllm.platforms").current_platform.update_block_size_for_backend(config)
        return _stage_of(config, layers, backends)


def _stage_of(config: _Live, layers: Mapping[str, _Live], backends: Mapping[str, _Live]) -> _Stage:
    """Ask each layer for its spec, as a worker does."""
    attention = import_module("vllm.v1.kv_cache_interface").AttentionSpec
    customize = import_module("vllm.v1.worker.utils").customize_attention_spec
    import_module("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(config)
    specs: dict[str, _Live] = {}
    shared: dict[str, str] = {}
    for name, layer in layers.items():
        target = getattr(layer, "kv_sharing_target_layer_name", None)
        if target:
            shared[name] = target
            continue
        spec = layer.get_kv_cache_spec(config)
        if spec is not None:
            specs[name] = customize(backends[name], spec) if isinstance(spec, attention) else spec
    return _Stage(config, backends, specs, shared)


def _engine_config(folder: str, deployment: _Deployment) -> _Live:
    """Return vLLM's configuration of a deployment."""
    given = {_ARGUMENTS[name]: value for name, value in deployment.items() if name in _ARGUMENTS and value is not None}
    if deployment["tp"] * deployment["pp"] > 1:
        given["distributed_executor_backend"] = "mp"
    arguments = import_module("vllm.engine.arg_utils").EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        num_gpu_blocks_override=_BLOCKS,
        **given,
    )
    return arguments.create_engine_config()


def _build(config: _Live, stage: int) -> None:
    """Build the model of a stage on the meta device; its layers enter the configuration."""
    torch = import_module("torch")
    _groups(config.parallel_config, stage)
    dtype = import_module("vllm.utils.torch_utils").set_default_torch_dtype(config.model_config.dtype)
    streams = patch.object(torch.cuda, "Stream", NoStream)
    with dtype, streams, torch.device("meta"):
        import_module("vllm.model_executor.model_loader.utils").initialize_model(vllm_config=config)


def _groups(parallel: _Live, stage: int) -> None:
    """Set up process groups of the right sizes, of which this is the first rank of a stage, and no other exists."""
    state, torch = import_module("vllm.distributed.parallel_state"), import_module("torch.distributed")
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    if state.model_parallel_is_initialized():
        state.destroy_model_parallel()
    if torch.is_initialized():
        state.destroy_distributed_environment()
    tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    torch.init_process_group("fake", store=store, rank=stage * tp, world_size=tp * pp)
    made = state.init_model_parallel_group
    with (
        patch.object(torch, "new_group", alone(torch.new_group)),
        patch.object(state, "init_model_parallel_group", silent(made)),
        patch.object(state, "in_the_same_node_as", lambda group, *_, **__: [True] * group.size()),
    ):
        state.init_distributed_environment(tp * pp, stage * tp, "fake://", 0, "fake")
        state.initialize_model_parallel(
            tp, pp, decode_context_model_parallel_size=parallel.decode_context_parallel_size, backend="fake"
        )


def _alone_layers(stage: _Stage) -> str:
    specs = {name: spec_document(spec) for name, spec in stage.specs.items()}
    return json.dumps({"specs": specs, "shares": dict(stage.shared)})


def _registered(stages: list[_Stage], deployment: _Deployment) -> str:
    """Configure, place and allocate the caches of all stages, and return what the asked one registers."""
    core, worker = import_module("vllm.v1.core.kv_cache_utils"), import_module("vllm.v1.worker.utils")
    utils, torch = import_module("vllm.v1.attention.backends.utils"), import_module("torch")
    stage = stages[deployment["pp_rank"]]
    supported = utils.get_supported_kv_cache_layouts(set(stage.backends.values()))
    layout = utils.resolve_kv_cache_layout(
        stage.config, [[one.name for one in supported]], [spec for each in stages for spec in each.specs.values()]
    )
    utils.record_kv_cache_layout(stage.config.cache_config, layout.name)
    configs = core.get_kv_cache_configs(stage.config, [dict(each.specs) for each in stages], [_PLENTY] * len(stages))
    config = configs[deployment["pp_rank"]]
    config.kv_cache_layout = layout.name
    kernels = worker.prepare_kernel_block_sizes(config, _attention_groups(config, stage.backends))
    caches = worker.allocate_kv_cache(config, torch.device("meta"), layout, kernels)
    caches |= {name: caches[target] for name, target in stage.shared.items()}
    platform = import_module("vllm.platforms").current_platform.device_type
    return dump(config, caches, _hint(layout.name), platform=platform, dcp=deployment["dcp"])


def _attention_groups(config: _Live, backends: Mapping[str, _Live]) -> list[list[_Live]]:
    """Return the backend and the spec of each layer, group by group, where vLLM looks for kernel sizes."""
    groups = []
    for group in config.kv_cache_groups:
        leaves = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        made = import_module("vllm.v1.worker.utils").AttentionGroup
        groups.append(
            [made(backends[name], [name], leaves.get(name, group.kv_cache_spec), 0) for name in group.layer_names]
        )
    return groups


def _hint(layout: str) -> dict[str, str]:
    hints = {"LBNHC": "NHD", "LBHNC": "HND", "BLHNC": "BLHNC", "BLNHC": "BLNHC"}
    return {"kv_layout": hints[layout]} if layout in hints else {}


if __name__ == "__main__":
    main()
