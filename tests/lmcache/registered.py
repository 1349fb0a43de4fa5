"""Registrations as LMCache gets them: vLLM's own classes, and tensors over pools that take no memory until touched."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from fractions import Fraction
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvlayout.engines.lmcache_formats import layout_hint
from kvlayout.engines.vllm import dump
from tests.real.models import HINTS, allocate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

Json = dict[str, Any]
DATA = Path(__file__).parents[1] / "data"
PATHS = sorted([*DATA.glob("registrations/*.json"), *DATA.glob("cases/*.json")])


class Registered(NamedTuple):
    """What ``register_kv_caches`` has: the configuration, the caches and LMCache's hint; and the document of it all."""

    config: Any
    caches: dict[str, Any]
    hint: str
    dcp: int
    document: Json


@cache
def documents() -> dict[str, Json]:
    """Return the documents with whole numbers for all sizes."""
    read = {path.stem: json.loads(path.read_text()) for path in PATHS}
    return {name: made for name, made in read.items() if isinstance(made["num_blocks"], int)}


def registered(made: Json) -> Registered:
    """Build a document: in vLLM's classes, which have the numbers that the document says."""
    interface: Any = import_module("vllm.v1.kv_cache_interface")
    groups = [
        interface.KVCacheGroupSpec(
            group["layers"],
            spec_of(group["spec"], group.get("layer_specs") or {}),
            host_resident=bool(group.get("host_resident")),
            enable_kv_transfer=group.get("transferable", True),
        )
        for group in made["groups"]
    ]
    placed = [
        interface.KVCacheTensor(**placement)
        for placement in made["placements"]
        if placement["layer_stride"] is not None  # older engines have another class
    ]
    config = interface.KVCacheConfig(made["num_blocks"], placed, groups)
    config.kv_cache_layout = made["kv_cache_layout"]
    engine = made["engine"]
    hint = layout_hint(made["layout_hint"], made["kv_cache_layout"], engine["platform"])
    return Registered(config, tensors(made), hint, engine.get("dcp", 1), made)


def live_model(model: str, layout: str, kernel: int | None, blocks: int) -> Registered:
    """Let vLLM place and allocate a model, and write its document."""
    live = allocate(model, layout, kernel, blocks)
    hint = HINTS.get(layout)
    hints = {"kv_layout": hint} if hint else {}
    document = json.loads(dump(live.config, live.caches, hints, engine_version="0.32.0", platform="cpu"))
    return Registered(live.config, dict(live.caches), hint or "HND", 1, document)


def spec_of(made: Json, leaves: Mapping[str, Json]) -> Any:
    """Return vLLM's spec of a document's, and check that it has the same numbers."""
    interface: Any = import_module("vllm.v1.kv_cache_interface")
    kind = getattr(interface, made["type"])
    if leaves:
        inner = {layer: spec_of(leaf, {}) for layer, leaf in leaves.items()}
        return kind(block_size=made["fields"]["block_size"], kv_cache_specs=inner)
    fields = {field.name: field.default for field in dataclasses.fields(kind) if field.init}
    given = {name: raw for name, raw in made["fields"].items() if name in fields and raw is not None}
    spec = kind(**{name: value(name, raw, fields[name]) for name, raw in given.items()})
    for name in ("page_size_bytes", "num_states"):
        wanted = made.get("derived", {}).get(name)
        assert wanted is None or getattr(spec, name) == wanted, (made["type"], name)
    return spec


def value(name: str, raw: Any, default: object) -> Any:
    """Return a field's value as vLLM has it."""
    if name == "dtypes":
        return tuple(torch_type(item) for item in raw)
    if name == "dtype":
        return torch_type(raw)
    if name == "shapes":
        return tuple(map(tuple, raw))
    if name == "tokens_per_state" and isinstance(raw, list):
        return Fraction(*raw)
    return type(default)[raw] if isinstance(default, Enum) and isinstance(raw, str) else raw


def torch_type(name: str) -> Any:
    return getattr(import_module("torch"), name.removeprefix("torch."))


def tensors(made: Json) -> dict[str, Any]:
    """Return the caches of a document."""
    import torch

    ends: dict[int, int] = {}
    for part in (part for entry in made["caches"].values() for part in parts(entry)):
        last = sum((extent - 1) * stride for extent, stride in zip(part["shape"], part["stride"], strict=True))
        end = (part["storage_offset"] + last + 1) * torch_type(part["dtype"]).itemsize
        ends[part["storage"]] = max(ends.get(part["storage"], 0), part["storage_nbytes"] or end + 65536, end)
    pools = {storage: torch.empty(-(-end // 64) * 64, dtype=torch.uint8) for storage, end in ends.items()}

    def tensor(part: Json) -> Tensor:
        pool = pools[part["storage"]].view(torch_type(part["dtype"]))
        return pool.as_strided(part["shape"], part["stride"], part["storage_offset"])

    return {
        layer: [tensor(part) for part in entry] if isinstance(entry, list) else tensor(entry)
        for layer, entry in made["caches"].items()
    }


def parts(entry: Any) -> list[Json]:
    return entry if isinstance(entry, list) else [entry]
