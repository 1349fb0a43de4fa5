from __future__ import annotations

from collections.abc import Mapping

import pytest

from kvlayout.offline.answering import answer
from kvlayout.offline.comparing import Comparison, Remedy, Side, compare
from kvlayout.offline.flags import read_flags
from kvlayout.offline.model import Model
from tests.offline.deployed import crossed, dense, hybrid, latent, windowed


def side(model: Model, **given: str) -> Side:
    return Side(model, given, answer(model, read_flags(given).unwrap()).unwrap())


def compared(model: Model, first: Mapping[str, str], second: Mapping[str, str]) -> Comparison:
    return compare(side(model, **first), side(model, **second))


def verdicts(made: Comparison) -> list[str]:
    return [one.verdict for one in made.groups]


def test_one_deployment_agrees_with_itself() -> None:
    for model in (hybrid(), dense(), windowed(), latent()):
        made = compared(model, {"tp": "2"}, {"tp": "2"})
        assert set(verdicts(made)) == {"identical"}
        assert made.remedies == ()


def test_ranks_with_other_heads_have_the_same_blocks_in_other_pages() -> None:
    made = compared(dense(), {"tp": "4"}, {"tp": "1"})
    assert made.verdict == "same-blocks"
    (found,) = made.groups
    assert found.differences["page_bytes"] == (16 * 2 * 2 * 128 * 2, 16 * 8 * 2 * 128 * 2)
    assert "block_tokens" not in found.differences
    plain = (0.0, 0.0)
    assert made.remedies == (Remedy({}, {"tp": "4"}, "identical", plain), Remedy({"tp": "1"}, {}, "identical", plain))


def test_replicated_latents_agree_whatever_the_ranks() -> None:
    made = compared(latent(), {"tp": "8"}, {"tp": "1"})
    assert made.verdict == "identical"
    assert made.remedies == ()


def test_ranks_that_hold_other_heads_have_pages_of_one_form_and_no_more() -> None:
    made = compared(dense(), {"tp": "8"}, {"tp": "16"})
    assert made.verdict == "same-form"
    assert made.groups[0].differences == {"tp": (8, 16)}
    assert [one[:3] for one in made.remedies] == [({}, {"tp": "8"}, "identical"), ({"tp": "16"}, {}, "identical")]
    assert compared(dense(heads=1), {"tp": "8"}, {"tp": "16"}).verdict == "identical", "one head is on every rank"


def test_pipeline_ranks_hold_other_layers() -> None:
    made = compared(dense(), {"pp": "2", "pp_rank": "0"}, {"pp": "2", "pp_rank": "1"})
    assert made.verdict == "same-form"
    one, other = made.groups[0].differences["layers"]
    assert one == ("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn")
    assert other == ("model.layers.2.self_attn.attn", "model.layers.3.self_attn.attn")
    assert compared(dense(), {"pp": "2"}, {"pp": "2"}).verdict == "identical"


def test_what_is_behind_other_fingerprints_is_named() -> None:
    made = compared(dense(), {}, {"layout": "HND"})
    assert made.verdict == "same-blocks"
    assert made.groups[0].differences["layout"] == ("LBNHC", "LBHNC")
    typed = compared(dense(), {}, {"dtype": "float16"})
    assert typed.groups[0].differences["element type"] == ("bfloat16", "float16")
    assert list(typed.groups[0].differences) == ["element type", "fingerprint"]


def test_a_hybrid_with_other_ranks_gets_another_block_and_the_size_that_makes_them_equal() -> None:
    made = compared(hybrid(), {"tp": "4"}, {"tp": "1"})
    assert verdicts(made) == ["different"] * 4
    assert made.groups[3].differences["block_tokens"] == (272, 544)
    blocks, *pages = made.remedies
    assert blocks[:3] == ({"block_size": "544"}, {"block_size": "544"}, "same-blocks")
    assert [one[:3] for one in pages] == [({}, {"tp": "4"}, "identical"), ({"tp": "1"}, {}, "identical")]


def test_a_remedy_says_what_it_costs() -> None:
    (blocks, *_) = compared(hybrid(), {"tp": "4"}, {"tp": "1"}).remedies
    page, kept = 544 * 1024, 271360
    assert blocks.padding[0] == pytest.approx(6 * (page - kept) / (8 * page))
    assert blocks.padding[1] == pytest.approx(6 * (1114112 - 1085440) / (8 * 1114112))


@pytest.mark.parametrize(
    ("model", "first", "second"),
    [
        (hybrid(), {"tp": "4"}, {"tp": "1"}),
        (hybrid(), {"tp": "4", "cache_dtype": "fp8"}, {"tp": "1"}),
        (hybrid(4, 32), {"tp": "1", "mamba_ssm_dtype": "bfloat16"}, {"tp": "2"}),
        (hybrid(), {"mamba_cache_mode": "none"}, {"block_size": "64"}),
        (dense(), {"block_size": "16"}, {"block_size": "48"}),
        (dense(), {"layout": "BLHNC"}, {"layout": "LBNHC", "cache_dtype": "fp8"}),
        (windowed(), {"block_size": "32", "tp": "2"}, {"tp": "1"}),
        (latent(), {"block_size": "64"}, {"block_size": "128", "cache_dtype": "fp8"}),
    ],
)
def test_what_is_said_to_help_does(model: Model, first: dict[str, str], second: dict[str, str]) -> None:
    made = compared(model, first, second)
    assert made.verdict != "identical"
    assert [one.gives for one in made.remedies][-1] == "identical"
    for one in made.remedies:
        again = compared(model, {**first, **one.first}, {**second, **one.second})
        assert again.verdict == one.gives


def test_a_remedy_names_only_what_is_needed() -> None:
    made = compared(dense(), {"cache_dtype": "fp8", "chunk_size": "512"}, {"cache_memory": "8GiB"})
    assert [dict(one.second) for one in made.remedies] == [{"cache_dtype": "fp8"}, {}]


def test_modes_that_keep_nothing_never_agree() -> None:
    made = compared(hybrid(), {"mamba_cache_mode": "none"}, {"mamba_cache_mode": "none"})
    assert verdicts(made) == ["different", "different", "different", "identical"]
    assert made.groups[0].differences["disposition"] == ("refused", "refused")
    assert made.remedies == ()
    assert compared(crossed(), {}, {}).verdict == "different"


def test_context_parallel_ranks_hold_a_share_of_each_block() -> None:
    made = compared(latent(), {"dcp": "2", "tp": "2", "block_size": "64"}, {"block_size": "128"})
    assert made.groups[0].differences["states_per_block"] == (64, 128)
    assert "block_tokens" not in made.groups[0].differences
    assert [one.gives for one in made.remedies] == ["identical"]


def test_models_with_other_groups_do_not_agree() -> None:
    made = compare(side(hybrid()), side(dense()))
    assert made.verdict == "different"
    assert made.groups[3].differences == {"group": ("full_attention", None)}
    assert made.groups[0].differences["kind"] == ("mamba", "full_attention")
