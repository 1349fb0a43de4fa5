"""Registers kernel-paged caches with LMCache's own connector, whose transfer adapter only records what it gets.

``python -m tests.lmcache.registering [ORDER]`` prints it. The general plug-ins are loaded as vLLM does, before the
connector is imported (``plugin-first``) or after it (``connector-first``), or twice before it (``twice``).
``then-refused``: it registers, and then again after the variable was set and LMCache was given another version.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.conftest import prepare_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECTOR = "lmcache.integration.vllm.lmcache_mp_connector"


class Recorder:
    """Stands for the adapter that sends caches to LMCache's server."""

    def __init__(self) -> None:
        self.caches: Mapping[str, Any] = {}
        self.infos: Any = ()

    def register_kv_caches(self, kv_caches: Mapping[str, Any], engine_group_infos: Any, layout_hints: Any) -> None:
        assert layout_hints == {"kv_layout": "NHD"}
        self.caches, self.infos = kv_caches, engine_group_infos


def pretend(package: str, version: str) -> None:
    """Let a package have another version, wherever it is asked for."""
    known = importlib.metadata.version
    importlib.metadata.__dict__["version"] = lambda name: version if name == package else known(name)


def load(*, again: bool) -> list[str]:
    """Load the plug-ins as every process of vLLM does; return what of LMCache that has loaded."""
    plugins = import_module("vllm.plugins")
    known = set(sys.modules)
    plugins.load_general_plugins()
    if again:  # another part of the process, or a fork of it
        plugins.__dict__["plugins_loaded"] = False
        plugins.load_general_plugins()
    return sorted(name for name in set(sys.modules) - known if name.partition(".")[0] in ("lmcache", "torch"))


def main(order: str = "plugin-first") -> None:
    prepare_engine()
    if order == "connector-first":
        import_module(CONNECTOR)
    before = load(again=order == "twice")
    found = register()
    if order == "then-refused":
        os.environ["KVLAYOUT_LMCACHE"] = "1"
        pretend("lmcache", "0.5.7")
        load(again=True)
        assert register() == found
    sys.stdout.write(json.dumps(found | {"before": before}) + "\n")


def register() -> dict[str, Any]:
    """Register as vLLM's worker does; return whose functions were called, and what reached the adapter."""
    connector: Any = import_module(CONNECTOR)
    live = import_module("tests.real.models").allocate("llama", "LBNHC", 32)
    layout = import_module("vllm.v1.kv_cache_layout").KVCacheLayout.LBNHC
    made = object.__new__(connector.LMCacheMPConnector)
    made.__dict__ |= {
        "_kv_cache_config": live.config,
        "_vllm_config": SimpleNamespace(cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: layout)),
        "_dcp_size": 1,
        "worker_adapter": Recorder(),
        "dispatcher": None,
    }
    made.register_kv_caches(live.caches)
    recorder = made.worker_adapter
    source: Any = import_module("lmcache.integration.vllm.kv_cache_group_edits")
    names = ("apply_kv_cache_group_edits", "validate_kv_cache_groups")
    assert all(getattr(connector, name) is getattr(source, name) for name in names)
    return {
        "functions": [getattr(connector, name).__module__ for name in names],
        "shapes": {layer: list(cache.shape) for layer, cache in recorder.caches.items()},
        "tokens": [info.tokens_per_block for info in recorder.infos],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
