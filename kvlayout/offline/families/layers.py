"""What a reading of a config gives: its layers with a cache, and where in the model they are."""

from __future__ import annotations

from typing import NamedTuple

from kvlayout.offline.model import Layer

__all__ = ["Layers"]


class Layers(NamedTuple):
    """Layers with a cache.

    Attributes:
        layers: in the order in which the engine makes them.
        depth: decoder layers, with and without a cache.
        positions: the decoder layer of each; empty where it is the first number of their names.
    """

    layers: tuple[Layer, ...]
    depth: int
    positions: tuple[int, ...] = ()
