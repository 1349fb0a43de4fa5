"""From a registration to a plan: every group judged, every layer proved, every refusal collected.

>>> from kvlayout.cache.registration import Registration
>>> plan(Registration((), {})).unwrap().groups
()

One structural proof serves all layers with one spec and one layout up to its offset; a further layer costs its
facts, one look-up and its own place in the storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from attrs import evolve

from kvlayout.algebra.affine import BLOCK_COUNT, Affine, Size
from kvlayout.algebra.dtype import DTYPES
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
from kvlayout.placing import Place, misplaced, misplaced_by, places_of, shape_of
from kvlayout.plans import Disposition, Placed, Plan, Shape, Windows
from kvlayout.rules.builtin import installed
from kvlayout.rules.presentation import Form, Presentation
from kvlayout.rules.rule import Registry
from kvlayout.sharing import overlap_errors

__all__ = ["Attempt", "attempt", "plan", "validate"]

#: The shape of a layer (none where it is not proved), where it starts, what is wrong with it, and what it owns there.
_Seat: TypeAlias = tuple[Shape | None, Size, LayoutError | None, tuple[Size, Windows]]

_SERVED: Final = Disposition("served", None)
_KEEPS_STATE: Final = ("align", "all")
_UNPROVED: Final = LayoutError(Code.RULE_NOT_PROVED)
_NOWHERE: Final[_Seat] = (None, 0, _UNPROVED, (0, ()))


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
    cacheable, viewed, cached = False, False, False
    for spec in specs:
        cacheable = cacheable or spec.prefix_cacheable
        viewed = viewed or spec.has_layer_views
        cached = cached or not isinstance(spec, EncoderOnlySpec)
    reason = None
    if not cacheable:
        reason = "scratch"
    elif not viewed:
        reason = "raw"
    elif group.host_resident:
        reason = "host-resident"
    elif not group.transferable:
        reason = "not-transferable"
    elif not cached:
        reason = "encoder-only"
    if reason is not None:
        return Disposition("excluded", reason), None
    for spec in specs:
        error = _unserved(spec)
        if error is not None:
            return Disposition("refused", error.code.value), evolve(error, group=index)
    return _SERVED, None


def _unserved(spec: Spec) -> LayoutError | None:
    if isinstance(spec, CrossAttentionSpec):
        return LayoutError(Code.UNSUPPORTED_CROSS_ATTENTION, expected="self-attention or state", actual=spec.type)
    if isinstance(spec, StateSpec):
        if spec.cache_mode in _KEEPS_STATE:
            return None
        return LayoutError(Code.UNSUPPORTED_MAMBA_MODE, expected="align or all", actual=spec.cache_mode)
    if isinstance(spec, (AttentionSpec, LatentSpec)) and spec.has_layer_views:
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
            if entry is None or not isinstance(spec, (AttentionSpec, LatentSpec, StateSpec)):
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
        self.caches = registration.caches
        self.shapes: dict[tuple[object, ...], Shape | LayoutError] = {}
        #: What the first layer of each storage owns there, and the storages of which another one owns something else.
        self.owned: dict[int, tuple[Size, Windows]] = {}
        self.crowded: set[int] = set()

    def take(self, index: int, group: Group, word: str) -> None:
        """Take the layers of one group."""
        fresh = dict.fromkeys(group.layers, index)
        if len(fresh) < len(group.layers) or not self.owners.keys().isdisjoint(fresh):
            self._twice(index, group, word)
            fresh = {layer: index for layer in fresh if layer not in self.owners}
        self.owners.update(fresh)
        if word == "served":
            self._place(index, fresh, group.spec, group.leaves)
        elif word == "excluded":
            self.excluded.update(fresh)

    def _twice(self, index: int, group: Group, word: str) -> None:
        """Refuse each further listing of a layer; a refused group has one error already."""
        seen: set[str] = set()
        for layer in group.layers if word != "refused" else ():
            if layer in self.owners or layer in seen:
                first = self.owners.get(layer, index)
                actual = f"group {index} twice" if first == index else f"group {first} and group {index}"
                self.errors.append(LayoutError(Code.LAYER_IN_TWO_GROUPS, index, layer, "one group", actual))
            seen.add(layer)

    def _place(self, index: int, layers: Iterable[str], shared: Spec, leaves: Mapping[str, Spec]) -> None:
        """Place the layers of a served group. The path of every layer: its facts, a comparison, its own place."""
        caches, places, placed, owned, make = self.caches, self.places, self.placed, self.owned, tuple.__new__
        spec, stride = shared, None
        last: tuple[object, ...] = ()
        here: Sequence[Place] = ()
        shape, base, fault, window = _NOWHERE
        met: set[int] = set()
        for layer in layers:
            entry = caches.get(layer)
            if entry is None:
                self.errors.append(LayoutError(Code.MISSING_LAYER, index, layer, "a registered cache", "none"))
                continue
            if leaves:
                spec = leaves.get(layer, shared)
            if places:
                here = places.get(layer, ())
                stride = here[0].block_stride if here else None
            if type(entry) is RegisteredTensor:
                sizes, strides, offset, dtype, storage, nbytes = entry
                facts: tuple[object, ...] = (spec, sizes, strides, dtype, stride, offset, nbytes)
            else:
                _, _, offset, _, storage, nbytes = entry[0]
                facts = (spec, _relative(entry), stride, offset, nbytes)
            if facts != last:  # neighbours in a group are mostly alike but for their storage, and specs the same object
                shape, base, fault, window = self._seat(facts, spec, entry, stride)
                last = facts
            error = fault
            if places and shape is not None:
                error = misplaced_by(here, shape, base, self.blocks) or fault
            if shape is None or error is not None:
                self.errors.append(evolve(error or _UNPROVED, group=index, layer=layer))
                continue
            if storage in met or owned.setdefault(storage, window) != window:
                self.crowded.add(storage)
            met.add(storage)
            placed.append(make(Placed, (layer, index, shape, base)))

    def _seat(self, facts: tuple[object, ...], spec: Spec, entry: Entry, stride: Size | None) -> _Seat:
        """Return the shape that a layer's facts have, where it starts, what is wrong with that, and what it owns."""
        shape = self._prove(facts[:-2], spec, entry, stride)  # all but where, and in how large a storage
        if isinstance(shape, LayoutError):
            return None, 0, shape, (0, ())
        first = entry if type(entry) is RegisteredTensor else entry[0]
        base = first.offset * shape.itemsize
        return shape, base, misplaced(shape, base, first, self.blocks), (base, shape.windows)

    def _prove(self, key: tuple[object, ...], spec: Spec, entry: Entry, stride: Size | None) -> Shape | LayoutError:
        """Prove a shape, or return the proof that an equal spec with equal facts has."""
        found = self.shapes.get(key)
        if found is None:
            found = shape_of(spec, entry, self.blocks, self.goal, self.registry, self.registration, stride)
            self.shapes[key] = found
        return found

    def share_storages(self) -> None:
        """Prove that layers on one storage keep out of each other's blocks, or name the groups that do not.

        Layers of different groups may overlay each other; so where all layers of a storage own one and the same
        window, and are of as many groups, there is nothing to prove.
        """
        crowded = self.crowded.union(storage for storage, (_, windows) in self.owned.items() if len(windows) > 1)
        if crowded:
            self.errors += overlap_errors(self.placed, self.caches, self.blocks, crowded)

    def match_unlisted(self) -> dict[str, str]:
        """Return the aliases: caches in no group whose tensors are those of a listed layer."""
        caches = self.registration.caches
        if caches.keys() <= self.owners.keys():
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
