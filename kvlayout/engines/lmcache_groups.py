"""What LMCache sees of a plan: for every group the views that it tells apart, and the numbers that it reads elsewhere.

Facts about LMCache 0.5.6, worked out from a plan without LMCache; :mod:`kvlayout.warning` compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.algebra.affine import at
from kvlayout.algebra.layout import Axis
from kvlayout.algebra.units import raw
from kvlayout.cache.registration import Group, RegisteredTensor
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec, StateSpec
from kvlayout.engines.lmcache_formats import Block, Reading, Tensor, detect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvlayout.plans import Plan, Shape

__all__ = ["MANY", "Kind", "Truth", "kinds_of", "moves", "read_group", "tokens_of", "window_of"]

#: Stands for a block count that is not known: no size that LMCache looks for, and larger than any axis within a block.
MANY: Final = 1_000_003


class Truth(NamedTuple):
    """What a view is: its block count, rows a block, bytes between them (none for one row), and pages."""

    blocks: int
    slots: int
    slot_stride: int | None
    bases: tuple[int, ...]
    stride: int
    covered: int

    def block(self, index: int) -> Block:
        """Return the bytes of a block, from the first byte of the view."""
        return tuple((base + index * self.stride, base + index * self.stride + self.covered) for base in self.bases)

    @property
    def probes(self) -> tuple[int, ...]:
        """Blocks that tell: places are linear in the block id."""
        return (0, 1, self.blocks - 1) if self.blocks > 1 else (0,)


class Kind(NamedTuple):
    """Layers of one group and one shape: LMCache reads them alike. ``position``: of the first one among all caches."""

    group: int
    layers: tuple[str, ...]
    position: int
    spec: Spec
    tensor: Tensor
    truth: Truth


def _first(group: Group) -> Spec:
    """Return the spec that LMCache takes for that of a whole group."""
    return next(iter(group.leaves.values()), group.spec)


def moves(group: Group) -> bool:
    """Return whether LMCache moves a group: the spec of its first layer is not scratch."""
    return _first(group).prefix_cacheable


def tokens_of(group: Group, plan: Plan) -> int:
    """Return the tokens a block that LMCache counts: every attention spec is spread over the ranks, it holds."""
    spec = _first(group)
    spread = plan.registration.engine.dcp if isinstance(spec, AttentionSpec | LatentSpec) else 1
    return max((group.spec.block_size or spec.block_size) * spread, 1)


def window_of(spec: Spec) -> int | None:
    """Return the tokens that LMCache takes for a layer's window."""
    if isinstance(spec, StateSpec):
        return spec.block_size
    if isinstance(spec, AttentionSpec | LatentSpec) and spec.kind.startswith("sliding_window"):
        return spec.window_tokens
    return None


def kinds_of(plan: Plan) -> Iterator[Kind]:
    """Put layers of one group and one shape together, in the order of the group."""
    blocks = at(1 if plan.blocks is None else plan.blocks, MANY)
    order = {layer: position for position, layer in enumerate(plan.registration.caches)}
    alike: dict[tuple[int, int], tuple[Shape, list[str]]] = {}
    for run in plan.runs:
        alike.setdefault((run.group, id(run.shape)), (run.shape, []))[1].extend(run.layers)
    for (group, _), (shape, layers) in alike.items():
        tensor = _shown(shape, plan.registration.caches[layers[0]])
        first = min(order[layer] for layer in layers)
        yield Kind(group, tuple(layers), first, shape.spec, tensor, _truth(shape, blocks))


def _shown(shape: Shape, entry: object) -> Tensor:
    """Return the tensor that LMCache gets: the registered one where it is left as it is."""
    view = shape.view
    if shape.same and isinstance(entry, RegisteredTensor):
        sizes, steps = entry.shape, entry.strides
    else:
        sizes, steps = view.shape, view.element_strides() or ()
    many = tuple(tuple(at(size, MANY) for size in values) for values in (sizes, steps))
    return Tensor(many[0], many[1], view.dtype.name, view.dtype.itemsize)


def _truth(shape: Shape, blocks: int) -> Truth:
    view, pages = shape.view, shape.cache.pages
    rows = next((i for i, axis in enumerate(view.axes) if axis in (Axis.TOKEN, Axis.STATE)), None)
    step = None if rows is None or view.shape[rows] == 1 else at(raw(view.strides[rows]), MANY)
    start = at(raw(view.offset), MANY)
    bases = tuple(at(base, MANY) - start for base in pages.bases)
    covered = at(view.inner_bytes, MANY) // len(bases)
    return Truth(blocks, shape.cache.states, step, bases, at(pages.stride, MANY), covered)


def read_group(kinds: Sequence[Kind], hint: str) -> list[tuple[Kind, Reading | str]]:
    """Detect the formats of a group: layers of one shape and element type together, whatever their strides."""
    alike: dict[tuple[tuple[int, ...], str], list[Kind]] = {}
    for kind in kinds:
        alike.setdefault((kind.tensor.shape, kind.tensor.dtype), []).append(kind)
    found: list[tuple[Kind, Reading | str]] = []
    for members in alike.values():
        found += zip(members, detect([kind.tensor for kind in members], hint), strict=True)
    return found
