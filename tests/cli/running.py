"""How the tests of this folder run the command line: in this process, or in one of its own."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvlayout.cli import main

DATA = Path(__file__).parents[1] / "data"
DOCUMENTS = sorted(DATA.glob("*/*.json"))
HYBRID = DATA / "registrations" / "qwen35-align-kp32.json"
REFUSED = DATA / "cases" / "refuse-three-groups.json"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Terminal:
    """The command line in this process, with its output captured."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.capsys, self.patch, self.folder = capsys, patch, folder
        for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)

    def __call__(self, *words: object, columns: int | None = None) -> Ran:
        if columns is not None:
            self.patch.setenv("COLUMNS", str(columns))
        self.capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = self.capsys.readouterr()
        return Ran(code, out, err)

    def write(self, document: object, name: str = "document.json") -> Path:
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    return Terminal(capsys, monkeypatch, tmp_path)


def process(*words: object, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    import os

    plain = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    command = [sys.executable, "-m", "kvlayout.cli", *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, env=plain | environment, timeout=120)


def document(path: Path = HYBRID) -> dict[str, Any]:
    """Return a document to change."""
    made: dict[str, Any] = json.loads(path.read_text())
    made.pop("expect", None)
    return made


def tensors(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [tensor for entry in made["caches"].values() for tensor in (entry if isinstance(entry, list) else [entry])]


def symbolic(made: dict[str, Any]) -> dict[str, Any]:
    """Return the document with its block count unknown, and all that depends on it as text."""
    made = copy.deepcopy(made)
    blocks = made["num_blocks"]

    def unbound(number: int | None) -> int | str | None:
        return number if not number or number % blocks else f"{number // blocks}n"

    made["num_blocks"] = None
    for tensor in tensors(made):
        tensor["shape"][0] = unbound(tensor["shape"][0])
        tensor["storage_offset"] = unbound(tensor["storage_offset"])
        tensor["storage_nbytes"] = unbound(tensor["storage_nbytes"])
    for placement in made["placements"]:
        for name in ("size", "offset", "layer_stride"):
            placement[name] = unbound(placement[name])
    return made
