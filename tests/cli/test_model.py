from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvlayout.offline.deployment import Deployment, KernelSize
from kvlayout.offline.reading import read_model
from kvlayout.offline.serving import serve
from tests.cli.running import Ran, Terminal, process

ROOT = Path(__file__).parents[2]
HYBRID = ROOT / "examples" / "qwen3.5-0.8b.json"
LATENT = ROOT / "examples" / "deepseek-v2-lite.json"
CONFIGS = sorted((ROOT / "tests" / "offline" / "configs").glob("*.json"))
KERNELS = ("--kernel-block-sizes", "32,64")


def printed(terminal: Terminal, *words: object, code: int = 0) -> dict[str, Any]:
    ran = terminal("model", *words, "--json")
    assert (ran.code, ran.err) == (code, "")
    made: dict[str, Any] = json.loads(ran.out)
    return made


def config(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(HYBRID.read_text())
    return made | changes


# --------------------------------------------------------------------------------------------------- known numbers


def test_the_known_numbers_of_a_hybrid(terminal: Terminal) -> None:
    found = printed(terminal, HYBRID, *KERNELS, "--cache-memory", "8GiB", "--chunk-size", "1088")
    assert found["block_sizes"] == {
        "user": 32,
        "aligned": 544,
        "scheduler": [544] * 4,
        "kernel": [None, None, None, 32],
        "hash": 544,
        "chunk_multiple": 544,
    }
    assert [group["page_bytes"] for group in found["groups"]] == [1114112] * 4
    assert [group["payload_bytes"] for group in found["groups"]] == [1085440] * 3 + [1114112]
    assert [group["block_tokens"] for group in found["groups"]] == [544] * 4
    room = found["capacity"]
    assert (room["block_bytes"], room["num_blocks"], room["bytes_per_token"]) == (6684672, 1285, 12288)
    assert room["fixed_bytes_per_request"] == 3 * 2 * 6684672
    assert [one["blocks_per_request"] for one in room["lengths"]] == [8, 14, 37, 127, 488]
    chunk = next(one for one in found["settings"] if one["name"] == "chunk size")
    assert (chunk["value"], "1,088 is 2 of it" in chunk["reason"]) == ("1,088", True)
    assert [one for one in found["warnings"] if one["code"] == "chunk-size"] == []


def test_people_see_the_same_numbers(terminal: Terminal) -> None:
    out = terminal("model", HYBRID, *KERNELS, "--cache-memory", "8GiB", "--chunk-size", "256", columns=80).out
    for line in (
        "user                    32  the engine's default\n",
        "scheduler   0-3        544  one block id\n",
        "kernel      3           32  one page of the attention kernel\n",
        "hash                   544  one hash of prefix caching\n",
        "0-2  mamba, recurrent       6     544   1,114,112  1,085,440  28,672 (2.6%)\n",
        "3    full attention         6     544   1,114,112  1,114,112              0\n",
        "1,285 blocks of 6,684,672 bytes each, one of them the engine's null block\n",
        "       262,144     488  3,262,119,936      2.63        690,276\n",
        "chunk-size: a chunk of 256 tokens is no multiple of 544; the nearest is 544\n",
    ):
        assert line in out
    assert "planned: 24 layers, 24 re-presented\n" in out


def test_the_plan_is_that_of_the_registration(terminal: Terminal) -> None:
    model = read_model(HYBRID.read_bytes()).unwrap()
    kernels = (KernelSize(32), KernelSize(64))
    registration = serve(model, Deployment(kernel_block_sizes=kernels)).unwrap().registration
    ran = terminal("plan", terminal.write(registration.to_json()), "--json")
    assert ran.code == 0
    wanted, found = json.loads(ran.out), printed(terminal, HYBRID, *KERNELS)
    for key in ("layers", "groups", "errors"):
        assert found[key] == wanted[key]
    assert found["layers"]["model.layers.3.self_attn.attn"]["shape"] == ["1n", 544, 1, 1024]
    assert [one for one in found["warnings"] if one["code"].startswith("lmcache")] == wanted.get("warnings", [])


def test_the_keys_of_a_plan_come_first(terminal: Terminal) -> None:
    keys = list(printed(terminal, LATENT))
    assert keys[:3] == ["layers", "groups", "errors"]
    assert set(keys[3:]) == {"model", "deployment", "block_sizes", "capacity", "settings", "warnings"}


def test_the_deployment_is_printed_as_the_engine_fills_it_in(terminal: Terminal) -> None:
    found = printed(terminal, HYBRID, "--kernel-block-sizes", "multiple:16,64", "--tp", "2")["deployment"]
    assert (found["tp"], found["kernel_block_sizes"]) == (2, ["multiple:16", "64"])
    assert (found["layout"], found["max_model_len"], found["mamba_cache_mode"]) == ("LBNHC", 262144, "align")


# ------------------------------------------------------------------------------------------------------- every family


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_family_prints_at_every_width(terminal: Terminal, path: Path) -> None:
    code = 2 if path.stem == "whisper" else 0
    found = printed(terminal, path, "--cache-memory", "16GiB", code=code)
    sizes = found["block_sizes"]
    assert len(sizes["scheduler"]) == len(sizes["kernel"]) == len(found["groups"])
    assert all(one["name"] and one["value"] and one["reason"] for one in found["settings"])
    for columns in (80, 120, 160):
        ran = terminal("model", path, "--cache-memory", "16GiB", columns=columns)
        assert (ran.code, ran.err) == (code, "")
        assert max(map(len, ran.out.splitlines())) <= columns
        assert all(line.isprintable() for line in ran.out.splitlines())


@pytest.mark.parametrize("path", [HYBRID, LATENT, *CONFIGS], ids=lambda path: path.stem)
def test_no_number_is_cut_on_a_narrow_terminal(terminal: Terminal, path: Path) -> None:
    words = ("model", path, "--cache-memory", "40GiB")
    wanted = set(re.findall(r"[0-9][0-9,.]*", terminal(*words, columns=200).out.partition("setting")[0]))
    assert len(wanted) > 10
    for columns in (1, 60, 66):
        out = terminal(*words, columns=columns).out
        assert wanted <= set(re.findall(r"[0-9][0-9,.]*", out))
        assert "\u2026" not in out
        assert "--max-batched-tokens" in out or "--mamba-cache-mode" not in out
    narrow, wide = (
        terminal(*words, columns=columns).out.partition("\nsetting")[2].partition("\n\n")[0].split()
        for columns in (60, 200)
    )
    assert sorted(word for word in narrow if "─" not in word) == sorted(word for word in wide if "─" not in word)


def test_a_group_of_unlike_layers_has_a_row_for_each_kind_of_page(terminal: Terminal) -> None:
    path = next(path for path in CONFIGS if path.stem == "deepseekv32")
    out = terminal("model", path).out
    assert re.search(r"\n0 +mla attention +3 +64 +8,448 +8,448 +0\n", out)
    assert re.search(r"\n0 +mla attention +3 +64 +73,728 +73,728 +0\n", out)


def test_whisper_is_planned_and_refused_with_its_reason(terminal: Terminal) -> None:
    path = next(path for path in CONFIGS if path.stem == "whisper")
    found = printed(terminal, path, code=2)
    assert "unsupported-cross-attention" in {error["code"] for error in found["errors"]}
    assert len(found["layers"]) > 0
    assert found["capacity"] is None
    ran = terminal("model", path)
    assert "encoder-decoder caches are keyed by encoder input" in ran.out
    assert "no capacity: what a request holds of a group does not follow from its tokens\n" in ran.out


def test_a_mode_that_keeps_nothing_is_refused(terminal: Terminal) -> None:
    ran = terminal("model", HYBRID, "--mamba-cache-mode", "none")
    assert ran.code == 2
    assert "unsupported-mamba-mode" in ran.out
    assert re.search(r"--mamba-cache-mode +align ", ran.out)


def test_a_mode_that_keeps_nothing_has_no_chunk_and_no_hash(terminal: Terminal) -> None:
    words = (HYBRID, "--mamba-cache-mode", "none", "--chunk-size", "256")
    found = printed(terminal, *words, code=2)
    assert (found["block_sizes"]["hash"], found["block_sizes"]["chunk_multiple"]) == (None, None)
    (chunk,) = [one for one in found["settings"] if one["name"] == "chunk size"]
    assert chunk["value"] is None
    assert "no state is kept at the end of a block" in chunk["reason"]
    assert "chunk-size" not in {one["code"] for one in found["warnings"]}
    out = terminal("model", *words).out
    assert "multiple" not in out
    assert "one hash of prefix caching" not in out
    assert re.search(r"\nchunk size +none +in --mamba-cache-mode none", out)
    assert "multiple" in terminal("model", HYBRID).out


def test_memory_without_a_block_is_said_first(terminal: Terminal) -> None:
    words = (HYBRID, "--cache-memory", "40")
    assert printed(terminal, *words)["capacity"]["num_blocks"] == 0
    head, _, rest = terminal("model", *words).out.partition("\n\n")
    assert "not one block fits: a block id costs 6,684,672 bytes" in head
    assert "40GiB" in head
    assert "\nmemory: not one block fits" in rest
    for blocks, line in ((1, "no request fits: the one block"), (3, "no request fits: one of 3 blocks")):
        head = terminal("model", HYBRID, "--cache-memory", str(6684672 * blocks)).out.partition("\n\n")[0]
        assert line in head
    assert "fits" not in terminal("model", HYBRID, "--cache-memory", "80MiB").out.partition("\n\n")[0]
    pair = terminal("model", HYBRID, "--cache-memory", "40GiB", "--compare", "--cache-memory 40").out
    assert pair.count("not one block fits") == 1


def test_one_layer_is_left_as_it_is(terminal: Terminal) -> None:
    assert "planned: 2 layers, 1 re-presented, 1 left as it is\n" in terminal("model", _two_layers(terminal)).out


def _two_layers(terminal: Terminal) -> Path:
    """Return a config of one state and one attention layer."""
    made = json.loads(next(path for path in CONFIGS if path.stem == "qwen3next").read_text())
    return terminal.write(made | {"num_hidden_layers": 2, "full_attention_interval": 2}, "two.json")


# -------------------------------------------------------------------------------------------------- where configs are


def test_a_config_is_a_file_a_folder_or_standard_input(terminal: Terminal) -> None:
    (terminal.folder / "model").mkdir()
    (terminal.folder / "model" / "config.json").write_bytes(HYBRID.read_bytes())
    wanted = terminal("model", HYBRID)
    assert terminal("model", terminal.folder / "model") == wanted
    done = process("model", "-", stdin=HYBRID.read_bytes())
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, wanted.out, b"")


