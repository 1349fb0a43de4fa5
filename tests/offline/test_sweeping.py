from __future__ import annotations

from typing import Any

from kvlayout.algebra.result import Err
from kvlayout.offline.sweeping import MOST, Axis, Row, axes, rows
from tests.offline.deployed import answered, dense, hybrid


def swept(over: dict[str, tuple[str, ...]], **given: str) -> list[Row]:
    return list(rows(hybrid(), given, axes(given, tuple(over.items())).unwrap()))


def test_every_combination_is_a_row_the_last_axis_fastest() -> None:
    found = swept({"tp": ("1", "2"), "block_size": ("16", "32", "64")})
    assert [row.values for row in found] == [(tp, size) for tp in "12" for size in ("16", "32", "64")]


def test_a_row_says_what_the_whole_answer_says() -> None:
    given: dict[str, Any] = {"cache_memory": 8 << 30, "chunk_size": 512}
    for row in swept({"tp": ("1", "2", "4")}, cache_memory="8GiB", chunk_size="512"):
        made = answered(hybrid(), tp=int(row.values[0]), **given)
        room = made.capacity
        assert room is not None
        assert (row.block, row.chunk) == (made.served.aligned_block, made.served.aligned_block)
        assert row.page_bytes == made.plan.groups[3].page_bytes
        assert (row.fixed_bytes, row.token_bytes) == (room.fixed_bytes, room.token_bytes)
        assert (row.tokens, row.requests) == (room.fits[-1].tokens_in_all, room.fits[-1].requests)
        assert row.errors == made.errors == ()


def test_padding_is_the_share_of_all_pages() -> None:
    (row,) = swept({"tp": ("1",)})
    page, kept = 1114112, 1085440
    assert row.padding is not None
    assert abs(row.padding - 6 * (page - kept) / (8 * page)) < 1e-12
    (plain,) = rows(dense(), {}, (Axis("tp", ("1",)),))
    assert plain.padding == 0


def test_what_is_unusable_or_refused_says_why() -> None:
    one, other = swept({"tp": ("3", "1")}, mamba_cache_mode="none")
    assert (one.block, one.errors[0].code.value, one.errors[0].path) == (None, "bad-config", "--tp")
    assert other.block is not None
    assert {error.code.value for error in other.errors} == {"unsupported-mamba-mode"}


def test_a_mode_without_states_has_no_chunk() -> None:
    one, other = swept({"mamba_cache_mode": ("align", "none")})
    assert (one.chunk, other.chunk) == (544, None)


def test_every_value_is_read_before_anything_is_served() -> None:
    refused = axes({"block_size": "no"}, (("tp", ("1", "x", "-2")), ("layout", ("NCHW",))))
    assert isinstance(refused, Err)
    assert [(error.path, error.actual) for error in refused.error.errors] == [
        ("--block-size", "no"),
        ("--tp", "x"),
        ("--tp", "-2"),
        ("--layout", "NCHW"),
    ]


def test_a_product_beyond_reason_is_refused() -> None:
    many = tuple(map(str, range(1, 401)))
    refused = axes({}, (("tp", many), ("block_size", many)))
    assert isinstance(refused, Err)
    assert refused.error.errors[0].actual == "160,000"
    assert axes({}, (("tp", many),)).unwrap() == (Axis("tp", many),)
    assert MOST < 160_000
