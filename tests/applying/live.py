"""Live tensors from documents: storages of poison, and what a write through a tensor changes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tests.engines import fakes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.rules.building import Json

Cache: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MARK = {1: 0x5A, 2: 0x5A5A, 4: 0x5A5A5A5A, 8: 0x5A5A5A5A5A5A5A5A}
POISON = 0xA5


class Pools:
    """The storages of a registration, and its tensors over them."""

    def __init__(self, document: Json, slack: int = 4096) -> None:
        parts = [part for entry in document["caches"].values() for part in listed(entry)]
        ends: dict[int, int] = {}
        for part in parts:
            item = fakes.DTYPES[part["dtype"]].itemsize
            last = sum((extent - 1) * stride for extent, stride in zip(part["shape"], part["stride"], strict=True))
            ends[part["storage"]] = max(ends.get(part["storage"], 0), (part["storage_offset"] + last + 1) * item)
        sizes = {storage: -(-end // 64) * 64 + slack for storage, end in ends.items()}
        self.pools = {storage: torch.full((size,), POISON, dtype=torch.uint8) for storage, size in sizes.items()}
        self.caches: dict[str, Any] = {
            layer: [self.tensor(part) for part in entry] if isinstance(entry, list) else self.tensor(entry)
            for layer, entry in document["caches"].items()
        }

    def tensor(self, facts: Json) -> torch.Tensor:
        pool = self.pools[facts["storage"]].view(getattr(torch, facts["dtype"]))
        return pool.as_strided(facts["shape"], facts["stride"], facts["storage_offset"])

    def poison(self) -> None:
        for pool in self.pools.values():
            pool.fill_(POISON)

    def changed(self, *tensors: torch.Tensor) -> Bytes:
        """Return every byte of every storage, True where a write to all of these tensors changes it."""
        self.poison()
        for tensor in tensors:
            mark(tensor)
        return Bytes({storage: pool != POISON for storage, pool in self.pools.items()})


class Bytes:
    """A set of bytes of storages."""

    def __init__(self, masks: dict[int, torch.Tensor]) -> None:
        self.masks = masks

    def __le__(self, other: Bytes) -> bool:
        return all(bool((~mask | other.masks[storage]).all()) for storage, mask in self.masks.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bytes) and self <= other <= self

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return sum(int(mask.sum()) for mask in self.masks.values())

    def page(self, size: int) -> Bytes:
        """Return ``size`` bytes from the first one on."""
        masks = {storage: torch.zeros_like(mask) for storage, mask in self.masks.items()}
        for storage, mask in self.masks.items():
            if bool(mask.any()):
                low = int(torch.nonzero(mask)[0])
                masks[storage][low : low + size] = True
        return Bytes(masks)


def listed(entry: Any) -> list[Any]:
    return list(entry) if isinstance(entry, (list, tuple)) else [entry]


def mark(tensor: torch.Tensor) -> None:
    """Set every byte of a tensor."""
    item = tensor.element_size()
    tensor.view(_BITS[item]).fill_(_MARK[item])


def read(tensor: torch.Tensor) -> list[int]:
    """Return the bytes of a tensor in the order in which it is read."""
    whole = tensor.contiguous().view(_BITS[tensor.element_size()]).flatten()
    values: list[int] = whole.view(torch.uint8).tolist()
    return values


def same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def configured(document: Json) -> object:
    """Return vLLM's configuration of a document, in classes that only look like vLLM's."""
    full = document | {"groups": [flagged(group) for group in document["groups"]]}
    return fakes.config(full)


def flagged(group: Json) -> Json:
    flags: Json = {"draft": False, "host_resident": False, "transferable": True} | group
    flags["spec"] = complete(flags["spec"])
    if flags.get("layer_specs"):
        flags["layer_specs"] = {layer: complete(spec) for layer, spec in flags["layer_specs"].items()}
    return flags


def complete(spec: Json) -> Json:
    fields = {name: value for name, value in spec["fields"].items() if value is not None}
    return spec | {"bases": spec.get("bases", []), "derived": spec.get("derived", {}), "fields": fields}