def test_the_engines_own_flags_do_the_same(terminal: Terminal) -> None:
    theirs = ("--tensor-parallel-size=2", "--kv-cache-dtype", "fp8", "--max-num-batched-tokens", "4096")
    ours = ("--tp", "2", "--cache-dtype", "fp8", "--max-batched-tokens", "4096")
    assert terminal("model", HYBRID, *theirs) == terminal("model", HYBRID, *ours)


def test_an_unknown_architecture_is_read_only_when_asked(terminal: Terminal) -> None:
    llama = json.loads(next(path for path in CONFIGS if path.stem == "llama").read_text())
    path = terminal.write(llama | {"architectures": ["NobodyKnows"], "model_type": "nobody"})
    ran = terminal("model", path)
    assert (ran.code, ran.out) == (1, "")
    assert "--generic" in ran.err
    assert terminal("model", path, "--generic").code == 0


# ---------------------------------------------------------------------------------------------------------- bad input

BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "JSON"),
    "truncated": (HYBRID.read_bytes()[:200], "JSON"),
    "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(64), "a GGUF file"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), "a picture"),
    "pickle": (b"\x80\x02}q\x00.", "a pickle"),
    "text": (b"not a config", "JSON"),
    "list": (b"[]", "an object"),
    "utf16": ('{"a": 1}'.encode("utf-16"), "UTF-8"),
    "deep": (b'{"a":' * 100_000, "nesting"),
    "no-heads": (json.dumps(config(num_attention_heads=0)).encode(), "num_attention_heads"),
    "negative": (json.dumps(config(head_dim=-256)).encode(), "head_dim"),
    "fraction": (json.dumps(config(num_hidden_layers=2.5)).encode(), "num_hidden_layers"),
    "endless": (json.dumps(config(num_hidden_layers=10**9)).encode(), "num_hidden_layers"),
    "text-for-a-number": (json.dumps(config(linear_num_key_heads="16")).encode(), "linear_num_key_heads"),
    "nan": (HYBRID.read_bytes().replace(b"256,", b"NaN,"), "NaN"),
    "twice": (HYBRID.read_bytes().replace(b'"head_dim"', b'"hidden_size"'), "hidden_size"),
}


