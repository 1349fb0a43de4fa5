"""One pass over the layers of a registration: the path of every layer, so nothing here is done twice for equal ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Final, TypeAlias

from attrs import evolve

from kvlayout.algebra.affine import Size
from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.registration import Entry, Group, RegisteredTensor, Registration
from kvlayout.cache.spec import Spec
from kvlayout.errors import Code, LayoutError
from kvlayout.placing import Place, faultless, misplaced, misplaced_by, places_of, shape_of
from kvlayout.plans import Run, Shape
from kvlayout.rules.presentation import Presentation
from kvlayout.rules.rule import Registry
from kvlayout.sharing import overlap_errors

__all__ = ["Survey"]

_NOWHERE: Final[Place] = (None, None, None)

#: What layers have of their own: name, offset, storage, and what placements say of each, if they say anything.
_Columns: TypeAlias = tuple[tuple[str, ...], tuple[Size, ...], tuple[int, ...], tuple[Place, ...]]


def _alike(common: Sequence[Sequence[object]], own: _Columns) -> Iterable[tuple[int, _Columns]]:
    """Put layers together that have equal values in all columns in common; mostly these are all layers of a group.

    Yields the position of the first of them, and what each has of its own.
    """
    for column in common:
        if column.count(column[0]) != len(column):
            break
    else:
        return ((0, own),)
    found: dict[tuple[object, ...], list[int]] = {}
    for position, facts in enumerate(zip(*common, strict=True)):
        found.setdefault(facts, []).append(position)
    names, offsets, storages, places = own
    return [
        (
            rows[0],
            (
                tuple([names[i] for i in rows]),
                tuple([offsets[i] for i in rows]),
                tuple([storages[i] for i in rows]),
                tuple([places[i] for i in rows]) if places else (),
            ),
        )
        for rows in found.values()
    ]


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


class Survey:
    """One pass over a registration, collecting what was proved and what was refused.

    Groups are taken in order, then storages are shared, then unlisted caches matched; ``runs`` and ``errors`` grow.
    """

    def __init__(self, registration: Registration, registry: Registry, goal: Presentation, blocks: Size | None) -> None:
        self.registration, self.registry, self.goal = registration, registry, goal
        self.blocks: Size = 1 if blocks is None else blocks
        self.errors: list[LayoutError] = []
        self.runs: list[Run] = []
        groups = registration.groups
        self.owners = {layer: index for index, group in enumerate(groups) for layer in group.layers}
        self.twice = len(self.owners) < sum([len(group.layers) for group in groups])
        if self.twice:  # the first group that lists a layer has it
            self.owners = {}
            for index, group in enumerate(groups):
                for layer in group.layers:
                    self.owners.setdefault(layer, index)
        self.excluded: set[str] = set()
        self.places = places_of(registration)
        self.caches = registration.caches
        self.shapes: dict[tuple[object, ...], Shape | LayoutError] = {}

    def take(self, index: int, group: Group, word: str) -> None:
        """Take the layers of one group."""
        layers = group.layers
        if self.twice:
            self._twice(index, group, word)
            layers = tuple([layer for layer in dict.fromkeys(layers) if self.owners[layer] == index])
        if word == "served":
            self._place(index, layers, group.spec, group.leaves)
        elif word == "excluded":
            self.excluded.update(layers)

    def _twice(self, index: int, group: Group, word: str) -> None:
        """Refuse each further listing of a layer; a refused group has one error already."""
        seen: set[str] = set()
        for layer in group.layers if word != "refused" else ():
            first = self.owners[layer]
            if first != index or layer in seen:
                actual = f"group {index} twice" if first == index else f"group {first} and group {index}"
                self.errors.append(LayoutError(Code.LAYER_IN_TWO_GROUPS, index, layer, "one group", actual))
            seen.add(layer)

    def _place(self, index: int, layers: tuple[str, ...], shared: Spec, leaves: Mapping[str, Spec]) -> None:
        """Place the layers of a served group that are registered."""
        caches, names = self.caches, layers
        faults: dict[str, LayoutError] = {}
        try:
            entries = [caches[layer] for layer in names]
        except KeyError:
            missing = LayoutError(Code.MISSING_LAYER, expected="a registered cache", actual="none")
            faults = dict.fromkeys({*layers} - caches.keys(), missing)
            names = tuple([layer for layer in names if layer not in faults])
            entries = [caches[layer] for layer in names]
        if not all(entries):
            empty = LayoutError(Code.AXES_MISMATCH, expected="a tensor, or a list of them", actual="an empty list")
            faults |= {layer: empty for layer, entry in zip(names, entries, strict=True) if not entry}
            names = tuple([layer for layer in names if caches[layer]])
            entries = [entry for entry in entries if entry]
        if names:
            specs = [leaves.get(layer, shared) for layer in names] if leaves else (shared,)
            self._place_all(index, names, entries, specs, faults)
        if faults:
            self.errors += [evolve(faults[layer], group=index, layer=layer) for layer in layers if layer in faults]

    def _place_all(
        self,
        index: int,
        layers: tuple[str, ...],
        entries: list[Entry],
        specs: Sequence[Spec],
        faults: dict[str, LayoutError],
    ) -> None:
        """Place layers, those of which only the places differ all at once: one proof, and a place for each.

        There is one spec for all layers, or one for each.
        """
        named = self.places.first
        places = tuple([named.get(layer, _NOWHERE) for layer in layers]) if named else ()
        heads, lists = entries, None
        if {*map(type, entries)} != {RegisteredTensor}:
            lists = [None if isinstance(entry, RegisteredTensor) else _relative(entry) for entry in entries]
            heads = [entry if isinstance(entry, RegisteredTensor) else entry[0] for entry in entries]
        sizes, strides, offsets, dtypes, storages, nbytes = zip(*heads, strict=True)
        common: list[Sequence[object]] = [sizes, strides, dtypes, nbytes]
        common += [[place[2] for place in places]] if places else []
        common += [specs] if len(specs) > 1 else []
        common += [lists] if lists else []
        for first, (names, starts, held, said) in _alike(common, (layers, offsets, storages, places)):
            spec = specs[first] if len(specs) > 1 else specs[0]
            key = (spec, lists[first] if lists else None, sizes[first], strides[first], dtypes[first])
            shape = self._prove(key, spec, entries[first], said[0][2] if said else None)
            if isinstance(shape, LayoutError):
                faults.update(dict.fromkeys(names, shape))
                continue
            item = shape.itemsize
            bases = starts if item == 1 else tuple([start * item for start in starts])
            made = Run(names, index, shape, held, bases)
            if self.places.further or not faultless(shape, bases, nbytes[first], self.blocks, said):
                made = self._judged(made, nbytes[first], faults)
            if made.layers:
                self.runs.append(made)

    def _judged(self, run: Run, storage: Size | None, faults: dict[str, LayoutError]) -> Run:
        """Return a run without the layers that are misplaced, each with its first fault."""
        layers, index, shape, storages, bases = run
        first, further = self.places
        for layer, base in zip(layers, bases, strict=True):
            said = (first.get(layer, _NOWHERE), *further.get(layer, ()))
            found = [misplaced_by(place, shape, base, self.blocks) for place in said]
            found.append(misplaced(shape, base, storage, self.blocks))
            error = next(filter(None, found), None)
            if error is not None:
                faults[layer] = error
        kept = [layer not in faults for layer in layers]
        held, where = tuple(compress(layers, kept)), tuple(compress(storages, kept))
        return Run(held, index, shape, where, tuple(compress(bases, kept)))

    def _prove(self, key: tuple[object, ...], spec: Spec, entry: Entry, stride: Size | None) -> Shape | LayoutError:
        """Prove a shape, or return the proof that an equal spec with equal facts has, in storages of any size.

        A placement's block stride tells two readings apart, and has no part in any other proof.
        """
        found = self._known(key, spec, entry, None)
        if stride is None or isinstance(found, Shape) or found.code is not Code.AXES_AMBIGUOUS:
            return found
        return self._known((*key, stride), spec, entry, stride)

    def _known(self, key: tuple[object, ...], spec: Spec, entry: Entry, stride: Size | None) -> Shape | LayoutError:
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
        self.errors += overlap_errors(self.runs, self.owners, self.blocks)

    def match_unlisted(self) -> dict[str, str]:
        """Return the aliases: caches in no group whose tensors are those of a listed layer."""
        caches = self.registration.caches
        if caches.keys() <= self.owners.keys():
            return {}
        placed = {layer: run.shape for run in self.runs for layer in run.layers}
        listed: dict[Entry, list[str]] = {}
        for layer in caches:
            if layer in self.owners:
                listed.setdefault(caches[layer], []).append(layer)
        aliases: dict[str, str] = {}
        for layer, entry in caches.items():
            if layer in self.owners:
                continue
            same = listed.get(entry, [])
            found = [one for one in same if one in placed]
            views = {
                (shape.view.shape, shape.view.strides, shape.view.dtype, shape.same)
                for shape in map(placed.__getitem__, found)
            }
            excluded = [one for one in same if one in self.excluded]
            if len(views) > 1:
                actual = "different views of " + ", ".join(found)
                self.errors.append(
                    LayoutError(Code.AXES_AMBIGUOUS, layer=layer, expected="one view of its tensors", actual=actual)
                )
            elif found or excluded:
                aliases[layer] = found[0] if found else excluded[0]
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
