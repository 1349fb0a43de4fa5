"""Bytes and elements: two units that are never added to each other.

At run time a value of either unit is the plain size it was made from (an ``int``, or an
:class:`~kvlayout.algebra.affine.Affine` where it depends on the block count). For mypy the two are
opaque classes, so that ``Bytes(4) + Elements(1)`` is an error of the type checker; a plain ``NewType``
over ``int`` would let it through.

>>> Bytes(4) + Bytes(2)
6
>>> in_bytes(Elements(3), 2)
6
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType, final

if TYPE_CHECKING:
    from kvlayout.algebra.affine import Size

__all__ = ["Bytes", "Elements", "all_in_bytes", "all_raw", "in_bytes", "in_elements", "raw"]

if TYPE_CHECKING:

    @final
    class Bytes:
        """A number of bytes: what strides, offsets and pages are measured in."""

        def __init__(self, value: Size) -> None: ...
        def __add__(self, other: Bytes) -> Bytes: ...
        def __sub__(self, other: Bytes) -> Bytes: ...
        def __mul__(self, count: Size) -> Bytes: ...

    @final
    class Elements:
        """A number of tensor elements: the unit of ``torch.Tensor.stride()``."""

        def __init__(self, value: Size) -> None: ...
        def __add__(self, other: Elements) -> Elements: ...
        def __sub__(self, other: Elements) -> Elements: ...
        def __mul__(self, count: Size) -> Elements: ...

else:
    Bytes = NewType("Bytes", int)
    Elements = NewType("Elements", int)


def raw(value: Bytes | Elements) -> Size:
    """Return the bare number behind a unit, for the arithmetic of the kernel.

    >>> raw(Bytes(16))
    16
    """
    return value  # type: ignore[return-value]  # a unit is its number at run time


def all_raw(values: tuple[Bytes, ...]) -> tuple[Size, ...]:
    """Return the bare numbers behind the strides of a layout, all at once.

    >>> all_raw((Bytes(16), Bytes(2)))
    (16, 2)
    """
    return values  # type: ignore[return-value]  # a unit is its number at run time


def in_bytes(count: Elements, itemsize: int) -> Bytes:
    """Convert elements of ``itemsize`` bytes to bytes: the door through which strides enter.

    >>> in_bytes(Elements(576), 2)
    1152
    """
    return Bytes(raw(count) * itemsize)


def all_in_bytes(counts: tuple[Size, ...], itemsize: int) -> tuple[Bytes, ...]:
    """Convert the strides of a tensor to bytes, all at once: this is done for every tensor that is planned.

    >>> all_in_bytes((36864, 576, 1), 2)
    (73728, 1152, 2)
    """
    return tuple([count * itemsize for count in counts])  # type: ignore[misc]  # a unit is its number at run time


def in_elements(count: Bytes, itemsize: int) -> Elements | None:
    """Convert bytes to elements: the door to ``as_strided``; ``None`` where they don't divide.

    >>> in_elements(Bytes(1152), 2)
    576
    >>> in_elements(Bytes(3), 2) is None
    True
    """
    from kvlayout.algebra.affine import divide

    quotient = divide(raw(count), itemsize)
    return None if quotient is None else Elements(quotient)
