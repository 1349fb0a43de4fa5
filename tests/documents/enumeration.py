"""Ground truth by enumeration of byte addresses, from documents and printed plans alone.

Nothing of kvlayout is used here: pages are what the spec's numbers and the registered tensor (or the engine's
placement) say, read by separate code, and a view is its printed shape, strides, offset and element type.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Json: TypeAlias = dict[str, Any]
Addresses: TypeAlias = npt.NDArray[np.int64]

ITEM = {"bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


class Key(NamedTuple):
    """A strided array of bytes that starts at 0: shape, byte strides, item size, and an axis that is read elsewhere."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    moved: tuple[int, int] = (0, 0)


@lru_cache(maxsize=256)
def addresses(key: Key) -> Addresses:
    """Return the address of every byte, in the order in which the array is read."""
    rank = len(key.shape) + 1
    total = np.zeros((1,) * rank, dtype=np.int64)
    for axis, (extent, stride) in enumerate(zip((*key.shape, key.itemsize), (*key.strides, 1), strict=True)):
        total = total + (np.arange(extent) * stride).reshape([-1 if i == axis else 1 for i in range(rank)])
    return np.moveaxis(total, *key.moved).ravel()


@lru_cache(maxsize=256)
def sorted_addresses(key: Key) -> Addresses:
    return np.sort(addresses(key))


@lru_cache(maxsize=4096)
def stretch(key: Key) -> tuple[int, int] | None:
    """Return the interval that the bytes fill, each once; None where they do not."""
    found = sorted_addresses(key)
    low, high = int(found[0]), int(found[-1]) + 1
    return (low, high) if np.array_equal(found, np.arange(low, high)) else None


@lru_cache(maxsize=4096)
def equal(one: Key, other: Key, shift: int, *, in_order: bool) -> bool:
    """Tell whether two arrays have the same bytes, the other one starting ``shift`` bytes further on."""
    read = addresses if in_order else sorted_addresses
    return np.array_equal(read(one), read(other) + shift)


class Slab(NamedTuple):
    """The bytes of one block: where it starts, and how its bytes lie from there."""

    start: int
    key: Key

    @property
    def size(self) -> int:
        return prod(self.key.shape) * self.key.itemsize

    def all(self) -> set[int]:
        return set((addresses(self.key) + self.start).tolist())

    def interval(self) -> tuple[int, int] | None:
        found = stretch(self.key)
        return None if found is None else (self.start + found[0], self.start + found[1])

    def equals(self, other: Slab, *, in_order: bool = False) -> bool:
        return self.size == other.size and equal(self.key, other.key, other.start - self.start, in_order=in_order)


def view_block(layer: Json, block: int) -> Slab:
    """Return block i of a printed view."""
    axis, item = layer["block_axis"], ITEM[layer["dtype"]]
    shape = tuple(extent if i != axis else 1 for i, extent in enumerate(layer["shape"]))
    return Slab(layer["offset"] + block * layer["strides"][axis], Key(shape, tuple(layer["strides"]), item))


class Read(NamedTuple):
    """A tensor of rows, read: its axes of blocks, rows and planes, its kernel pages a block and the rows it has."""

    block: int
    row: int
    plane: int | None
    kernel_pages: int


