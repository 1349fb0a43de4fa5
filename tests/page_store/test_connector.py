"""The connector's two halves by themselves: what they serve, whom, and what they tell vLLM when it fails."""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.page_store.halves import BLOCK, PROMPT, Rank, Scheduling, config, stored

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def _engine() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("examples.page_store_connector")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = [record for record in caplog.records if record.name.startswith("examples")]
    return [record.getMessage() for record in ours if record.levelno >= logging.WARNING]


def matched(half: Scheduling, name: str = "next", computed: int = 0, **changes: Any) -> tuple[int, bool]:
    found: tuple[int, bool] = half.connector.get_num_new_matched_tokens(half.request(name, **changes), computed)
    return found


# ------------------------------------------------------------------------------------------------------ what is served


def test_a_prompt_is_matched_up_to_where_all_groups_have_it(tmp_path: Path) -> None:
    rank, half = stored(tmp_path)
    assert matched(half) == (3 * BLOCK, True)
    assert matched(half, computed=BLOCK) == (2 * BLOCK, True)
    assert matched(half, computed=3 * BLOCK) == (0, False)
    assert matched(half, tokens=PROMPT[: 3 * BLOCK]) == (0, False), "a token must be left, and the state is at the end"
    assert matched(half, tokens=[7, *PROMPT[1:]]) == (0, False)
    state, (_, prefix) = rank.connector._served[0], half.connector._requests["first"]
    rank.connector.files.path(state.name(prefix.until(3 * BLOCK))).unlink()
    assert matched(half, tokens=PROMPT) == (0, False)


def test_a_page_that_is_there_is_not_stored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, half = stored(tmp_path)
    written: list[bytes] = []
    monkeypatch.setattr(rank.connector.files, "write", lambda name, _parts: written.append(name))
    half.request("second")
    half.request("third", tokens=[9, *PROMPT[1:]])
    half.request("fourth", tokens=[9, *PROMPT[1:]])
    rank.work(stores=half.step({"second": 3 * BLOCK}).stores)
    assert not written
    rank.work(stores=half.step({"third": 3 * BLOCK, "fourth": 3 * BLOCK}).stores)
    assert len(written) == len(set(written)) == 6, "three states and three blocks, once each"


