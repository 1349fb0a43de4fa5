"""Models that hold a language model beside something that sees or hears: where it is, and how its layers are named.

>>> WRAPPERS["Mistral3ForConditionalGeneration"].text
'mistral'
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from kvlayout.offline.families.known import KNOWN, Known

__all__ = ["WRAPPERS", "Wrapper", "of_kind"]


class Wrapper(NamedTuple):
    """A model around a language model.

    Attributes:
        kind: its ``model_type``.
        text: the ``model_type`` of its language model, where the config does not say.
        inner: the object of the config that describes the language model.
        layers: what the engine puts before the number of a layer.
    """

    kind: str
    text: str
    inner: str = "text_config"
    layers: str = "language_model.model.layers"


WRAPPERS: Final[Mapping[str, Wrapper]] = {
    "Gemma3ForConditionalGeneration": Wrapper("gemma3", "gemma3_text"),
    "Gemma3nForConditionalGeneration": Wrapper("gemma3n", "gemma3n_text"),
    "Gemma4ForConditionalGeneration": Wrapper("gemma4", "gemma4_text"),
    "InternVLForConditionalGeneration": Wrapper("internvl", "qwen2"),
    "KimiVLForConditionalGeneration": Wrapper("kimi_vl", "deepseek_v3"),
    "KimiK25ForConditionalGeneration": Wrapper("kimi_k25", "deepseek_v3"),
    "Lfm2VlForConditionalGeneration": Wrapper("lfm2_vl", "lfm2", layers="language.model.layers"),
    "Llama4ForConditionalGeneration": Wrapper("llama4", "llama4_text"),
    "LlavaForConditionalGeneration": Wrapper("llava", "llama"),
    "LlavaNextForConditionalGeneration": Wrapper("llava_next", "llama"),
    "LlavaOnevisionForConditionalGeneration": Wrapper("llava_onevision", "qwen2"),
    "Mistral3ForConditionalGeneration": Wrapper("mistral3", "mistral"),
    "PaliGemmaForConditionalGeneration": Wrapper("paligemma", "gemma"),
    "Qwen2VLForConditionalGeneration": Wrapper("qwen2_vl", "qwen2_vl_text"),
    "Qwen2_5_VLForConditionalGeneration": Wrapper("qwen2_5_vl", "qwen2_5_vl_text"),
    "Qwen3VLForConditionalGeneration": Wrapper("qwen3_vl", "qwen3_vl_text"),
    "Qwen3VLMoeForConditionalGeneration": Wrapper("qwen3_vl_moe", "qwen3_vl_moe_text"),
    "Qwen3_5ForConditionalGeneration": Wrapper("qwen3_5", "qwen3_5_text"),
    "Qwen3_5MoeForConditionalGeneration": Wrapper("qwen3_5_moe", "qwen3_5_moe_text"),
}

#: Language models that have a kind of their own inside another model, and are read as one that is known.
_ALIKE: Final = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "kimi_k2": "deepseek_v3",
    "deepseek_v32": "deepseek_v32",
}


@cache
def _kinds() -> Mapping[str, str]:
    """Return the first architecture of each kind."""
    kinds: dict[str, str] = {}
    for name, known in KNOWN.items():
        kinds.setdefault(known.kind, name)
    return kinds | {kind: kinds[like] for kind, like in _ALIKE.items()}


def of_kind(kind: str) -> tuple[str, Known] | None:
    """Return the architecture that a ``model_type`` means, and how to read it; ``None`` where it is unknown."""
    name = _kinds().get(kind)
    return None if name is None else (name, KNOWN[name])
