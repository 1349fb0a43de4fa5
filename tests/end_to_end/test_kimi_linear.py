"""Kimi-Linear has no forward pass on a CPU: its caches are registered, planned and moved byte for byte instead."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end import programs
from tests.end_to_end.configs import CASES
from tests.end_to_end.engine import BLOCKS
from tests.end_to_end.running import Engines

pytestmark = [pytest.mark.engine, pytest.mark.slow]

Moved = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module", params=["kimi-linear", "kimi-linear, pages of 32"])
def moved(request: pytest.FixtureRequest, engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Moved:
    folder = tmp_path_factory.mktemp("kimi")
    return request.param, engines.run(programs.move_random_bytes, case=request.param, folder=str(folder))


def test_every_block_arrives_and_nothing_else_changes(moved: Moved) -> None:
    _, layers = moved
    assert len(layers) == 4
    for layer in layers.values():
        assert layer["source"] != layer["target"]
        assert layer["moved_bytes"] == layer["page_bytes"]
        assert layer["read_wrongly"] == layer["written_wrongly"] == 0


def test_the_engine_finds_it_in_its_own_tensors(moved: Moved) -> None:
    _, layers = moved
    assert [len(layer["shapes"]) for layer in layers.values()] == [2, 2, 2, 1]
    assert [layer["parts_that_differ"] for layer in layers.values()] == [0, 0, 0, 0]


def test_the_engine_splits_blocks_where_it_should(moved: Moved) -> None:
    name, layers = moved
    *states, latent = layers.values()
    assert all(shape[0] == BLOCKS for layer in states for shape in layer["shapes"])
    ((pages, tokens, width),) = latent["shapes"]
    assert (tokens, width) == (CASES[name].kernel_tokens or latent["page_bytes"] // (576 * 2), 576)
    assert pages * tokens * width * 2 == BLOCKS * latent["page_bytes"]
