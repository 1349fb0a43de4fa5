"""Run the tests against the built wheel, with the sources out of reach: `python tools/wheel_run.py DIST [pytest...]`.

The wheel is installed alone into a second virtual environment, .venv-wheel. The packages that the tests need are not
installed twice: a .pth file adds the first environment's site-packages to the end of the path. Python does not read
.pth files of a folder that was itself added by one, so the editable install of kvlayout in the first environment, which
is only such a file, is not seen. All but the sources is copied to a temporary folder, and pytest runs there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OVERLAY = ROOT / ".venv-wheel"
LEFT_BEHIND = ("kvlayout", ".git", ".venv", ".venv-wheel", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")


def make_overlay(wheel: Path) -> Path:
    """Install the wheel, and nothing else, into a new environment; return its Python."""
    venv.create(OVERLAY, clear=True, with_pip=False, symlinks=True)
    python = OVERLAY / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    ask = [str(python), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    first = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (Path(site) / "zz_first_environment.pth").write_text("\n".join(first) + "\n")
    return python


def check_origin(python: Path, folder: Path) -> None:
    """Refuse to go on where kvlayout comes from anywhere but the wheel."""
    code = "import kvlayout, sys; print(kvlayout.__file__); print(*sys.path, sep='\\n')"
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True, cwd=folder)
    origin, *path = done.stdout.split("\n")
    if not Path(origin).is_relative_to(OVERLAY) or str(ROOT) in path:
        raise SystemExit(f"wheel run: kvlayout comes from {origin}, not from the wheel")
    print(f"wheel run: kvlayout is {origin}", flush=True)


def main(dist: Path, arguments: list[str]) -> int:
    """Install, copy, run; the copy is kept where a test failed."""
    (wheel,) = dist.glob("*.whl")
    os.environ.pop("PYTHONPATH", None)
    python = make_overlay(wheel.resolve())
    folder = Path(tempfile.mkdtemp(prefix="kvlayout-wheel-")) / "checkout"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    check_origin(python, folder)
    environment = {**os.environ, "KVLAYOUT_WHEEL_RUN": "1", "KVLAYOUT_DIST": str(dist.resolve())}
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "--rootdir=.", "--config-file=pyproject.toml"]
    code = subprocess.run([*command, *arguments], check=False, cwd=folder, env=environment).returncode
    if code:
        print(f"wheel run: failed; what ran is in {folder}", flush=True)
    else:
        shutil.rmtree(folder.parent)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
