"""Many deployments of one model: the product of some values for some flags, a row for each."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.errors import Code, LayoutError, LayoutErrors
from kvlayout.offline.answering import fits
from kvlayout.offline.flags import in_flags, read_flags
from kvlayout.offline.serving import serve
from kvlayout.offline.settings import chunk_unit, largest_page, padding_share
from kvlayout.planning import attempt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvlayout.offline.model import Model

__all__ = ["MOST", "Axis", "Row", "axes", "rows"]

#: Deployments of one sweep: beyond, a value was surely typed wrong.
MOST: Final = 100_000


class Axis(NamedTuple):
    """A field of the deployment and the texts that are tried for it."""

    field: str
    values: tuple[str, ...]


class Row(NamedTuple):
    """One deployment of a sweep; ``None`` where it is unusable, or where the memory is not known.

    Attributes:
        values: the text of each axis.
        block: tokens a block of attention.
        chunk: tokens that a store's chunk is a multiple of; ``None`` in a mode in which there is none.
        page_bytes: bytes of the largest page.
        padding: the share of all pages that is padding.
        fixed_bytes: bytes that a request holds at most, however long it is.
        token_bytes: bytes that each further token adds.
        tokens: tokens of all requests of the longest length that fit together.
        requests: how many those are.
        errors: why it is refused.
    """

    values: tuple[str, ...]
    block: int | None = None
    chunk: int | None = None
    page_bytes: int | None = None
    padding: float | None = None
    fixed_bytes: int | None = None
    token_bytes: float | None = None
    tokens: int | None = None
    requests: float | None = None
    errors: tuple[LayoutError, ...] = ()


def axes(
    given: Mapping[str, str], sweeps: Sequence[tuple[str, tuple[str, ...]]]
) -> Result[tuple[Axis, ...], LayoutErrors]:
    """Return the axes of a sweep, every value read once; ``bad-config`` where one can't be read, or for too many."""
    faults: list[LayoutError] = []
    for field, values in sweeps:
        for value in values:
            read = read_flags({**given, field: value})
            faults += read.error.errors if isinstance(read, Err) else ()
    count = prod(len(values) for _, values in sweeps)
    if count > MOST:
        faults.append(
            LayoutError(Code.BAD_CONFIG, path="--sweep", expected=f"at most {MOST:,} deployments", actual=f"{count:,}")
        )
    return Err(LayoutErrors(dict.fromkeys(faults))) if faults else Ok(tuple(Axis(*one) for one in sweeps))


def rows(model: Model, given: Mapping[str, str], over: Sequence[Axis]) -> Iterator[Row]:
    """Yield a row for each deployment, the last axis fastest."""
    for values in product(*(axis.values for axis in over)):
        flags = {**given, **{axis.field: value for axis, value in zip(over, values, strict=True)}}
        yield _row(model, flags, values)


def _row(model: Model, flags: Mapping[str, str], values: tuple[str, ...]) -> Row:
    read = read_flags(flags)
    served = read if isinstance(read, Err) else serve(model, read.value)
    if isinstance(served, Err):
        return Row(values, errors=in_flags(served.error.errors).errors)
    made, room = served.value, fits(served.value)
    last = None if room is None else room.fits[-1]
    return Row(
        values,
        made.aligned_block,
        chunk_unit(made),
        largest_page(made),
        padding_share(made),
        None if room is None else room.fixed_bytes,
        None if room is None else room.token_bytes,
        None if last is None else last.tokens_in_all,
        None if last is None else last.requests,
        attempt(made.registration).errors,
    )
