"""A file that is given to the wrong command is told where it belongs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.running import HYBRID, Ran, Terminal

CONFIG = Path(__file__).parents[2] / "examples" / "qwen3.5-0.8b.json"


def told(ran: Ran) -> str:
    """Return what is to be done about the one error there is."""
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith("\n1 error\n")
    lines = ran.err.partition("  to do ")[2].partition("\n\n")[0].split()
    return " ".join(lines)


def test_plan_sends_a_config_to_model(terminal: Terminal) -> None:
    terminal.patch.chdir(CONFIG.parents[1])
    name = "examples/qwen3.5-0.8b.json"
    assert told(terminal("plan", name)) == f"kvlayout model {name}"
    (error,) = json.loads(terminal("plan", name, "--json").out)["errors"]
    assert (error["code"], error["actual"]) == ("bad-document", "a model's config.json")


def test_plan_sends_a_stored_plan_to_check(terminal: Terminal) -> None:
    terminal.patch.chdir(terminal.folder)
    assert terminal("plan", HYBRID, "--out", "plan.json").code == 0
    assert told(terminal("plan", "plan.json")) == "kvlayout check plan.json"
    assert terminal("check", "plan.json").code == 0


def test_check_says_how_a_plan_is_stored(terminal: Terminal) -> None:
    terminal.patch.chdir(terminal.folder)
    path = terminal.write(HYBRID.read_text(), "doc.json")
    assert told(terminal("check", path.name)) == (
        "kvlayout plan doc.json --out PLAN stores a plan; then kvlayout check PLAN"
    )
    assert "kvlayout plan DOC --out PLAN" in told(terminal("check", CONFIG))
    assert told(terminal("check", terminal.write("[", "cut.json"))) == "store it again: kvlayout plan DOC --out PLAN"


@pytest.mark.parametrize("text", ["[1]", "{}", '{"format": 3}', "[" * 100_000])
def test_what_belongs_nowhere_has_its_faults(terminal: Terminal, text: str) -> None:
    ran = terminal("plan", terminal.write(text))
    assert (ran.code, ran.out) == (1, "")
    assert "kvlayout model" not in ran.err
    assert "kvlayout check" not in ran.err


@pytest.mark.parametrize("text", [CONFIG.read_bytes()[:200], b"", b"\xff\xfe{}", '{"a": 1}'.encode("utf-16")])
def test_a_config_that_is_cut_off_is_to_be_fetched_again(terminal: Terminal, text: bytes) -> None:
    terminal.patch.chdir(terminal.folder)
    Path("config.json").write_bytes(text)
    assert told(terminal("model", "config.json")) == "config.json is not JSON: cut off? fetch it again"
    ran = terminal("model", CONFIG, "--compare", "config.json")
    assert re.search(r"at --compare: \$\n", ran.err)
    assert told(ran) == "config.json is not JSON: cut off? fetch it again"


def test_a_config_that_is_no_object_is_none(terminal: Terminal) -> None:
    terminal.patch.chdir(terminal.folder)
    Path("config.json").write_text("[]")
    assert told(terminal("model", "config.json")) == "give a model's config.json: config.json is none"
