"""Objects that look like an engine's: tensors without torch, and the classes of vLLM versions that are not installed.

The classes of a version are made anew for each document, with vLLM's names, fields, bases and properties. Nothing here
is vLLM's own, so kvlayout can know them by name and attribute only, which is the point.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE_ADDRESS = 0x7F00_0000_0000


class DType:
    """An element type: prints as torch's do, and is compared by identity."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


DTYPES = {
    name: DType(name, size)
    for name, size in {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "uint8": 1, "float8_e4m3fn": 1}.items()
}


@dataclass(frozen=True)
class Storage:
    """A pool: where it is and how large."""

    base: int
    size: int

    def data_ptr(self) -> int:
        return self.base

    def nbytes(self) -> int:
        return self.size


class Tensor:
    """The facts of a tensor, and nothing else: reading anything more raises."""

    def __init__(self, shape: list[int], strides: list[int], offset: int, dtype: str, storage: Storage) -> None:
        self.shape, self.dtype, self.device = tuple(shape), DTYPES[dtype], SimpleNamespace(type="cuda")
        self._strides, self._offset, self._storage = tuple(strides), offset, storage

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def storage_offset(self) -> int:
        return self._offset

    def element_size(self) -> int:
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        return self._storage.base + self._offset * self.dtype.itemsize

    def untyped_storage(self) -> Storage:
        return self._storage


def tensor(document: Mapping[str, Any]) -> Tensor:
    """Return the tensor of a document; storages lie a TiB apart."""
    storage = Storage(BASE_ADDRESS + (document["storage"] << 40), document["storage_nbytes"])
    facts = document["shape"], document["stride"], document["storage_offset"], document["dtype"]
    return Tensor(*facts, storage)


def caches(document: Mapping[str, Any]) -> dict[str, Tensor | list[Tensor]]:
    """Return the ``kv_caches`` of a document."""
    return {
        layer: [tensor(part) for part in entry] if isinstance(entry, list) else tensor(entry)
        for layer, entry in document["caches"].items()
    }


def value(name: str, raw: Any) -> Any:
    """Return a field's value as the engine has it: element types as objects, shapes as tuples, ratios as fractions."""
    if name == "dtype":
        return DTYPES[raw]
    if name == "dtypes":
        return tuple(DTYPES[item] for item in raw)
    if name == "shapes":
        return tuple(map(tuple, raw))
    if name == "tokens_per_state" and isinstance(raw, list):
        return Fraction(*raw)
    return raw


def constant(result: object) -> property:
    """Return a property that has always this value."""
    return property(lambda _: result)


def spec(document: Mapping[str, Any], leaves: Mapping[str, Any] | None = None) -> Any:
    """Return an instance of a new class with the name, bases, fields and properties of a document's spec."""
    base: type = object
    for name in reversed(document["bases"]):
        base = type(name, (base,), {})
    fields = {name: value(name, raw) for name, raw in document["fields"].items()}
    if leaves:
        fields["kv_cache_specs"] = {layer: spec(leaf) for layer, leaf in leaves.items()}
    computed = {name: raw for name, raw in document["derived"].items() if name not in fields}
    namespace = {name: constant(value(name, raw)) for name, raw in computed.items()}
    made = dataclasses.make_dataclass(
        document["type"], [(name, object) for name in fields], bases=(base,), namespace=namespace, frozen=True
    )
    return made(**fields)


@dataclass
class PlacedTensor:
    """``KVCacheTensor`` since 0.29."""

    size: int
    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int = 0


@dataclass
class SharedTensor:
    """``KVCacheTensor`` from 0.24 to 0.28."""

    size: int
    shared_by: list[str]
    offset: int = 0
    block_stride: int = 0


@dataclass
class OldestTensor:
    """``KVCacheTensor`` of 0.22."""

    size: int
    shared_by: list[str]


@dataclass
class OldGroup:
    """``KVCacheGroupSpec`` before 0.26."""

    layer_names: list[str]
    kv_cache_spec: object


@dataclass
class Group(OldGroup):
    """``KVCacheGroupSpec`` since 0.29."""

    is_eagle_group: bool = False
    host_resident: bool = False
    enable_kv_transfer: bool = True


@dataclass
class OldConfig:
    """``KVCacheConfig`` before 0.29."""

    num_blocks: int
    kv_cache_tensors: list[Any] = field(default_factory=list)
    kv_cache_groups: list[Any] = field(default_factory=list)


@dataclass
class Config(OldConfig):
    """``KVCacheConfig`` since 0.29."""

    kv_cache_layout: str | None = None


def placed(document: Mapping[str, Any]) -> PlacedTensor | SharedTensor:
    """Return the ``KVCacheTensor`` of a placement: of the new form where it has a layer stride."""
    size, offset, block_stride = document["size"], document["offset"], document["block_stride"]
    if document["layer_stride"] is None:
        return SharedTensor(size, document["layers"], offset, block_stride or 0)
    return PlacedTensor(size, document["layers"], document["layer_stride"], block_stride, offset)


def config(document: Mapping[str, Any]) -> OldConfig:
    """Return the ``KVCacheConfig`` of a document."""
    old = any(placement["layer_stride"] is None for placement in document["placements"])
    flags = ("draft", "host_resident", "transferable")
    groups: list[OldGroup] = []
    for group in document["groups"]:
        parts = group["layers"], spec(group["spec"], group.get("layer_specs"))
        groups.append(OldGroup(*parts) if old else Group(*parts, *(group[flag] for flag in flags)))
    tensors = [placed(placement) for placement in document["placements"]]
    if old:
        return OldConfig(document["num_blocks"], tensors, groups)
    return Config(document["num_blocks"], tensors, groups, document["kv_cache_layout"])