def refused(ran: Ran) -> None:
    """Assert that nothing is printed as if it were a plan, and one clear error is."""
    assert (ran.code, ran.out) == (1, "")
    assert "bad-config: the configuration is not one that can be read\n" in ran.err
    assert "Traceback" not in ran.err
    assert all(line.isprintable() for line in ran.err.splitlines())


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_config_is_one_clear_error(terminal: Terminal, name: str) -> None:
    text, word = BAD[name]
    path = terminal.folder / "config.json"
    path.write_bytes(text)
    ran = terminal("model", path)
    refused(ran)
    assert word in ran.err
    found = printed(terminal, path, code=1)
    assert (found["layers"], found["groups"]) == ({}, [])
    assert {error["code"] for error in found["errors"]} == {"bad-config"}
    assert "block_sizes" not in found


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--tp", "3"), "--tp"),
        (("--tp", "0"), "--tp"),
        (("--tp", "-2"), "--tp"),
        (("--block-size", "-16"), "--block-size"),
        (("--cache-memory", "-8GiB"), "--cache-memory"),
        (("--cache-dtype", "fp7"), "--cache-dtype"),
        (("--engine", "vllm-9.9"), "--engine"),
        (("--engine", "sglang-0.5"), "--engine"),
        (("--layout", "NDH"), "--layout"),
        (("--nonsense",), "--nonsense"),
        (("--tp",), "--tp"),
        (("another.json",), "CONFIG"),
        (("--compare", "--tp 3"), "--compare: --tp"),
        (("--compare", "--tpp 2"), "--compare: --tpp"),
        (("--compare", "'"), "--compare"),
        (("--compare", "no/such.json"), "--compare: no/such.json"),
        (("--sweep", "tp=1,x"), "--tp"),
    ],
)
def test_a_flag_that_makes_no_sense_is_named(terminal: Terminal, words: tuple[str, ...], field: str) -> None:
    ran = terminal("model", HYBRID, *words)
    refused(ran)
    assert f"at {field}\n" in ran.err
    found = printed(terminal, HYBRID, *words, code=1)
    assert (found["layers"], found["groups"]) == ({}, [])
    assert [error["path"] for error in found["errors"]] == [field]


