"""What an engine hands over: groups with specs, placements, cache tensors and one layout name.

>>> kv = RegisteredTensor((3, 2, 64, 128), (16384, 8192, 128, 1), 0, "bfloat16", 0, 98304)
>>> kv.shape, kv.storage_nbytes
((3, 2, 64, 128), 98304)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

from attrs import evolve, frozen

from kvlayout.algebra.affine import Affine, Size, at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.algebra.result import Result
    from kvlayout.cache.spec import Spec
    from kvlayout.errors import LayoutErrors

__all__ = ["Engine", "Entry", "Group", "Placement", "RegisteredTensor", "Registration"]


@final
class RegisteredTensor(NamedTuple):
    """The facts of one cache tensor.

    Attributes:
        shape: sizes in elements.
        strides: elements between neighbours, one an axis.
        offset: elements from the storage's base to index 0.
        dtype: the element type's name in torch.
        storage: which storage; equal numbers are one storage.
        storage_nbytes: bytes of that storage, ``None`` where unknown.
    """

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    dtype: str
    storage: int
    storage_nbytes: Size | None

    def bind(self, blocks: int) -> RegisteredTensor:
        """Return the tensor at a concrete block count."""
        if Affine not in map(type, (*self.shape, *self.strides, self.offset, self.storage_nbytes)):
            return self
        return RegisteredTensor(
            tuple(at(size, blocks) for size in self.shape),
            tuple(at(size, blocks) for size in self.strides),
            at(self.offset, blocks),
            self.dtype,
            self.storage,
            None if self.storage_nbytes is None else at(self.storage_nbytes, blocks),
        )


#: One layer's cache: a tensor, or the list of tensors of a recurrent layer.
Entry: TypeAlias = RegisteredTensor | tuple[RegisteredTensor, ...]


class Engine(NamedTuple):
    """Who registered: engine, version, platform and the decode-context parallel size."""

    name: str = "vllm"
    version: str = ""
    platform: str = ""
    dcp: int = 1


class Placement(NamedTuple):
    """Where pages are, in bytes: block b of ``layers[l]`` at ``offset + l*layer_stride + b*block_stride``."""

    layers: tuple[str, ...]
    size: Size | None
    offset: Size | None
    layer_stride: Size | None
    block_stride: Size | None


@final
@frozen
class Group:
    """Layers whose pages are addressed by one sequence of block ids.

    Attributes:
        layers: their names.
        spec: the group's spec.
        leaves: specs of single layers, where they have their own.
        draft: the group belongs to a draft model.
        host_resident: its pages live on the host.
        transferable: the engine lets a connector move its pages.
    """

    layers: tuple[str, ...]
    spec: Spec
    leaves: Mapping[str, Spec]
    draft: bool = False
    host_resident: bool = False
    transferable: bool = True

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The group's spec, or where layers have their own, the spec of each."""
        leaves = tuple(self.leaves.get(layer, self.spec) for layer in self.layers) if self.leaves else ()
        return leaves or (self.spec,)


@final
@frozen
class Registration:
    """All that planning needs, from a document or from a live engine.

    Attributes:
        groups: groups of layers, in the engine's order.
        caches: layer name -> tensor or tensors, in the order of registration.
        placements: where the engine says pages are; empty where it does not.
        num_blocks: the block count N, ``None`` where unknown.
        kv_cache_layout: the engine's layout name, as ``LBNHC``.
        layout_hint: the form that the store wants: ``NHD``, ``HND``, ``BLNHC`` or ``BLHNC``.
    """

    groups: tuple[Group, ...]
    caches: Mapping[str, Entry]
    placements: tuple[Placement, ...] = ()
    num_blocks: int | None = None
    kv_cache_layout: str | None = None
    layout_hint: str | None = None
    engine: Engine = Engine()
    name: str = ""

    @staticmethod
    def from_json(text: str | bytes) -> Result[Registration, LayoutErrors]:
        """Read a registration document; a broken one is ``bad-document`` with the path to the place."""
        from kvlayout.cache.document import read_registration

        return read_registration(text)

    def to_json(self) -> str:
        """Write the registration document."""
        from kvlayout.cache.document import write_registration

        return write_registration(self)

    def bind(self, blocks: int) -> Registration:
        """Return the registration at a concrete block count of 1 or more."""
        caches: dict[str, Entry] = {}
        for layer, entry in self.caches.items():
            if isinstance(entry, RegisteredTensor):
                caches[layer] = entry.bind(blocks)
            else:
                caches[layer] = tuple(part.bind(blocks) for part in entry)
        placements = tuple(
            Placement(p.layers, *(None if size is None else at(size, blocks) for size in p[1:]))
            for p in self.placements
        )
        return evolve(self, caches=caches, placements=placements, num_blocks=blocks)
