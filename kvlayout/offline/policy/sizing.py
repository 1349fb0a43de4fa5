"""What each layer keeps on one rank, and the block that attention and states share.

>>> from kvlayout.offline.deployment import Deployment
>>> from kvlayout.offline.model import GatedDelta, Model
>>> from kvlayout.offline.policy.choosing import choose
>>> from kvlayout.offline.policy.kinds import Kinds
>>> from kvlayout.offline.policy.versions import policy_of
>>> delta = StateLayer("model.layers.0.linear_attn", "GDN_ATTN", GatedDelta(16, 16, 128, 128, 4))
>>> made = Model(
...     "",
...     "",
...     "bfloat16",
...     (delta, AttentionLayer("model.layers.1.self_attn.attn", 8, 2, 256, 256)),
...     ssm_dtype="float32",
... )
>>> kinds, facts, asked = Kinds.of(made), policy_of("vllm-0.32").facts, Deployment(tp=2)
>>> rank = rank_of(made, kinds, choose(made, kinds, asked, facts), asked, facts)
>>> rank.block, [spec.page for spec in layer_specs(made, kinds, rank, frozenset()).values()]
(544, [557056, 557056])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import evolve

from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.fields import LIMIT
from kvlayout.offline.model import AttentionLayer, CrossLayer, LatentLayer, StateLayer
from kvlayout.offline.policy.choosing import INDEXER
from kvlayout.offline.policy.hybrids import hybrid
from kvlayout.offline.policy.layers import Rank, layer_spec, state_bytes, state_fields
from kvlayout.offline.policy.values import LayerSpec, refused

if TYPE_CHECKING:
    from kvlayout.offline.deployment import Deployment
    from kvlayout.offline.model import Layer, Model
    from kvlayout.offline.policy.choosing import Choices
    from kvlayout.offline.policy.facts import Facts
    from kvlayout.offline.policy.kinds import Kinds

__all__ = ["layer_specs", "rank_of"]

#: Tokens that a recurrent kernel takes at once where its config has no number for it.
_CHUNK: Final = 2048

#: Tokens a block of states before any attention layer is known.
_BLOCK: Final = 16


def rank_of(model: Model, kinds: Kinds, choices: Choices, deployment: Deployment, facts: Facts) -> Rank:
    """Return what decides the specs of one rank, with the block that attention and states share.

    Raises:
        RefusedError: a length is missing, or no block suits both.
    """
    rank = Rank(
        deployment.tp,
        choices.dtype,
        choices.conv,
        choices.recurrent,
        choices.mode,
        choices.cache,
        choices.block,
        choices.block,
        deployment.block_size or _BLOCK,
        None,
        choices.cache_mode,
        choices.sizes,
        INDEXER,
        kinds.sparse,
        facts.rows_apart,
        facts.window_block,
        kinds.leaders if kinds.sparse else frozenset(),
    )
    if not kinds.states:
        return rank
    if choices.cache_mode == "none":
        rank = rank._replace(state_block=choices.longest)
    if not kinds.attending:  # nothing to share a block with, and the platform's default comes too late
        return rank._replace(state_block=rank.state_block if choices.cache_mode == "none" else rank.first_block)
    return _shared(model, kinds, choices, facts, rank)


def _shared(model: Model, kinds: Kinds, choices: Choices, facts: Facts, rank: Rank) -> Rank:
    """Return the rank with the block of a hybrid model."""
    states = max(
        state_bytes(tuple(state_fields(recurrence, rank))) for recurrence in {s.recurrence for s in kinds.states}
    )
    every = choices.backends if facts.kernel_rounding == "every" else ()
    least = facts.latent_unit if kinds.latent else 1
    chunk = (model.state_chunk or _CHUNK) if choices.cache_mode == "all" else None
    token = _token_bytes(kinds.attending[0], rank)
    shared = hybrid(choices.block, token, states, choices.backends[0], every=every, least=least, chunk=chunk)
    checks = facts.kernel_rounding == "every"
    if choices.reference and (choices.cache_mode != "none" or (checks and shared.tokens != choices.block)):
        fix = "set --kernel-block-sizes multiple:32"
        raise refused("kernel_block_sizes", "a backend that takes longer blocks, and prefix caching", "16", fix)
    return rank._replace(
        block=shared.tokens,
        state_block=rank.state_block if choices.cache_mode == "none" else shared.state_tokens,
        state_padded=None if shared.page == states else shared.page,
    )


def _token_bytes(layer: Layer, rank: Rank) -> int:
    """Return the bytes of a token of attention, as the engine counts them before the layers exist."""
    if isinstance(layer, LatentLayer):
        return (layer.rank + layer.rope) * DTYPES[rank.cache.element or rank.dtype].itemsize
    if isinstance(layer, AttentionLayer) and layer.head_size_v != layer.head_size:
        layer = evolve(layer, head_size_v=layer.head_size)
    spec = layer_spec(layer, rank)
    return spec.heads * spec.content


def layer_specs(model: Model, kinds: Kinds, rank: Rank, alone: frozenset[str]) -> dict[str, LayerSpec]:
    """Return what each layer keeps; layers that differ in their names only are computed once.

    Args:
        model: the model.
        kinds: its layers by kind.
        rank: what decides their specs.
        alone: layers that have no attention beside them, on a pipeline stage of their own, and share no block.

    Raises:
        RefusedError: a page is larger than any number of an engine.
    """
    made: dict[object, LayerSpec] = {}
    specs: dict[str, LayerSpec] = {}
    for layer in model.layers:
        if layer.name in kinds.aliases:
            continue
        apart = layer.name in alone
        key = (_numbers(layer, rank), apart)
        spec = made.get(key)
        if spec is None:
            spec = made[key] = layer_spec(layer, rank)
            if apart:
                block = rank.state_block if rank.cache_mode == "none" else rank.first_block
                spec = made[key] = spec._replace(block=block, padded=None)
            if spec.page >= LIMIT:
                raise refused("block_size", "a page below 2**63 bytes", f"{spec.page} bytes of {layer.name}")
        specs[layer.name] = spec
    return specs


def _numbers(layer: Layer, rank: Rank) -> object:
    """Return all that decides a layer's spec: everything but its name."""
    match layer:
        case AttentionLayer():
            return layer.heads, layer.head_size, layer.head_size_v, layer.window, layer.chunk
        case LatentLayer():
            return layer.rank, layer.rope, layer.index_bytes, layer.window, layer.name in rank.leaders
        case StateLayer():
            return layer.kind, layer.recurrence
        case CrossLayer():
            return layer.heads, layer.head_size
