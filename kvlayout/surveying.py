"""One pass over the layers of a registration: the path of every layer, so nothing here is done twice for equal ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Final

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


def _alike(columns: Sequence[Sequence[object]]) -> Iterable[Sequence[int]]:
    """Return the positions at which all columns have equal values, together; mostly these are all positions."""
    count = len(columns[0])
    for column in columns:
        if column.count(column[0]) != count:
            break
    else:
        return (range(count),)
    found: dict[tuple[object, ...], list[int]] = {}
    for position, facts in enumerate(zip(*columns, strict=True)):
        found.setdefault(facts, []).append(position)
    return found.values()


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
        self.owners: dict[str, int] = {}
        self.excluded: set[str] = set()
        self.places = places_of(registration)
        self.caches = registration.caches
        self.shapes: dict[tuple[object, ...], Shape | LayoutError] = {}

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

    def _place(self, index: int, layers: Mapping[str, int], shared: Spec, leaves: Mapping[str, Spec]) -> None:
        """Place the layers of a served group that are registered."""
        caches, names = self.caches, [*layers]
        faults: dict[str, LayoutError] = {}
        try:
            entries = [caches[layer] for layer in names]
        except KeyError:
            missing = LayoutError(Code.MISSING_LAYER, expected="a registered cache", actual="none")
            faults = dict.fromkeys(layers.keys() - caches.keys(), missing)
            names = [layer for layer in names if layer not in faults]
            entries = [caches[layer] for layer in names]
        if not all(entries):
            empty = LayoutError(Code.AXES_MISMATCH, expected="a tensor, or a list of them", actual="an empty list")
            faults |= {layer: empty for layer, entry in zip(names, entries, strict=True) if not entry}
            names, entries = [layer for layer in names if caches[layer]], [entry for entry in entries if entry]
        if names:
            specs = [leaves.get(layer, shared) for layer in names] if leaves else [shared] * len(names)
            self._place_all(index, names, entries, specs, faults)
        if faults:
            self.errors += [evolve(faults[layer], group=index, layer=layer) for layer in layers if layer in faults]

    def _place_all(
        self,
        index: int,
        layers: list[str],
        entries: list[Entry],
        specs: list[Spec],
        faults: dict[str, LayoutError],
    ) -> None:
        """Place layers, those of which only the places differ all at once: one proof, and a place for each."""
        named = self.places.first
        places = [named.get(layer, _NOWHERE) for layer in layers] if named else []
        block_strides = [place[2] for place in places] or [None] * len(layers)
        tensors = [entry if type(entry) is RegisteredTensor else entry[0] for entry in entries]
        lists = [None if type(entry) is RegisteredTensor else _relative(entry) for entry in entries]
        sizes, strides, offsets, dtypes, storages, nbytes = zip(*tensors, strict=True)
        columns = (specs, block_strides, lists, sizes, strides, dtypes, nbytes)
        for run in _alike(columns):
            first = run[0]
            key = (specs[first], lists[first], sizes[first], strides[first], dtypes[first])
            shape = self._prove(key, specs[first], entries[first], block_strides[first])
            if isinstance(shape, LayoutError):
                faults.update(dict.fromkeys([layers[i] for i in run], shape))
                continue
            bases = tuple([offsets[i] * shape.itemsize for i in run])
            made = Run(tuple([layers[i] for i in run]), index, shape, tuple([storages[i] for i in run]), bases)
            said = [places[i] for i in run] if places else places
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
