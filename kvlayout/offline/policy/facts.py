"""What changed from one version of vLLM to the next, as far as a cache's geometry goes: facts, and no code.

>>> Facts(minor=28).kernel_rounding
'first'
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from kvlayout.offline.deployment import KernelSize
from kvlayout.offline.policy.kernels import Sizes
from kvlayout.offline.policy.layers import CACHE_TYPES, CacheType

__all__ = ["Facts"]


class Facts(NamedTuple):
    """Facts of one minor version.

    Attributes:
        minor: the second number of the version.
        all_states: recurrent layers can keep the state of every block (mode ``all``).
        all_by_default: and they do so where prefix caching is on and their kernels can.
        latent_unit: tokens that a hybrid block with latent attention is at least rounded to.
        kernel_rounding: a hybrid block is rounded to the kernel blocks of the ``first`` backend, or of ``every`` one.
        default_for: the default block suits the ``first`` backend, or ``every`` one.
        window_block: a sliding window starts from the ``smallest`` kernel block, or from the ``largest`` of the page.
        joins_unlike: layers of full attention that differ in a window only are counted together.
        pads_states: a state's page is padded where another layer's is larger.
        pads_attention: pages of attention are padded where a backend reads them ``by stride``, or ``always``.
        promotes_latent: a sliding window of latent rows can be made to keep all tokens.
        full_allocation: windows beside latent rows keep all tokens where page sizes can't be made equal.
        context_groups: decode-context parallelism works with several groups.
        declares_sharding: a spec says whether context parallelism spreads it.
        declares_roles: a spec says that it is an indexer's.
        whole_when_packed: blocks of several layers are never split into kernel blocks.
        rows_apart: blocks lie whole rows of sparse attention, or whole kernel blocks of exact sizes, apart.
        packs_windows: packed sliding windows are split into several groups as states are.
        unlike_is_full: a group of unlike full attention is called so, and not unknown.
        hash_by_mode: hashes are fine where states are kept by ``align``, and not where block sizes happen to agree.
        typed_delta: the element type of Kimi delta attention's state can be chosen.
        cpu_states: the element type of recurrent states on a CPU, where the engine insists on one.
        cpu_half_states: and yet they may have half precision where it is asked for; not Kimi's, and not
            where each layer attends as well.
        cpu_sizes: kernel blocks of attention on a CPU.
        cpu_latent: those of latent attention there; empty where there is none.
        sparse_sizes: kernel blocks of sparse latent attention.
        cache_types: what ``--kv-cache-dtype`` can say.
    """

    minor: int
    all_states: bool = True
    all_by_default: bool = False
    latent_unit: int = 128
    kernel_rounding: Literal["first", "every"] = "first"
    default_for: Literal["first", "every"] = "first"
    window_block: Literal["smallest", "largest"] = "smallest"
    joins_unlike: bool = True
    pads_states: bool = True
    pads_attention: Literal["by stride", "always"] = "by stride"
    promotes_latent: bool = True
    full_allocation: bool = True
    context_groups: bool = True
    declares_sharding: bool = False
    declares_roles: bool = False
    whole_when_packed: bool = False
    rows_apart: bool = False
    packs_windows: bool = False
    unlike_is_full: bool = True
    hash_by_mode: bool = True
    typed_delta: bool = False
    cpu_states: str | None = "float32"
    cpu_half_states: bool = False
    cpu_sizes: Sizes = (KernelSize(16, multiple=True),)
    cpu_latent: Sizes = (KernelSize(16),)
    sparse_sizes: Sizes = (KernelSize(64),)
    cache_types: Mapping[str, CacheType] = MappingProxyType(CACHE_TYPES)
