"""The layers that are read from a config are those that vLLM itself builds from it, by name and number by number."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from kvlayout.algebra.result import Err, Ok
from kvlayout.offline.deployment import Deployment
from kvlayout.offline.reading import read_model
from tests.offline.configs import NAMES, UNBUILT, config, encoded
from tests.offline.drawing import ATTENDING
from tests.offline.drawing_states import RECURRENT
from tests.offline.facts import of_layers, of_specs, sharing

if TYPE_CHECKING:
    from kvlayout.engines.installed import Deriver

pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.slow]

#: The fields that every reading needs, so that a missing default would be seen.
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
DRAWN = ATTENDING | RECURRENT
BUILT = [name for name in NAMES if name not in UNBUILT]


def deployment(fields: dict[str, Any], tp: int) -> Deployment:
    # on a CPU vLLM keeps no prefix cache beside latent attention unless it is told how
    if fields["model_type"] == "kimi_linear":
        return Deployment(platform="cpu", tp=tp, mamba_cache_mode="align")
    return Deployment(platform="cpu", tp=tp)


def same(deriver: Deriver, fields: dict[str, Any], tp: int) -> None:
    """Assert that vLLM builds the layers that are read."""
    theirs = deriver.layers(encoded(fields), deployment(fields, tp))
    assert isinstance(theirs, Ok), (theirs.error, fields)
    mine = read_model(encoded(fields))
    assert isinstance(mine, Ok), (mine.error, fields)
    assert list(of_layers(mine.value, tp).items()) == list(of_specs(theirs.value.specs).items()), fields
    assert sharing(mine.value) == theirs.value.shares, fields


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", BUILT)
def test_tiny_models(name: str, tp: int, deriver: Deriver) -> None:
    same(deriver, config(name), tp)


@pytest.mark.parametrize("name", DRAWN)
def test_other_sizes_and_patterns(name: str, deriver: Deriver) -> None:
    sizes = (1,) if name == "gptoss" else (1, 2, 4)  # the experts of such a tiny one can't be split on a CPU
    for seed in range(3):
        random = Random(f"{name} {seed}")
        fields = DRAWN[name](random)
        heads = fields.get("num_attention_heads", 4)
        same(deriver, fields, random.choice([tp for tp in sizes if heads % tp == 0]))


def test_what_vllm_refuses_is_an_error_and_the_process_goes_on(deriver: Deriver) -> None:
    refused = deriver.layers(encoded(config("llama", num_attention_heads=3)), Deployment(platform="cpu"))
    assert isinstance(refused, Err)
    assert "installed vLLM" in refused.error.errors[0].expected
    same(deriver, config("llama"), 1)


def test_defaults_are_those_of_the_config_classes() -> None:
    """A field that a config leaves out has the value that the installed packages give it."""
    import kvlayout.offline.families as room

    assert room.__file__ is not None
    defaults = json.loads(Path(room.__file__).with_name("defaults.json").read_text())
    for kind, fields in defaults.items():
        declared = declared_defaults(kind)
        assert {name: declared.get(name, value) for name, value in fields.items()} == fields, kind
        told = {name for name, value in declared.items() if value is not None and name in SIZES}
        assert told <= set(fields), kind


def declared_defaults(kind: str) -> dict[str, Any]:
    """Return the defaults of the config class that vLLM uses for a kind."""
    from transformers import CONFIG_MAPPING

    own: Any = importlib.import_module("vllm.transformers_utils.config")._CONFIG_REGISTRY
    made = own[kind] if kind in own else CONFIG_MAPPING[kind]
    if dataclasses.is_dataclass(made):
        return {field.name: field.default for field in dataclasses.fields(made)}
    found = {name: parameter.default for name, parameter in inspect.signature(made.__init__).parameters.items()}
    return {name: value for name, value in found.items() if value is not inspect.Parameter.empty}
