from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvlayout.cache.document import read_registration
from kvlayout.planning import attempt
from kvlayout.reporting import plan_json
from kvlayout.rules.presentation import Form
from tests.cli.running import DOCUMENTS, HYBRID, REFUSED, Terminal, document, symbolic

LAYER = {"verdict", "rule", "shape", "strides", "offset", "dtype", "block_axis", "content"}
GROUP = {
    "index",
    "kind",
    "layers",
    "disposition",
    "reason",
    "num_blocks",
    "block_tokens",
    "states_per_block",
    "page_bytes",
    "payload_bytes",
    "compress_ratio",
    "window_tokens",
    "recurrent",
    "draft",
    "fingerprint",
}
ERROR = {"code", "group", "layer", "message", "fix"}


def printed(terminal: Terminal, *words: object, code: int = 0) -> dict[str, Any]:
    ran = terminal(*words, "--json")
    assert (ran.code, ran.err) == (code, "")
    made: dict[str, Any] = json.loads(ran.out)
    return made


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("form", ["lmcache", "bytes"])
def test_json_is_what_planning_says(terminal: Terminal, path: Path, form: Form) -> None:
    made = attempt(read_registration(path.read_text()).unwrap(), presentation=form)
    wanted = json.loads(json.dumps(plan_json(made.plan, made.errors)))
    found = printed(terminal, "plan", path, "--presentation", form, code=2 if made.errors else 0)
    assert found == wanted
    assert [key for key in found if key != "warnings"] == ["layers", "groups", "errors"]
    assert ("warnings" in found) == bool(not made.errors and made.plan.warnings)
    assert all(set(layer) == LAYER for layer in found["layers"].values())
    assert all(set(group) == GROUP for group in found["groups"])
    assert all(set(error) >= ERROR for error in found["errors"])
    assert len(found["groups"]) == len(json.loads(path.read_text())["groups"])


def test_a_refusal_holds_what_planned_and_every_error(terminal: Terminal) -> None:
    found = printed(terminal, "plan", REFUSED, code=2)
    assert list(found["layers"]) == ["ok"]
    assert [group["disposition"] for group in found["groups"]] == ["refused", "refused", "served", "refused"]
    assert [(error["code"], error["group"], error["layer"]) for error in found["errors"]] == [
        ("unsupported-cross-attention", 0, None),
        ("unsupported-mamba-mode", 1, None),
        ("unsupported-cross-attention", 3, None),
    ]


def test_an_unknown_block_count_stays_a_symbol(terminal: Terminal) -> None:
    found = printed(terminal, "plan", terminal.write(symbolic(document())))
    assert {group["num_blocks"] for group in found["groups"]} == {"1n"}
    assert found["layers"]["model.layers.3.self_attn.attn"]["shape"] == ["1n", 1, 256, 256]


def test_a_missing_document_is_json_too(terminal: Terminal) -> None:
    found = printed(terminal, "plan", "no/such.json", code=1)
    assert (found["layers"], found["groups"]) == ({}, [])
    (error,) = found["errors"]
    assert (error["code"], error["path"]) == ("bad-document", "no/such.json")


def test_an_error_has_its_witness(terminal: Terminal) -> None:
    found = printed(terminal, "plan", REFUSED.with_name("refuse-strided-content.json"), code=2)
    assert found["errors"][0]["witness"] == {"blocks": 3, "index": 2048, "expected": 2048, "actual": 4096}


def test_a_checked_plan_prints_the_same_json(terminal: Terminal) -> None:
    stored = terminal.folder / "plan.json"
    planned = printed(terminal, "plan", HYBRID, "--out", stored)
    assert printed(terminal, "check", stored) == planned


def test_names_that_no_terminal_should_see_are_escaped(terminal: Terminal) -> None:
    made = document(REFUSED)
    made["groups"][2]["layers"] = ["\x1b[2J\n"]
    made["caches"]["\x1b[2J\n"] = made["caches"].pop("ok")
    ran = terminal("plan", terminal.write(made), "--json")
    assert ran.out.isascii()
    assert "\x1b" not in ran.out
    assert list(json.loads(ran.out)["layers"]) == ["\x1b[2J\n"]
