"""What an engine's policy works with: a layer's cache on one rank, a group of them, and a refusal.

>>> keys = LayerSpec("full", block=64, heads=2, content=512, head_size=128, head_size_v=128, dtype="bfloat16")
>>> keys.payload, keys.page, keys._replace(padded=70000).page
(65536, 65536, 70000)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from kvlayout.cache.spec import StateField
from kvlayout.errors import Code, LayoutError
from kvlayout.offline.deployment import KernelSize

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GROWING", "Bunch", "Kind", "LayerSpec", "RefusedError", "refused"]

Kind: TypeAlias = Literal["full", "sliding", "chunked", "latent", "sliding-latent", "state", "cross"]

#: Kinds whose blocks grow with the request, as the engine's managers see them.
GROWING: Final[frozenset[Kind]] = frozenset(("full", "latent"))


class LayerSpec(NamedTuple):
    """What the engine keeps of one layer on one rank: its own numbers, before they become a spec of a registration.

    Attributes:
        kind: the kind of cache.
        block: tokens a block.
        heads: head slots a token; 1 for a state.
        content: bytes of one head slot of one token; of all states together for a state.
        head_size: elements of a key head; ``head_size_v`` those of a value head.
        dtype: element type of the tensor; ``int8`` for a state.
        mode: the engine's word for the cache's element type (``auto``, ``fp8``, ...), which keeps layers apart.
        window: tokens that are looked back at; ``chunk`` tokens of a local chunk.
        padded: bytes of the page, where it is larger than what it keeps.
        align: bytes that the distance of two blocks is a multiple of, or the kernel blocks that it must hold whole.
        sharded: decode-context parallelism spreads a block's tokens over its ranks.
        indexer: rows of an indexer; ``leader`` a latent layer that has one.
        fields: the states, in the order in which a page keeps them.
        backend: the engine's word for the backend of a state.
        cache_mode: which states are kept.
    """

    kind: Kind
    block: int
    heads: int
    content: int
    head_size: int = 0
    head_size_v: int = 0
    dtype: str = "int8"
    mode: str = "auto"
    window: int | None = None
    chunk: int | None = None
    padded: int | None = None
    align: int | KernelSize | None = None
    sharded: bool = True
    indexer: bool = False
    leader: bool = False
    fields: tuple[StateField, ...] = ()
    backend: str = ""
    cache_mode: str = ""

    @property
    def rows(self) -> int:
        """Rows a block: its tokens, or 1 for a state."""
        return 1 if self.kind == "state" else self.block

    @property
    def payload(self) -> int:
        """Bytes of a page that carry state."""
        return self.content if self.kind == "state" else self.heads * self.block * self.content

    @property
    def page(self) -> int:
        """Bytes that the engine reserves for one block of one layer."""
        return self.payload if self.padded is None else self.padded


class Bunch(NamedTuple):
    """Layers that share block ids: a group before it is a registration's.

    Attributes:
        layers: their names.
        spec: the group's spec, where one holds for all.
        leaves: specs of single layers, where they have their own.
    """

    layers: tuple[str, ...]
    spec: LayerSpec
    leaves: Mapping[str, LayerSpec]

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """The spec of each layer."""
        return tuple(self.leaves[layer] for layer in self.layers) if self.leaves else (self.spec,) * len(self.layers)


class RefusedError(Exception):
    """The engine would not start like this; caught by :func:`kvlayout.offline.serving.serve`."""

    def __init__(self, error: LayoutError) -> None:
        self.error = error
        super().__init__(error)


def refused(path: str, expected: str, actual: object, fix: str = "", code: Code = Code.BAD_CONFIG) -> RefusedError:
    """Return the refusal of a deployment, to be raised.

    Args:
        path: the field of the deployment or of the model.
        expected: what the engine asks for.
        actual: what was found.
        fix: what the user can change.
        code: the kind of refusal.
    """
    return RefusedError(LayoutError(code, expected=expected, actual=str(actual), fix=fix, path=path))
