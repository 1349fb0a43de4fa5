"""From a model and a deployment to the registration that the engine would make, for any number of blocks.

>>> from kvlayout.offline.model import AttentionLayer, Model
>>> layers = tuple(AttentionLayer(f"model.layers.{i}.self_attn.attn", 32, 8, 128, 128) for i in range(4))
>>> served = serve(Model("LlamaForCausalLM", "attention", "bfloat16", layers), Deployment(tp=2)).unwrap()
>>> served.user_block, served.block_bytes, str(served.registration.placements[0].layer_stride)
(16, 131072, '32768n')
"""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING, Final, final

from attrs import evolve, frozen

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.registration import Engine, Entry, Registration
from kvlayout.errors import LayoutErrors
from kvlayout.offline.deployment import Deployment, KernelSize, faults
from kvlayout.offline.model import AttentionLayer, LatentLayer, StateLayer
from kvlayout.offline.policy import v0_29
from kvlayout.offline.policy.hybrids import LATENT_TOKENS, hybrid
from kvlayout.offline.policy.kernels import Sizes, common, largest_within, preferred
from kvlayout.offline.policy.layers import CACHE_TYPES, Rank, cache_type, is_indexer, layer_spec, rank_heads, state_bytes, state_fields
from kvlayout.offline.policy.placing import block_bytes, placements, splits, tensors
from kvlayout.offline.policy.registering import group
from kvlayout.offline.policy.stages import on_stage, stage_of
from kvlayout.offline.policy.values import Bunch, LayerSpec, RefusedError, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.offline.model import Model

__all__ = ["Served", "serve"]


@final
@frozen
class Served:
    """A deployment as the engine would run it.

    Attributes:
        model: what was served.
        deployment: with the defaults filled in.
        registration: what the engine hands to a store, for any number of blocks.
        user_block: tokens a block before the engine aligned it: asked for, or the default of the backend.
        aligned_block: tokens a block of attention after that.
        scheduler_blocks: tokens that one block id of a group stands for, over all context-parallel ranks.
        kernel_blocks: tokens a kernel block of a group, ``None`` for states, which have none.
        hash_block: tokens a hash of prefix caching.
        block_bytes: bytes of the device that one block id costs on the planned rank.
        stage_bytes: the same for every pipeline rank; the engine's block count is that of the costliest.
    """

    model: Model
    deployment: Deployment
    registration: Registration
    user_block: int
    aligned_block: int
    scheduler_blocks: tuple[int, ...]
    kernel_blocks: tuple[int | None, ...]
    hash_block: int
    block_bytes: int
    stage_bytes: tuple[int, ...]


_SPARSE: Final[Sizes] = (KernelSize(64, multiple=True),)
_INDEXER: Final[Sizes] = (KernelSize(64),)


def serve(model: Model, deployment: Deployment) -> Result[Served, LayoutErrors]:
    """Return what the engine would register.

    Args:
        model: what the model keeps, over all ranks.
        deployment: how it is served; ``None`` is the engine's own choice.

    Returns:
        The registration of one rank with a symbolic block count, and the block sizes behind it, or the errors with the
        field and what to change: also where the engine itself would not start.
    """
    errors = faults(deployment)
    if errors:
        return Err(LayoutErrors(errors))
    try:
        return Ok(_serve(model, deployment))
    except RefusedError as refused:
        return Err(LayoutErrors((refused.error,)))


