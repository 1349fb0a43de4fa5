"""Sizes that may depend on the block count: ``a + b*m``, where the block count is ``N = m + 1``.

A size is a plain ``int`` wherever it does not depend on N, so a concrete layout holds plain numbers.
With m >= 0, ``a + b*m >= 0`` for every N exactly when ``a >= 0`` and ``b >= 0``: comparisons for *any*
number of blocks are two comparisons of integers (proofs: docs/proofs.md, 2).

>>> n = parse_size("17n")
>>> n.a, n.b, n.at(4)
(17, 17, 68)
>>> format_size(n + 64), format_size(divide(n, 17))
('64+17n', '1n')
"""

from __future__ import annotations

import re
from typing import TypeAlias, final

from attrs import frozen

__all__ = [
    "BLOCK_COUNT",
    "Affine",
    "NotAffineError",
    "Pair",
    "Size",
    "at",
    "divide",
    "fits",
    "format_size",
    "nonneg",
    "pair",
    "parse_size",
    "size",
]

Pair: TypeAlias = tuple[int, int]


class NotAffineError(ArithmeticError):
    """A product of two sizes that both depend on the block count; no real layout has one."""


@final
@frozen
class Affine:
    """A size ``a + b*m`` with ``b != 0``; made by :func:`size`, which gives an ``int`` where b is 0."""

    a: int
    b: int

    def __add__(self, other: Size) -> Size:
        """Add, case by case of the coefficients."""
        c, d = pair(other)
        return size(self.a + c, self.b + d)

    __radd__ = __add__

    def __neg__(self) -> Size:
        """Negate both coefficients."""
        return size(-self.a, -self.b)

    def __sub__(self, other: Size) -> Size:
        """Subtract the coefficients."""
        c, d = pair(other)
        return size(self.a - c, self.b - d)

    def __rsub__(self, other: int) -> Size:
        """Subtract from a constant."""
        return size(other - self.a, -self.b)

    def __mul__(self, other: Size) -> Size:
        """Multiply by a constant.

        Raises:
            NotAffineError: both factors depend on the block count.
        """
        c, d = pair(other)
        if d:
            message = f"({self}) * ({other}) is not affine in the block count"
            raise NotAffineError(message)
        return size(self.a * c, self.b * c)

    __rmul__ = __mul__

    def __str__(self) -> str:
        """Read like the document: ``64+17n``."""
        return format_size(self)

    def at(self, blocks: int) -> int:
        """Return the size at a block count of 1 or more."""
        return self.a + self.b * (blocks - 1)


Size: TypeAlias = int | Affine


#: The block count itself, N = 1 + m.
BLOCK_COUNT: Affine = Affine(1, 1)


def size(a: int, b: int) -> Size:
    """Return ``a + b*m``, as a plain ``int`` where it does not depend on m, and N as the one object that is N."""
    if not b:
        return a
    return BLOCK_COUNT if a == b == 1 else Affine(a, b)


def pair(value: Size) -> Pair:
    """Return the coefficients ``(a, b)``."""
    return (value, 0) if type(value) is not Affine else (value.a, value.b)


def at(value: Size, blocks: int) -> int:
    """Return a size at a concrete block count.

    >>> at(parse_size("64+2n"), 10), at(7, 10)
    (84, 7)
    """
    return value.at(blocks) if isinstance(value, Affine) else value


def nonneg(value: Size) -> bool:
    """Return whether a size is at least 0 for every block count of 1 or more."""
    return value.a >= 0 and value.b >= 0 if isinstance(value, Affine) else value >= 0


def fits(start: Size, extent: Size, storage: Size) -> bool:
    """Tell whether ``[start, + extent)`` lies in ``[0, storage)`` for every block count."""
    left = storage - start - extent
    if type(start) is type(left) is int:  # the path of every layer
        return start >= 0 and left >= 0
    return nonneg(start) and nonneg(left)


def divide(value: Size, divisor: int) -> Size | None:
    """Return the exact quotient for every block count, or ``None`` where there is none."""
    if type(value) is int:  # nearly always: a fifth of the time
        return None if value % divisor else value // divisor
    a, b = pair(value)
    return None if a % divisor or b % divisor else size(a // divisor, b // divisor)


_SYMBOLIC = re.compile(r"(?:([0-9]{1,19})\+)?([0-9]{0,19})n", re.ASCII)


def parse_size(text: str) -> Affine | None:
    """Read ``"[A+]Bn"``, n being the block count; ``None`` where the text is no such size.

    >>> parse_size("n"), parse_size("64 tokens") is None, parse_size("0n") is None
    (Affine(a=1, b=1), True, True)
    """
    match = _SYMBOLIC.fullmatch(text)
    if match is None:
        return None
    constant, slope = int(match[1] or 0), int(match[2] or 1)
    found = size(constant + slope, slope)
    return found if isinstance(found, Affine) else None


def format_size(value: Size) -> str:
    """Write a size the way the document does."""
    if not isinstance(value, Affine):
        return str(value)
    constant = value.a - value.b
    return f"{constant}+{value.b}n" if constant else f"{value.b}n"
