"""Architectures whose layers are known: which reading applies, and how the engine names their layers.

Sizes and kinds of layers come from a config's fields; an architecture decides only what the fields mean.

>>> KNOWN["LlamaForCausalLM"].family
'full attention'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from kvlayout.offline.config import Config
from kvlayout.offline.families.attention import attention
from kvlayout.offline.families.chunked import chunked
from kvlayout.offline.families.cross import cross
from kvlayout.offline.families.gated_delta import gated_delta
from kvlayout.offline.families.kimi_delta import kimi_delta
from kvlayout.offline.families.latent import indexed, latent
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.mamba1 import jamba, mamba
from kvlayout.offline.families.mamba2 import bamba, granite, mamba2, nemotron
from kvlayout.offline.families.older import alternating, falcon_heads, gpt2, two_sorts, wide_keys
from kvlayout.offline.families.parallel import falcon, zamba
from kvlayout.offline.families.patterns import (
    FULL,
    SLIDING,
    beyond,
    leading,
    listed,
    one_kind,
    without_rope,
)
from kvlayout.offline.families.sharing import sharing_by_distance, sharing_by_kind
from kvlayout.offline.families.short_conv import short_conv

__all__ = ["KNOWN", "Known", "Reading"]

#: From a config, and what the engine puts before the number of a layer, to its layers with a cache.
Reading: TypeAlias = Callable[[Config, str], Layers]


class Known(NamedTuple):
    """How to read an architecture.

    Attributes:
        family: the kind of its layers.
        read: what reads them.
        kind: the ``model_type`` whose defaults hold where the config names none that is known.
        layers: what the engine puts before the number of a layer.
        halves: the engine computes in bfloat16 where the config says float16.
        states_key: the field from which the engine takes the element type of recurrent states.
        schemes: the engine's attention takes the cache scheme of a compressed-tensors checkpoint.
        typed: the engine hands the element type of caches that is asked for to its attention.
    """

    family: str
    read: Reading
    kind: str
    layers: str = "model.layers"
    halves: bool = False
    states_key: str = ""
    schemes: bool = True
    typed: bool = True


def _windows(interval: int, key: str = "") -> Reading:
    return partial(attention, pattern=listed((SLIDING, FULL), interval, key))


_FULL: Final = "full attention"
_SLIDING: Final = "sliding and full attention"
_LATENT: Final = "latent attention"
_DELTA: Final = "gated delta and full attention"
_SPACES: Final = "state spaces and attention"
_divided: Final[Reading] = partial(attention, own_size=False)
_all_or_none: Final[Reading] = partial(attention, pattern=beyond, mixed=False, own_size=False)
_wide: Final[Reading] = partial(attention, pattern=beyond, mixed=False)
_gemma3: Final[Reading] = partial(
    attention, pattern=listed((SLIDING, FULL), 6, "sliding_window_pattern"), both_ways=True
)
_cohere: Final[Reading] = partial(
    attention, pattern=listed((SLIDING, FULL), 4, "sliding_window_pattern"), beyond_window=1
)

KNOWN: Final[Mapping[str, Known]] = {
    "LlamaForCausalLM": Known(_FULL, attention, "llama"),
    "LLaMAForCausalLM": Known(_FULL, attention, "llama"),
    "InternLM3ForCausalLM": Known(_FULL, attention, "llama"),
    "IQuestCoderForCausalLM": Known(_FULL, attention, "llama"),
    "TeleChat3ForCausalLM": Known(_FULL, attention, "llama"),
    "HyperCLOVAXForCausalLM": Known(_FULL, attention, "hyperclovax"),
    "MistralForCausalLM": Known(_FULL, attention, "mistral"),
    "Ministral3ForCausalLM": Known(_FULL, attention, "ministral3"),
    "MinistralForCausalLM": Known(_SLIDING, partial(attention, pattern=one_kind), "ministral"),
    "MixtralForCausalLM": Known(_FULL, attention, "mixtral"),
    "Qwen2ForCausalLM": Known(_FULL, _all_or_none, "qwen2"),
    "Qwen2MoeForCausalLM": Known(_FULL, _all_or_none, "qwen2_moe"),
    "Qwen3ForCausalLM": Known(_FULL, _wide, "qwen3"),
    "Qwen3MoeForCausalLM": Known(_FULL, attention, "qwen3_moe"),
    "Phi3ForCausalLM": Known(_FULL, attention, "phi3"),
    "GemmaForCausalLM": Known(_FULL, attention, "gemma"),
    "Glm4ForCausalLM": Known(_FULL, attention, "glm4", halves=True),
    "Glm4MoeForCausalLM": Known(_FULL, attention, "glm4_moe"),
    "GraniteForCausalLM": Known(_FULL, attention, "granite"),
    "GraniteMoeForCausalLM": Known(_FULL, _divided, "granitemoe"),
    "GraniteMoeSharedForCausalLM": Known(_FULL, _divided, "granitemoeshared"),
    "OlmoeForCausalLM": Known(_FULL, _divided, "olmoe"),
    "Olmo2ForCausalLM": Known(_FULL, attention, "olmo2"),
    "CohereForCausalLM": Known(_FULL, attention, "cohere"),
    "NemotronForCausalLM": Known(_FULL, attention, "nemotron"),
    "StableLmForCausalLM": Known(_FULL, _divided, "stablelm"),
    "Starcoder2ForCausalLM": Known(_FULL, attention, "starcoder2"),
    "Ernie4_5ForCausalLM": Known(_FULL, attention, "ernie4_5"),
    "Ernie4_5_MoeForCausalLM": Known(_FULL, attention, "ernie4_5_moe"),
    "SeedOssForCausalLM": Known(_FULL, attention, "seed_oss"),
    "HunYuanDenseV1ForCausalLM": Known(_FULL, attention, "hunyuan_v1_dense"),
    "HunYuanMoEV1ForCausalLM": Known(_FULL, attention, "hunyuan_v1_moe"),
    "MiniMaxM2ForCausalLM": Known(_FULL, attention, "minimax_m2"),
    "ArceeForCausalLM": Known(_FULL, attention, "arcee"),
    "PhimoeForCausalLM": Known(_FULL, attention, "phimoe"),
    "ApertusForCausalLM": Known(_FULL, attention, "apertus"),
    "BitNetForCausalLM": Known(_FULL, attention, "bitnet"),
    "DogeForCausalLM": Known(_FULL, attention, "doge"),
    "HeliumForCausalLM": Known(_FULL, attention, "helium"),
    "Jais2ForCausalLM": Known(_FULL, attention, "jais2"),
    "OlmoForCausalLM": Known(_FULL, attention, "olmo"),
    "PersimmonForCausalLM": Known(_FULL, attention, "persimmon"),
    "PhiForCausalLM": Known(_FULL, attention, "phi"),
    "Dots1ForCausalLM": Known(_FULL, partial(attention, pattern=beyond), "dots1"),
    "MiniCPM3ForCausalLM": Known(_FULL, wide_keys, "minicpm3"),
    "GPTJForCausalLM": Known(_FULL, gpt2, "gptj", "transformer.h"),
    "GPTBigCodeForCausalLM": Known(_FULL, gpt2, "gpt_bigcode", "model.h"),
    "OPTForCausalLM": Known(_FULL, _divided, "opt", "model.decoder.layers"),
    "GPT2LMHeadModel": Known(_FULL, gpt2, "gpt2", "transformer.h"),
    "FalconForCausalLM": Known(_FULL, falcon_heads, "falcon", "transformer.h", typed=False),
    "GPTNeoXForCausalLM": Known(_FULL, partial(attention, module="attention.attn"), "gpt_neox"),
    "Gemma2ForCausalLM": Known(_SLIDING, _windows(2), "gemma2", halves=True),
    "Gemma3ForCausalLM": Known(_SLIDING, _gemma3, "gemma3_text", halves=True),
    "Gemma3nForCausalLM": Known(_SLIDING, sharing_by_distance, "gemma3n_text"),
    "Gemma4ForCausalLM": Known(_SLIDING, sharing_by_kind, "gemma4_text"),
    "GptOssForCausalLM": Known(_SLIDING, alternating, "gpt_oss"),
    "Cohere2ForCausalLM": Known(_SLIDING, _cohere, "cohere2"),
    "CwmForCausalLM": Known(_SLIDING, partial(attention, pattern=leading(4)), "cwm"),
    "GraniteSWAForCausalLM": Known(_SLIDING, partial(attention, pattern=leading(4)), "granite_swa"),
    "GraniteMoeSWAForCausalLM": Known(
        _SLIDING, partial(attention, pattern=leading(4), own_size=False), "granitemoe_swa"
    ),
    "ExaoneMoeForCausalLM": Known(_SLIDING, _windows(4, "sliding_window_pattern"), "exaone_moe"),
    "MiMoV2FlashForCausalLM": Known(_SLIDING, two_sorts, "mimo_v2_flash"),
    "Exaone4ForCausalLM": Known(_SLIDING, _windows(4, "sliding_window_pattern"), "exaone4"),
    "Olmo3ForCausalLM": Known(_SLIDING, _windows(4), "olmo3"),
    "SmolLM3ForCausalLM": Known(_SLIDING, partial(attention, pattern=without_rope), "smollm3"),
    "Llama4ForCausalLM": Known("chunked local and full attention", chunked, "llama4_text"),
    "DeepseekV2ForCausalLM": Known(_LATENT, latent, "deepseek_v2", schemes=False),
    "AXK1ForCausalLM": Known(_LATENT, latent, "axk1", schemes=False),
    "DeepseekV3ForCausalLM": Known(_LATENT, latent, "deepseek_v3", schemes=False),
    "Glm4MoeLiteForCausalLM": Known(_LATENT, latent, "glm4_moe_lite", schemes=False),
    "DeepseekV32ForCausalLM": Known("latent attention with an indexer", indexed, "deepseek_v32", schemes=False),
    "GlmMoeDsaForCausalLM": Known("latent attention with an indexer", indexed, "glm_moe_dsa", schemes=False),
    "KimiLinearForCausalLM": Known("kimi delta and latent attention", kimi_delta, "kimi_linear", schemes=False),
    "Qwen3NextForCausalLM": Known(_DELTA, gated_delta, "qwen3_next"),
    "Qwen3_5ForCausalLM": Known(_DELTA, gated_delta, "qwen3_5_text", states_key="mamba_ssm_dtype"),
    "Qwen3_5MoeForCausalLM": Known(_DELTA, gated_delta, "qwen3_5_moe_text", states_key="mamba_ssm_dtype"),
    "NemotronHForCausalLM": Known(_SPACES, nemotron, "nemotron_h", states_key="mamba_ssm_cache_dtype"),
    "BambaForCausalLM": Known(_SPACES, bamba, "bamba"),
    "GraniteMoeHybridForCausalLM": Known(_SPACES, granite, "granitemoehybrid"),
    "FalconH1ForCausalLM": Known(_SPACES, falcon, "falcon_h1"),
    "Zamba2ForCausalLM": Known(_SPACES, zamba, "zamba2", schemes=False),
    "JambaForCausalLM": Known(_SPACES, jamba, "jamba", schemes=False),
    "Mamba2ForCausalLM": Known("state spaces", mamba2, "mamba2", "backbone.layers"),
    "MambaForCausalLM": Known("state spaces", mamba, "mamba", "backbone.layers"),
    "FalconMambaForCausalLM": Known("state spaces", mamba, "falcon_mamba", "backbone.layers"),
    "Lfm2ForCausalLM": Known("short convolutions and full attention", short_conv, "lfm2", schemes=False),
    "Lfm2MoeForCausalLM": Known("short convolutions and full attention", short_conv, "lfm2_moe", schemes=False),
    "WhisperForConditionalGeneration": Known("cross attention", cross, "whisper", ".decoder.layers"),
}
