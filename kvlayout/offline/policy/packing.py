"""Which layers share block ids where each block holds the pages of all layers side by side (BLHNC, BLNHC, BHLNC).

>>> keys = LayerSpec("full", 64, 1, 1152)
>>> state = LayerSpec("state", 64, 1, 40000, sharded=False)
>>> [bunch.layers for bunch in packed({"a": keys, "b": state, "c": state, "d": keys, "e": state, "f": state})]
[('a', 'd'), ('b', 'e'), ('c', 'f')]
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from kvlayout.offline.policy.alike import uniform
from kvlayout.offline.policy.values import Bunch, LayerSpec, refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["packed"]


class _Bucket(NamedTuple):
    """Layers that can share ids, by the size of their pages."""

    layers: Mapping[str, LayerSpec]
    pages: Mapping[int, Sequence[str]]

    @property
    def first(self) -> LayerSpec:
        return next(iter(self.layers.values()))

    @property
    def repeats(self) -> int:
        """How often a pattern of one layer of each page size is repeated."""
        return max(len(names) for names in self.pages.values())

    @property
    def balanced(self) -> bool:
        return len({len(names) for names in self.pages.values()}) == 1

    def widest(self, groups: int) -> int:
        """Return the bytes of the largest of some groups."""
        return sum(ceil(len(names) / groups) * page for page, names in self.pages.items())


def packed(specs: Mapping[str, LayerSpec], *, windows: bool = True) -> list[Bunch]:
    """Return the groups of layers whose pages differ in size.

    Layers that can share ids are dealt out so that the groups of all kinds fill the same block as evenly as they can;
    states, and ``windows`` where nothing else decides, are split until they fit into the block that attention needs.

    Raises:
        RefusedError: layers would be left over, which the engine does not survive.
    """
    buckets = _buckets(specs)
    least = max((b.repeats for b in buckets if b.balanced and len(b.pages) > 1), default=0)
    repeats = _chunk([b.repeats for b in buckets if b.balanced], least) if least else None

    def splits(bucket: _Bucket) -> int:
        return ceil(bucket.repeats / repeats) if bucket.balanced and repeats is not None else 1

    def shrinks(bucket: _Bucket) -> bool:
        kind = bucket.first.kind
        return kind == "state" or (windows and repeats is None and kind in ("sliding", "sliding-latent"))

    anchor = max(b.widest(len(b.layers) if shrinks(b) else splits(b)) for b in buckets)
    groups: list[Bunch] = []
    for bucket in buckets:
        count = splits(bucket)
        if shrinks(bucket):
            count = max(count, ceil(len(bucket.layers) / max(anchor // bucket.first.page, 1)))
        if count == 1:
            groups.append(_bunch(bucket.layers))
            continue
        groups += _dealt(bucket, count)
    return groups


def _dealt(bucket: _Bucket, count: int) -> Iterator[Bunch]:
    """Yield the layers of a bucket in turn, one of each page size at a time."""
    pattern = list(zip(*bucket.pages.values(), strict=False))
    if not bucket.balanced or len(pattern) < count:
        sizes = ", ".join(f"{len(names)} of {page} bytes" for page, names in bucket.pages.items())
        raise refused("layers", f"as many pages of each size as {count} groups can share", sizes)
    for turn in range(count):
        names = [name for repeat in pattern[turn::count] for name in repeat]
        yield _bunch({name: bucket.layers[name] for name in names})


def _bunch(layers: Mapping[str, LayerSpec]) -> Bunch:
    return Bunch(tuple(layers), next(iter(layers.values())), dict(layers))


def _buckets(specs: Mapping[str, LayerSpec]) -> list[_Bucket]:
    """Put each layer into the first bucket that it can share ids with."""
    homes: list[tuple[list[LayerSpec], dict[str, LayerSpec]]] = []
    seen: dict[LayerSpec, dict[str, LayerSpec]] = {}
    for name, spec in specs.items():
        home = seen.get(spec)
        if home is None:
            home = next((layers for known, layers in homes if uniform([*known, spec])), None)
            if home is None:
                home = {}
                homes.append(([], home))
            next(known for known, layers in homes if layers is home).append(spec)
            seen[spec] = home
        home[name] = spec
    buckets = []
    for _, layers in homes:
        pages: dict[int, list[str]] = {}
        for name, spec in layers.items():
            pages.setdefault(spec.page, []).append(name)
        buckets.append(_Bucket(layers, pages))
    return buckets


def _chunk(values: Sequence[int], least: int) -> int:
    """Return the number, of at least ``least``, whose multiples cover all values with the least left over."""
    best, waste = least, None
    for chunk in range(least, max(values) + 1):
        left = sum(-value % chunk for value in values)
        if waste is None or left <= waste:
            best, waste = chunk, left
    return best
