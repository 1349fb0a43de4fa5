"""Layers that are treated alike, put together: one entry in the table for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvlayout.algebra.affine import Affine, Size
from kvlayout.algebra.units import raw
from kvlayout.cli.wording import number, shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvlayout.plans import Plan
    from kvlayout.summaries import LayerPlan

__all__ = ["Treatment", "treatments"]


class Treatment(NamedTuple):
    """What happens to some layers.

    Attributes:
        groups: indices of their groups; none for aliases.
        title: the rule, or why there is none.
        layers: their names.
        before: the registered tensors, one a line.
        after: the view; empty where the tensor is left as it is.
        content: ``semantic``, or ``opaque`` and how the page is packed.
        pages: where the bytes of block i are, a fact a line.
        proved: the claims that hold.
        open: the claims that only live tensors can close.
    """

    groups: tuple[int, ...]
    title: str
    layers: tuple[str, ...]
    before: tuple[str, ...]
    after: str
    content: str
    pages: tuple[str, ...]
    proved: tuple[str, ...]
    open: tuple[str, ...]


def treatments(plan: Plan) -> list[Treatment]:
    """Return the treatments of a plan in the order of groups; aliases are last.

    The engine splits layers that are alike over several groups (a hybrid model has three groups of equal states),
    so one entry can be of several groups.
    """
    alike: dict[Treatment, list[LayerPlan]] = {}
    for layer in plan.layers.values():
        alike.setdefault(_treatment(plan, layer), []).append(layer)
    made = [
        one._replace(
            groups=tuple(sorted({layer.group for layer in layers if layer.group is not None})),
            layers=tuple(layer.layer for layer in layers),
            pages=(*one.pages, *_starts(layers)),
        )
        for one, layers in alike.items()
    ]
    return sorted(made, key=lambda one: one.groups or (len(plan.groups),))


def _treatment(plan: Plan, layer: LayerPlan) -> Treatment:
    """Return what a layer has in common with others: all but its name and its place."""
    nothing = Treatment((), "", (), (), "", "", (), (), ())
    if layer.verdict == "excluded":
        reason = None if layer.group is None else plan.groups[layer.group].reason
        return nothing._replace(title=f"excluded: {reason}" if reason else f"excluded, as {layer.alias_of}")
    if layer.verdict == "alias":
        return nothing._replace(title=f"alias of {layer.alias_of}")
    content = layer.content.tag if layer.content else ""
    why = getattr(layer.content, "why", None)
    view = layer.view
    return Treatment(
        groups=(),
        title=layer.rule or ("left as it is" if layer.verdict == "same" else "bytes of the page"),
        layers=(),
        before=tuple(f"{shape(one.shape)} {one.dtype}" for one in layer.source),
        after="" if view is None or layer.verdict == "same" else f"{shape(view.shape)} {view.dtype.name}",
        content=f"{content}: {why}" if why else content,
        pages=_pages(layer),
        proved=tuple(claim.name for claim in layer.claims),
        open=layer.open,
    )


def _pages(layer: LayerPlan) -> tuple[str, ...]:
    """Return how many bytes of each block the view covers, and how far apart blocks are."""
    found = {claim.name: dict(claim.reasons) for claim in layer.claims}.get("page")
    if found is None or layer.page is None:
        return ()
    covered, page, planes = found["covered"], layer.page.page_bytes, layer.page.intervals
    part = "" if covered == page else f"{number(_size(covered))} of "
    each = f"page: {part}{number(page)} bytes{', twice (K and V apart)' if planes == 2 else ''}"
    return each, f"a block every {number(_size(found['stride']))} bytes"


def _size(value: object) -> Size | None:
    return value if isinstance(value, int | Affine) else None


def _starts(layers: Iterable[LayerPlan]) -> tuple[str, ...]:
    """Return where block 0 starts, and in how many storages."""
    views = [
        (layer.source[0].storage, raw(layer.view.offset))
        for layer in layers
        if layer.verdict in ("view", "same") and layer.view
    ]
    if not views:
        return ()
    starts, storages = list(dict.fromkeys(start for _, start in views)), len({storage for storage, _ in views})
    shown = " ... ".join(number(start) for start in (starts[:1] + starts[1:][-1:]))
    return (f"from byte {shown}{f' of {storages} storages' if storages > 1 else ''}",)
