"""What the engine chooses where a deployment leaves it open: element types, cache mode, kernel blocks, layout.

>>> from kvlayout.offline.deployment import Deployment
>>> from kvlayout.offline.model import LatentLayer, Model
>>> from kvlayout.offline.policy.versions import policy_of
>>> made = Model("", "", "bfloat16", (LatentLayer("model.layers.0.self_attn.attn", 512, 64),))
>>> chosen = choose(made, Kinds.of(made), Deployment(), policy_of("vllm-0.32").facts)
>>> chosen.block, chosen.sizes, chosen.layout
(16, (KernelSize(tokens=16, multiple=True),), 'LBNHC')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.algebra.dtype import DTYPES
from kvlayout.offline.deployment import CacheMode, KernelSize, LayoutName
from kvlayout.offline.model import AttentionLayer, KimiDelta, Mamba1, Mamba2
from kvlayout.offline.policy.kernels import Sizes, holds, preferred, smallest, written
from kvlayout.offline.policy.kinds import Kinds, is_indexer
from kvlayout.offline.policy.layers import CacheType, cache_type
from kvlayout.offline.policy.values import refused

if TYPE_CHECKING:
    from kvlayout.offline.deployment import Deployment
    from kvlayout.offline.model import Model
    from kvlayout.offline.policy.facts import Facts

__all__ = ["INDEXER", "Choices", "choose"]

#: Kernel blocks on a GPU (of the Hopper generation): of an indexer, of latent rows of one byte an element (FlashMLA),
#: and of any other attention (FlashAttention, latent or not).
INDEXER: Final[Sizes] = (KernelSize(64),)
_LATENT_BYTES: Final[Sizes] = (KernelSize(64),)
_DENSE: Final[Sizes] = (KernelSize(16, multiple=True),)
#: The CPU's reference backend of latent attention.
_REFERENCE: Final[Sizes] = (KernelSize(16),)

#: Tokens a block where nothing asks for another size.
_BLOCK: Final = 16
_CPU_BLOCK: Final = 128

#: Tokens of the longest request of a model whose config does not say.
_LENGTH: Final = 2048


class Choices(NamedTuple):
    """A deployment without gaps.

    Attributes:
        dtype: the model's element type; ``conv`` that of convolution states, ``recurrent`` that of recurrent ones where
            one is asked for.
        mode: the word for the cache's element type, and ``cache`` what it means.
        cache_mode: which states are kept.
        sizes: kernel blocks of attention.
        backends: those of all attention layers, in their order.
        block: tokens a block, before it is aligned with states.
        reference: latent attention runs on a CPU's reference backend, which takes one block and no prefix caching.
        longest: tokens of the longest request.
        layout: the order of axes in memory.
    """

    dtype: str
    conv: str
    recurrent: str | None
    mode: str
    cache: CacheType
    cache_mode: CacheMode
    sizes: Sizes
    backends: tuple[Sizes, ...]
    block: int
    reference: bool
    longest: int
    layout: LayoutName


def choose(model: Model, kinds: Kinds, deployment: Deployment, facts: Facts) -> Choices:
    """Return what the engine chooses.

    Raises:
        RefusedError: it has no such choice, or the deployment contradicts the model.
    """
    dtype = _element(model, deployment)
    mode, cache = _cache(model, kinds, deployment, facts)
    sizes = deployment.kernel_block_sizes or _sizes(kinds, cache, deployment, facts)
    backends = tuple(dict.fromkeys(INDEXER if is_indexer(layer) else sizes for layer in kinds.attending))
    block, reference = _block(kinds, deployment, sizes, backends, facts)
    return Choices(
        dtype,
        dtype if deployment.mamba_cache_dtype == "auto" else deployment.mamba_cache_dtype,
        _recurrent(model, kinds, deployment, facts),
        mode,
        cache,
        _cache_mode(kinds, deployment, facts),
        sizes,
        backends,
        block,
        reference,
        _longest(model, deployment),
        _layout(kinds, deployment, facts),
    )


def _longest(model: Model, deployment: Deployment) -> int:
    """Return the tokens of the longest request: as asked for, those of the model, or what the engine assumes."""
    asked, most = deployment.max_model_len, model.max_positions
    if asked is not None and most is not None and asked > most:
        raise refused("max_model_len", f"at most the {most} tokens of the model", asked, "set --max-model-len")
    return asked or most or _LENGTH


def _element(model: Model, deployment: Deployment) -> str:
    """Return the model's element type: full precision is served in half unless it is asked for."""
    word = model.dtype if deployment.dtype == "auto" else deployment.dtype
    if word not in DTYPES:
        raise refused("dtype", "a known element type", repr(word))
    return "bfloat16" if word == "float32" and deployment.dtype == "auto" else word


