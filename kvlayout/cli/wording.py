"""How numbers, shapes and names read. Text only: nothing here knows how it is printed.

Names come from documents that anyone can write, so what a terminal would obey is shown and not sent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attrs import evolve

from kvlayout.algebra.affine import Affine, Size, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvlayout.errors import LayoutError

__all__ = ["clean", "counted", "harmless", "names", "number", "ranges", "shape", "shortened"]

_DIGITS = re.compile(r"([0-9]{1,18})")
_DOT = re.compile(r"(?<!\.)\.(?!\.)")  # between two parts of a name, and none of "..."
_MANY = 4


def clean(text: str) -> str:
    r"""Return text with every character that does not print replaced by its escape.

    >>> print(clean("layers.0\x1b[2J"))
    layers.0\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def harmless(error: LayoutError) -> LayoutError:
    """Return an error whose texts only print."""
    return evolve(
        error,
        layer=None if error.layer is None else clean(error.layer),
        layers=tuple(map(clean, error.layers)),
        expected=clean(error.expected),
        actual=clean(error.actual),
        fix=clean(error.fix),
        path=clean(error.path),
    )


def number(value: Size | None) -> str:
    """Return a count with its thousands; ``n`` is the block count.

    >>> from kvlayout.algebra.affine import parse_size
    >>> number(1097728), number(parse_size("64+1097728n")), number(parse_size("n")), number(None)
    ('1,097,728', '64+1,097,728n', 'n', '-')
    """
    if value is None:
        return "-"
    if not isinstance(value, Affine):
        return f"{value:,}"
    constant, slope = value.a - value.b, f"{value.b:,}n" if value.b != 1 else "n"
    return f"{constant:,}+{slope}" if constant else slope


def shape(extents: Sequence[Size]) -> str:
    """Return a shape the way torch writes it.

    >>> from kvlayout.algebra.affine import parse_size
    >>> shape((parse_size("17n"), 32, parse_size("n")))
    '[17n, 32, n]'
    """
    return "[" + ", ".join("n" if (text := format_size(one)) == "1n" else text for one in extents) + "]"


def counted(count: int, noun: str) -> str:
    """Return a count and its noun.

    >>> counted(1, "layer"), counted(1200, "layer")
    ('1 layer', '1,200 layers')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def names(layers: Sequence[str]) -> str:
    """Return many names as one: the numbers in which they differ in braces, else the first and the last.

    >>> names(["model.layers.0.attn", "model.layers.1.attn", "model.layers.2.attn", "model.layers.5.attn"])
    'model.layers.{0-2,5}.attn'
    >>> names(["encoder.attn", "model.layers.1.attn", "draft.attn"])
    'encoder.attn ... draft.attn'
    """
    if len(layers) < 2:
        return clean("".join(layers))
    parts = [_DIGITS.split(layer) for layer in layers]
    apart = {i for one in parts for i, (x, y) in enumerate(zip(one, parts[0], strict=False)) if x != y}
    if len(apart) == 1 and len({len(one) for one in parts}) == 1:
        (at,) = apart
        if at % 2:
            head, tail = "".join(parts[0][:at]), "".join(parts[0][at + 1 :])
            return clean(f"{head}{{{ranges([int(one[at]) for one in parts])}}}{tail}")
    between = ", " if len(layers) == 2 else " ... "
    return clean(f"{layers[0]}{between}{layers[-1]}")


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers with neighbours joined, and the middle of many left out.

    >>> ranges((0, 1, 2, 4, 5, 9)), ranges(range(3, 48, 4))
    ('0-2,4,5,9', '3,7,...,47')
    """
    runs: list[list[int]] = []
    for one in sorted(set(numbers)):
        if runs and one == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], one]
        else:
            runs.append([one])
    texts = [("-" if run[-1] - run[0] > 1 else ",").join(map(str, run)) for run in runs]
    return ",".join(texts if len(texts) <= _MANY else [*texts[:2], "...", texts[-1]])


def shortened(text: str, width: int) -> str:
    """Return a name that fits: its end says most, so its start goes.

    >>> shortened("language_model.model.layers.{3,7,11}.self_attn.attn", 36)
    '...layers.{3,7,11}.self_attn.attn'
    >>> shortened("model.layers.{0-2,4-6,...,20-22}.linear_attn", 28)
    '...6,...,20-22}.linear_attn'
    """
    if len(text) <= width:
        return text
    kept = text[len(text) - width + 3 :].lstrip(".")
    dot = _DOT.search(kept)
    return "..." + (kept[dot.end() :] if dot is not None and dot.end() <= width // 3 else kept)
