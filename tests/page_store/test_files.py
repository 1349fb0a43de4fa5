"""A page is whole or a miss: whatever was cut, flipped, exchanged, killed or out of space."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.page_files import HEADER, MAGIC, PageFiles

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
NAME = bytes(range(32))
OTHER = bytes(range(1, 33))
PAGE = [memoryview(b"keys and values "), memoryview(b"of two layers")]
WHOLE = b"keys and values of two layers"


@pytest.fixture
def files(tmp_path: Path) -> PageFiles:
    return PageFiles(tmp_path / "pages")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def found(files: PageFiles, name: bytes = NAME) -> bytes | None:
    page = files.read(name)
    return None if page is None else bytes(page)


def test_a_page_reads_back(files: PageFiles) -> None:
    files.write(NAME, PAGE)
    assert found(files) == WHOLE
    assert files.whole(NAME)
    assert [path.name for path in files.root.glob("*/*")] == [NAME.hex()]


def test_an_absent_page_is_a_quiet_miss(files: PageFiles, caplog: pytest.LogCaptureFixture) -> None:
    assert found(files) is None
    assert not files.whole(NAME)
    assert not lines(caplog)


def test_an_empty_page_is_a_page(files: PageFiles) -> None:
    files.write(NAME, [])
    assert found(files) == b""


def test_a_page_is_replaced_as_a_whole(files: PageFiles) -> None:
    files.write(NAME, PAGE)
    assert files.whole(NAME)
    files.write(NAME, PAGE[:1])
    assert found(files) == bytes(PAGE[0])


# ------------------------------------------------------------------------------------------------------ what is no page


def missed(files: PageFiles, caplog: pytest.LogCaptureFixture, word: str) -> None:
    """Check that a file is a miss with one line that names it, is gone then, and can be stored again."""
    path = files.path(NAME)
    assert not files.whole(NAME)
    assert found(files) is None
    (line,) = lines(caplog)
    assert str(path) in line
    assert word in line
    assert not path.exists()
    files.write(NAME, PAGE)
    assert found(files) == WHOLE


@pytest.mark.parametrize("length", range(HEADER.size + len(WHOLE)))
def test_a_page_cut_at_any_byte_is_a_miss(files: PageFiles, caplog: pytest.LogCaptureFixture, length: int) -> None:
    files.write(NAME, PAGE)
    os.truncate(files.path(NAME), length)
    missed(files, caplog, "bytes")


@pytest.mark.parametrize("place", range(HEADER.size + len(WHOLE)))
def test_a_page_with_any_byte_flipped_is_a_miss(files: PageFiles, caplog: pytest.LogCaptureFixture, place: int) -> None:
    files.write(NAME, PAGE)
    data = bytearray(files.path(NAME).read_bytes())
    data[place] ^= 1 << place % 8
    files.path(NAME).write_bytes(data)
    missed(files, caplog, "no page")


def test_a_page_with_more_behind_it_is_a_miss(files: PageFiles, caplog: pytest.LogCaptureFixture) -> None:
    files.write(NAME, PAGE)
    with files.path(NAME).open("ab") as file:
        file.write(b"\0")
    missed(files, caplog, f"{len(WHOLE) + 1} bytes of {len(WHOLE)}")


@pytest.mark.parametrize("magic", [b"SQLite f", b"KVPAGE\x00\x02"])
def test_a_file_of_another_format_is_a_miss(files: PageFiles, caplog: pytest.LogCaptureFixture, magic: bytes) -> None:
    files.write(NAME, PAGE)
    data = files.path(NAME).read_bytes()
    files.path(NAME).write_bytes(magic + data[len(MAGIC) :])
    missed(files, caplog, "format")


def test_the_page_of_another_name_is_a_miss(files: PageFiles, caplog: pytest.LogCaptureFixture) -> None:
    """As of another plan, model or prompt: whatever a reader relies on is in the name."""
    files.write(OTHER, PAGE)
    files.path(NAME).parent.mkdir(parents=True)
    files.path(OTHER).rename(files.path(NAME))
    missed(files, caplog, OTHER.hex())


def test_a_page_that_breaks_after_it_was_looked_up_is_a_miss_when_it_is_read(files: PageFiles) -> None:
    files.write(NAME, PAGE)
    assert files.whole(NAME)
    stat = files.path(NAME).stat()
    data = bytearray(files.path(NAME).read_bytes())
    data[-1] ^= 1
    files.path(NAME).write_bytes(data)
    os.utime(files.path(NAME), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert files.whole(NAME), "the same size and time: it is not read a second time"
    assert found(files) is None


def test_a_folder_in_the_place_of_a_page_is_a_miss(files: PageFiles, caplog: pytest.LogCaptureFixture) -> None:
    files.path(NAME).mkdir(parents=True)
    assert found(files) is None
    (line,) = lines(caplog)
    assert "can't be read" in line
    with pytest.raises(OSError, match=NAME.hex()):
        files.write(NAME, PAGE)
    assert [path.name for path in files.root.glob("*/*")] == [NAME.hex()]


# ------------------------------------------------------------------------------------------ stores that come to nothing


def full(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing(files: PageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(OTHER, PAGE)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            files.write(NAME, PAGE)
    assert [path.name for path in files.root.glob("*/*")] == [OTHER.hex()]
    files.write(NAME, PAGE)
    assert found(files) == WHOLE


def test_a_disk_that_fills_up_halfway_leaves_nothing(files: PageFiles) -> None:
    """The system itself ends the write after 4096 bytes, as a quota would."""
    code = (
        "import resource, sys; from pathlib import Path; from examples.page_files import PageFiles\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "files = PageFiles(Path(sys.argv[1]))\n"
        "files.write(bytes(32), [memoryview(bytes(1000))])\n"
        "try: files.write(bytes(range(32)), [memoryview(bytes(1 << 20))])\n"
        "except OSError as error: print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, files.root], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(errno.EFBIG)]
    assert [path.name for path in files.root.glob("*/*")] == [bytes(32).hex()]


@pytest.mark.parametrize("place", ["the root", "a folder"])
def test_a_file_in_the_place_of_a_folder_is_no_place_for_pages(files: PageFiles, place: str) -> None:
    spot = files.root if place == "the root" else files.path(NAME).parent
    spot.parent.mkdir(parents=True, exist_ok=True)
    spot.write_text("in the way")
    with pytest.raises(OSError, match=str(files.root)):
        files.write(NAME, PAGE)
    assert found(files) is None
    assert not files.whole(NAME)
    files.sweep()
    assert spot.read_text() == "in the way"


# ------------------------------------------------------------------------------------------------- killed while writing

KILLED = """
import os, signal, sys
from pathlib import Path
from examples import page_files

