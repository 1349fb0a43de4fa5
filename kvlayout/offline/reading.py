"""From the bytes of a config.json to a model: strictly as JSON, and with every fault of its fields at once.

>>> text = b'{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 0}'
>>> for error in read_model(text).error.errors:
...     print(error.path, "|", error.expected, "|", error.actual)
num_attention_heads | a whole number from 1 to 1000000000 | 0
>>> read_model(text.replace(b"0}", b"32}")).unwrap().layers[1].name
'model.layers.1.self_attn.attn'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from attrs import evolve

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.strict_json import EnoughError, Notes, SkipError, parse, show
from kvlayout.errors import Code, LayoutErrors
from kvlayout.offline.config import Config, Faults
from kvlayout.offline.families.attention import attention
from kvlayout.offline.families.known import KNOWN, Known
from kvlayout.offline.families.unknown import language_model, refuse_strange, refuse_unknown
from kvlayout.offline.lengths import longest_request
from kvlayout.offline.model import Model, StateLayer

__all__ = ["read_model"]

_DTYPES: Final = ("bfloat16", "float16", "float32", "float64")


def read_model(text: bytes, *, generic: bool = False) -> Result[Model, LayoutErrors]:
    """Return what a Hugging Face config.json says of a model's cache.

    Args:
        text: the file.
        generic: read an unknown architecture as plain attention, from the fields that nearly every config has.

    Returns:
        The model, or every ``bad-config`` there is, each with the path of its field.
    """
    notes, faults = Notes(), Faults()
    try:
        document = parse(text, notes)
        if not isinstance(document, Mapping):
            notes.stop("$", "an object with the fields of a model", show(document))
    except (SkipError, EnoughError):
        return Err(LayoutErrors(evolve(fault, code=Code.BAD_CONFIG) for fault in notes.faults))
    try:
        model = _model(Config(document, faults), generic=generic)
    except (SkipError, EnoughError):
        return Err(LayoutErrors(faults.errors))
    return Err(LayoutErrors(faults.errors)) if faults.errors else Ok(model)


def _model(root: Config, *, generic: bool) -> Model:
    architecture = _architecture(root)
    known = KNOWN.get(architecture)
    if known is None:
        known = _generic(root) if generic else refuse_unknown(root)
    config = _language(root, known)
    read = known.read(config, known.layers)
    states = any(isinstance(layer, StateLayer) for layer in read.layers)
    return Model(
        architecture,
        known.family,
        _dtype(root, config, known),
        read.layers,
        longest_request(config, scale="gemma3" not in root.text("model_type")),
        _state_dtype(config, known),
        config.maybe("num_attention_heads"),
        read.depth,
        read.positions,
        _chunk(config) if states else None,
    )


def _architecture(root: Config) -> str:
    """Return the first architecture that is known, or that of the model type, or whatever the config has."""
    named = root.texts("architectures") or ()
    kind = root.text("model_type")
    of_kind = (name for name, known in KNOWN.items() if not named and kind and known.kind == kind)
    return next((name for name in named if name in KNOWN), None) or next(of_kind, named[0] if named else kind)


def _generic(root: Config) -> Known:
    """Return the reading of plain attention, or note what it does not explain."""
    inner = language_model(root)
    text = root.child(inner) if inner else root
    refuse_strange(text or root)
    layers = "language_model.model.layers" if inner else "model.layers"
    return Known("attention, read generically", attention, "", layers, inner)


def _language(root: Config, known: Known) -> Config:
    """Return the object that describes the language model, with the defaults of its kind."""
    inner = root
    if known.inner:
        inner = root.child(known.inner) or Config({}, root.faults, root.at(known.inner))
    kind = inner.text("model_type")
    defaults = _defaults()
    return Config(inner.fields, root.faults, inner.path, defaults.get(kind, defaults.get(known.kind)))


@cache
def _defaults() -> Mapping[str, Mapping[str, object]]:
    text = Path(__file__).with_name("families").joinpath("defaults.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, object]] = json.loads(text)
    return found


def _dtype(root: Config, config: Config, known: Known) -> str:
    """Return the element type that the engine takes: the config's, and 16 bits for more."""
    for where in (root, config):
        for key in ("dtype", "torch_dtype"):
            if where.has(key):
                name = where.text(key).removeprefix("torch.")
                if name not in _DTYPES:
                    where.fault(key, f"one of {', '.join(_DTYPES)}")
                return "float16" if name == "float16" and not known.halves else "bfloat16"
    return "bfloat16"


def _state_dtype(config: Config, known: Known) -> str | None:
    """Return the element type of recurrent states, where the engine takes it from the config."""
    if not known.states_key or not config.has(known.states_key):
        return None
    name = config.text(known.states_key)
    if name not in ("auto", *_DTYPES):
        config.fault(known.states_key, f"one of auto, {', '.join(_DTYPES)}")
    return name


def _chunk(config: Config) -> int:
    return config.maybe("mamba_chunk_size") or config.maybe("chunk_size") or 2048