def test_a_file_of_a_gigabyte_is_refused_at_once(terminal: Terminal) -> None:
    path = terminal.folder / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    start = time.process_time()
    ran = terminal("model", path)
    refused(ran)
    assert "at most 16777216 bytes" in ran.err
    assert "1,073,741,824" in ran.err
    assert time.process_time() - start < 0.5


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_an_endless_config_is_given_up(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlayout.cli.files.CONFIG_LIMIT", 1 << 20)
    refused(terminal("model", "/dev/zero"))


def test_a_folder_without_a_config_says_so(terminal: Terminal) -> None:
    ran = terminal("model", terminal.folder)
    refused(ran)
    assert os.path.join(terminal.folder, "config.json") in ran.err.replace("\n            ", "")  # noqa: PTH118
    refused(terminal("model", "a\0b"))


HOSTILE = "\x1b[2J\x1b]0;title\x07\u202e\r\n[red]"


def test_what_a_terminal_would_obey_is_shown_and_not_sent(terminal: Terminal) -> None:
    refused(terminal("model", terminal.write(config(architectures=[HOSTILE], model_type=HOSTILE))))
    ran = terminal("model", terminal.write(config(architectures=[HOSTILE])), "--generic")
    assert all(line.isprintable() for line in (ran.out + ran.err).splitlines())
    refused(terminal("model", HYBRID, "--cache-dtype", HOSTILE))
    refused(terminal("model", HYBRID, f"--{HOSTILE}"))


# ---------------------------------------------------------------------------------------------------------- comparing


def test_a_pair_that_differs_is_told_what_would_make_it_equal(terminal: Terminal) -> None:
    ran = terminal("model", HYBRID, "--tp", "4", "--compare", "--tp 1", columns=80)
    assert (ran.code, ran.err) == (0, "")
    assert "\nthe pair does not agree\n" in ran.out
    assert re.search(r"0-2 +different +block tokens +272 +544\n", ran.out)
    assert "for the same blocks: --block-size 544 on both (38% of the first's pages are\npadding then)\n" in ran.out
    assert "for the same pages: --tp 4 on the second\n" in ran.out
    found = printed(terminal, HYBRID, "--tp", "4", "--compare", "--tp 1")["comparison"]
    assert found["verdict"] == "different"
    assert found["groups"][3]["differences"]["block_tokens"] == [272, 544]
    assert found["remedies"][0] == {
        "first": {"block_size": "544"},
        "second": {"block_size": "544"},
        "gives": "same-blocks",
        "padding": pytest.approx([0.3847, 0.0193], abs=1e-4),
    }
    assert found["other"]["block_sizes"]["aligned"] == 544
    assert found["other"]["deployment"]["tp"] == 1
    assert len(found["other"]["groups"]) == 4


def test_what_the_remedy_says_is_so(terminal: Terminal) -> None:
    words = (HYBRID, "--tp", "4", "--block-size", "544", "--compare", "--tp 1")
    assert (
        "\nthe pair agrees on blocks: a block id is the same tokens, in other pages\n" in terminal("model", *words).out
    )
    assert printed(terminal, *words)["comparison"]["verdict"] == "same-blocks"
    ran = terminal("model", HYBRID, "--tp", "4", "--compare", "--tp=4")
    assert "\nthe pair agrees: every page is the same\n" in ran.out
    assert "for the same" not in ran.out


LLAMA = next(path for path in CONFIGS if path.stem == "llama")


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (("--tp", "2"), "--tp 4", "form, but rank r holds other heads than rank r of the other"),
        (("--pp", "2"), "--pp-rank 1", "form, but they are not of the same layers"),
    ],
)
def test_pages_of_one_form_are_not_said_to_be_the_same(
    terminal: Terminal, first: tuple[str, ...], second: str, line: str
) -> None:
    ran = terminal("model", LLAMA, *first, "--compare", second)
    assert f"\nthe pair agrees on pages of one {line}\n" in ran.out
    assert "every page is the same" not in ran.out
    assert re.search(r"\n0 +same form +(tp +2 +4|layers +model.layers.\{0,1}.* +model.layers.\{2,3})", ran.out)
    assert printed(terminal, LLAMA, *first, "--compare", second)["comparison"]["verdict"] == "same-form"