def _serve(model: Model, deployment: Deployment) -> Served:
    version = deployment.engine.removeprefix("vllm-")
    minor = int(version.split(".")[1])
    if minor not in v0_29.MINORS:
        refuse("engine", "vllm-0.29 to vllm-0.33", deployment.engine)
    attends = [layer for layer in model.layers if not isinstance(layer, StateLayer)]
    states = [layer for layer in model.layers if isinstance(layer, StateLayer)]
    latents = [layer for layer in model.layers if isinstance(layer, LatentLayer)]
    sparse = any(is_indexer(layer) for layer in latents)
    dtype = _model_dtype(model, deployment)
    cache = cache_type(deployment.cache_dtype, CACHE_TYPES)
    mode = deployment.cache_dtype
    if sparse and cache.element == "uint8":
        mode, cache = "fp8_ds_mla", CACHE_TYPES["fp8_ds_mla"]
    elif cache.latent_only:
        refuse("cache_dtype", "a type that this attention keeps", mode, "set --cache-dtype fp8 or auto")
    sizes = deployment.kernel_block_sizes or _default_sizes(deployment, bool(latents), sparse)
    on = deployment.prefix_caching and deployment.mamba_cache_mode != "none"
    if deployment.mamba_cache_mode == "all":
        refuse("mamba_cache_mode", "none or align", "all", "set --mamba-cache-mode align")
    cache_mode = "align" if on else "none"
    longest = deployment.max_model_len or model.max_positions
    cpu = deployment.platform == "cpu"
    query_heads(model, deployment.tp)
    used = list(dict.fromkeys(_INDEXER if is_indexer(layer) else sizes for layer in attends))
    if deployment.block_size is not None:
        block = deployment.block_size
    elif cpu or not used:
        block = 128 if cpu else 16
    else:
        block = preferred(used, 16)
    user_block = block
    leaders = frozenset(layer.name.rpartition(".indexer.")[0] for layer in latents if is_indexer(layer))
    recurrent = _recurrent(model, deployment)
    rank = Rank(
        deployment.tp,
        dtype,
        dtype if deployment.mamba_cache_dtype == "auto" else deployment.mamba_cache_dtype,
        recurrent,
        mode,
        cache,
        block,
        block,
        None,
        cache_mode,
        sizes,
        _INDEXER,
        sparse,
        leaders,
    )
    if states:
        rank = _with_states(model, rank, states, attends, used, bool(latents), longest, deployment)
    made: dict[object, LayerSpec] = {}
    specs: dict[str, LayerSpec] = {}
    shared: dict[str, str] = {}
    for layer in model.layers:
        if isinstance(layer, AttentionLayer) and layer.shares is not None:
            shared[layer.name] = layer.shares
            continue
        key = _key(layer)
        spec = made.get(key)
        if spec is None:
            spec = made[key] = _sliding(layer_spec(layer, rank), rank)
        specs[layer.name] = spec
    stage = stage_of(model, deployment.pp)
    if deployment.dcp > 1:
        _context(model, deployment, specs, bool(latents))
    layout = deployment.layout or ("LBHNC" if cpu and not latents else "LBNHC")
    chunked = any(isinstance(layer, AttentionLayer) and layer.chunk is not None for layer in model.layers)
    whole = v0_29.bunches(specs, layout, hybrid=not chunked)
    stages = [on_stage(whole, stage, index) for index in range(deployment.pp)] if deployment.pp > 1 else [whole]
    mine = stages[deployment.pp_rank]
    placed = placements(mine, layout)
    kernels: list[int | None] = []
    for index, bunch in enumerate(mine):
        if bunch.spec.kind == "state":
            kernels.append(None)
        elif not bunch.layers or not splits(placed, index):
            kernels.append(bunch.spec.block)
        else:
            backends = list(dict.fromkeys(_INDEXER if spec.indexer else sizes for spec in bunch.specs))
            kernels.append(common(bunch.spec.block, backends))
    caches: dict[str, Entry] = dict(tensors(placed, kernels, layout))
    for alias, target in shared.items():
        if target in caches:
            caches[alias] = caches[target]
    registration = Registration(
        tuple(group(bunch) for bunch in mine),
        caches,
        tuple(p.placement for p in placed),
        None,
        layout,
        v0_29.HINTS.get(layout),
        Engine("vllm", version, deployment.platform, deployment.dcp),
        model.architecture,
    )
    scheduler = tuple(b.spec.block * (deployment.dcp if b.spec.sharded else 1) for b in whole)
    each = tuple(block_bytes(bunches, layout) for bunches in stages)
    filled = evolve(
        deployment,
        block_size=user_block,
        kernel_block_sizes=sizes,
        mamba_cache_mode=cache_mode,
        layout=layout,
        max_model_len=longest,
    )
    return Served(
        model,
        filled,
        registration,
        user_block,
        rank.block,
        scheduler,
        tuple(kernels),
        _hash_block(whole, scheduler, on or (deployment.prefix_caching and not states), cache_mode),
        each[deployment.pp_rank],
        each,
    )


def _hash_block(bunches: list[Bunch], scheduler: tuple[int, ...], caching: bool, mode: str) -> int:
    if len(bunches) == 1:
        return scheduler[0]
    if any(b.spec.kind == "state" and b.spec.cache_mode != "align" for b in bunches):
        return lcm(*scheduler)
    return gcd(*scheduler)


def query_heads(model: Model, tp: int) -> None:
    counts = {model.query_heads} if model.query_heads else {x.query_heads for x in model.layers if isinstance(x, AttentionLayer)}
    for heads in counts:
        if heads is not None and heads % tp:
            refuse("tp", f"a divisor of {heads} attention heads", tp, f"set --tp to a divisor of {heads}")


def _model_dtype(model: Model, deployment: Deployment) -> str:
    word = model.dtype if deployment.dtype == "auto" else deployment.dtype
    return "bfloat16" if word == "float32" and deployment.dtype == "auto" else word


def _default_sizes(deployment: Deployment, latent: bool, sparse: bool) -> Sizes:
    if deployment.platform == "cpu":
        return (KernelSize(32, multiple=True),)
    if sparse:
        return _SPARSE
    return (KernelSize(64),) if latent else (KernelSize(16, multiple=True),)


def _recurrent(model: Model, deployment: Deployment) -> str | None:
    asked = deployment.mamba_ssm_dtype if deployment.mamba_ssm_dtype not in (None, "auto") else model.ssm_dtype
    if deployment.platform == "cpu":
        return asked if asked in ("float16", "bfloat16") and any(
            isinstance(x, StateLayer) and x.kind == "GDN_ATTN" for x in model.layers
        ) else "float32"
    return asked


def _with_states(model, rank, states, attends, used, latent, longest, deployment):
    if longest is None:
        refuse("max_model_len", "a length", None, "set --max-model-len")
    state = max(state_bytes(tuple(state_fields(layer.recurrence, rank))) for layer in states)
    if not attends:
        block = deployment.block_size or 16
        return rank._replace(state_block=block if rank.cache_mode == "align" else longest)
    first = attends[0]
    if isinstance(first, LatentLayer):
        dtype = rank.cache.element or rank.dtype
        from kvlayout.algebra.dtype import DTYPES

        token = (first.rank + first.rope) * DTYPES[dtype].itemsize
    else:
        spec = layer_spec(first, rank)
        token = spec.heads * spec.content
    shared = hybrid(rank.block, token, state, used, LATENT_TOKENS if latent else 1)
    return rank._replace(
        block=shared.tokens,
        state_block=shared.tokens if rank.cache_mode == "align" else longest,
        state_padded=None if shared.page == state else shared.page,
    )


def _sliding(spec: LayerSpec, rank: Rank) -> LayerSpec:
    if spec.kind != "sliding":
        return spec
    token = spec.heads * spec.content
    return spec._replace(block=largest_within(rank.sizes, token, token * rank.block))


def _key(layer):
    return evolve(layer, name="")


def _context(model, deployment, specs, latent):
    pass
