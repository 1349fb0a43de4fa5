"""From a model and a deployment to the registration that the engine would make, for any number of blocks.

>>> from kvlayout.offline.model import AttentionLayer, Model
>>> layers = tuple(AttentionLayer(f"model.layers.{i}.self_attn.attn", 32, 8, 128, 128) for i in range(4))
>>> served = serve(Model("LlamaForCausalLM", "attention", "bfloat16", layers), Deployment(tp=2)).unwrap()
>>> served.user_block, served.block_bytes, str(served.registration.placements[0].layer_stride)
(16, 131072, '32768n')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import evolve, frozen

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.registration import Engine, Registration
from kvlayout.errors import LayoutErrors
from kvlayout.offline.deployment import Deployment, faults
from kvlayout.offline.policy.checking import check_ranks
from kvlayout.offline.policy.choosing import INDEXER, choose
from kvlayout.offline.policy.grouping import grouped
from kvlayout.offline.policy.hashing import hash_block, spans
from kvlayout.offline.policy.kinds import Kinds
from kvlayout.offline.policy.registering import group
from kvlayout.offline.policy.request import Request
from kvlayout.offline.policy.sizing import layer_specs, rank_of
from kvlayout.offline.policy.stages import alone, check_stages, on_stage, stage_of
from kvlayout.offline.policy.values import RefusedError, refused
from kvlayout.offline.policy.versions import policy_of

if TYPE_CHECKING:
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
    except RefusedError as refusal:
        return Err(LayoutErrors((refusal.error,)))


def _serve(model: Model, deployment: Deployment) -> Served:
    policy = policy_of(deployment.engine)
    facts = policy.facts
    kinds = Kinds.of(model)
    if not model.layers:
        raise refused("layers", "a layer with a cache", "none")
    check_ranks(model, kinds, deployment)
    choices = choose(model, kinds, deployment, facts)
    rank = rank_of(model, kinds, choices, deployment, facts)
    stage = stage_of(model, deployment.pp)
    request = Request(
        facts,
        deployment.platform,
        choices.layout,
        choices.sizes,
        INDEXER,
        kinds.local,
        deployment.hybrid_manager,
    )
    apart: frozenset[str] = frozenset()
    if deployment.pp > 1:
        check_stages(kinds, stage, deployment.pp, declares=deployment.platform == "cpu" and not kinds.latent)
        apart = alone(kinds, stage) if kinds.attending else apart
    bunches = grouped(layer_specs(model, kinds, rank, apart), request)
    if deployment.dcp > 1 and len(bunches) > 1 and not facts.context_groups:
        raise refused(
            "dcp", "1, where layers need several groups, in this engine version", deployment.dcp, "set --dcp 1"
        )
    stages = [bunches] if deployment.pp == 1 else [on_stage(bunches, stage, n) for n in range(deployment.pp)]
    made = [policy.arrange(stage_bunches, request) for stage_bunches in stages]
    arranged = made[deployment.pp_rank]
    caches = dict(arranged.caches)
    caches |= {alias: caches[layer] for alias, layer in kinds.aliases.items() if layer in caches}
    tokens = spans(bunches, deployment.dcp)
    return Served(
        model=model,
        deployment=evolve(
            deployment,
            cache_dtype=choices.mode,
            block_size=choices.block,
            kernel_block_sizes=choices.sizes,
            mamba_cache_mode=choices.cache_mode if kinds.states else deployment.mamba_cache_mode,
            prefix_caching=deployment.prefix_caching and not (kinds.states and choices.cache_mode == "none"),
            mamba_ssm_dtype=choices.recurrent,
            layout=choices.layout,
            max_model_len=choices.longest,
        ),
        registration=Registration(
            tuple(group(bunch, facts) for bunch in stages[deployment.pp_rank]),
            caches,
            arranged.placements,
            None,
            arranged.layout,
            arranged.hint,
            Engine("vllm", policy.version, deployment.platform, deployment.dcp),
            model.architecture,
        ),
        user_block=choices.block,
        aligned_block=rank.block,
        scheduler_blocks=tokens,
        kernel_blocks=arranged.kernels,
        hash_block=hash_block(bunches, tokens, by_mode=facts.hash_by_mode),
        block_bytes=arranged.block_bytes,
        stage_bytes=tuple(each.block_bytes for each in made),
    )
