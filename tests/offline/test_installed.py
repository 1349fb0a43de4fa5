"""What the installed engine derives: equal to what it registered when it ran, and differences named field by field."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from kvlayout.algebra.result import Err, Ok
from kvlayout.cache.registration import RegisteredTensor, Registration
from kvlayout.engines.installed import Deriver, Difference, derive, differences
from kvlayout.errors import Code
from kvlayout.offline.deployment import Deployment, KernelSize
from tests.offline.configs import config, encoded

DATA = Path(__file__).parent.parent / "data" / "registrations"
CPU = Deployment(platform="cpu", max_model_len=2048)


def captured(name: str) -> Registration:
    return Registration.from_json((DATA / f"{name}.json").read_bytes()).unwrap()


@pytest.mark.parametrize(
    ("name", "model", "deployment"),
    [
        ("llama", "llama", CPU),
        ("llama-fp8", "llama", evolve(CPU, cache_dtype="fp8")),
        ("gemma3", "gemma3", CPU),
        ("gemma4", "gemma4", CPU),
        ("gptoss", "gptoss", CPU),
        ("deepseekv2", "deepseekv2", CPU),
        ("llama4", "llama4", CPU),
        ("qwen35-align", "qwen35", CPU),
        ("qwen35-none", "qwen35", evolve(CPU, prefix_caching=False)),
        ("qwen35-align-LBLHNC", "qwen35", evolve(CPU, layout="BLHNC")),
        ("qwen35-align-kp32", "qwen35", evolve(CPU, kernel_block_sizes=(KernelSize(32),))),
        ("qwen35-08b-geom-align-kp32", "qwen35-08b-geom", evolve(CPU, kernel_block_sizes=(KernelSize(32),))),
        ("qwen3next-align", "qwen3next", CPU),
        ("kimilinear-align", "kimilinear", evolve(CPU, mamba_cache_mode="align")),
        (
            "kimilinear-align-kp64",
            "kimilinear",
            evolve(CPU, mamba_cache_mode="align", kernel_block_sizes=(KernelSize(64),)),
        ),
        ("nemotronh-align", "nemotronh", CPU),
        ("falconh1-align", "falconh1", CPU),
        ("lfm2-align", "lfm2", CPU),
    ],
)
@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.slow
def test_what_is_derived_is_what_the_running_engine_registered(
    name: str, model: str, deployment: Deployment, deriver: Deriver
) -> None:
    derived = deriver.derive(encoded(config(model)), deployment)
    assert isinstance(derived, Ok), derived.error
    running = captured(name)
    # only the number of blocks depends on memory; sizes and offsets that follow from it are compared by layout below
    assert derived.value.groups == running.groups
    assert list(derived.value.caches) == list(running.caches)
    assert derived.value.kv_cache_layout == running.kv_cache_layout
    for mine, theirs in zip(derived.value.placements, running.placements, strict=True):
        assert (mine.layers, mine.block_stride) == (theirs.layers, theirs.block_stride)


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.slow
def test_the_engine_says_why_it_does_not_start(deriver: Deriver) -> None:
    refused = deriver.derive(encoded(config("llama", num_attention_heads=6, head_dim=None)), CPU)
    assert isinstance(refused, Err)
    (error,) = refused.error.errors
    assert error.code == Code.BAD_CONFIG
    assert "multiple of the number of attention heads" in error.actual
    no_text = deriver.derive(b"\xff\xfe", CPU)
    assert isinstance(no_text, Err)
    assert isinstance(deriver.derive(encoded(config("llama")), CPU), Ok), "and it goes on"


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.slow
def test_a_process_that_ended_is_an_error() -> None:
    ended = Deriver()
    ended.process.kill()
    ended.process.wait()
    answer = ended.derive(encoded(config("llama")), CPU)
    assert isinstance(answer, Err)
    ended.close()


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.slow
def test_a_file_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(encoded(config("llama")))
    found = derive(tmp_path, CPU)
    assert isinstance(found, Ok)
    assert found.value.engine.name == "vllm"


def test_equal_registrations_do_not_differ() -> None:
    for path in DATA.glob("*.json"):
        registration = Registration.from_json(path.read_bytes()).unwrap()
        assert differences(registration, registration) == ()


def test_a_registration_with_an_open_block_count_is_bound_to_the_other() -> None:
    from kvlayout.algebra.affine import BLOCK_COUNT

    real = captured("llama")
    assert real.num_blocks is not None
    layer, tensor = next(iter(real.caches.items()))
    assert isinstance(tensor, RegisteredTensor)
    opened = tensor._replace(shape=(BLOCK_COUNT, *tensor.shape[1:]))
    mine = evolve(real, num_blocks=None, caches={**real.caches, layer: opened})
    assert differences(mine, real) == ()


def test_each_difference_has_its_path_and_both_values() -> None:
    real = captured("qwen35-align")
    group = evolve(real.groups[3], spec=evolve(real.groups[3].spec, page_bytes=1))
    mine = evolve(real, groups=(*real.groups[:3], group), kv_cache_layout="BLHNC")
    assert differences(mine, real) == (
        Difference("kv_cache_layout", "BLHNC", "LBHNC"),
        Difference("groups[3].spec.page_bytes", "1", "131072"),
    )


def test_what_one_of_them_lacks_differs_from_nothing() -> None:
    real = captured("gptoss")
    fewer = evolve(real, groups=real.groups[:1])
    paths = {difference.path: difference for difference in differences(fewer, real)}
    assert paths["groups"] == Difference("groups", "1", "2")
    assert paths["groups[1].spec.block_size"].offline == "nothing"
