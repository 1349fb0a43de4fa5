"""Refusals that say the same of several places, put together: by code, then by all that is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvlayout.cli.wording import counted, harmless, names, ranges
from kvlayout.errors import LayoutError, describe, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Refusal", "refusals"]

_MANY = 4


class Refusal(NamedTuple):
    """Errors that differ in their place only: labelled lines, the places in one of them."""

    rows: tuple[tuple[str, str], ...]


def refusals(errors: Sequence[LayoutError]) -> list[tuple[str, str, list[Refusal]]]:
    """Return code, meaning and refusals, in the order in which codes first occur."""
    alike: dict[str, dict[tuple[tuple[str, str], ...], list[LayoutError]]] = {}
    meanings: dict[str, str] = {}
    for error in map(harmless, errors):
        meanings.setdefault(error.code.value, explain(error))
        alike.setdefault(error.code.value, {}).setdefault(_said(error), []).append(error)
    return [
        (code, meanings[code], [Refusal((("where", _places(same)), *said)) for said, same in groups.items()])
        for code, groups in alike.items()
    ]


def _said(error: LayoutError) -> tuple[tuple[str, str], ...]:
    """Return the labelled lines of an error but for its place."""
    lines = describe(error).split("\n  ")[1:]
    return tuple((line[:9].rstrip(), line[10:]) for line in lines if not line.startswith("where "))


def _places(errors: Iterable[LayoutError]) -> str:
    """Return where some errors are: for each group, its layers."""
    layers: dict[int | None, list[str]] = {}
    paths = []
    for error in errors:
        of = layers.setdefault(error.group, [])
        of += ([error.layer] if error.layer is not None else []) + list(error.layers)
        paths += [error.path] if error.path else []
    if len(layers) > _MANY:
        known = ranges(group for group in layers if group is not None)
        texts = [_place(f"groups {known}" if known else "", [layer for of in layers.values() for layer in of])]
    else:
        texts = [_place("" if group is None else f"group {group}", of) for group, of in layers.items()]
    texts += [f"at {path}" for path in paths[:_MANY]]
    if len(paths) > _MANY:
        texts.append(f"and {len(paths) - _MANY} more")
    return ", ".join(filter(None, texts)) or "the registration"


def _place(group: str, layers: list[str]) -> str:
    texts = [group] if group else []
    if layers:
        texts.append(("layer " if len(layers) == 1 else f"{counted(len(layers), 'layer')} ") + names(layers))
    return ": ".join(texts)
