"""Moving pages: block ids and a view to bytes, and back."""

from __future__ import annotations

from kvlayout.transfer.pages import retrieve, store

__all__ = ["retrieve", "store"]
