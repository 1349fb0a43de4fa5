"""From a config to the whole registration, against vLLM's own from the same config and deployment, field by field."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from kvlayout.algebra.result import Err, Ok
from kvlayout.engines.installed import differences
from kvlayout.offline.deployment import Deployment, KernelSize, LayoutName
from kvlayout.offline.reading import read_model
from kvlayout.offline.serving import serve
from tests.offline.configs import NAMES, UNBUILT, config, encoded
from tests.offline.drawing import ATTENDING
from tests.offline.drawing_states import RECURRENT
from tests.offline.facts import of_layers
from tests.offline.policy.models import MODELS

if TYPE_CHECKING:
    from kvlayout.engines.installed import Deriver

DRAWN = ATTENDING | RECURRENT

#: Values narrower than keys have an attention backend of their own in vLLM, with a layout of its own; no CPU runs it.
OWN_BACKEND = frozenset(("mimov2",))
BUILT = sorted(set(NAMES) - UNBUILT - OWN_BACKEND)

CPU = Deployment(platform="cpu")
DEPLOYMENTS = {
    "plain": CPU,
    "two ranks": evolve(CPU, tp=2),
    "kernel pages": evolve(CPU, kernel_block_sizes=(KernelSize(32),)),
    "packed": evolve(CPU, layout="BLHNC"),
    "eight bits": evolve(CPU, cache_dtype="fp8"),
    "no prefixes": evolve(CPU, prefix_caching=False, max_model_len=448),
}
LAYOUTS: tuple[LayoutName | None, ...] = (None, None, "LBNHC", "LBHNC", "BLHNC", "BLNHC")
KERNELS = ((), (), (KernelSize(32),), (KernelSize(64),), (KernelSize(16, multiple=True),))


def same(deriver: Deriver, fields: dict[str, Any], deployment: Deployment) -> None:
    """Assert that both sides give one registration, or that both refuse."""
    if fields["model_type"] == "kimi_linear" and deployment.prefix_caching:
        deployment = evolve(deployment, mamba_cache_mode="align")  # vLLM's default for it fails on a CPU
    theirs = deriver.derive(encoded(fields), deployment)
    mine = read_model(encoded(fields)).then(lambda model: serve(model, deployment))
    if isinstance(theirs, Err):
        assert isinstance(mine, Err), (theirs.error, deployment, fields)
        return
    assert isinstance(mine, Ok), (mine.error, deployment, fields)
    assert differences(mine.value.registration, theirs.value) == (), (deployment, fields)


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize("name", BUILT)
def test_tiny_models(name: str, deployment: str, deriver: Deriver) -> None:
    same(deriver, config(name), DEPLOYMENTS[deployment])


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("place", ["quantization_config", "compression_config"])
@pytest.mark.parametrize("name", BUILT)
def test_checkpoints_with_a_scheme_for_caches(name: str, place: str, deriver: Deriver) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    method = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}, "ignore": []}
    same(deriver, config(name, **{place: method | {"kv_cache_scheme": scheme}}), CPU)


#: Fields of real configs that decide what their layers keep, or that seem to: vLLM's own reading is held against ours.
MUTED = {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 1}
FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2, windows off": ("llama", {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"} | MUTED),
    "qwen3, windows off": ("llama", {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"} | MUTED),
    "scaled twice": ("falconh1", {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"factor": 2.0}}),
    "scaled": ("falconh1", {"rope_scaling": {"rope_type": "linear", "factor": 1.3}}),
    "scaled by no text": ("falconh1", {"rope_scaling": {"rope_type": ["linear"], "factor": 1.3}}),
    "scaled to nothing": ("falconh1", {"rope_scaling": {"rope_type": "linear", "factor": 1e-9}}),
    "no length": ("mamba", {"max_position_embeddings": None}),
    "no length, with heads": ("mamba2", {"max_position_embeddings": None}),
}


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("case", FIELDS)
def test_fields_of_real_configs(case: str, deriver: Deriver) -> None:
    name, given = FIELDS[case]
    same(deriver, config(name, **given), evolve(CPU, prefix_caching=False))


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_other_models_and_deployments(name: str, deriver: Deriver) -> None:
    sizes = (1,) if name == "gptoss" else (1, 1, 2, 4)  # the experts of such a tiny one can't be split on a CPU
    for seed in range(3):
        random = Random(f"{name} served {seed}")
        fields = DRAWN[name](random)
        deployment = evolve(
            CPU,
            tp=random.choice([tp for tp in sizes if fields.get("num_attention_heads", 4) % tp == 0]),
            layout=random.choice(LAYOUTS),
            kernel_block_sizes=random.choice(KERNELS),
            block_size=random.choice((None, None, 64, 256)),
            cache_dtype=random.choice(("auto", "auto", "fp8")),
            prefix_caching=random.random() < 0.8,
        )
        same(deriver, fields, deployment)


@pytest.mark.parametrize("name", sorted(set(MODELS) & set(NAMES)))
def test_models_of_the_policies_tests_are_what_their_configs_say(name: str) -> None:
    read = read_model(encoded(config(name))).unwrap()
    assert of_layers(read) == of_layers(MODELS[name])
    assert read.dtype == MODELS[name].dtype