def test_a_remedy_says_no_more_than_it_gives(terminal: Terminal) -> None:
    words = ("--tp", "2", "--block-size", "32", "--compare", "--tp 4 --block-size 64")
    out = terminal("model", LLAMA, *words).out
    assert "the pair does not agree" in out
    assert "for pages of one form: --block-size 64 on both\n" in out
    (first, *rest) = printed(terminal, LLAMA, *words)["comparison"]["remedies"]
    assert (first["gives"], {one["gives"] for one in rest}) == ("same-form", {"identical"})


@pytest.mark.parametrize(
    ("other", "row"),
    [("--layout HND", "layout +LBNHC +LBHNC"), ("--dtype float16", "element type +bfloat16 +float16")],
)
def test_every_row_of_a_pair_says_what_differs(terminal: Terminal, other: str, row: str) -> None:
    assert re.search(rf"\n0 +same blocks +{row}\n", terminal("model", LLAMA, "--compare", other).out)


def test_the_other_may_be_another_config(terminal: Terminal) -> None:
    ran = terminal("model", HYBRID, "--compare", str(LATENT))
    assert ran.code == 0
    assert "the pair does not agree" in ran.out
    folder = terminal.folder / "a model"
    folder.mkdir()
    (folder / "config.json").write_bytes(HYBRID.read_bytes())
    assert printed(terminal, HYBRID, "--compare", f"'{folder}' --tp 2")["comparison"]["verdict"] == "same-blocks"


