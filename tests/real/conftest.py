"""vLLM, torch and LMCache warn of their own deprecations while they are imported; here that is nobody's failure."""

from __future__ import annotations

import importlib.util
import warnings

import pytest


@pytest.fixture(autouse=True)
def _engine(request: pytest.FixtureRequest) -> None:
    """Import what the tests use, once, without its warnings."""
    wanted = {"engine": "vllm.v1.core.kv_cache_utils", "lmcache": "lmcache.integration.vllm.kv_cache_group_edits"}
    for marker, module in wanted.items():
        if request.node.get_closest_marker(marker):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(module)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Keep torch to one thread."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").set_num_threads(1)
