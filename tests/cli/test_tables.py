from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import DATA, DOCUMENTS, HYBRID, REFUSED, Terminal, document, process, symbolic, tensors

CASES = DATA / "cases"


@pytest.mark.parametrize("columns", [80, 100, 160])
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_document_prints_within_the_width(terminal: Terminal, path: Path, columns: int) -> None:
    ran = terminal("plan", path, columns=columns)
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= columns
    assert [line for line in lines if line != line.rstrip() or not line.isprintable()] == []
    assert ran.out.endswith("\n")
    assert "\n\n\n" not in ran.out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_no_shape_and_no_number_is_broken_over_lines(terminal: Terminal, path: Path) -> None:
    for columns in (80, 100, 160):
        for line in terminal("plan", path, columns=columns).out.splitlines():
            assert line.count("[") == line.count("]"), line
            assert not re.search(r"[0-9],$", line), line


def test_a_plan_says_what_is_done_to_whom(terminal: Terminal) -> None:
    out = terminal("plan", HYBRID, columns=80).out
    assert out.startswith("qwen35-align-kp32: vllm 0.32.0 on cpu, 4,096 blocks, layout LBHNC, hint HND\n")
    assert "planned: 8 layers, 8 re-presented\n" in out
    assert "0  mamba, recurrent       2     256       1     131,072  62,464 (47.7%)\n" in out
    for fact in (
        "0-2  mamba-unified-view",
        "model.layers.{0-2,4-6}.linear_attn",
        "[4096, 1, 1, 68608] int8\n",
        "-> [4096, 1, 256, 272] int8\n",
        "page: 69,632 of 131,072 bytes\n",
        "a block every 131,072 bytes\n",
        "page, own, grain, within, fibre\n",
        "opaque: page",
    ):
        assert fact in out


def test_wide_tables_put_facts_beside_one_another(terminal: Terminal) -> None:
    out = terminal("plan", HYBRID, columns=160).out
    assert re.search(r"rule, layers +before -> after +pages +proved\n", out)
    assert re.search(
        r"\[4096, 1, 1, 68608\] int8 +page: 69,632 of 131,072 bytes +page, own, grain, within, fibre\n", out
    )


def test_a_refusal_says_what_where_and_what_to_do(terminal: Terminal) -> None:
    ran = terminal("plan", REFUSED, columns=80)
    assert ran.code == 2
    assert "refused: 1 of 4 layers planned, so none is to be stored\n" in ran.out
    assert (
        "unsupported-cross-attention: encoder-decoder caches are keyed by encoder input\n"
        "and can't be stored by block id\n"
        "  where     group 0, group 3\n"
        "  expected  self-attention or state\n"
        "  actual    CrossAttentionSpec\n"
        "  to do     serve this model without the external store\n"
    ) in ran.out
    assert ran.out.endswith("\n3 errors\n")
    assert "2  left as it is" in ran.out


def test_a_refusal_shows_its_witness(terminal: Terminal) -> None:
    out = terminal("plan", CASES / "refuse-strided-content.json").out
    assert "  witness   with 3 blocks, index 2048 is byte 4096, not byte 2048\n" in out
    assert "1 layer refused" in out


def test_equal_errors_are_one_entry_with_their_places(terminal: Terminal) -> None:
    made = document()
    made["layout_hint"] = made["kv_cache_layout"] = None
    out = terminal("plan", terminal.write(made)).out
    assert out.count("missing-layout-hint:") == 1
    assert "group 3: 2 layers model.layers.{3,7}.self_attn.attn" in " ".join(out.split())
    assert out.endswith("\n8 errors\n")


def test_places_in_many_groups_are_counted(terminal: Terminal) -> None:
    made = document(DATA / "registrations" / "gemma3.json")
    for tensor in tensors(made):
        tensor["dtype"] = "float3"
    out = terminal("plan", terminal.write(made)).out
    assert "unknown-dtype" in out
    assert "where     groups 0-5: 6 layers model.layers." in out


def test_overlapping_layers_are_named(terminal: Terminal) -> None:
    made = document(DATA / "registrations" / "llama.json")
    first, second, *_ = made["caches"].values()
    second["storage_offset"], made["placements"] = first["storage_offset"] + 64, []
    out = terminal("plan", terminal.write(made)).out
    assert "page-overlap: two layers share bytes" in out
    assert "where     group 0: 2 layers model.layers.{0,1}.self_attn.attn\n" in out


def test_any_number_of_blocks_prints_as_n(terminal: Terminal) -> None:
    out = terminal("plan", terminal.write(symbolic(document()))).out
    assert "any number n of blocks" in out
    assert "[8n, 2, 32, 128] bfloat16\n" in out
    assert "-> [n, 1, 256, 256] bfloat16\n" in out
    assert "from byte 0 ... 131,072n\n" in out
    assert "1n" not in out


def test_claims_that_live_tensors_close_are_marked(terminal: Terminal) -> None:
    made = document()
    for tensor in tensors(made):
        tensor["storage_nbytes"] = None
    out = terminal("plan", terminal.write(made)).out
    assert "page, own, grain, fibre\n" in out
    assert "open until applied: within\n" in out
    assert "open" not in terminal("plan", HYBRID).out


