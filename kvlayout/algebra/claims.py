"""What the prover speaks of: pages, witnesses, claims and the two answers that are no proof.

>>> Pages(bases=(0,), stride=65536, covered=65536).end(4)
262144
"""

from __future__ import annotations

from typing import NamedTuple, final

from attrs import frozen

from kvlayout.algebra.affine import Size

__all__ = ["Claim", "Pages", "Refuted", "Track", "Undecided", "Witness"]


class Claim(NamedTuple):
    """A claim and its reasons: the numbers from which anyone can check it again."""

    name: str
    reasons: tuple[tuple[str, object], ...]


@final
@frozen
class Witness:
    """A counter-example: at ``blocks`` blocks, index ``index`` is at byte ``actual`` and not ``expected``.

    ``None`` stands for "no such byte". What the index counts is said by the claim: bytes of the view (same, within,
    injective), bytes of a page (page, own), blocks or states (grain), block ids (fibre). Where the blocks or planes
    of a view lie elsewhere (page), the index counts these, and its bytes are the distances from the first one.
    """

    blocks: int
    index: int
    expected: int | None
    actual: int | None


class Pages(NamedTuple):
    """The bytes of block i: ``[base + i*stride, + covered)`` for each base (two where K and V lie apart)."""

    bases: tuple[Size, ...]
    stride: Size
    covered: int

    def shifted(self, distance: Size) -> Pages:
        """Return the same pages, ``distance`` bytes further on."""
        return Pages(tuple(base + distance for base in self.bases), self.stride, self.covered)

    def end(self, blocks: Size) -> Size:
        """Return the byte behind the last block of the last base."""
        return self.bases[-1] + (blocks - 1) * self.stride + self.covered


class Track(NamedTuple):
    """One interval of a layer's pages on a storage; ``groups`` are those whose block ids address it."""

    base: Size
    stride: Size
    page: int
    groups: frozenset[int]


@final
@frozen
class Refuted:
    """The claim is false, and here is where; ``tracks`` are the two that meet, for the claim ``fibre``."""

    claim: str
    reason: str
    witness: Witness
    tracks: tuple[Track, ...] = ()


@final
@frozen
class Undecided:
    """The kernel can't tell, which is a refusal; ``tracks`` are those concerned, for the claim ``fibre``."""

    claim: str
    reason: str
    tracks: tuple[Track, ...] = ()
