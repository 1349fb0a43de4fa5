"""Architectures that are not known: what a reading would need, and plain attention where that is asked for.

A config with fields of latent or recurrent layers is never read as plain attention: their cache is something else.

>>> from kvlayout.offline.config import Config, Faults
>>> strange({"hidden_size": 64, "ssm_state_size": 16, "kv_lora_rank": None})
('ssm_state_size',)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from kvlayout.cache.strict_json import ABSENT, SkipError, show
from kvlayout.offline.config import Config

__all__ = ["ATTENTION_FIELDS", "language_model", "refuse_nonsense", "refuse_strange", "refuse_unknown", "strange"]

#: What plain attention is read from.
ATTENTION_FIELDS: Final = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads (where it differs)",
    "head_dim (or hidden_size)",
    "sliding_window and layer_types (where there are windows)",
)

#: Starts of names that describe layers which keep something else than keys and values.
_OTHER: Final = (
    "attn_layer_",
    "attention_chunk_size",
    "block_types",
    "compress_ratio",
    "conv_kernel",
    "conv_L_cache",
    "d_conv",
    "d_state",
    "expand",
    "hybrid_",
    "index_",
    "kv_lora_rank",
    "kv_shared",
    "layers_block_type",
    "linear_",
    "lru_",
    "mamba",
    "num_kv_shared_layers",
    "qk_rope_head_dim",
    "recurrent",
    "rwkv",
    "short_conv",
    "ssm_",
    "state_",
    "time_",
)

#: Names of heads that plain attention does not read: where an architecture is unknown, they may say that there are
#: fewer heads, or others, than it takes there to be.
_HEADS: Final = (
    "attention_other",
    "attention_window",
    "attn_config",
    "block_configs",
    "cross_attention_",
    "group_query",
    "hidden_size_per_head",
    "is_encoder_decoder",
    "kv_channels",
    "kv_heads",
    "kv_n_heads",
    "moba_",
    "multi_query",
    "n_head_kv",
    "n_kv_heads",
    "num_attention_groups",
    "num_attention_heads_per_layer",
    "num_head_kv",
    "num_heads_kv",
    "num_key_value_groups",
    "num_key_value_heads_per_layer",
    "num_kv_heads",
    "num_query_groups",
    "swa_",
    "v_head_dim",
    "value_head_dim",
)

#: Names that tell kinds of layers apart, where ``layer_types`` does not.
_KINDS: Final = ("attention_types", "attn_type", "full_attention_", "full_attn_", "global_attn_", "layer_group_size")

#: Objects in which configs keep their language model.
_INNER: Final = ("text_config", "llm_config", "language_config", "thinker_config")


def language_model(root: Config) -> str:
    """Return the key of the object that describes the language model, ``""`` where it is the config itself."""
    if root.has("num_hidden_layers"):
        return ""
    return next((key for key in _INNER if isinstance(root.get(key), Mapping)), "")


def strange(fields: Mapping[str, object], starts: tuple[str, ...] = _OTHER) -> tuple[str, ...]:
    """Return the fields that say that a layer keeps something else than keys and values."""
    return tuple(key for key, value in fields.items() if key.startswith(starts) and value not in (None, 0, False, []))


def _unexplained(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return the fields that may say so where nothing is known of the architecture."""
    return strange(fields, _OTHER + _HEADS + (() if fields.get("layer_types") else _KINDS))


def refuse_unknown(root: Config) -> NoReturn:
    """Note that the architecture is unknown, and what a reading of it would need.

    Raises:
        SkipError: always.
    """
    inner = root.child(language_model(root)) if language_model(root) else root
    other = _unexplained(root.fields if inner is None else inner.fields)
    needs = f"an architecture whose layers are known; a reading would need {', '.join(ATTENTION_FIELDS)}"
    if other:
        needs += f", and the meaning of {', '.join(other[:8])}"
    advice = "update kvlayout" if other else "pass --generic to read it as plain attention, if that is what it is"
    named = root.get("architectures") or root.get("model_type") or ABSENT
    first = named[0] if isinstance(named, list) else named
    path = "architectures" if root.has("architectures") or not root.has("model_type") else "model_type"
    root.faults.note(root.at(path), needs, show(first), advice)
    raise SkipError


def refuse_strange(config: Config, *, generic: bool = False) -> None:
    """Note each field of latent or recurrent layers that was not read: the layers are not what they seem.

    Args:
        config: the config, after it was read.
        generic: nothing is known of the architecture, so other names of heads count as well.
    """
    for key in _unexplained(config.fields) if generic else strange(config.fields):
        if key not in config.asked:
            config.fault(key, "no field that this reading does not explain", "update kvlayout")


def refuse_nonsense(config: Config) -> None:
    """Note each size or count below 0, whether it was read or not: such a config is of no model."""
    for key, value in config.fields.items():
        if type(value) is int and value < 0 and _is_size(key) and not config.faults.at(config.at(key)):
            config.fault(key, "a whole number from 0")


def _is_size(key: str) -> bool:
    named = key.startswith("num_") or key.endswith(("_size", "_dim", "_heads", "_rank"))
    return named and "window" not in key
