"""Engines for the faults: forks of one interpreter that has imported vLLM."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.running import Engines, running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with running(tmp_path_factory.mktemp("engines")) as started:
        yield started


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Keep torch to one thread."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").set_num_threads(1)
