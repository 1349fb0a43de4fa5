"""One pass over the layers of a registration: the path of every layer, so nothing here is done twice for equal ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import evolve

from kvlayout.algebra.affine import Size
from kvlayout.algebra.dtype import DTYPES
from kvlayout.cache.registration import Entry, Group, RegisteredTensor, Registration
from kvlayout.cache.spec import Spec
from kvlayout.errors import Code, LayoutError
from kvlayout.placing import Place, misplaced, misplaced_by, places_of, shape_of
from kvlayout.plans import Placed, Shape, Windows
from kvlayout.rules.presentation import Presentation
from kvlayout.rules.rule import Registry
from kvlayout.sharing import overlap_errors

__all__ = ["Survey"]

#: The shape of a layer (none where it is not proved), where it starts, what is wrong with it, and what it owns there.
_Seat: TypeAlias = tuple[Shape | None, Size, LayoutError | None, tuple[Size, Windows]]

_UNPROVED: Final = LayoutError(Code.RULE_NOT_PROVED)
_NOWHERE: Final[_Seat] = (None, 0, _UNPROVED, (0, ()))


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

    Groups are taken in order, then storages are shared, then unlisted caches matched; ``placed`` and ``errors`` grow.
    """

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
