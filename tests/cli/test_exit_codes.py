from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import HYBRID, REFUSED, Terminal, process

CONFIG = Path(__file__).parents[2] / "examples" / "qwen3.5-0.8b.json"


def test_planned_is_0_refused_is_2_unusable_is_1() -> None:
    assert process("plan", HYBRID).returncode == 0
    assert process("plan", REFUSED).returncode == 2
    done = process("plan", "no-such-document.json")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"No such file" in done.stderr


def test_a_document_can_come_through_a_pipe() -> None:
    done = process("plan", "-", "--json", stdin=HYBRID.read_bytes())
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(json.loads(done.stdout)["layers"]) == 8
    done = process("plan", "-", stdin=b"")
    assert (done.returncode, done.stdout) == (1, b"")


def test_closed_standard_input_is_unusable() -> None:
    words = f"{sys.executable} -m kvlayout.cli plan - <&-"
    done = subprocess.run(["bash", "-c", words], capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    words = f"set -o pipefail; {sys.executable} -m kvlayout.cli plan {HYBRID} | true"
    done = subprocess.run(["bash", "-c", words], capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert signal.SIGPIPE  # Python ignores it, so the write fails instead


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "words",
    [
        f"plan {HYBRID}",
        f"plan {HYBRID} --json",
        f"model {CONFIG}",
        f"model {CONFIG} --json",
        f"model {CONFIG} --sweep tp=1,2",
        f"model {CONFIG} --sweep tp=1,2 --csv",
        "model --help",
        "plan --help",
    ],
)
def test_an_output_that_can_t_be_written_is_one_line(words: str) -> None:
    command = f"{sys.executable} -m kvlayout.cli {words} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert done.stderr.startswith(b"kvlayout: standard output can't be written: ")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("plan",),
        ("plan", "--json"),
        ("check",),
        ("frobnicate",),
        ("show", "plan.json"),
        ("--nonsense",),
        ("plan", HYBRID, "another"),
        ("plan", HYBRID, "--nonsense"),
        ("plan", HYBRID, "--out"),
        ("plan", HYBRID, "--presentation", "nixl"),
        ("plan", HYBRID, "--presentation"),
        ("plan", HYBRID, "--no-json"),
        ("plan", HYBRID, "--json=maybe"),
        ("plan", ""),
        ("plan", "a\0b"),
        ("plan", "/"),
        ("check", "/"),
        ("check", "no-such-plan.json"),
    ],
)
def test_a_mistake_in_the_words_is_1(terminal: Terminal, words: tuple[object, ...]) -> None:
    ran = terminal(*words)
    assert ran.code == 1
    if words:
        assert ran.out == ""
        assert ran.err
        assert "Traceback" not in ran.err
    else:
        assert "Usage" in ran.out


@pytest.mark.parametrize("words", [("--help",), ("plan", "--help"), ("check", "-h")])
def test_help_names_the_exit_codes(terminal: Terminal, words: tuple[str, ...]) -> None:
    ran = terminal(*words)
    assert (ran.code, ran.err) == (0, "")
    assert "Exit codes: 0 planned" in ran.out
    assert "2 refused, 1 unusable input" in ran.out


def test_help_lists_the_commands_that_there_are(terminal: Terminal) -> None:
    out = terminal("--help").out
    assert "plan" in out
    assert "check" in out
    assert "compare" not in out


def test_version_is_printed(terminal: Terminal) -> None:
    ran = terminal("--version")
    assert ran.code == 0
    assert ran.out.strip() in ("0.1.0", "not installed")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b"null",
        b"\xff\xfe\x00",
        b"[" * 200_000,
        b'{"format": "kvlayout/registration", "version": 2}',
        b'{"format": "kvlayout/plan", "version": 1}',
        b'{"a": 1' + b"0" * 5000 + b"}",
    ],
    ids=["empty", "text", "list", "object", "null", "utf16", "deep", "version", "plan", "digits"],
)
@pytest.mark.parametrize("command", ["plan", "check"])
def test_what_is_no_document_is_1(terminal: Terminal, command: str, text: bytes) -> None:
    path = terminal.folder / "document.json"
    path.write_bytes(text)
    ran = terminal(command, path)
    assert (ran.code, ran.out) == (1, "")
    assert "bad-document" in ran.err
    ran = terminal(command, path, "--json")
    assert (ran.code, ran.err) == (1, "")
    printed = json.loads(ran.out)
    assert (printed["layers"], printed["groups"]) == ({}, [])
    assert {error["code"] for error in printed["errors"]} == {"bad-document"}


def test_a_document_is_read_up_to_a_limit(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlayout.cli.files.LIMIT", 1000)
    ran = terminal("plan", HYBRID)
    assert (ran.code, ran.out) == (1, "")
    assert "at most 1000 bytes" in ran.err


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_an_endless_document_is_given_up(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlayout.cli.files.LIMIT", 1 << 20)
    assert terminal("plan", "/dev/zero").code == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_1(terminal: Terminal) -> None:
    path = terminal.write("{}")
    path.chmod(0)
    assert "Permission denied" in terminal("plan", path).err


def test_without_its_packages_the_command_says_what_to_install(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kvlayout.cli.commands", None)
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    monkeypatch.delitem(sys.modules, "kvlayout.cli.commands")
    ran = terminal("plan", HYBRID)
    assert (ran.code, ran.out) == (1, "")
    assert "pip install 'kvlayout[cli]'" in ran.err


def test_json_needs_neither_rich_nor_a_tensor_library() -> None:
    code = (
        "import sys; from kvlayout.cli import main; main(sys.argv[1:]); "
        "print(*(n for n in ('rich', 'torch', 'numpy', 'vllm') if n in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", str(HYBRID), "--json"], capture_output=True, check=True, timeout=120
    )
    assert done.stderr.split() == []
