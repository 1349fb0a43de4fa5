from __future__ import annotations

import csv
import json
import re
import time
from pathlib import Path

import pytest

from tests.cli.running import Terminal

ROOT = Path(__file__).parents[2]
HYBRID = ROOT / "examples" / "qwen3.5-0.8b.json"
PAIRS = ("--sweep", "tp=1,2,4", "--sweep", "block_size=16,64", "--cache-memory", "8GiB")


def test_a_sweep_is_a_table_with_a_row_a_deployment(terminal: Terminal) -> None:
    ran = terminal("model", HYBRID, *PAIRS, columns=80)
    assert (ran.code, ran.err) == (0, "")
    heading, _, *rows = ran.out.splitlines()
    assert heading.split() == ["tp", "block", "size", "block", "page", "bytes", "padding", "tokens", "requests"]
    assert rows[0].split() == ["1", "16", "544", "1,114,112", "1.9%", "690,276", "2.63"]
    assert rows[5].split()[:3] == ["4", "64", "320"]
    assert rows[-1] == "6 deployments, 6 planned"


def test_numbers_are_never_cut(terminal: Terminal) -> None:
    words = ("--sweep", "tp=1,2", "--sweep", "cache_dtype=auto,fp8", "--sweep", "kernel_block_sizes=multiple:16,32+64")
    out = terminal("model", HYBRID, *words, "--sweep", "max_batched_tokens=2048,8192", *PAIRS[2:], columns=60).out
    assert len([line for line in out.splitlines() if "1,114,112" in line]) > 4
    assert "32,64" in out
    assert "\u2026" not in out


def test_csv_has_the_names_of_json(terminal: Terminal) -> None:
    ran = terminal("model", HYBRID, *PAIRS, "--csv")
    assert (ran.code, ran.err) == (0, "")
    heading, *rows = csv.reader(ran.out.splitlines())
    found = json.loads(terminal("model", HYBRID, *PAIRS, "--json").out)["rows"]
    assert heading == [*found[0]["deployment"], *list(found[0])[1:]]
    for row, document in zip(rows, found, strict=True):
        assert row[:2] == list(map(str, document["deployment"].values()))
        assert (int(row[2]), int(row[4])) == (document["block"], document["page_bytes"])
        assert float(row[5]) == pytest.approx(document["padding"], abs=1e-4)
        assert document["refused"] == []


def test_numbers_of_json_are_numbers(terminal: Terminal) -> None:
    words = ("--sweep", "tp=1", "--sweep", "cache_memory=8GiB", "--sweep", "prefix_caching=on")
    more = ("--sweep", "kernel_block_sizes=multiple:16+64", "--sweep", "cache_dtype=fp8")
    (row,) = json.loads(terminal("model", HYBRID, *words, *more, "--json").out)["rows"]
    assert row["deployment"] == {
        "tp": 1,
        "cache_memory": 8 << 30,
        "prefix_caching": True,
        "kernel_block_sizes": ["multiple:16", "64"],
        "cache_dtype": "fp8",
    }


def test_what_can_not_be_served_says_why_in_its_row(terminal: Terminal) -> None:
    ran = terminal("model", HYBRID, "--sweep", "tp=1,3")
    assert ran.code == 0
    assert re.search(r"\n *3 +- +- .* bad-config --tp\n", ran.out)
    assert "2 deployments, 1 planned\n" in ran.out
    rows = list(csv.DictReader(terminal("model", HYBRID, "--sweep", "tp=1,3", "--csv").out.splitlines()))
    assert [row["refused"] for row in rows] == ["", "bad-config --tp"]
    assert rows[1]["block"] == ""


def test_the_exit_code_is_that_of_the_best(terminal: Terminal) -> None:
    assert terminal("model", HYBRID, "--sweep", "mamba_cache_mode=align,none").code == 0
    ran = terminal("model", HYBRID, "--sweep", "tp=1,3", "--mamba-cache-mode", "none")
    assert ran.code == 2
    assert "unsupported-mamba-mode" in ran.out
    assert terminal("model", HYBRID, "--sweep", "tp=3,5").code == 1


def test_a_config_that_is_none_is_no_sweep(terminal: Terminal) -> None:
    ran = terminal("model", "no/such.json", "--sweep", "tp=1,2", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["layers"] == {}
    ran = terminal("model", HYBRID, "--sweep", "tp=1,2", "--engine", "installed")
    assert (ran.code, ran.out) == (1, "")


def test_a_terminal_watches_a_bar_on_standard_error(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ran = terminal("model", HYBRID, *PAIRS, "--csv")
    assert "deployments" in ran.err
    assert len(ran.out.splitlines()) == 7
    assert "\x1b" not in ran.out


def test_a_thousand_deployments_take_seconds(terminal: Terminal) -> None:
    sizes = ",".join(str(16 * n) for n in range(1, 51))
    start = time.process_time()
    ran = terminal(
        "model",
        HYBRID,
        "--sweep",
        f"block_size={sizes}",
        "--sweep",
        "tp=1,2,4,8,16",
        *PAIRS[4:],
        "--csv",
        "--sweep",
        "cache_dtype=auto,fp8",
        "--sweep",
        "max_model_len=8192,65536",
    )
    taken = time.process_time() - start
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 1001
    assert taken < 5
