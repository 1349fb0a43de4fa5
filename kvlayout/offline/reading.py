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
from kvlayout.offline.families.known import KNOWN, Known
from kvlayout.offline.model import Model

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
    del generic
    architecture, known = _known(root)
    kind = root.text("model_type")
    defaults = _defaults()
    if known.inner:
        text = root.child(known.inner) or Config({}, root.faults, root.at(known.inner))
        kind = text.text("model_type")
    else:
        text = root
    config = Config(text.fields, root.faults, text.path, defaults.get(kind, defaults.get(known.kind)))
    return Model(
        architecture,
        known.family,
        _dtype(root, config),
        known.read(config, known.layers),
        config.maybe("max_position_embeddings"),
        config.text("mamba_ssm_dtype") or config.text("mamba_ssm_cache_dtype") or None,
    )


def _known(root: Config) -> tuple[str, Known]:
    """Return the architecture and how to read it.

    Raises:
        SkipError: it is unknown, and the fault is noted.
    """
    named = root.texts("architectures") or ()
    for name in named:
        if name in KNOWN:
            return name, KNOWN[name]
    kind = root.text("model_type")
    for name, known in KNOWN.items():
        if not named and kind and known.kind == kind:
            return name, known
    root.fault("architectures", "an architecture whose layers are known")
    raise SkipError


@cache
def _defaults() -> Mapping[str, Mapping[str, object]]:
    text = Path(__file__).with_name("families").joinpath("defaults.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, object]] = json.loads(text)
    return found


def _dtype(root: Config, config: Config) -> str:
    """Return the element type that the engine takes: the config's, and 16 bits for 32."""
    for where in (root, config):
        for key in ("dtype", "torch_dtype"):
            if where.has(key):
                name = where.text(key).removeprefix("torch.")
                if name not in _DTYPES:
                    where.fault(key, f"one of {', '.join(_DTYPES)}")
                return "bfloat16" if name in ("float32", "float64") else name
    return "bfloat16"
