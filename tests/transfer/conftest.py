"""Torch on one thread: the tensors are small, and the machine has other things to do."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Keep torch to one thread."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch").set_num_threads(1)
