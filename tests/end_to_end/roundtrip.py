"""What is shown for every model: that pages come back, into other blocks and into another process, and are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.end_to_end import programs
from tests.end_to_end.configs import CASES, Case
from tests.end_to_end.engine import BLOCKS
from tests.end_to_end.judging import differences
from tests.end_to_end.running import Engines

__all__ = ["RoundTrip", "Shown", "show"]


@attrs.frozen
class Shown:
    """What three processes said of a case: an engine without a connector, one that stored, and one that had not."""

    case: Case
    computed: dict[str, Any]
    here: dict[str, Any]
    elsewhere: dict[str, Any]


def show(name: str, engines: Engines, other_engines: Engines, folder: Path) -> Shown:
    """Run the three engines of a case."""
    common: dict[str, Any] = {"case": name, "folder": str(folder)}
    computed = engines.run(programs.answer_without_connector, **common)
    common |= {"root": str(folder / "pages"), "prompts": computed["prompts"], "tokens": len(computed["rest"]["tokens"])}
    here = engines.run(programs.store_and_retrieve, **common)
    elsewhere = other_engines.run(programs.retrieve_again, **common, used=here["used"])
    return Shown(CASES[name], computed, here, elsewhere)


class RoundTrip:
    """The tests of one case after the other."""

    def test_a_store_changes_no_answer(self, shown: Shown) -> None:
        first = shown.computed["first"]
        assert not differences(first, shown.computed["again"])
        assert not differences(first, shown.here["stored"])

    def test_what_is_retrieved_continues_as_if_it_had_been_computed(self, shown: Shown) -> None:
        assert not differences(shown.computed["rest"], shown.here["retrieved"])
        self.was_retrieved(shown, shown.here)

    def test_so_it_does_in_a_process_that_stored_nothing(self, shown: Shown) -> None:
        assert not differences(shown.computed["rest"], shown.elsewhere["retrieved"])
        self.was_retrieved(shown, shown.elsewhere)

    def test_a_prompt_that_branches_off_retrieves_what_it_shares(self, shown: Shown) -> None:
        computed, branched = shown.computed["branched"], shown.here["branched"]
        assert branched["matched"] == [[shown.computed["prefix"] * 2 // 3, True]]
        if shown.case.one_token_left:  # latent attention computes a prompt another way where something comes before it
            assert branched["retrieved"]["tokens"] == computed["tokens"]
        else:
            assert not differences(computed, branched["retrieved"])

    def was_retrieved(self, shown: Shown, there: dict[str, Any]) -> None:
        prefix = shown.computed["prefix"]
        assert there["matched"] == [[prefix, True]], "one load, and an asynchronous one"
        assert there["retrieved"]["cached_tokens"] == prefix
        assert {move["layer"] for move in there["loads"]} == set(shown.here["layers"])
        assert all(move["nbytes"] > 0 for move in there["loads"])

    def test_it_is_retrieved_into_other_blocks(self, shown: Shown) -> None:
        for loads in (shown.here["loads"], shown.elsewhere["loads"]):
            loaded, stored = by_layer(loads), by_layer(shown.here["stores"])
            assert loaded.keys() == stored.keys()
            for layer, ids in loaded.items():
                assert 0 < len(ids) <= len(stored[layer])
                assert len(set(ids)) == len(ids)
                assert not set(ids) & set(shown.here["used"])

    def test_null_blocks_are_neither_stored_nor_loaded(self, shown: Shown) -> None:
        moves = shown.here["stores"] + shown.here["loads"] + shown.elsewhere["loads"]
        assert {move["direction"] for move in moves} == {"store", "load"}
        assert all(0 < block < BLOCKS for move in moves for block in move["block_ids"])
        everything_is_kept = shown.case.model in ("llama", "deepseekv2")
        assert (shown.here["null_blocks"] == 0) == everything_is_kept, "others have null blocks where they could load"

    def test_every_cache_is_stored_once(self, shown: Shown) -> None:
        layers, aliases = shown.here["layers"], shown.here["aliases"]
        assert sorted(layers + aliases) == sorted(shown.here["shapes"])
        assert set(by_layer(shown.here["stores"])) == set(layers)
        assert bool(aliases) == (shown.case.model == "gemma3n")

    def test_without_the_pages_of_any_one_layer_the_answer_is_another(self, shown: Shown) -> None:
        without = shown.here["without"]
        assert set(without) == set(shown.here["layers"])
        needless = [layer for layer, got in without.items() if not differences(shown.computed["rest"], got)]
        assert not needless

    def test_the_engine_splits_blocks_where_it_should(self, shown: Shown) -> None:
        tokens = shown.computed["block_tokens"]
        pages = BLOCKS * tokens // (shown.case.kernel_tokens or tokens)
        attention = [parts for parts in shown.here["shapes"].values() if len(parts) == 1]
        assert attention
        assert {shape[0] for (shape,) in attention} == {pages}

    def test_keys_and_values_are_of_the_type_that_was_asked_for(self, shown: Shown) -> None:
        attention = {dtype for kinds in shown.here["dtypes"].values() if len(kinds) == 1 for dtype in kinds}
        fp8 = shown.case.options.get("kv_cache_dtype") == "fp8"
        assert attention == {"torch.uint8" if fp8 else "torch.bfloat16"}


def by_layer(moves: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the ids of all blocks that moved, for each layer."""
    found: dict[str, list[int]] = {}
    for move in moves:
        found.setdefault(move["layer"], []).extend(move["block_ids"])
    return found


MARKS = [pytest.mark.engine, pytest.mark.slow]
