"""Tiny models of every family, as their config.json would be: a few layers, small widths, real proportions of kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["NAMES", "UNBUILT", "config", "encoded"]

_FOLDER = Path(__file__).parent

NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))

#: What vLLM 0.32 has no model of (Bamba), or no attention on a CPU for (DeepSeek V3.2).
UNBUILT = frozenset(("bamba", "deepseekv32"))


def config(name: str, **changes: Any) -> dict[str, Any]:
    """Return a config with some fields changed."""
    read: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return read | changes


def encoded(fields: object) -> bytes:
    """Return a config as its file would be."""
    return json.dumps(fields).encode()
