"""What is worked out offline against what engines registered, field by field: versions 0.25 to 0.32, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from kvlayout import Registration, plan
from kvlayout.algebra.result import Err
from kvlayout.cache.registration import Entry, RegisteredTensor
from kvlayout.offline.deployment import Deployment, KernelSize, Platform
from kvlayout.offline.serving import Served, serve
from tests.offline.policy.models import MODELS

CAPTURED = Path(__file__).parents[1] / "data" / "registrations"

KERNEL_32 = (KernelSize(32),)
KERNEL_64 = (KernelSize(64),)
NO_CACHING = Deployment(prefix_caching=False)

#: Document -> (the model of the same geometry, what it was served with beyond the CPU's defaults).
CASES = {
    "deepseekv2": ("deepseekv2", Deployment()),
    "falconh1-align": ("falconh1", Deployment()),
    "falconh1-none": ("falconh1", NO_CACHING),
    "gemma3": ("gemma3", Deployment()),
    "gemma3-LBLNHC": ("gemma3", Deployment(layout="BLNHC")),
    "gemma4": ("gemma4", Deployment()),
    "gptoss": ("gptoss", Deployment()),
    "kimilinear-align": ("kimilinear", Deployment()),
    "kimilinear-align-kp64": ("kimilinear", Deployment(kernel_block_sizes=KERNEL_64)),
    "lfm2-align": ("lfm2", Deployment()),
    "llama": ("llama", Deployment()),
    "llama-fp8": ("llama", Deployment(cache_dtype="fp8")),
    "llama-kp32": ("llama", Deployment(block_size=128, kernel_block_sizes=KERNEL_32)),
    "llama4": ("llama4", Deployment()),
    "nemotronh-align": ("nemotronh", Deployment(mamba_cache_mode="align")),
    "qwen35-08b-geom-align-kp32": ("qwen35-08b-geom", Deployment(kernel_block_sizes=KERNEL_32)),
    "qwen35-align": ("qwen35", Deployment()),
    "qwen35-align-LBLHNC": ("qwen35", Deployment(layout="BLHNC")),
    "qwen35-align-kp32": ("qwen35", Deployment(kernel_block_sizes=KERNEL_32)),
    "qwen35-none": ("qwen35", NO_CACHING),
    "qwen3next-align": ("qwen3next", Deployment()),
    "v025-falconh1-all": ("falconh1", Deployment()),
    "v025-llama-rank5-HND": ("llama", Deployment(platform="cuda", layout="LBHNC", block_size=128)),
    "v025-qwen3next-align": ("qwen3next", Deployment()),
    "v025-qwen3next-align-rank5-NHD-kp32": (
        "qwen3next",
        Deployment(platform="cuda", block_size=128, kernel_block_sizes=KERNEL_32),
    ),
    "v025-qwen3next-none": ("qwen3next", NO_CACHING),
    "v026-qwen3next-align": ("qwen3next", Deployment()),
    "v028-qwen3next-align": ("qwen3next", Deployment()),
}
#: Captures of the GPU's tensors were made on a CPU as well; all others took the CPU's defaults.
RANK_5 = {"v025-llama-rank5-HND", "v025-qwen3next-align-rank5-NHD-kp32"}


def captured(name: str) -> Registration:
    return Registration.from_json((CAPTURED / f"{name}.json").read_bytes()).unwrap()


def served(name: str) -> Served:
    model, asked = CASES[name]
    engine = f"vllm-{captured(name).engine.version}"
    platform: Platform = "cuda" if name in RANK_5 else "cpu"
    return serve(MODELS[model], evolve(asked, engine=engine, platform=platform, max_model_len=2048)).unwrap()


def tensors(registration: Registration) -> list[tuple[str, Entry]]:
    """Return the tensors in the order of registration, storages numbered as they appear."""
    numbers: dict[int, int] = {}

    def numbered(tensor: RegisteredTensor) -> RegisteredTensor:
        return tensor._replace(storage=numbers.setdefault(tensor.storage, len(numbers)))

    return [
        (layer, numbered(entry) if isinstance(entry, RegisteredTensor) else tuple(map(numbered, entry)))
        for layer, entry in registration.caches.items()
    ]


def test_every_captured_registration_is_compared() -> None:
    assert {path.stem for path in CAPTURED.glob("*.json")} == CASES.keys()


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_worked_out_is_what_the_engine_registered(name: str) -> None:
    theirs = captured(name)
    assert theirs.num_blocks is not None
    ours = served(name).registration.bind(theirs.num_blocks)
    assert ours.groups == theirs.groups
    assert ours.placements == theirs.placements
    assert tensors(ours) == tensors(theirs)
    assert (ours.kv_cache_layout, ours.layout_hint) == (theirs.kv_cache_layout, theirs.layout_hint)
    assert ours.engine._replace(platform="cpu") == theirs.engine


@pytest.mark.parametrize("name", sorted(CASES))
def test_its_plan_with_no_block_count_is_that_of_the_captured_registration(name: str) -> None:
    theirs = captured(name)
    symbolic, concrete = plan(evolve(served(name).registration, engine=theirs.engine)), plan(theirs)
    if isinstance(symbolic, Err) or isinstance(concrete, Err):  # a mode that keeps no state for each block is refused
        assert isinstance(symbolic, Err)
        assert isinstance(concrete, Err)
        assert [(e.code, e.group) for e in symbolic.error.errors] == [(e.code, e.group) for e in concrete.error.errors]
        return
    ours, real = symbolic.value, concrete.value
    assert [(layer, p.verdict, p.rule, p.content) for layer, p in ours.layers.items()] == [
        (layer, p.verdict, p.rule, p.content) for layer, p in real.layers.items()
    ]
    assert [group.fingerprint for group in ours.groups] == [group.fingerprint for group in real.groups]