def test_a_pair_from_standard_input_is_read_once() -> None:
    done = process("model", "-", "--compare", "--tp 2", "--json", stdin=HYBRID.read_bytes())
    assert done.returncode == 0
    assert json.loads(done.stdout)["comparison"]["verdict"] == "same-blocks"


def test_a_pair_of_which_one_is_refused_is_refused(terminal: Terminal) -> None:
    ran = terminal("model", HYBRID, "--compare", "--mamba-cache-mode none")
    assert ran.code == 2
    assert "unsupported-mamba-mode: this cache mode keeps no reusable state for each block\n" in ran.out
    assert ran.out.endswith("\n3 errors\n")


# ------------------------------------------------------------------------------------------------- what it needs


def test_help_says_what_it_takes(terminal: Terminal) -> None:
    for words in (("--help",), ("-h",), (HYBRID, "--tp", "4", "--help")):
        ran = terminal("model", *words)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("Usage: kvlayout model CONFIG [OPTIONS]\n")
    assert "model" in terminal("--help").out


def test_json_needs_no_package_of_the_command_line() -> None:
    code = (
        "import sys; from kvlayout.cli import main; main(sys.argv[1:]); "
        "print(*(n for n in ('rich', 'cyclopts', 'torch', 'numpy', 'vllm') if n in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "model", str(HYBRID), "--json"], capture_output=True, check=True, timeout=120
    )
    assert done.stderr.split() == []


def test_tables_need_no_option_parser() -> None:
    code = (
        "import sys; from kvlayout.cli import main; main(sys.argv[1:]); "
        "print('cyclopts' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "model", str(HYBRID)], capture_output=True, check=True, timeout=120
    )
    assert done.stderr.split() == [b"False"]


def test_without_an_engine_its_word_can_not_be_had(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    ran = terminal("model", HYBRID, "--engine", "installed")
    refused(ran)
    assert "an installed vLLM" in ran.err


@pytest.mark.engine
@pytest.mark.slow
def test_the_installed_engine_makes_the_same_of_it(terminal: Terminal) -> None:
    words = (HYBRID, "--engine", "installed", "--max-model-len", "4096", *KERNELS)
    found = printed(terminal, *words)
    assert found["differences"] == []
    assert (found["deployment"]["platform"], found["deployment"]["engine"]) == ("cpu", "vllm-0.32")
