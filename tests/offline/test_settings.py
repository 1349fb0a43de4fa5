from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from kvlayout.offline.answering import Answer
from kvlayout.offline.model import AttentionLayer, StateLayer
from kvlayout.offline.settings import Advice, chunk_unit, listed
from tests.offline.deployed import KERNELS, answered, crossed, dense, hybrid, latent, windowed


def advice(made: Answer, name: str) -> Advice:
    (found,) = [one for one in made.settings if one.name == name]
    return found


def codes(made: Answer) -> list[str]:
    return [one.code for one in made.cautions]


# ----------------------------------------------------------------------------------------------------------- settings


def test_every_setting_has_a_value_and_a_reason() -> None:
    for made in (answered(hybrid(), kernel_block_sizes=KERNELS), answered(dense()), answered(windowed())):
        assert len({one.name for one in made.settings}) == len(made.settings)
        assert all(one.value and len(one.reason) > 20 for one in made.settings)


def test_a_chunk_is_a_multiple_of_every_block() -> None:
    made = answered(hybrid(), kernel_block_sizes=KERNELS)
    assert chunk_unit(made.served) == 544
    assert advice(made, "chunk size").value == "a multiple of 544"
    assert advice(answered(dense(), block_size=64), "chunk size").value == "a multiple of 64"
    assert "256, LMCache's default, is a multiple" in advice(answered(dense(), block_size=64), "chunk size").reason
    assert advice(made, "chunk size").reason.endswith("from 256 on, LMCache's default, is 544")


def test_several_blocks_are_listed() -> None:
    assert (listed((16,)), listed((16, 8192)), listed((1, 2, 3))) == ("16", "16 and 8,192", "1, 2 and 3")


def test_a_mode_that_keeps_no_states_has_no_chunk() -> None:
    made = answered(hybrid(), mamba_cache_mode="none", chunk_size=256)
    assert chunk_unit(made.served) is None
    assert advice(made, "chunk size").value is None
    assert "chunk-size" not in codes(made)


@pytest.mark.parametrize(
    ("size", "value", "warned"),
    [(256, "544", True), (544, "544", False), (1000, "1,088", True), (1088, "1,088", False)],
)
def test_a_chunk_size_is_judged(size: int, value: str, warned: bool) -> None:
    made = answered(hybrid(), kernel_block_sizes=KERNELS, chunk_size=size)
    assert advice(made, "chunk size").value == value
    assert ("chunk-size" in codes(made)) is warned


def test_the_nearest_chunk_sizes_are_named() -> None:
    (found,) = answered(hybrid(), kernel_block_sizes=KERNELS, chunk_size=1000).cautions
    assert found.text == "a chunk of 1,000 tokens is no multiple of 544; the nearest are 544 and 1,088"


def test_a_window_inside_a_chunk_is_whole_blocks() -> None:
    (tight,) = answered(hybrid(), kernel_block_sizes=KERNELS, chunk_size=256).cautions
    assert tight.text.endswith("; the nearest is 544")
    found = [one for one in answered(windowed(1000), block_size=16, chunk_size=2048).cautions if one.code == "window"]
    assert found
    assert all("a window of 1,000 tokens inside a chunk of 2,048" in one.text for one in found)
    assert "window" not in codes(answered(windowed(1024), block_size=16, chunk_size=2048))
    assert "window" not in codes(answered(windowed(1000), block_size=16, chunk_size=512))


def test_the_block_size_says_why_it_was_raised() -> None:
    raised = advice(answered(hybrid(), kernel_block_sizes=KERNELS), "--block-size")
    assert (raised.value, "the engine raises 32" in raised.reason) == ("544", True)
    kept = advice(answered(dense(), block_size=64), "--block-size")
    assert (kept.value, kept.reason) == ("64", "the engine keeps it as it is")


