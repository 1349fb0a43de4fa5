"""vLLM and torch warn of their own deprecations while they are imported; here that is nobody's failure."""

from __future__ import annotations

import importlib
import warnings

import pytest


@pytest.fixture(autouse=True)
def _engine(request: pytest.FixtureRequest) -> None:
    """Import what the tests of vLLM's classes use, once, without its warnings."""
    if request.node.get_closest_marker("engine"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("vllm.v1.worker.utils")