def test_stores_that_keep_failing_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the pages of some groups still find room; and again when it was over in between."""
    rank, half = stored(tmp_path)
    module: Any = import_module("examples.page_files")
    write, room = module.PageFiles.write, 2

    def written(files: Any, name: bytes, parts: Sequence[memoryview]) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError("no room")
        write(files, name, parts)

    monkeypatch.setattr(module.PageFiles, "write", written)
    for name, left in (("b", 2), ("c", 1), ("d", 0), ("e", 100), ("f", 2)):
        room = left
        half.request(name, tokens=[ord(name), *PROMPT[1:]])
        rank.work(stores=half.step({name: 3 * BLOCK}).stores)
    assert [line.partition(": ")[0] for line in lines(caplog)] == ["page store"] * 2


def test_null_blocks_and_states_within_a_block_are_left_out(tmp_path: Path) -> None:
    _, half = stored(tmp_path)
    half.request("second", tokens=[9, *PROMPT[1:]])
    (job,) = half.step({"second": 3 * BLOCK + 2}, [[0, 0, 5, 6]] * 3 + [[1, 0, 3, 4]]).stores
    assert {index: [block for _, block in blocks] for index, blocks in job.blocks.items()} == {
        0: [], 1: [], 2: [], 3: [1, 3],
    }  # fmt: skip


def test_what_is_computed_behind_the_prompt_is_not_stored(tmp_path: Path) -> None:
    _, half = stored(tmp_path)
    half.request("second", num_computed_tokens=3 * BLOCK + 5, num_tokens=4 * BLOCK)
    assert not any(job.blocks[i] for job in half.step({"second": BLOCK - 5}).stores for i in job.blocks)


@pytest.mark.parametrize(
    "more", [{"mm_features": ["image"]}, {"lora_request": "adapter"}, {"prompt_embeds": "rows"}, {"resumable": True}]
)
def test_requests_that_are_more_than_their_tokens_are_left_alone(tmp_path: Path, more: dict[str, Any]) -> None:
    _, half = stored(tmp_path)
    assert matched(half, "other", **more) == (0, False)
    assert not half.step({"other": 3 * BLOCK}).stores


def test_a_salt_keeps_requests_apart(tmp_path: Path) -> None:
    _, half = stored(tmp_path)
    assert matched(half, "salted", cache_salt="mine") == (0, False)


def test_nothing_that_was_stored_is_served_after_a_reset(tmp_path: Path) -> None:
    _, half = stored(tmp_path)
    assert half.connector.reset_cache()
    assert matched(half, "later") == (0, False)


@pytest.mark.parametrize(("store", "load"), [(False, True), (True, False)])
def test_a_side_can_be_switched_off(tmp_path: Path, store: bool, load: bool) -> None:
    rank, _ = stored(tmp_path)
    half = Scheduling(tmp_path, [rank], options={"store": store, "load": load})
    assert (matched(half)[0] > 0) == load
    assert bool(half.step({"next": 3 * BLOCK}).stores) == store


# ----------------------------------------------------------------------------------------------- which pages are whose

IDENTITY: dict[str, dict[str, Any]] = {
    "another model": {"model": "org/other"},
    "another revision": {"revision": "v2"},
    "another commit": {"hf_config": SimpleNamespace(to_json_string=lambda: "{}", _commit_hash="def")},
    "another config": {"hf_config": SimpleNamespace(to_json_string=lambda: '{"rope": 1}', _commit_hash="abc")},
    "another type": {"dtype": "torch.float16"},
    "quantised weights": {"quantization": "fp8"},
    "another cache type": {"cache_dtype": "fp8_e5m2"},
    "random weights": {"load_format": "dummy"},
    "another seed": {"seed": 1},
    "another rank": {"rank": 1},
    "more ranks": {"world_size": 2, "tensor_parallel_size": 2},
}


@pytest.mark.parametrize("changes", IDENTITY.values(), ids=list(IDENTITY))
def test_pages_of_something_else_are_not_found(tmp_path: Path, changes: dict[str, Any]) -> None:
    stored(tmp_path)
    assert matched(Scheduling(tmp_path, [Rank(tmp_path)]))[0] > 0
    assert matched(Scheduling(tmp_path, [Rank(tmp_path, **changes)])) == (0, False)


def test_other_weights_in_the_same_folder_are_another_model(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    root, names = tmp_path / "pages", cast("Any", import_module("examples.page_names"))
    before = names.model_digest(config(root, model=str(folder)))
    assert before == names.model_digest(config(root, model=str(folder)))
    (folder / "model.safetensors").write_bytes(b"other")
    assert before != names.model_digest(config(root, model=str(folder)))


def test_two_ranks_serve_what_both_have(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, rank=rank, world_size=2, tensor_parallel_size=2) for rank in (0, 1)]
    half = Scheduling(tmp_path, ranks)
    half.request("first")
    work = half.step({"first": 3 * BLOCK})
    ranks[0].work(stores=work.stores)
    assert matched(half) == (0, False)
    ranks[1].work(stores=work.stores)
    assert matched(half) == (3 * BLOCK, True)


def test_without_one_rank_nothing_is_served(tmp_path: Path) -> None:
    rank, _ = stored(tmp_path)
    idle = Rank(tmp_path)
    idle.connector._served = {}
    assert matched(Scheduling(tmp_path, [rank, idle])) == (0, False)


def test_a_group_that_must_not_move_keeps_all_others_from_being_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rank = Rank(tmp_path, groups={1: ("enable_kv_transfer", False)})
    half = Scheduling(tmp_path, [rank])
    (line,) = lines(caplog)
    assert "group 1 is not-transferable: nothing is stored or loaded" in line
    half.request("first")
    assert not half.step({"first": 3 * BLOCK}).stores
    assert matched(half) == (0, False)


# -------------------------------------------------------------------------------------------------------------- loads


def test_a_load_writes_all_layers_of_other_blocks(tmp_path: Path) -> None:
    rank, half = stored(tmp_path)
    views = rank.connector.views
    kept = {layer: [view[block].clone() for block in (1, 2, 3, 5)] for layer, view in views.items()}
    rank.allocated.pool.fill_(0x3D)
    request = half.request("next")
    half.connector.get_num_new_matched_tokens(request, 0)
    work = half.promise(request, 3 * BLOCK, [[0, 0, 4]] * 3 + [[6, 8, 7]])
    results = rank.work(loads=work.loads)
    assert results.finished_recving == {"next"}
    assert not results.failed_recving
    for layer, view in views.items():
        if layer.startswith("attn"):
            assert all(view[new].equal(kept[layer][old]) for old, new in enumerate((6, 8, 7)))
        else:
            assert view[4].equal(kept[layer][3])


def fail_to_load(rank: Rank, half: Scheduling) -> Any:
    """Remove a page between look-up and load."""
    request = half.request("next")
    half.connector.get_num_new_matched_tokens(request, 0)
    work = half.promise(request, 3 * BLOCK, [[0, 0, 4]] * 3 + [[6, 8, 7]])
    min(rank.connector.files.root.glob("*/*")).unlink()
    rank.allocated.pool.fill_(0x3D)
    return work


def test_a_load_that_fails_writes_nothing_and_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rank, half = stored(tmp_path)
    results = rank.work(loads=fail_to_load(rank, half).loads)
    assert results.failed_recving == {"next"} == results.finished_recving
    assert rank.connector.get_block_ids_with_load_errors() == set()
    assert bool((rank.allocated.pool == 0x3D).all())
    assert len(lines(caplog)) == 1
    assert rank.work().failed_recving == set(), "it is told once"

    rank.work(stores=half.step({"first": 3 * BLOCK}).stores)
    half.connector.update_connector_output(results)
    assert half.connector.get_num_new_matched_tokens(half.connector._requests["next"][0], 0) == (0, False)
    half.connector.request_finished_all_groups(SimpleNamespace(request_id="next"), ())
    assert matched(half) == (3 * BLOCK, True)


def test_a_synchronous_load_that_fails_is_told_by_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = import_module("examples.page_store_connector")
    monkeypatch.setattr(module.PageStoreConnector, "asynchronous", False)
    rank, half = stored(tmp_path)
    assert matched(half, "other") == (3 * BLOCK, False)
    results = rank.work(loads=fail_to_load(rank, half).loads)
    assert not results.finished_recving
    assert not results.failed_recving
    assert rank.connector.get_block_ids_with_load_errors() == {4, 6, 7, 8}
    assert rank.connector.get_block_ids_with_load_errors() == set()


def test_a_request_is_forgotten_when_it_ends(tmp_path: Path) -> None:
    _, half = stored(tmp_path)
    for name in ("first", "next"):
        matched(half, name)
        assert half.connector.request_finished_all_groups(SimpleNamespace(request_id=name), ()) == (False, None)
    assert not half.connector._requests
    assert not half.connector._computed
