"""Architectures whose layers are known: which reading applies, and how the engine names their layers.

Sizes and kinds of layers come from a config's fields; an architecture decides only what the fields mean.

>>> KNOWN["LlamaForCausalLM"].family
'full attention'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from kvlayout.offline.config import Config
from kvlayout.offline.families.dense import dense
from kvlayout.offline.families.gated_delta import gated_delta
from kvlayout.offline.model import Layer

__all__ = ["KNOWN", "Known", "Reading"]

#: From a config, and what the engine puts before the number of a layer, to its layers with a cache.
Reading: TypeAlias = Callable[[Config, str], tuple[Layer, ...]]


class Known(NamedTuple):
    """How to read an architecture.

    Attributes:
        family: the kind of its layers.
        read: what reads them.
        kind: the ``model_type`` whose defaults hold where the config names none that is known.
        layers: what the engine puts before the number of a layer.
        inner: the object of the config that describes the language model, where there is one.
    """

    family: str
    read: Reading
    kind: str
    layers: str = "model.layers"
    inner: str = ""


_VISION: Final = {"layers": "language_model.model.layers", "inner": "text_config"}

KNOWN: Final[Mapping[str, Known]] = {
    "LlamaForCausalLM": Known("full attention", dense, "llama"),
    "Qwen3NextForCausalLM": Known("gated delta + full attention", gated_delta, "qwen3_next"),
    "Qwen3_5ForCausalLM": Known("gated delta + full attention", gated_delta, "qwen3_5_text"),
    "Qwen3_5MoeForCausalLM": Known("gated delta + full attention", gated_delta, "qwen3_5_moe_text"),
    "Qwen3_5ForConditionalGeneration": Known(
        "gated delta + full attention", gated_delta, "qwen3_5_text", "language_model.model.layers", "text_config"
    ),
}
