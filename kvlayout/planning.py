"""From a registration to a plan: every group judged, every layer proved, every refusal collected.

>>> from kvlayout.cache.registration import Registration
>>> plan(Registration((), {})).unwrap().groups
()

One structural proof serves all layers with one spec and one layout up to its offset; a further layer costs its
facts, one look-up and its own place in the storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from attrs import evolve

from kvlayout.algebra.affine import BLOCK_COUNT, Affine, Size
from kvlayout.algebra.claims import Refuted, Track, Undecided
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.kernel import fits
from kvlayout.algebra.refuting import overlaps
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.paging import block_rows
from kvlayout.cache.registration import Entry, Group, RegisteredTensor, Registration
from kvlayout.cache.spec import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    LatentSpec,
    Spec,
    StateSpec,
)
from kvlayout.errors import Code, LayoutError, LayoutErrors
from kvlayout.placing import Place, misplaced, places_of, shape_of
from kvlayout.plans import Disposition, Placed, Plan, Shape
from kvlayout.rules.builtin import installed
from kvlayout.rules.presentation import Form, Presentation
from kvlayout.rules.rule import Registry

__all__ = ["Attempt", "attempt", "plan", "validate"]

_KEEPS_STATE: Final = ("align", "all")
#: A registration of thousands of layers in one place is refused after so many meetings, not after all of them.
_ENOUGH: Final = 10_000


class Attempt(NamedTuple):
    """What planned, and all that did not."""

    plan: Plan
    errors: tuple[LayoutError, ...]


def plan(
    registration: Registration,
    *,
    rules: Registry | None = None,
    presentation: Form = "lmcache",
) -> Result[Plan, LayoutErrors]:
    """Plan a registration: a proved view for every served layer, or every refusal at once.

    Args:
        registration: what the engine hands over; the block count may be unknown.
        rules: rules to try before the installed ones.
        presentation: ``lmcache``, or ``bytes`` for ``(N, page bytes)``.

    Returns:
        ``Ok`` with a plan whose every view is proved for any number of blocks; ``Err`` with all errors.
    """
    made = attempt(registration, rules=rules, presentation=presentation)
    return Err(LayoutErrors(made.errors)) if made.errors else Ok(made.plan)


def validate(registration_or_groups: Registration | Sequence[Group]) -> tuple[LayoutError, ...]:
    """Return every error of a registration, or of bare groups before there are tensors; empty when served.

    >>> validate(())
    ()
    """
    if isinstance(registration_or_groups, Registration):
        return attempt(registration_or_groups).errors
    judged = (judge(i, group) for i, group in enumerate(registration_or_groups))
    return tuple(error for _, error in judged if error is not None)


def judge(index: int, group: Group) -> tuple[Disposition, LayoutError | None]:
    """Return what becomes of a group as a whole: excluded with a reason, refused with an error, or served."""
    specs = group.specs
    reason = None
    if not any([spec.prefix_cacheable for spec in specs]):
        reason = "scratch"
    elif not any([spec.has_layer_views for spec in specs]):
        reason = "raw"
    elif group.host_resident:
        reason = "host-resident"
    elif not group.transferable:
        reason = "not-transferable"
    elif all([isinstance(spec, EncoderOnlySpec) for spec in specs]):
        reason = "encoder-only"
    if reason is not None:
        return Disposition("excluded", reason), None
    for spec in specs:
        error = _unserved(spec)
        if error is not None:
            return Disposition("refused", error.code.value), evolve(error, group=index)
    return Disposition("served", None), None


def _unserved(spec: Spec) -> LayoutError | None:
    if isinstance(spec, CrossAttentionSpec):
        return LayoutError(Code.UNSUPPORTED_CROSS_ATTENTION, expected="self-attention or state", actual=spec.type)
    if isinstance(spec, StateSpec):
        if spec.cache_mode in _KEEPS_STATE:
            return None
        return LayoutError(Code.UNSUPPORTED_MAMBA_MODE, expected="align or all", actual=spec.cache_mode)
    if isinstance(spec, AttentionSpec | LatentSpec) and spec.has_layer_views:
        return None
    return LayoutError(Code.UNSUPPORTED_SPEC, expected="a spec that kvlayout knows", actual=spec.type)


def attempt(
    registration: Registration,
    *,
    rules: Registry | None = None,
    presentation: Form = "lmcache",
) -> Attempt:
    """Plan as much as can be planned, and collect every error of every layer and group."""
    registry = installed() if rules is None else rules | installed()
    judged = [judge(i, group) for i, group in enumerate(registration.groups)]
    goal = Presentation(presentation, registration.layout_hint or registration.kv_cache_layout)
    blocks = _block_count(registration, judged)
    survey = _Survey(registration, registry, goal, blocks)
    survey.errors += [*registry.errors, *(error for _, error in judged if error is not None)]
    for index, (group, (word, _)) in enumerate(zip(registration.groups, judged, strict=True)):
        survey.take(index, group, word.word)
    survey.share_storages()
    aliases = survey.match_unlisted()
    made = Plan(
        registration,
        presentation,
        blocks,
        tuple(survey.placed),
        aliases,
        tuple(word for word, _ in judged),
        rules,
    )
    unplaced = len(registration.groups)
    errors = sorted(survey.errors, key=lambda e: unplaced if e.group is None else e.group)
    return Attempt(made, tuple(errors))


def _block_count(registration: Registration, judged: Sequence[tuple[Disposition, object]]) -> Size | None:
    """Return the block count: as given, symbolic, or what the first layer that can be read makes."""
    if registration.num_blocks is not None:
        return registration.num_blocks
    first: Size | None = None
    for group, (word, _) in zip(registration.groups, judged, strict=True):
        for layer in group.layers if word.word == "served" else ():
            spec, entry = group.leaves.get(layer, group.spec), registration.caches.get(layer)
            if entry is None or not isinstance(spec, AttentionSpec | LatentSpec | StateSpec):
                continue
            parts = (entry,) if isinstance(entry, RegisteredTensor) else entry
            if any(isinstance(size, Affine) for part in parts for size in part.shape):
                return BLOCK_COUNT
            first = block_rows(spec, entry) if first is None else first
    return first


def _relative(parts: tuple[RegisteredTensor, ...]) -> tuple[object, ...]:
    """Return the facts of a list of states, up to the place of the first."""
    first = parts[0]
    base = first.offset * _itemsize(first)
    return tuple(
        (part.shape, part.strides, part.dtype, part.offset * _itemsize(part) - base, part.storage == first.storage)
        for part in parts
    )


def _itemsize(tensor: RegisteredTensor) -> int:
    dtype = DTYPES.get(tensor.dtype)
    return dtype.itemsize if dtype else 1


class _Survey:
    """One pass over a registration, collecting what was proved and what was refused."""

    def __init__(self, registration: Registration, registry: Registry, goal: Presentation, blocks: Size | None) -> None:
        self.registration, self.registry, self.goal = registration, registry, goal
        self.blocks: Size = 1 if blocks is None else blocks
        self.errors: list[LayoutError] = []
        self.placed: list[Placed] = []
        self.owners: dict[str, int] = {}
        self.excluded: set[str] = set()
        self.places = places_of(registration)
        self.specs: dict[Spec, Spec] = {}
        self.caches = registration.caches
        self.shapes: dict[tuple[object, ...], Shape | LayoutError] = {}
        self.proofs: dict[tuple[object, ...], Shape | LayoutError] = {}
        self.seats: dict[tuple[int, Size, Size, int], dict[int, Shape]] = {}
        self.doubles: list[tuple[int, Track]] = []

    def take(self, index: int, group: Group, word: str) -> None:
        """Take the layers of one group."""
        shared = self.specs.setdefault(group.spec, group.spec)
        fresh = [layer for layer in dict.fromkeys(group.layers) if layer not in self.owners]
        if len(fresh) < len(group.layers):
            self._twice(index, group, word)
        self.owners.update(dict.fromkeys(fresh, index))
        if word == "served":
            self._place(index, fresh, shared, group.leaves)
        elif word == "excluded":
            self.excluded.update(fresh)

    def _twice(self, index: int, group: Group, word: str) -> None:
        """Refuse each further listing of a layer; a refused group has one error already."""
        seen: set[str] = set()
        for layer in group.layers if word != "refused" else ():
            if layer in self.owners or layer in seen:
                actual = f"group {self.owners.get(layer, index)} and group {index}"
                self.errors.append(LayoutError(Code.LAYER_IN_TWO_GROUPS, index, layer, "one group", actual))
            seen.add(layer)

    def _place(self, index: int, layers: Sequence[str], shared: Spec, leaves: Mapping[str, Spec]) -> None:
        """Place the layers of a served group. The path of every layer: its facts, one look-up, its own place."""
        caches, shapes, places_of_layers, placed, seats = self.caches, self.shapes, self.places, self.placed, self.seats
        places: Sequence[Place] = ()
        key: tuple[object, ...]
        for layer in layers:
            entry = caches.get(layer)
            if entry is None:
                self.errors.append(LayoutError(Code.MISSING_LAYER, index, layer, "a registered cache", "none"))
                continue
            spec = leaves.get(layer, shared) if leaves else shared
            if places_of_layers:
                places = places_of_layers.get(layer, ())
            stride = places[0].block_stride if places else None
            if type(entry) is RegisteredTensor:
                first = entry
                key = (id(spec), entry[0], entry[1], entry[3], stride)
            else:
                first = entry[0]
                key = (id(spec), _relative(entry), stride)
            shape = shapes.get(key)
            if shape is None:
                shape = shapes[key] = self._prove(spec, entry, stride)
            if type(shape) is LayoutError:
                self.errors.append(evolve(shape, group=index, layer=layer))
                continue
            _, _, offset, _, storage, nbytes = first
            base = offset * shape.itemsize
            if places or not shape.simple or not (nbytes is None or fits(base, shape.reach, nbytes)):
                error = misplaced(shape, base, first, places, self.blocks)
                if error is not None:
                    self.errors.append(evolve(error, group=index, layer=layer))
                    continue
            placed.append(Placed(layer, index, shape, base))
            for start, step, page in shape.windows:
                seat = (storage, base + start, step, page)
                groups = seats.get(seat)
                if groups is None:
                    seats[seat] = {index: shape}
                elif groups.setdefault(index, shape) is not shape:
                    self.doubles.append((storage, Track(base + start, step, page, frozenset((index,)))))

    def _prove(self, spec: Spec, entry: Entry, stride: Size | None) -> Shape | LayoutError:
        """Prove a shape, or return the proof that an equal spec with the same facts has."""
        whole = (spec, _relative((entry,) if isinstance(entry, RegisteredTensor) else entry), stride)
        found = self.proofs.get(whole)
        if found is None:
            found = shape_of(spec, entry, self.blocks, self.goal, self.registry, self.registration, stride)
            self.proofs[whole] = found
        return found

    def share_storages(self) -> None:
        """Prove that layers on one storage keep out of each other's blocks, or name each pair of groups that does not."""
        tracks: dict[int, list[Track]] = {}
        for (storage, base, stride, page), groups in self.seats.items():
            tracks.setdefault(storage, []).append(Track(base, stride, page, frozenset(groups)))
        for storage, double in self.doubles:
            tracks[storage].append(double)
        for storage, parts in tracks.items():
            if len(parts) > 1:
                self._meetings(storage, parts)

    def _meetings(self, storage: int, tracks: list[Track]) -> None:
        found: dict[tuple[int, int], tuple[Refuted | Undecided, set[Track]]] = {}
        for meeting in islice(overlaps(tracks, self.blocks), _ENOUGH):
            x, y = meeting.tracks
            for pair in {(min(g, h), max(g, h)) for g in x.groups for h in y.groups}:
                alone = [x._replace(groups=frozenset(pair[:1])), y._replace(groups=frozenset(pair[1:]))]
                flipped = [x._replace(groups=frozenset(pair[1:])), y._replace(groups=frozenset(pair[:1]))]
                if (pair[0] in x.groups and any(overlaps(alone, self.blocks))) or (
                    pair[1] in x.groups and any(overlaps(flipped, self.blocks))
                ):
                    found.setdefault(pair, (meeting, set()))[1].update((x, y))
        for pair, (meeting, parts) in found.items():
            windows = {(track.base, track.stride) for track in parts}
            layers = tuple(
                placed.layer
                for placed in self.placed
                if placed.group in pair
                and self._storage(placed.layer) == storage
                and any(
                    (placed.base + start, placed.shape.cache.pages.stride) in windows
                    for start in placed.shape.cache.pages.bases
                )
            )
            witness = meeting.witness if isinstance(meeting, Refuted) else None
            self.errors.append(
                LayoutError(
                    Code.PAGE_OVERLAP,
                    group=pair[0],
                    expected="bytes of its own for each block id in use",
                    actual=meeting.reason
                    if pair[0] == pair[1]
                    else f"{meeting.reason} (groups {pair[0]} and {pair[1]})",
                    witness=witness,
                    layers=layers,
                ),
            )

    def _storage(self, layer: str) -> int:
        entry = self.registration.caches[layer]
        return entry.storage if isinstance(entry, RegisteredTensor) else entry[0].storage

    def match_unlisted(self) -> dict[str, str]:
        """Return the aliases: caches in no group whose tensors are those of a listed layer."""
        caches = self.registration.caches
        if len(caches) == len(self.owners) and all(layer in self.owners for layer in caches):
            return {}
        placed = {one.layer: one for one in self.placed}
        listed: dict[Entry, list[str]] = {}
        for layer in caches:
            if layer in self.owners:
                listed.setdefault(caches[layer], []).append(layer)
        aliases: dict[str, str] = {}
        for layer, entry in caches.items():
            if layer in self.owners:
                continue
            same = listed.get(entry, [])
            found = [placed[one] for one in same if one in placed]
            views = {
                (one.shape.view.shape, one.shape.view.strides, one.shape.view.dtype, one.shape.same) for one in found
            }
            excluded = [one for one in same if one in self.excluded]
            if len(views) > 1:
                actual = "different views of " + ", ".join(one.layer for one in found)
                self.errors.append(
                    LayoutError(Code.AXES_AMBIGUOUS, layer=layer, expected="one view of its tensors", actual=actual)
                )
            elif found or excluded:
                aliases[layer] = found[0].layer if found else excluded[0]
            elif not same:
                actual = "a cache that no group lists"
                self.errors.append(
                    LayoutError(
                        Code.UNKNOWN_LAYER,
                        layer=layer,
                        expected="a layer of a group, or an alias of one",
                        actual=actual,
                    )
                )
        return aliases
