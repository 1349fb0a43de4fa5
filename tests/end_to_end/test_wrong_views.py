"""The comparison of the other tests sees every fault that a connector may have, and nothing where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end import programs
from tests.end_to_end.judging import differences
from tests.end_to_end.running import Engines

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HYBRID = "qwen3.5, pages of 32"

FAULTS = (
    "addressing by kernel page",
    "addressing by kernel page in loads",
    "only the first kernel page",
    "a state without its second part",
    "two attention layers swapped",
    "two state layers swapped",
    "a block off by one in loads",
    "a block off by one in stores",
    "a block off by one in both",
    "a synchronous load",
)

Seen = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def seen(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Return what an engine without a connector says, and what one says with each fault."""
    folder = tmp_path_factory.mktemp("wrong")
    common: dict[str, Any] = {"case": HYBRID, "folder": str(folder)}
    computed = engines.run(programs.answer_without_connector, **common)
    common |= {"root": str(folder / "pages"), "prompts": computed["prompts"], "tokens": len(computed["rest"]["tokens"])}
    return computed, engines.run(programs.retrieve_wrongly, **common)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(seen: Seen, fault: str, record_property: Any) -> None:
    computed, by_fault = seen
    wrong = by_fault[fault]
    found = differences(computed["rest"], wrong["retrieved"])
    record_property("found", found)
    assert found
    # and for no other reason: everything was found and loaded
    assert wrong["matched"] == [[computed["prefix"], fault != "a synchronous load"]]
    assert wrong["retrieved"]["cached_tokens"] == computed["prefix"]
    assert len(wrong["loads"]) == len(by_fault["none"]["loads"])
    assert not differences(computed["rest"], by_fault["none"]["retrieved"])


@pytest.mark.parametrize("moment", ["none", "none at last"])
def test_nothing_is_seen_where_there_is_no_fault(seen: Seen, moment: str) -> None:
    """Before all faults, and after: none has left anything behind."""
    computed, by_fault = seen
    assert not differences(computed["rest"], by_fault[moment]["retrieved"])
    assert by_fault[moment]["matched"] == [[computed["prefix"], True]]


def test_faults_leave_out_what_they_say(seen: Seen) -> None:
    """A fault that moved every byte to its place would be none."""
    _, by_fault = seen
    assert tuple(by_fault) == ("none", *FAULTS, "none at last")
    moved = {fault: sum(move["nbytes"] for move in got["loads"]) for fault, got in by_fault.items()}
    partial = {*FAULTS[:4]}
    assert {fault for fault, size in moved.items() if size < moved["none"]} == partial
    assert max(moved.values()) == moved["none"]