def _cache(model: Model, kinds: Kinds, deployment: Deployment, facts: Facts) -> tuple[str, CacheType]:
    """Return the cache's element type; sparse attention keeps eight bits in rows of its own."""
    mode = deployment.cache_dtype if model.typed_cache else "auto"
    if mode == "auto" and model.cache_dtype is not None:  # a quantised checkpoint asks for it
        mode = model.cache_dtype
    cache = cache_type(mode, facts.cache_types)
    if kinds.sparse and cache.element == "uint8":
        return "fp8_ds_mla", facts.cache_types["fp8_ds_mla"]
    if cache.latent_only:
        raise refused("cache_dtype", "a type that this attention keeps", mode, "set --cache-dtype fp8 or auto")
    if cache.extra and (kinds.latent or deployment.platform == "cpu"):
        raise refused("cache_dtype", "a type that this attention keeps", mode, "set --cache-dtype fp8 or auto")
    return mode, cache


def _sizes(kinds: Kinds, cache: CacheType, deployment: Deployment, facts: Facts) -> Sizes:
    """Return the kernel blocks of the platform's default backend."""
    if deployment.platform == "cpu":
        if kinds.sparse or (kinds.latent and not facts.cpu_latent):
            raise refused("platform", "cuda, for this attention", "cpu", "set --platform cuda")
        return facts.cpu_latent if kinds.latent else facts.cpu_sizes
    if kinds.sparse:
        return facts.sparse_sizes
    return _LATENT_BYTES if kinds.latent and cache.element == "uint8" else _DENSE


def _block(
    kinds: Kinds, deployment: Deployment, sizes: Sizes, backends: tuple[Sizes, ...], facts: Facts
) -> tuple[int, bool]:
    """Return the block that is asked for or that the backends accept, and whether it is the CPU's reference one."""
    cpu = deployment.platform == "cpu"
    if cpu and kinds.latent and sizes == _REFERENCE:
        return smallest(_REFERENCE), True  # whatever the user asked for
    if deployment.block_size is not None:
        if backends and not cpu and not deployment.kernel_block_sizes and not holds(_DENSE, deployment.block_size):
            fix = f"set --block-size to a multiple of {smallest(_DENSE)}"  # that is the least of any GPU backend
            asked = f"{deployment.block_size} tokens"
            raise refused("block_size", f"a block of whole kernel blocks ({written(sizes)})", asked, fix)
        return deployment.block_size, False
    if not backends:
        return _BLOCK, False
    if cpu:
        return _CPU_BLOCK, False
    return preferred(backends if facts.default_for == "every" else backends[:1], _BLOCK), False


def _cache_mode(kinds: Kinds, deployment: Deployment, facts: Facts) -> CacheMode:
    """Return which states are kept: without prefix caching none, and asking for none is to do without it."""
    asked = deployment.mamba_cache_mode
    if asked == "all" and not facts.all_states:
        raise refused("mamba_cache_mode", "none or align", "all", "set --mamba-cache-mode align")
    if asked == "none" or not deployment.prefix_caching:
        return "none"
    able = all(isinstance(layer.recurrence, Mamba1 | Mamba2) for layer in kinds.states)
    if able and (asked == "all" or (asked is None and facts.all_by_default)):
        return "all"
    return "align"


def _recurrent(model: Model, kinds: Kinds, deployment: Deployment, facts: Facts) -> str | None:
    """Return the element type of recurrent states, ``None`` where the layer decides."""
    delta = any(isinstance(layer.recurrence, KimiDelta) for layer in kinds.states)
    asked = deployment.mamba_ssm_dtype
    if asked in (None, "auto"):
        asked = model.ssm_dtype if model.ssm_dtype != "auto" else None
    if deployment.platform == "cpu" and facts.cpu_states is not None:
        half = facts.cpu_half_states and not delta and not kinds.parallel
        asked = asked if half and asked in ("float16", "bfloat16") else facts.cpu_states
    if delta:
        if not facts.typed_delta:
            return "float32"
        if asked == "float16":
            fix = "set --mamba-ssm-dtype float32"
            raise refused("mamba_ssm_dtype", "float32 or bfloat16, for Kimi delta attention", asked, fix)
    if asked is not None and asked not in DTYPES:
        raise refused("mamba_ssm_dtype", "a known element type", repr(asked))
    return asked


def _layout(kinds: Kinds, deployment: Deployment, facts: Facts) -> LayoutName:
    """Return the layout: heads outside tokens where the CPU's kernels want it so, and inside elsewhere."""
    layout = deployment.layout
    if facts.minor < 29 and layout not in (None, "LBNHC", "LBHNC"):
        raise refused("layout", "LBNHC (NHD) or LBHNC (HND), in this engine version", layout, "set --layout LBNHC")
    dense = any(isinstance(layer, AttentionLayer) for layer in kinds.attending)
    return layout or ("LBHNC" if deployment.platform == "cpu" and dense else "LBNHC")
