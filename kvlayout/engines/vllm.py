"""From vLLM's live objects to a registration, without importing vLLM or torch.

vLLM 0.22 to 0.33 differ in fields and not in ideas, so everything is read by class name and attribute: what an old
version lacks is absent, what a new one adds is kept. Facts on fields and versions: docs/engines.md.

>>> class Config:
...     num_blocks, kv_cache_tensors, kv_cache_groups = 4, (), ()
>>> registration(Config(), {}, {"kv_layout": "NHD"}, engine_version="0.32.0").unwrap().layout_hint
'NHD'
>>> for error in registration(object(), {}, {"kv_layout": "HDN"}).error.errors:
...     print(error.path, "|", error.expected, "|", error.actual)
kv_cache_config.num_blocks | a whole number from 1 | nothing
kv_cache_config.kv_cache_tensors | a list | nothing
kv_cache_config.kv_cache_groups | a list | nothing
layout_hints.kv_layout | one of NHD, HND, BLNHC, BLHNC | 'HDN'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.reading import LIMIT, FieldError
from kvlayout.cache.registration import Engine, Entry, Group, Placement, Registration
from kvlayout.engines.specs import declared_fields, read_live, spec_document
from kvlayout.engines.tensors import LiveCaches, LiveTensor, device_type, entry_document, facts, read_caches, shown
from kvlayout.errors import Code, LayoutError, LayoutErrors

if TYPE_CHECKING:
    from os import PathLike

    from kvlayout.cache.spec import Spec

__all__ = ["LiveCaches", "LiveTensor", "dump", "facts", "registration"]

_T = TypeVar("_T")
#: The last two are vLLM's words before 0.29.
_LAYOUTS: Final = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC", "NHD", "HND")
_HINTS: Final = ("NHD", "HND", "BLNHC", "BLHNC")


def registration(  # noqa: PLR0913 - keywords, and all of them optional
    kv_cache_config: object,
    kv_caches: LiveCaches,
    layout_hints: Mapping[str, object] | None = None,
    *,
    engine_version: str | None = None,
    platform: str | None = None,
    dcp: int = 1,
    name: str = "",
) -> Result[Registration, LayoutErrors]:
    """Return what vLLM registers, as kvlayout's own values.

    Layers that share the cache of another one are in ``kv_caches`` and in no group; they are passed on as they are.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``, of any version from 0.22.
        kv_caches: layer name -> tensor or tensors, as ``register_kv_caches`` gets them.
        layout_hints: LMCache's hints; only ``kv_layout`` is read, and ``None`` or ``"none"`` is no hint.
        engine_version: vLLM's version; that of the loaded package by default.
        platform: ``cpu``, ``cuda``, ...; the device of the first tensor by default.
        dcp: decode-context parallel size.
        name: what to call it.

    Returns:
        The registration, or every ``bad-config`` there is, each with the path of the attribute.
    """
    reader = _Reader()
    live = reader.live(kv_cache_config, kv_caches, layout_hints, _engine(kv_caches, engine_version, platform, dcp))
    reader.choice("kv_cache_config.kv_cache_layout", live.kv_cache_layout, _LAYOUTS)
    reader.choice("layout_hints.kv_layout", live.layout_hint, _HINTS)
    groups = [reader.group(index, group) for index, group in enumerate(live.groups)]
    if reader.faults:
        return Err(LayoutErrors(reader.faults))
    return Ok(Registration(tuple(filter(None, groups)), *live[1:], name=name))


def dump(  # noqa: PLR0913 - as above
    kv_cache_config: object,
    kv_caches: LiveCaches,
    layout_hints: Mapping[str, object] | None = None,
    *,
    name: str = "",
    engine_version: str | None = None,
    platform: str | None = None,
    dcp: int = 1,
    file: str | PathLike[str] | None = None,
) -> str:
    """Return the registration document of a live engine, and write it to ``file``.

    The specs are written with all fields that vLLM declares, also where :func:`registration` refuses their values or
    the hint: such a document is what a bug report needs. Arguments are those of :func:`registration`.

    Raises:
        LayoutErrors: the configuration lacks an attribute, so that there is nothing to write.

    >>> class Config:
    ...     num_blocks, kv_cache_tensors, kv_cache_groups = 4, (), ()
    >>> json.loads(dump(Config(), {}, engine_version="0.32.0", platform="cpu"))["engine"]
    {'name': 'vllm', 'version': '0.32.0', 'platform': 'cpu', 'dcp': 1}
    """
    reader = _Reader()
    live = reader.live(kv_cache_config, kv_caches, layout_hints, _engine(kv_caches, engine_version, platform, dcp))
    groups = [reader.parts(index, group) for index, group in enumerate(live.groups)]
    if reader.faults:
        raise LayoutErrors(reader.faults)
    document = {
        "format": "kvlayout/registration",
        "version": 1,
        "name": name,
        "engine": live.engine._asdict(),
        "num_blocks": live.num_blocks,
        "kv_cache_layout": live.kv_cache_layout,
        "layout_hint": live.layout_hint,
        "placements": [placement._asdict() for placement in live.placements],
        "groups": [_group_document(*group) for group in groups],
        "caches": {layer: entry_document(entry) for layer, entry in live.caches.items()},
    }
    text = json.dumps(document, indent=1)
    if file is not None:
        Path(file).write_text(text + "\n", encoding="utf-8")
    return text


#: Layer names, their spec and those of single layers as vLLM has them, and draft, host-resident, transferable.
_Parts: TypeAlias = tuple[tuple[str, ...], object, Mapping[str, object], tuple[bool, bool, bool]]


class _Live(NamedTuple):
    """The fields of a registration, in its order; groups are still vLLM's."""

    groups: tuple[object, ...]
    caches: Mapping[str, Entry]
    placements: tuple[Placement, ...]
    num_blocks: int | None
    kv_cache_layout: str | None
    layout_hint: str | None
    engine: Engine


