"""Random histories of requests in vLLM's own scheduler: every step finds what it relies on, whatever was loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.page_store import simulating
from tests.page_store.modelling import MODELS

if TYPE_CHECKING:
    from tests.end_to_end.running import Engines

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def histories(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, models = str(tmp_path_factory.mktemp("simulated")), list(MODELS)
    found: dict[str, Any] = engines.run(simulating.simulate, models=models, seeds=[0, 1, 2], folder=folder)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_every_step_finds_the_bytes_that_it_relies_on(histories: dict[str, Any], model: str) -> None:
    found = histories[model]
    assert found["wrong"] == []
    assert found["seen"]["finished"] > 20
    assert found["seen"]["loaded"] > 5


@pytest.mark.parametrize("event", ["preempted", "failed", "aborted", "loaded", "finished"])
def test_histories_have_all_kinds_of_events(histories: dict[str, Any], event: str) -> None:
    assert sum(found["seen"].get(event, 0) for found in histories.values()) > 2
