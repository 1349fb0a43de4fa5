"""Layers that share a storage: each pair of groups whose layers meet is one error, with the layers that take part."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from kvlayout.algebra.affine import Size
from kvlayout.algebra.claims import Refuted, Track, Undecided
from kvlayout.algebra.refuting import overlaps
from kvlayout.cache.registration import Entry, RegisteredTensor
from kvlayout.errors import Code, LayoutError
from kvlayout.plans import Placed, Shape

__all__ = ["overlap_errors", "storage_of", "tracks_of"]

#: A registration of thousands of layers in one place is refused after so many meetings, not after all of them.
_ENOUGH: Final = 10_000


class _Meeting(NamedTuple):
    """Where two groups meet: the first place found, and all windows (storage, start, stride, bytes, group) in it."""

    found: Refuted | Undecided
    windows: set[tuple[int, Size, Size, int, int]]


_Meetings: TypeAlias = dict[tuple[int, int], _Meeting]


def overlap_errors(
    placed: Sequence[Placed],
    caches: Mapping[str, Entry],
    blocks: Size,
    storages: Collection[int],
) -> list[LayoutError]:
    """Prove of these storages that no block of a layer meets another block in use; ``page-overlap`` where it fails."""
    meetings: _Meetings = {}
    for storage, tracks in tracks_of(placed, caches, storages).items():
        if len(tracks) > 1:
            _meet(storage, tracks, blocks, meetings)
    return [_error(pair, meeting, placed, caches) for pair, meeting in meetings.items()]


def storage_of(caches: Mapping[str, Entry], layer: str) -> int:
    """Return the storage that a layer lies on."""
    entry = caches[layer]
    return entry.storage if isinstance(entry, RegisteredTensor) else entry[0].storage


def tracks_of(
    placed: Sequence[Placed], caches: Mapping[str, Entry], storages: Collection[int]
) -> dict[int, list[Track]]:
    """Return the distinct windows on each storage, with the groups that own them."""
    seats: dict[tuple[int, Size, Shape], set[int]] = {}
    for layer, index, shape, base in placed:
        storage = storage_of(caches, layer)
        if storage in storages:
            seats.setdefault((storage, base, shape), set()).add(index)
    windows: dict[tuple[int, Size, Size, int], set[int]] = {}
    tracks: dict[int, list[Track]] = {}
    for (storage, base, shape), groups in seats.items():
        for start, stride, page in shape.windows:
            window = (storage, base + start, stride, page)
            sharers = windows.get(window)
            if sharers is None:
                windows[window] = set(groups)
            elif sharers.isdisjoint(groups):
                sharers |= groups
            else:  # two layers of one group in one window, and no aliases: they meet
                tracks.setdefault(storage, []).append(Track(base + start, stride, page, frozenset(groups)))
    for (storage, start, stride, page), groups in windows.items():
        tracks.setdefault(storage, []).append(Track(start, stride, page, frozenset(groups)))
    return tracks


def _meet(storage: int, tracks: list[Track], blocks: Size, meetings: _Meetings) -> None:
    """Note, for each pair of groups, the first meeting on this storage and every window that takes part in one."""
    for found in islice(overlaps(tracks, blocks), _ENOUGH):
        x, y = found.tracks
        for g, h in {(g, h) for g in x.groups for h in y.groups}:
            alone = (x._replace(groups=frozenset((g,))), y._replace(groups=frozenset((h,))))
            if any(overlaps(alone, blocks)):
                meeting = meetings.setdefault((min(g, h), max(g, h)), _Meeting(found, set()))
                meeting.windows.update(((storage, *x[:3], g), (storage, *y[:3], h)))


def _error(
    pair: tuple[int, int], meeting: _Meeting, placed: Sequence[Placed], caches: Mapping[str, Entry]
) -> LayoutError:
    first, second = pair
    layers = tuple(
        one.layer
        for one in placed
        if one.group in pair
        and any(
            (storage_of(caches, one.layer), one.base + start, stride, page, one.group) in meeting.windows
            for start, stride, page in one.shape.windows
        )
    )
    return LayoutError(
        Code.PAGE_OVERLAP,
        group=first,
        expected="bytes of its own for each block id in use",
        actual=meeting.found.reason + ("" if first == second else f" (groups {first} and {second})"),
        witness=meeting.found.witness if isinstance(meeting.found, Refuted) else None,
        layers=layers,
    )