def _engine(kv_caches: LiveCaches, version: str | None, platform: str | None, dcp: int) -> Engine:
    if version is None:
        version = str(getattr(sys.modules.get("vllm"), "__version__", ""))
    return Engine("vllm", version, device_type(kv_caches) if platform is None else platform, dcp)


class _Reader:
    """Reads attributes by name, and collects what is wrong instead of stopping there."""

    def __init__(self) -> None:
        self.faults: list[LayoutError] = []
        self.known: dict[int, Spec] = {}
        self.alike: list[tuple[type, object, Spec]] = []
        self.on_host: set[str] = set()

    def fault(self, path: str, expected: str, actual: str, group: int | None = None, layer: str | None = None) -> None:
        """Note a fault."""
        self.faults.append(LayoutError(Code.BAD_CONFIG, group, layer, expected, actual, path=path))

    def whole(self, owner: object, name: str, path: str, least: int = 0, default: int | None = None) -> int | None:
        """Return a whole number; ``path`` is the owner's."""
        value = getattr(owner, name, default)
        if type(value) is int and least <= value < LIMIT:
            return value
        self.fault(f"{path}.{name}", f"a whole number from {least}", shown(value))
        return None

    def choice(self, path: str, value: str | None, among: tuple[str, ...]) -> None:
        """Check one of some words."""
        if value is not None and value not in among:
            self.fault(path, f"one of {', '.join(among)}", repr(value))

    def listed(self, owner: object, name: str, path: str, of: type[_T]) -> tuple[_T, ...]:
        """Return the items of a list or tuple, all of one type."""
        value = getattr(owner, name, None)
        if not isinstance(value, (list, tuple)):
            self.fault(f"{path}.{name}", "a list", shown(value))
        elif of is object or all([issubclass(made, of) for made in {*map(type, value)}]):  # noqa: C419 - quicker
            return tuple(value)
        else:
            self.fault(f"{path}.{name}", "a list of layer names", shown(value))
        return ()

    def live(self, config: object, kv_caches: LiveCaches, hints: Mapping[str, object] | None, engine: Engine) -> _Live:
        """Read everything but the specs."""
        if type(engine.dcp) is not int or not 1 <= engine.dcp < LIMIT:
            self.fault("dcp", "a whole number from 1", shown(engine.dcp))
        root = "kv_cache_config"
        blocks = self.whole(config, "num_blocks", root, least=1)
        tensors = self.listed(config, "kv_cache_tensors", root, object)
        placements = tuple([self.placement(tensor, f"kv_cache_tensors[{i}]") for i, tensor in enumerate(tensors)])
        hosts = [i for i, tensor in enumerate(tensors) if getattr(tensor, "host_resident", False)]
        self.on_host.update(*[placements[i].layers for i in hosts])
        return _Live(
            self.listed(config, "kv_cache_groups", root, object),
            self.caches(kv_caches),
            placements,
            blocks,
            _name(getattr(config, "kv_cache_layout", None)),
            self.hint(hints),
            engine,
        )

    def placement(self, tensor: object, path: str) -> Placement:
        """Read a ``KVCacheTensor``: since 0.29 layers of one allocation, before that a tensor that layers share."""
        size = self.whole(tensor, "size", path)
        offset = self.whole(tensor, "offset", path) if hasattr(tensor, "offset") else None
        if hasattr(tensor, "shared_by"):
            packed = self.whole(tensor, "block_stride", path, default=0)
            return Placement(self.listed(tensor, "shared_by", path, str), size, offset, None, packed or None)
        layers = self.listed(tensor, "layers", path, str)
        layer_stride, block_stride = (self.whole(tensor, name, path) for name in ("layer_stride", "block_stride"))
        return Placement(layers, size, offset or 0, layer_stride, block_stride)

    def parts(self, index: int, group: object) -> _Parts:
        """Read a ``KVCacheGroupSpec``; the flags came with 0.29 and later."""
        path = f"kv_cache_groups[{index}]"
        layers = self.listed(group, "layer_names", path, str)
        spec = getattr(group, "kv_cache_spec", None)
        if spec is None:
            self.fault(f"{path}.kv_cache_spec", "a spec", shown(spec))
        own = getattr(spec, "kv_cache_specs", None)
        leaves: dict[str, object] = {}
        if isinstance(own, dict):
            leaves = {layer: own[layer] for layer in layers if layer in own}
            for layer in sorted(set(layers) - set(leaves)):
                self.fault(f"{path}.kv_cache_spec.kv_cache_specs[{layer!r}]", "a spec for each layer", shown(None))
        draft, host = bool(getattr(group, "is_eagle_group", False)), bool(getattr(group, "host_resident", False))
        host = host or not self.on_host.isdisjoint(layers)
        return layers, spec, leaves, (draft, host, bool(getattr(group, "enable_kv_transfer", True)))

    def caches(self, kv_caches: LiveCaches) -> dict[str, Entry]:
        """Return the facts of all tensors, or note each entry that has none."""
        found = read_caches(kv_caches)
        self.faults += [] if isinstance(found, Ok) else found.error.errors
        return found.value if isinstance(found, Ok) else {}

    def hint(self, hints: object) -> str | None:
        """Read LMCache's hint."""
        if isinstance(hints, (dict, Mapping)):  # a dict is one, and the question to an abstract class takes longer
            return _name(hints.get("kv_layout"))
        if hints is not None:
            self.fault("layout_hints", "a mapping, or nothing", shown(hints))
        return None

    def group(self, index: int, group: object) -> Group | None:
        """Read a group and convert its specs."""
        layers, live, own, flags = self.parts(index, group)
        spec = self.spec(live, index)
        leaves: dict[str, Spec] = {}
        for layer, leaf in own.items():
            read = self.spec(leaf, index, layer)
            if read is not None:
                leaves[layer] = read
        return None if spec is None else Group(layers, spec, leaves, *flags)

    def spec(self, live: object, group: int, layer: str | None = None) -> Spec | None:
        """Convert a spec: one object once, and objects of one class with equal fields once."""
        spec = self.known.get(id(live)) or self.twin(live)
        if spec is None:
            declared = declared_fields(live)
            try:
                spec = read_live(live, declared)
            except FieldError as error:
                path = f"kv_cache_groups[{group}].kv_cache_spec"
                path += "" if layer is None else f".kv_cache_specs[{layer!r}]"
                self.fault(f"{path}.{error.path.partition('.')[2]}", error.expected, error.actual, group, layer)
                return None
            if declared is getattr(live, "__dict__", None):
                self.alike.append((type(live), declared, spec))
        self.known[id(live)] = spec
        return spec

    def twin(self, live: object) -> Spec | None:
        """Return what an equal spec became. The comparison of dicts is C; vLLM's own hash and == are not faster."""
        made, fields = type(live), getattr(live, "__dict__", None)
        try:
            return next((spec for known, own, spec in self.alike if known is made and own == fields), None)
        except Exception:  # noqa: BLE001 - fields of a foreign spec may refuse to be compared: it is read again
            return None


def _name(value: object) -> str | None:
    """Return a layout's name, from an enumeration or text; ``"none"`` is none."""
    name = value.name if isinstance(value, Enum) else value
    return None if name is None or name == "none" else str(name)


def _group_document(
    layers: tuple[str, ...], spec: object, leaves: Mapping[str, object], flags: tuple[bool, bool, bool]
) -> dict[str, object]:
    own = {layer: spec_document(leaf) for layer, leaf in leaves.items()}
    document: dict[str, object] = {"layers": layers, "spec": spec_document(spec), "layer_specs": own}
    return document | dict(zip(("draft", "host_resident", "transferable"), flags, strict=True))
