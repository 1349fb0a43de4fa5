from __future__ import annotations

from tests.cli.running import terminal

__all__ = ["terminal"]
