from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import kvlayout
from tests.cli.running import HYBRID, REFUSED, Terminal, process


@pytest.fixture
def stored(terminal: Terminal) -> Path:
    path = terminal.folder / "plan.json"
    assert terminal("plan", HYBRID, "--out", path).code == 0
    return path


def test_a_stored_plan_is_one_that_can_be_read(stored: Path) -> None:
    plan = kvlayout.Plan.from_json(stored.read_text()).unwrap()
    assert len(plan.layers) == 8
    assert stored.stat().st_mode & 0o777 == 0o666 & ~_mask()
    assert os.listdir(stored.parent) == ["plan.json"]  # noqa: PTH208 - hidden files too


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_stored_plan_holds(terminal: Terminal, stored: Path) -> None:
    ran = terminal("check", stored)
    assert (ran.code, ran.err) == (0, "")
    assert "holds: 8 layers of 4 groups proved again" in ran.out
    assert process("check", "-", stdin=stored.read_bytes()).returncode == 0


@pytest.mark.parametrize("presentation", ["lmcache", "bytes"])
def test_the_presentation_is_stored(terminal: Terminal, presentation: str) -> None:
    path = terminal.folder / "plan.json"
    assert terminal("plan", HYBRID, "--out", path, "--presentation", presentation).code == 0
    assert json.loads(path.read_text())["presentation"] == presentation
    assert terminal("check", path).code == 0


def test_an_edited_plan_is_stale(terminal: Terminal, stored: Path) -> None:
    plan = json.loads(stored.read_text())
    plan["layers"]["model.layers.3.self_attn.attn"]["offset"] = 2
    ran = terminal("check", terminal.write(plan))
    assert ran.code == 2
    assert "stale-plan" in ran.out
    assert "layer model.layers.3.self_attn.attn" in ran.out
    ran = terminal("check", terminal.write(plan), "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["layers"], found["groups"]) == (2, {}, [])
    assert [error["code"] for error in found["errors"]] == ["stale-plan"]


def test_a_plan_whose_registration_changed_is_refused(terminal: Terminal, stored: Path) -> None:
    plan = json.loads(stored.read_text())
    for tensor in plan["registration"]["caches"].values():
        tensor["storage_nbytes"] = 4096
    for placement in plan["registration"]["placements"]:
        placement["size"] = None
    ran = terminal("check", terminal.write(plan))
    assert ran.code == 2
    assert "storage-overrun" in ran.out


def test_a_registration_is_no_plan(terminal: Terminal) -> None:
    ran = terminal("check", HYBRID)
    assert (ran.code, ran.out) == (1, "")
    assert "expected  a stored plan\n" in ran.err
    assert "actual    a registration document\n" in ran.err


def test_a_refused_plan_is_not_stored_and_the_old_file_stays(terminal: Terminal) -> None:
    path = terminal.write("what was there", "plan.json")
    ran = terminal("plan", REFUSED, "--out", path)
    assert ran.code == 2
    assert "is not written: the registration is refused" in ran.err
    assert path.read_text() == "what was there"
    assert terminal("plan", "no-such-document.json", "--out", path).code == 1
    assert path.read_text() == "what was there"


@pytest.mark.parametrize("out", ["no/such/folder/plan.json", ".", "", "-", "a\0b", "x" * 5000])
def test_a_file_that_cannot_be_written_is_said_and_the_plan_is_printed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(terminal.folder)
    ran = terminal("plan", HYBRID, "--json", f"--out={out}")
    assert ran.code == 1
    assert "is not written" in ran.err
    assert len(json.loads(ran.out)["layers"]) == 8
    assert list(terminal.folder.iterdir()) == []


def test_the_document_is_not_overwritten(terminal: Terminal) -> None:
    path = terminal.write(HYBRID.read_text())
    ran = terminal("plan", path, "--out", path)
    assert ran.code == 1
    assert path.read_text() == HYBRID.read_text()


def test_a_plan_can_go_to_a_device(terminal: Terminal) -> None:
    assert terminal("plan", HYBRID, "--out", os.devnull).code == 0
    assert not Path(os.devnull).is_file()


def test_a_link_keeps_pointing_where_it_did(terminal: Terminal) -> None:
    target = terminal.write("old", "target.json")
    link = terminal.folder / "link.json"
    link.symlink_to(target)
    assert terminal("plan", HYBRID, "--out", link).code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["format"] == "kvlayout/plan"


def test_a_write_that_fails_half_way_leaves_the_old_file(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    path = terminal.write("old", "plan.json")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvlayout.cli.files.os.fsync", full)
    ran = terminal("plan", HYBRID, "--out", path)
    assert ran.code == 1
    assert "No space left" in ran.err
    assert path.read_text() == "old"
    assert [one.name for one in terminal.folder.iterdir()] == ["plan.json"]
