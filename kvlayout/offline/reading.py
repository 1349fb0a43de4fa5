"""From the bytes of a config.json to a model: strictly as JSON, and with every fault of its fields at once.

>>> text = b'{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 0}'
>>> for error in read_model(text).error.errors:
...     print(error.path, "|", error.expected, "|", error.actual)
num_attention_heads | a whole number from 1 to 100000 | 0
>>> read_model(text.replace(b"0}", b"32}")).unwrap().layers[1].name
'model.layers.1.self_attn.attn'
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from typing import Final

from attrs import evolve

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.strict_json import EnoughError, Notes, SkipError, parse, show
from kvlayout.errors import Code, LayoutErrors
from kvlayout.offline.config import Config, Faults
from kvlayout.offline.families.attention import attention
from kvlayout.offline.families.known import KNOWN, Known
from kvlayout.offline.families.layers import Layers
from kvlayout.offline.families.unknown import language_model, refuse_nonsense, refuse_strange, refuse_unknown
from kvlayout.offline.families.wrappers import WRAPPERS, Wrapper, of_kind
from kvlayout.offline.lengths import longest_request
from kvlayout.offline.model import AttentionLayer, Model, StateLayer
from kvlayout.offline.quantized import asked_cache_type

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
        document = _document(text, notes)
        if not isinstance(document, Mapping):
            notes.stop("$", "an object with the fields of a model", show(document))
    except (SkipError, EnoughError):
        return Err(LayoutErrors(evolve(fault, code=Code.BAD_CONFIG) for fault in notes.faults))
    try:
        model = _model(Config(document, faults), generic=generic)
    except (SkipError, EnoughError):
        return Err(LayoutErrors(faults.errors))
    return Err(LayoutErrors(faults.errors)) if faults.errors else Ok(model)


def _document(text: bytes, notes: Notes) -> object:
    """Parse a file. Infinity may stand in it, as in ``time_step_limit``: a field that is read can't be that anyway.

    Raises:
        SkipError: it is no JSON, or has repeated keys, NaN, or numbers of more than a hundred digits.
    """
    try:
        return parse(text, notes)
    except SkipError:
        if {fault.actual.lstrip("-") for fault in notes.faults} != {"Infinity"}:
            raise
        document: object = json.loads(text)
        return document


def _model(root: Config, *, generic: bool) -> Model:
    architecture, known, config = _resolved(root, generic=generic)
    read = known.read(config, known.layers)
    refuse_nonsense(config)
    if not read.layers:
        root.faults.note(root.path, "a layer that keeps a cache", "none")
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
        asked_cache_type(root, config, schemes=known.schemes),
        known.typed,
    )


def _resolved(root: Config, *, generic: bool) -> tuple[str, Known, Config]:
    """Return the architecture, how to read it, and the config of its language model with the defaults of its kind.

    The first architecture that is known counts, and where there is none the model type.
    """
    named, kind = root.texts("architectures") or (), root.text("model_type")
    for name in named:
        if name in KNOWN:
            return name, KNOWN[name], _with_defaults(root, KNOWN[name].kind)
        if name in WRAPPERS:
            return _wrapped(root, name, WRAPPERS[name], generic=generic)
    if (found := of_kind(kind)) is not None:
        return found[0], _explained(found[1]), _with_defaults(root, kind)
    for name, wrapper in WRAPPERS.items():
        if kind == wrapper.kind:
            return _wrapped(root, name, wrapper, generic=generic)
    return named[0] if named else kind, *_generic(root, generic=generic)


def _explained(known: Known, *, generic: bool = False) -> Known:
    """Return a reading that takes nothing else for plain attention, where the model type alone says that it applies."""

    def read(config: Config, prefix: str) -> Layers:
        found = known.read(config, prefix)
        if all(isinstance(layer, AttentionLayer) for layer in found.layers):
            refuse_strange(config, generic=generic)
        return found

    return known._replace(read=read)


def _wrapped(root: Config, name: str, wrapper: Wrapper, *, generic: bool) -> tuple[str, Known, Config]:
    """Return how to read the language model inside another; older files spell its fields out at the top."""
    inner = root.child(wrapper.inner)
    if inner is None:
        inner = root if root.has("hidden_size") else Config({}, root.faults, root.at(wrapper.inner))
    kind = wrapper.text if inner is root else inner.text("model_type", wrapper.text)
    found = of_kind(kind)
    if found is None:
        return name, *_generic(root, generic=generic)
    return name, found[1]._replace(layers=wrapper.layers), _with_defaults(inner, wrapper.text, kind)


def _generic(root: Config, *, generic: bool) -> tuple[Known, Config]:
    """Return the reading of plain attention where it is asked for, or note what it does not explain.

    Raises:
        SkipError: it is not asked for.
    """
    if not generic:
        refuse_unknown(root)
    inner = language_model(root)
    config = (root.child(inner) if inner else None) or root
    layers = "language_model.model.layers" if inner else "model.layers"
    return _explained(Known("attention, read generically", attention, "", layers), generic=True), config


def _with_defaults(config: Config, kind: str, own: str = "") -> Config:
    """Return a config with the defaults of its own kind, or of another where that has none."""
    defaults = _defaults()
    own = own or config.text("model_type")
    return Config(config.fields, config.faults, config.path, defaults.get(own, defaults.get(kind)))


@cache
def _defaults() -> Mapping[str, Mapping[str, object]]:
    name = os.path.join(os.path.dirname(__file__), "families", "defaults.json")  # noqa: PTH118, PTH120
    with open(name, encoding="utf-8") as file:  # noqa: PTH123 - importing pathlib takes 3 ms
        found: Mapping[str, Mapping[str, object]] = json.load(file)
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
