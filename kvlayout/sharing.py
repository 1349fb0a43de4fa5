"""Layers that share a storage: each pair of groups whose layers meet is one error, with the layers that take part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from kvlayout.algebra.affine import Size
from kvlayout.algebra.claims import Refuted, Track, Undecided
from kvlayout.algebra.refuting import overlaps, strung
from kvlayout.errors import Code, LayoutError
from kvlayout.plans import Run, Shape, Windows

__all__ = ["overlap_errors", "tracks_of"]

#: A registration of thousands of layers in one place is refused after so many meetings, not after all of them.
_ENOUGH: Final = 10_000


class _Meeting(NamedTuple):
    """Where two groups meet: the first place found, and all windows (storage, start, stride, bytes, group) in it."""

    found: Refuted | Undecided
    windows: set[tuple[int, Size, Size, int, int]]


_Meetings: TypeAlias = dict[tuple[int, int], _Meeting]

#: Storages, and the bytes of them at which layers start.
_Seats: TypeAlias = tuple[tuple[int, Size], ...]


def overlap_errors(runs: Sequence[Run], order: Iterable[str], blocks: Size) -> list[LayoutError]:
    """Prove of each storage that no block of a layer meets another block in use; ``page-overlap`` where it fails.

    Errors name the layers that take part in ``order``.
    """
    if _same_seats(runs, blocks):
        return []
    meetings: _Meetings = {}
    for storage, tracks in sorted(tracks_of(runs).items()):
        if len(tracks) > 1 and not strung([(storage, *track[:3]) for track in tracks], blocks):
            _meet(storage, tracks, blocks, meetings)
    return [_error(pair, meeting, runs, order) for pair, meeting in sorted(meetings.items())]


def _same_seats(runs: Sequence[Run], blocks: Size) -> bool:
    """Tell at a glance that all groups have the same seats, each of one layer of a group, and no two seats meet."""
    held = {(run.storages, run.bases, run.shape.windows) for run in runs}
    if len(held) != 1 or len({run.group for run in runs}) < len(runs):
        return not held
    ((storages, bases, owned),) = held
    if len({*storages}) == len(storages):  # a layer's own planes keep out of each other, or it is not proved
        return True
    seats = [*zip(storages, bases, strict=True)]
    windows = [(seat, base + start, stride, page) for seat, base in seats for start, stride, page in owned]
    return strung(windows, blocks)


def tracks_of(runs: Sequence[Run]) -> dict[int, list[Track]]:
    """Return the distinct windows on each storage, with the groups that own them."""
    windows: dict[tuple[int, Size, Size, int], frozenset[int]] = {}
    tracks: dict[int, list[Track]] = {}
    for owned, seats, groups in _shared_seats(runs):
        for storage, base in seats:
            for start, stride, page in owned:
                window = (storage, base + start, stride, page)
                sharers = windows.get(window)
                if sharers is None:
                    windows[window] = groups
                elif sharers.isdisjoint(groups):
                    windows[window] = sharers | groups
                else:  # two layers of one group in one window, and no aliases: they meet
                    tracks.setdefault(storage, []).append(Track(base + start, stride, page, groups))
    for (storage, start, stride, page), groups in windows.items():
        tracks.setdefault(storage, []).append(Track(start, stride, page, groups))
    return tracks


def _shared_seats(runs: Sequence[Run]) -> list[tuple[Windows, _Seats, frozenset[int]]]:
    """Return what is owned in which seats by which groups: the groups of a hybrid mostly have the same seats."""
    taken: dict[tuple[Shape, int], dict[tuple[int, Size], None]] = {}
    for _, group, shape, storages, bases in runs:  # layers of one shape, group and seat are only aliases
        taken.setdefault((shape, group), {}).update(dict.fromkeys(zip(storages, bases, strict=True)))
    owners: dict[tuple[Windows, _Seats], list[set[int]]] = {}
    for (shape, group), seats in taken.items():
        sharing = owners.setdefault((shape.windows, tuple(seats)), [set()])
        if group in sharing[-1]:  # of another shape, so these are other layers
            sharing.append(set())
        sharing[-1].add(group)
    return [(windows, seats, frozenset(groups)) for (windows, seats), sharing in owners.items() for groups in sharing]


def _meet(storage: int, tracks: list[Track], blocks: Size, meetings: _Meetings) -> None:
    """Note, for each pair of groups, the first meeting on this storage and every window that takes part in one."""
    for found in islice(overlaps(tracks, blocks), _ENOUGH):
        x, y = found.tracks
        for g, h in {(g, h) for g in x.groups for h in y.groups}:
            alone = (x._replace(groups=frozenset((g,))), y._replace(groups=frozenset((h,))))
            if any(overlaps(alone, blocks)):
                meeting = meetings.setdefault((min(g, h), max(g, h)), _Meeting(found, set()))
                meeting.windows.update(((storage, *x[:3], g), (storage, *y[:3], h)))


def _error(pair: tuple[int, int], meeting: _Meeting, runs: Sequence[Run], order: Iterable[str]) -> LayoutError:
    first, second = pair
    met = {
        layer
        for names, group, shape, storages, bases in runs
        if group in pair
        for layer, storage, base in zip(names, storages, bases, strict=True)
        if any((storage, base + start, stride, page, group) in meeting.windows for start, stride, page in shape.windows)
    }
    return LayoutError(
        Code.PAGE_OVERLAP,
        group=first,
        expected="bytes of its own for each block id in use",
        actual=meeting.found.reason + ("" if first == second else f" (groups {first} and {second})"),
        witness=meeting.found.witness if isinstance(meeting.found, Refuted) else None,
        layers=tuple([layer for layer in order if layer in met]),
    )
