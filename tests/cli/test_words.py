from __future__ import annotations

import pytest

from kvlayout.algebra.result import Err
from kvlayout.cli.words import help_text, read_other, read_words
from kvlayout.offline.flags import FLAGS


def test_flags_and_the_config_come_in_any_order() -> None:
    for words in (["c.json", "--tp", "4", "--json"], ["--json", "--tp=4", "c.json"]):
        made = read_words(words).unwrap()
        assert (made.config, made.given, made.switches) == ("c.json", {"tp": "4"}, frozenset({"--json"}))


def test_the_last_of_a_repeated_flag_counts() -> None:
    assert read_words(["-", "--tp", "4", "--tensor-parallel-size", "8"]).unwrap().given == {"tp": "8"}


def test_a_value_may_look_like_a_number_below_zero() -> None:
    assert read_words(["-", "--tp", "-1"]).unwrap().given == {"tp": "-1"}


def test_prefix_caching_is_turned_off_in_two_ways() -> None:
    for words in (["--no-prefix-caching"], ["--prefix-caching", "off"]):
        assert read_words(["-", *words]).unwrap().given == {"prefix_caching": "off"}


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ([], "CONFIG"),
        (["a", "b"], "CONFIG"),
        (["c", "--nonsense"], "--nonsense"),
        (["c", "-x"], "-x"),
        (["c", "--tp"], "--tp"),
        (["c", "--tp", "--json"], "--tp"),
        (["c", "--tp", "--block-size=16"], "--tp"),
        (["c", "--json=yes"], "--json"),
        (["c", "--compare"], "--compare"),
        (["c", "--sweep", "tp"], "--sweep"),
        (["c", "--sweep", "tp="], "--sweep"),
        (["c", "--sweep", "tp=1,,2"], "--sweep"),
        (["c", "--sweep", "heads=1,2"], "--sweep"),
        (["c", "--sweep", "tp=1", "--sweep", "tp=2"], "--sweep"),
        (["c", "--sweep", "tp=1", "--compare", "--tp 2"], "--sweep"),
        (["c", "--sweep", "tp=1", "--engine", "installed"], "--sweep"),
        (["c", "--compare", "--tp 1", "--engine", "installed"], "--compare"),
        (["c", "--csv"], "--csv"),
        (["c", "--sweep", "tp=1", "--csv", "--json"], "--csv"),
    ],
)
def test_a_mistake_names_its_word(words: list[str], path: str) -> None:
    read = read_words(words)
    assert isinstance(read, Err)
    (error,) = read.error.errors
    assert (error.code.value, error.path) == ("bad-config", path)
    assert error.expected
    assert error.actual


def test_a_sweep_has_values_of_its_flag() -> None:
    made = read_words(
        ["c", "--sweep", "tensor-parallel-size=1, 2,2", "--sweep", "kernel_block_sizes=32+64,multiple:16"]
    )
    assert made.unwrap().sweeps == (("tp", ("1", "2")), ("kernel_block_sizes", ("32,64", "multiple:16")))


@pytest.mark.parametrize(
    ("text", "config", "given"),
    [
        ("--tp 1", "first.json", {"tp": "1", "cache_dtype": "fp8"}),
        ("--tp=1", "first.json", {"tp": "1", "cache_dtype": "fp8"}),
        ("--cache-dtype=auto --block-size 64", "first.json", {"tp": "4", "cache_dtype": "auto", "block_size": "64"}),
        ("other.json", "other.json", {"tp": "4", "cache_dtype": "fp8"}),
        ("'a folder/config.json' --tp 2", "a folder/config.json", {"tp": "2", "cache_dtype": "fp8"}),
    ],
)
def test_the_other_of_a_pair_is_flags_over_the_firsts(text: str, config: str, given: dict[str, str]) -> None:
    first = read_words(["first.json", "--tp", "4", "--cache-dtype", "fp8", "--json", "--compare", text]).unwrap()
    other = read_other(text, first).unwrap()
    assert (other.config, other.given) == (config, given)


@pytest.mark.parametrize(
    "text", ["", "  ", "'", "--json", "--sweep tp=1", "--compare '--tp 1'", "--help", "--nonsense"]
)
def test_what_is_no_deployment_is_no_other(text: str) -> None:
    other = read_other(text, read_words(["first.json"]).unwrap())
    assert isinstance(other, Err)
    assert all(error.path.startswith("--compare") for error in other.error.errors)


def test_help_lists_every_flag_in_80_columns() -> None:
    text = help_text()
    assert all(f"\n  {flag.name} {flag.metavar} " in text for flag in FLAGS)
    assert max(map(len, text.splitlines())) <= 80
    for name in ("--generic", "--compare OTHER", "--sweep NAME=VALUES", "--csv", "--json", "Exit codes: 0 planned"):
        assert name in text