@pytest.mark.parametrize(
    ("batch", "value", "reason"),
    [
        (None, "8,160", "of 8,192, the default, 8,160 are used, 32 are not"),
        (5440, "5,440", "5,440 is 10 whole blocks"),
        (544, "544", "544 is 1 whole block: steps"),
        (512, "544 or more", "512 is less than a block of 544"),
    ],
)
def test_a_step_is_whole_blocks_in_align_mode(batch: int | None, value: str, reason: str) -> None:
    found = advice(answered(hybrid(), kernel_block_sizes=KERNELS, max_batched_tokens=batch), "--max-batched-tokens")
    assert found.value == value
    assert reason in found.reason


def test_a_model_without_states_has_no_cache_mode() -> None:
    names = [one.name for one in answered(dense()).settings]
    assert "--mamba-cache-mode" not in names
    assert "--max-batched-tokens" not in names


def test_a_mode_that_keeps_nothing_is_advised_against() -> None:
    made = answered(hybrid(), mamba_cache_mode="none")
    assert advice(made, "--mamba-cache-mode").value == "align"
    assert {error.code.value for error in made.errors} == {"unsupported-mamba-mode"}
    assert advice(answered(hybrid()), "--mamba-cache-mode").value == "align"
    assert advice(made, "prefix caching").value == "turn on"
    assert not made.asked.prefix_caching, "the engine has that mode only without prefix caching"


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_the_layout_is_named_with_what_it_means(layout: Any) -> None:
    found = advice(answered(dense(), layout=layout), "--layout")
    assert found.value == layout
    assert ("side by side" in found.reason) is layout.startswith("BL")
    assert ("heads come before tokens" in found.reason) is layout.endswith("HNC")


def test_without_prefix_caching_nothing_is_found() -> None:
    made = answered(dense(), prefix_caching=False)
    assert advice(made, "prefix caching").value == "turn on"
    assert "prefix-caching" in codes(made)
    assert advice(answered(dense()), "prefix caching").value == "on"


def test_a_model_without_attention_has_prefix_caching_only_where_it_is_asked_for() -> None:
    states = evolve(hybrid(), layers=tuple(one for one in hybrid().layers if isinstance(one, StateLayer)))
    assert "asked for" in advice(answered(states), "prefix caching").reason
    assert "asked for" not in advice(answered(hybrid()), "prefix caching").reason


# ----------------------------------------------------------------------------------------------------------- cautions


def test_padding_above_a_tenth_is_worth_a_word() -> None:
    made = answered(hybrid(), block_size=1024, kernel_block_sizes=KERNELS)
    (found,) = [one for one in made.cautions if one.code == "padding"]
    assert found.groups == (0, 1, 2)
    page, kept = 1024 * 2 * 512 * 2, 1085440
    assert f"{(page - kept) / page:.1%} of each page of {page:,} bytes" in found.text
    assert "padding" not in codes(answered(hybrid(), kernel_block_sizes=KERNELS))


def test_a_block_that_changes_with_tp_is_compared_with_one_rank() -> None:
    (found,) = [one for one in answered(hybrid(), tp=4).cautions if one.code == "block-size-and-tp"]
    assert "a block has 272 tokens at --tp 4 and 544 at --tp 1, 0.5 times as many" in found.text
    assert "block-size-and-tp" not in codes(answered(hybrid(), tp=2))
    assert "block-size-and-tp" not in codes(answered(dense(), tp=4))


def test_pages_that_every_rank_holds_are_copies() -> None:
    (found,) = [one for one in answered(latent(), tp=8).cautions if one.code == "replicated"]
    assert found.groups == (0,)
    assert "each of 8 ranks holds the same pages" in found.text
    assert "replicated" not in codes(answered(dense(), tp=8))
    assert "replicated" not in codes(answered(latent()))


@pytest.mark.parametrize(("tp", "copies"), [(8, None), (16, 2), (32, 4)])
def test_heads_that_are_on_several_ranks_are_copies(tp: int, copies: int | None) -> None:
    found = [one for one in answered(dense(), tp=tp).cautions if one.code == "replicated"]
    assert len(found) == (copies is not None)
    assert all(one.text.startswith(f"each KV head is on {copies} of {tp} ranks: ") for one in found)
    assert all(one.text.endswith(f" keeps {copies} copies") for one in found)


