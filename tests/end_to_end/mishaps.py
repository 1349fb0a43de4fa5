"""Programs that go wrong."""

from __future__ import annotations

import os
import subprocess
import time

__all__ = ["crash", "fail", "hang"]


def fail() -> None:
    raise ValueError("the page is torn")


def hang() -> None:
    # with a child of its own, as a compiler would be
    subprocess.Popen(["sleep", "600"])
    os.write(1, b"about to wait\n")
    time.sleep(600)


def crash() -> None:
    os.abort()