def states_of(spec: Json) -> int:
    """Return the stored rows a block."""
    derived, fields = spec.get("derived") or {}, spec["fields"]
    if "num_states" in derived:
        return int(derived["num_states"])
    ratio = fields.get("tokens_per_state") or fields.get("compress_ratio") or 1
    tokens, rows = (ratio, 1) if isinstance(ratio, int) else ratio
    return int(fields["block_size"] * rows // tokens)


def page_bytes_of(spec: Json) -> int:
    derived, fields = spec.get("derived") or {}, spec["fields"]
    return int(derived.get("page_size_bytes") or fields.get("page_size_padded"))


def read_rows(spec: Json, tensor: Json) -> Read:
    """Name the axes of a tensor of rows: rank 3, rank 4, and rank 5 with planes in either place."""
    shape, strides = tensor["shape"], tensor["stride"]
    states = states_of(spec)
    block, row, plane = 0, 2, None
    if (
        len(shape) == 3
        or (len(shape) == 4 and "MLA" in spec["type"] and shape[2] == 1 != shape[1])
        or (len(shape) == 4 and spec["fields"].get("tq_slot_size") and shape[1] == states)
    ):
        row = 1
    elif len(shape) == 5:
        first = shape[0] == 2 and (shape[1] != 2 or strides[0] < strides[1])
        block, plane = (1, 0) if first else (0, 1)
    return Read(block, row, plane, states // shape[row])


def source_block(spec: Json, tensor: Json, block: int) -> Slab:
    """Return the bytes of a block of the registered tensor, its kernel pages read row by row."""
    read, item = read_rows(spec, tensor), ITEM[tensor["dtype"]]
    strides = tuple(stride * item for stride in tensor["stride"])
    shape = tuple(read.kernel_pages if i == read.block else extent for i, extent in enumerate(tensor["shape"]))
    key = Key(shape, strides, item, (read.block, read.row - 1))
    return Slab(tensor["storage_offset"] * item + block * strides[read.block] * read.kernel_pages, key)


def state_bytes(cache: Any, block: int) -> tuple[int, set[tuple[int, int]]]:
    """Return where the page of a state starts, and the interval of each of its states; every state must be one."""
    parts = cache if isinstance(cache, list) else [cache]
    intervals = set()
    for part in parts:
        item = ITEM[part["dtype"]]
        strides = tuple(stride * item for stride in part["stride"])
        slab = Slab(part["storage_offset"] * item + block * strides[0], Key((1, *part["shape"][1:]), strides, item))
        found = slab.interval()
        assert found is not None, f"block {block} of a state is no interval"
        intervals.add(found)
    first = parts[0]
    item = ITEM[first["dtype"]]
    return (first["storage_offset"] + block * first["stride"][0]) * item, intervals


def placed_base(made: Json, layer: str) -> tuple[int, int] | None:
    """Return offset and block stride of a layer as the engine placed it, where it says so."""
    for placement in made.get("placements") or ():
        if layer in placement["layers"] and placement["block_stride"] is not None:
            index = placement["layers"].index(layer)
            if placement["layer_stride"] is not None or index == 0:
                return placement["offset"] + index * (placement["layer_stride"] or 0), placement["block_stride"]
    return None


def spec_for(made: Json, layer: str) -> Json:
    for group in made["groups"]:
        if layer in group["layers"]:
            spec: Json = (group.get("layer_specs") or {}).get(layer, group["spec"])
            return spec
    raise AssertionError(f"no group lists {layer}")


def hits_its_pages(made: Json, layer: str, printed: Json, block: int, *, whole: bool = False) -> None:
    """Check one block of one printed view against the engine's page.

    All that carries state is covered, nothing outside the layer's own page is; a view with meaning has its rows in
    the order in which the tensor has them; ``whole``: the view is the page, padding and all.
    """
    spec, cache, seen = spec_for(made, layer), made["caches"][layer], view_block(printed, block)
    page, placed = page_bytes_of(spec), placed_base(made, layer)
    if spec["type"] == "MambaSpec":
        start, intervals = state_bytes(cache, block)
        low, high = min(i[0] for i in intervals), max(i[1] for i in intervals)
        found = seen.interval()
        assert found is not None, "the view is no interval"
        assert found[0] == start <= low, "the view starts elsewhere"
        assert high <= found[1] <= start + page, "the view leaves state out, or leaves its page"
        if whole:
            assert found == (start, start + page)
    else:
        source = source_block(spec, cache, block)
        start = source.start + int(sorted_addresses(source.key)[0])
        if whole and page != source.size:
            assert seen.interval() == (start, start + page)
        else:
            assert seen.size == source.size, "another number of bytes"
            assert seen.equals(source), "other bytes"
        if printed["content"] == "semantic" and not whole:
            assert seen.equals(source, in_order=True), "another order"
    if placed is not None:
        assert start == placed[0] + block * placed[1], "the engine placed this block elsewhere"


def covered_bytes(printed: Json) -> int:
    """Return how many bytes one block of a view has."""
    extents = [extent for i, extent in enumerate(printed["shape"]) if i != printed["block_axis"]]
    return int(prod(extents)) * ITEM[printed["dtype"]]