def end(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Killing:
    pack = end

def at_flush(frame, event, called):
    if event == "c_call" and called.__name__ == "flush":
        end()

files = page_files.PageFiles(Path(sys.argv[1]))
files.write(bytes(32), [memoryview(b"before")])
MOMENT
files.write(bytes(range(32)), [memoryview(b"x" * 100_000), memoryview(b"y" * 100)])
"""
MOMENTS = {
    "before the first byte": "page_files.HEADER = Killing",
    "before the last bytes": "sys.setprofile(at_flush)",
    "before it is safe": "os.fsync = end",
    "before it is moved": "Path.replace = end",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_writer_that_is_killed_leaves_no_page(
    files: PageFiles, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    code = KILLED.replace("MOMENT", MOMENTS[moment])
    done = subprocess.run([sys.executable, "-c", code, files.root], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert found(files, bytes(32)) == b"before"
    assert found(files) is None
    left = list(files.root.glob("*/*.tmp"))
    assert len(left) == 1
    PageFiles(files.root).sweep()
    assert [path.name for path in files.root.glob("*/*")] == [bytes(32).hex()]
    assert not lines(caplog)


def test_what_a_living_writer_writes_is_not_swept(files: PageFiles) -> None:
    folder = files.path(NAME).parent
    folder.mkdir(parents=True)
    mine, init = (folder / f"{NAME.hex()}.{process}.tmp" for process in (os.getpid(), 1))
    strange = folder / "notes.tmp"
    for path in (mine, init, strange):
        path.touch()
    files.sweep()
    assert mine.exists()
    assert init.exists()
    assert strange.exists()


# ------------------------------------------------------------------------------------------------------- many at a time


def test_readers_among_writers_see_whole_pages_or_none(files: PageFiles) -> None:
    names = [bytes([i]) * 32 for i in range(4)]
    pages = [bytes([65 + version]) * 70_000 for version in range(4)]
    wrong: list[bytes] = []
    stop = threading.Event()

    def until_stopped(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            while not stop.is_set():
                work()

        return run

    def read() -> None:
        wrong.extend(page[:10] for name in names if (page := found(files, name)) is not None and page not in pages)

    writer = (
        "import sys; from pathlib import Path; from examples.page_files import PageFiles\n"
        "files = PageFiles(Path(sys.argv[1]))\n"
        "for round in range(40):\n"
        "    for i in range(4): files.write(bytes([i]) * 32, [memoryview(bytes([65 + round % 4]) * 70_000)])\n"
    )
    readers = [threading.Thread(target=until_stopped(read)) for _ in range(2)]
    for reader in readers:
        reader.start()
    writers = [subprocess.Popen([sys.executable, "-c", writer, files.root], cwd=ROOT) for _ in range(3)]
    codes = [process.wait() for process in writers]
    stop.set()
    for reader in readers:
        reader.join()
    assert codes == [0, 0, 0]
    assert not wrong
    assert all(found(files, name) in pages for name in names)
