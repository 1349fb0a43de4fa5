"""The page store in a running engine: no fault gives a wrong token, ends the engine, or passes in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end.judging import differences
from tests.end_to_end.running import EngineError
from tests.page_store import programs
from tests.page_store.faults import FAULTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.running import Engines

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PAGES_OF_32 = "{}, pages of 32"
CASES = ("llama", "qwen3.5")
PROMPT = programs.BLOCKS_OF_PROMPT

#: The page of attention from which on nothing is served, and a word of each line of the log.
MISSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "the last page is cut": ("last", ("bytes of",)),
    "the first page is empty": ("first", ("0 bytes",)),
    "a bit of the first page is flipped": ("first", ("checksum",)),
    "a page is gone": ("first", ()),
    "pages go before they are loaded": ("first", ("are gone",)),
    "the last page flips before it is loaded": ("first", ("checksum", "are gone")),
    "foreign": ("first", ()),
}
FAILED_STORES = {
    "the disk is full": "No space left on device",
    "the quota is used up": "File too large",
    "a file is in the place of the folder": "Not a directory",
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def faults(case: str, engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Go through all faults in one engine, after one that was killed and one whose pages mean something else."""
    folder = tmp_path_factory.mktemp("faults")
    common: dict[str, Any] = {"folder": str(folder)}
    killed, foreign = str(folder / "killed"), str(folder / "foreign")
    with pytest.raises(EngineError, match="exit status -9"):
        engines.run(programs.be_killed_while_storing, case=case, root=killed, pages=1, **common)
    assert len(list((folder / "killed").glob("*/*.tmp"))) == 1
    assert engines.run(programs.store, case=PAGES_OF_32.format(case), root=foreign, **common) > 0
    roots: dict[str, Any] = {"killed": killed, "foreign": foreign, "root": str(folder / "pages")}
    found: dict[str, Any] = engines.run(programs.go_through_faults, case=case, **roots, **common)
    return found


def cached_blocks(faults: dict[str, Any], result: dict[str, Any]) -> float:
    blocks: float = result["answer"]["cached_tokens"] / faults["block_tokens"]
    return blocks


def right(faults: dict[str, Any], result: dict[str, Any]) -> bool:
    return not differences(faults["plain"], result["answer"])


def test_no_fault_gives_a_wrong_token(faults: dict[str, Any]) -> None:
    results = faults["results"]
    answers = results | {
        f"after {name}": found["afterwards"] for name, found in results.items() if "afterwards" in found
    }
    assert len(answers) == len(FAULTS) + 3 + 5
    assert [name for name, result in answers.items() if not right(faults, result)] == []


def test_without_a_fault_all_blocks_are_served(faults: dict[str, Any]) -> None:
    for result in (faults["results"]["none"], faults["results"]["none at last"]["afterwards"]):
        assert cached_blocks(faults, result) == PROMPT
        assert not result["lines"]


@pytest.mark.parametrize("fault", MISSES)
def test_a_bad_page_is_a_miss_with_a_clear_line(faults: dict[str, Any], case: str, fault: str) -> None:
    page, words = MISSES[fault]
    result = faults["results"][fault]
    before = {"first": 0, "last": PROMPT - 1}[page]
    # A hybrid goes on only where there is a state as well.
    assert cached_blocks(faults, result) in ({before} if case == "llama" else {0, before})
    assert len(result["lines"]) == len(words)
    for line, word in zip(result["lines"], words, strict=True):
        assert line.startswith("page store: ")
        assert word in line


def test_pages_under_the_names_of_others_are_misses(faults: dict[str, Any]) -> None:
    """Whether they are of the same plan, or of one that means something else by the same bytes."""
    for fault in ("two pages are exchanged", "planted"):
        result = faults["results"][fault]
        assert cached_blocks(faults, result) == 0
        assert result["lines"]
        assert all("it is page" in line for line in result["lines"])


@pytest.mark.parametrize("fault", FAILED_STORES)
def test_a_store_that_fails_is_left_out_with_one_line(faults: dict[str, Any], fault: str) -> None:
    result = faults["results"][fault]
    (line,) = result["lines"]
    assert FAILED_STORES[fault] in line
    assert result["files"] == 0, "not even a temporary file"
    assert cached_blocks(faults, result["afterwards"]) == PROMPT
    assert not result["afterwards"]["lines"]


def test_a_folder_that_is_gone_is_made_again(faults: dict[str, Any]) -> None:
    result = faults["results"]["the folder is gone"]
    assert cached_blocks(faults, result) == 0
    assert not result["lines"]
    assert cached_blocks(faults, result["afterwards"]) == PROMPT


def test_what_a_killed_process_left_is_cleaned_up_and_what_it_stored_is_served(
    faults: dict[str, Any], case: str
) -> None:
    result = faults["results"]["killed"]
    assert faults["left"] == []
    assert cached_blocks(faults, result) == {"llama": 1, "qwen3.5": 0}[case], "one page was whole"
    assert not result["lines"]


CROWDED: dict[str, dict[str, Any]] = {
    # Too few blocks for all: some requests lose theirs, and begin again. What they compute again rounds differently,
    # which single precision forgives.
    "llama": {"num_gpu_blocks_override": 24, "dtype": "float32"},
    "qwen3.5": {"num_gpu_blocks_override": 200},
}


def test_fifty_requests_at_once_get_what_each_gets_alone_without_a_store(
    case: str, engines: Engines, tmp_path: Path
) -> None:
    """Many begin alike, some are the same, and all are in the engine together."""
    folders: dict[str, Any] = {"folder": str(tmp_path), "root": str(tmp_path / "pages")}
    served = engines.run(programs.serve_a_crowd, case=case, max_num_seqs=16, **(folders | CROWDED[case]))
    alone, results = served["alone"], served["results"]
    assert len(alone) == programs.REQUESTS
    assert len({tuple(answer) for answer in alone}) > 0.6 * len(alone)
    for result in results.values():
        assert result["answers"] == alone
        assert bool(result["preempted"]) == (case == "llama")
    assert len(results["warm"]["matched"]) > 10
    assert len(set(results["warm"]["matched"])) > 1
    assert served["lines"] == []