def test_only_groups_of_which_ranks_share_heads_are_copies() -> None:
    (found,) = [one for one in answered(hybrid(), tp=4).cautions if one.code == "replicated"]
    assert found.groups == (3,), "states are divided"
    assert "replicated" not in codes(answered(hybrid(), tp=2))


def test_what_the_engine_does_otherwise_is_said() -> None:
    found = answered(hybrid(), mamba_cache_mode="align", prefix_caching=False).cautions[0]
    assert (found.code, found.text) == (
        "not-as-asked",
        "--mamba-cache-mode align was asked for, and the engine takes none",
    )
    assert "not-as-asked" not in codes(answered(hybrid(), mamba_cache_mode="align", layout="LBNHC"))


def test_a_cache_type_that_attention_is_not_told_of_is_said() -> None:
    deaf = answered(evolve(dense(), typed_cache=False), cache_dtype="fp8")
    assert "not-as-asked" in codes(deaf)
    assert deaf.served.block_bytes == answered(dense()).served.block_bytes
    assert "not-as-asked" not in codes(answered(dense(), cache_dtype="fp8"))


def test_memory_that_is_too_small_is_said_with_what_fits() -> None:
    made = answered(dense(), cache_memory=100 << 20)
    assert made.capacity is not None
    (found,) = [one for one in made.cautions if one.code == "memory"]
    assert f"no request of 8,192 tokens fits in this memory, the longest has {made.capacity.longest:,}" in found.text
    assert "memory" not in codes(answered(dense(), cache_memory=8 << 30))
    assert "memory" not in codes(answered(dense()))


def test_the_block_that_the_engine_keeps_is_told_from_memory_that_is_too_small() -> None:
    made = answered(dense(), cache_memory=512 * 16 * 4 * 4096, max_model_len=8192)
    assert made.capacity is not None
    assert made.capacity.fits[-1].requests == 1
    (found,) = [one for one in made.cautions if one.code == "memory"]
    assert found.text.startswith(
        "the engine counts 1.00 requests of 8,192 tokens and starts, but one of the 512 blocks"
    )
    assert "the longest request that it can run has 8,176;" in found.text
    assert "memory" not in codes(answered(dense(), cache_memory=513 * 16 * 4 * 4096, max_model_len=8192))
    less = answered(dense(), cache_memory=511 * 16 * 4 * 4096, max_model_len=8192)
    assert "will not start" in next(one.text for one in less.cautions if one.code == "memory")


def test_a_group_with_fewer_layers_says_how_much_of_its_blocks_is_unused() -> None:
    names = [f"model.layers.{i}.self_attn.attn" for i in range(9)]
    layers = tuple(AttentionLayer(name, 32, 8, 128, 128, None if i < 4 else 512) for i, name in enumerate(names))
    made = answered(evolve(dense(), layers=layers))
    assert [len(group.layers) for group in made.served.registration.groups] == [4, 5]
    (found,) = [one for one in made.cautions if one.code == "uneven-groups"]
    assert found.groups == (0,)
    assert found.text == "group 0 has 4 layers, others 5: a fifth of each of its blocks is unused"


def test_a_plain_model_has_nothing_to_look_at() -> None:
    assert codes(answered(dense(), cache_memory=8 << 30, chunk_size=256)) == []
    assert codes(answered(latent(), cache_memory=8 << 30, chunk_size=256)) == []


# ------------------------------------------------------------------------------------------------------------ refused


def test_cross_attention_is_planned_and_refused_with_its_reason() -> None:
    made = answered(crossed(), cache_memory=8 << 30)
    assert {error.code.value for error in made.errors} == {"unsupported-cross-attention"}
    assert made.capacity is None
    assert [group.disposition for group in made.plan.groups].count("refused") == 1