def excluded(made: dict[str, Any]) -> dict[str, Any]:
    made["groups"][0]["host_resident"] = True
    made["groups"][3]["draft"] = True
    return made


def test_groups_that_are_not_served_say_why(terminal: Terminal) -> None:
    out = terminal("plan", terminal.write(excluded(document()))).out
    assert "planned: 8 layers, 6 re-presented, 2 excluded\n" in out
    assert "   excluded: host resident\n" in out
    assert "excluded: host-resident" in out
    assert "3  full attention, draft" in out


def test_shared_caches_name_the_layer_they_share(terminal: Terminal) -> None:
    out = terminal("plan", CASES / "sharing-alias.json").out
    assert "planned: 2 layers, 1 left as it is, 1 shared\n" in out
    assert "alias of a\n   a.shared\n" in out


def test_windows_and_states_are_shown(terminal: Terminal) -> None:
    assert (
        "1  sliding window, window 128       1      64      64"
        in terminal("plan", CASES / "two-groups-one-split.json").out
    )


def test_unequal_pages_have_no_number_of_the_group(terminal: Terminal) -> None:
    out = terminal("plan", CASES / "uniform-unequal-pages.json").out
    assert re.search(r"0  mla attention +2 +64 +64 +- +-\n", out)


def test_keys_and_values_apart_are_two_pages(terminal: Terminal) -> None:
    made = document(CASES / "two-groups-one-split.json")
    made["groups"], made["kv_cache_layout"], made["layout_hint"] = made["groups"][:1], None, "NHD"
    tensor = {"shape": [2, 12, 64, 2, 64], "stride": [98304, 8192, 128, 64, 1], "storage_offset": 0}
    made["caches"] = {"full": tensor | {"dtype": "bfloat16", "storage": 0, "storage_nbytes": 393216}}
    out = terminal("plan", terminal.write(made)).out
    assert "-> [2, 3, 256, 2, 64] bfloat16\n" in out
    assert "page: 65,536 bytes, twice (K and V apart)\n" in out


def test_the_bytes_of_a_page_are_a_row(terminal: Terminal) -> None:
    out = terminal("plan", HYBRID, "--presentation", "bytes").out
    assert "hint HND, shown as" in out
    assert "-> [4096, 131072] int8\n" in out
    made = document(CASES / "sharing-alias.json")
    assert "bytes of the page" in terminal("plan", terminal.write(made), "--presentation", "bytes").out


def test_an_empty_registration_is_a_plan(terminal: Terminal) -> None:
    made = {"format": "kvlayout/registration", "version": 1, "groups": [], "caches": {}}
    ran = terminal("plan", terminal.write(made))
    assert ran == (0, "registration: vllm, no layer to count blocks by\nplanned: 0 layers\n", "")


HOSTILE = "\x1b[2J\x1b]0;title\x07\u202e\r\n[red]"


def test_what_a_terminal_would_obey_is_shown_and_not_sent(terminal: Terminal) -> None:
    made = document(REFUSED)
    made["name"] = made["engine"]["version"] = made["groups"][2]["spec"]["kind"] = HOSTILE
    made["groups"][2]["layers"] = [HOSTILE]
    made["caches"][HOSTILE] = made["caches"].pop("ok")
    made["caches"][HOSTILE * 2] = made["caches"]["x"] | {"storage": 9}
    made["groups"][0]["spec"]["type"] = HOSTILE
    for columns in (80, 160):
        out = terminal("plan", terminal.write(made), columns=columns).out
        assert all(line.isprintable() for line in out.splitlines())
        assert "\u202e" not in out
        assert "[red]" in out
    made["version"] = HOSTILE
    ran = terminal("plan", terminal.write(made))
    assert ran.code == 1
    assert all(line.isprintable() for line in ran.err.splitlines())


def test_faults_of_a_document_are_put_together(terminal: Terminal) -> None:
    made = document(DATA / "registrations" / "qwen35-08b-geom-align-kp32.json")
    for tensor in tensors(made):
        tensor["shape"] = "none"
    ran = terminal("plan", terminal.write(made), columns=80)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("bad-document:") == 1
    assert "and 20 more" in ran.err
    assert max(map(len, ran.err.splitlines())) <= 80


# ------------------------------------------------------------------------------------------------ terminals and pipes


def test_a_pipe_gets_no_colour_and_a_width_of_its_own() -> None:
    out = process("plan", REFUSED).stdout.decode()
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 100
    wide = process("plan", HYBRID, COLUMNS="160").stdout.decode()
    assert max(map(len, wide.splitlines())) > 100


@pytest.mark.parametrize("columns", ["0", "1", "99999", "-5", "wide", ""])
def test_a_senseless_width_is_survived(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = terminal("plan", HYBRID)
    assert ran.code == 0
    assert "mamba-unified-view" in ran.out


def test_a_terminal_gets_colour_unless_told_not_to(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[31m" in terminal("plan", REFUSED).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in terminal("plan", REFUSED).out


def test_an_output_without_unicode_is_plain_text() -> None:
    done = process("plan", HYBRID, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert b"\\u" not in done.stdout
