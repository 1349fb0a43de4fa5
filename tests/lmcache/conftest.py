"""vLLM, torch and LMCache warn of their own deprecations while they are imported; here that is nobody's failure."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import pytest


@pytest.fixture(autouse=True)
def _engine(request: pytest.FixtureRequest) -> None:
    """Import what the tests use, once, without its warnings; slow tests do it in processes of their own."""
    if request.node.get_closest_marker("lmcache") and not request.node.get_closest_marker("slow"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("vllm.v1.core.kv_cache_utils")
            importlib.import_module("lmcache.integration.vllm.kv_cache_group_edits")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Keep torch to one thread."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").set_num_threads(1)
