"""Every case of the table of rules: what each rule takes, what it gives, in both presentations, for every block.

Each case is checked three ways: against the shape that the contract names, against an enumeration of the bytes of
every block, and, with its block count unknown, against the plan of every concrete count.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest

from kvlayout.reporting import plan_json
from tests.documents.enumeration import hits_its_pages, page_bytes_of, spec_for
from tests.rules.building import (
    Json,
    attention,
    document,
    group,
    latent,
    mamba,
    one,
    planned,
    state_list,
    state_row,
    tensor,
    view,
)

SUBPAGED = "subpaged-attention-view"
TILES = "subpaged-mla-attention-view"
PAGES = "mamba-page-view"
UNIFIED = "mamba-unified-view"

# 64 tokens a block, 2 heads of 8 bfloat16 elements for K and V each: a page of 4096 bytes
KV = attention()
KV_PAGE = 4096
# 64 tokens a block, 112 bytes of state, a page of 1024 bytes: 8 bfloat16 elements a token
STATE = mamba(page=1024)
# 64 latent rows of 24 bfloat16 elements: a page of 3072 bytes
ROWS = latent()


class Case(NamedTuple):
    """A document of layer ``a``, and what becomes of it."""

    name: str
    document: Json
    rule: str | None
    shape: list[int] | None
    dtype: str = "bfloat16"
    content: str = "opaque"
    planes: int = 1


def in_two_groups(spec: Json, cache: Any, pool: int, blocks: int = 3) -> Json:
    """Return layer ``a`` in a blocks-first pool of ``pool`` bytes a block, its sibling's page behind its own."""
    page = page_bytes_of(spec)
    sibling = copy.deepcopy(cache)
    for part in sibling if isinstance(sibling, list) else [sibling]:
        item = {"bfloat16": 2, "float32": 4}.get(part["dtype"], 1)
        part["storage_offset"] += page // item
    assert pool >= 2 * page
    return document([group(["a", "b"], spec)], {"a": cache, "b": sibling}, blocks)


def rank5(order: tuple[int, ...], blocks: int = 3, hint: str = "NHD", kernel: int = 16) -> Json:
    return one(KV, tensor([blocks * 64 // kernel, 2, kernel, 2, 8], order=order), blocks, hint)


def fused(order: tuple[int, ...], blocks: int = 3, hint: str | None = "NHD", layout: str | None = None) -> Json:
    return one(KV, tensor([blocks * 4, 2, 16, 16], order=order), blocks, hint, layout=layout)


def apart(order: tuple[int, ...], blocks: int = 3, hint: str | None = "NHD") -> Json:
    return one(KV, tensor([2, blocks * 4, 16, 2, 8], order=order), blocks, hint)


SPLIT, NHD, HND = [3, 2, 64, 1, 16], [3, 64, 1, 32], [3, 1, 64, 32]
NHD_ORDER, HND_ORDER = (0, 1, 2, 3, 4), (0, 1, 3, 2, 4)

ATTENTION = [
    # rank 5, in any physical order
    Case("rank 5", rank5(NHD_ORDER), SUBPAGED, SPLIT),
    Case("rank 5, heads first in memory", rank5(HND_ORDER), SUBPAGED, SPLIT),
    Case("rank 5, tokens outside planes in memory", rank5((0, 2, 1, 3, 4)), SUBPAGED, SPLIT),
    Case("rank 5, channels outside heads in memory", rank5((0, 4, 2, 1, 3)), SUBPAGED, SPLIT),
    Case("rank 5 under HND", rank5(NHD_ORDER, hint="HND"), SUBPAGED, HND),
    Case("rank 5 under HND, heads first in memory", rank5(HND_ORDER, hint="HND"), SUBPAGED, HND),
    Case("rank 5 under BLNHC", rank5(NHD_ORDER, hint="BLNHC"), SUBPAGED, NHD),
    Case("rank 5 under BLHNC", rank5(NHD_ORDER, hint="BLHNC"), SUBPAGED, HND),
    Case("rank 5, 1 block", rank5(NHD_ORDER, 1), SUBPAGED, [1, 2, 64, 1, 16]),
    Case("rank 5, 2 blocks", rank5(NHD_ORDER, 2), SUBPAGED, [2, 64, 1, 32]),
    Case("rank 5, 2 blocks under HND", rank5(NHD_ORDER, 2, "HND"), SUBPAGED, [2, 1, 64, 32]),
    Case("rank 5, kernel pages of 1 token", rank5(NHD_ORDER, kernel=1), SUBPAGED, SPLIT),
    # fused, in both memory orders
    Case("fused", fused((0, 1, 2, 3)), SUBPAGED, NHD),
    Case("fused, tokens first in memory", fused((0, 2, 1, 3)), SUBPAGED, NHD),
    Case("fused under HND", fused((0, 1, 2, 3), hint="HND"), SUBPAGED, HND),
    Case("fused under HND, tokens first in memory", fused((0, 2, 1, 3), hint="HND"), SUBPAGED, HND),
    Case("fused under BLNHC", fused((0, 1, 2, 3), hint="BLNHC"), SUBPAGED, NHD),
    Case("fused under BLHNC", fused((0, 1, 2, 3), hint="BLHNC"), SUBPAGED, HND),
    Case("fused, 1 block", fused((0, 1, 2, 3), 1), SUBPAGED, [1, 64, 1, 32]),
    Case("fused, 2 blocks", fused((0, 1, 2, 3), 2), SUBPAGED, [2, 64, 1, 32]),
    # a layout name where there is no hint; a hint goes before it
    Case("fused, LBNHC for a hint", fused((0, 1, 2, 3), hint=None, layout="LBNHC"), SUBPAGED, NHD),
    Case("fused, LBHNC for a hint", fused((0, 1, 2, 3), hint=None, layout="LBHNC"), SUBPAGED, HND),
    Case("fused, BLNHC for a hint", fused((0, 1, 2, 3), hint=None, layout="BLNHC"), SUBPAGED, NHD),
    Case("fused, BLHNC for a hint", fused((0, 1, 2, 3), hint=None, layout="BLHNC"), SUBPAGED, HND),
    Case("fused, an old name for a hint", fused((0, 1, 2, 3), hint=None, layout="HND"), SUBPAGED, HND),
    Case("fused, a hint against the name", fused((0, 1, 2, 3), hint="NHD", layout="LBHNC"), SUBPAGED, NHD),
    Case("fused, strides are never asked", fused((0, 2, 1, 3), hint=None, layout="LBHNC"), SUBPAGED, HND),
    # planes first
    Case("planes first", apart((0, 1, 2, 3, 4)), SUBPAGED, [2, 3, 64, 2, 8], content="semantic", planes=2),
    Case(
        "planes first under HND",
        apart((0, 1, 2, 3, 4), hint="HND"),
        SUBPAGED,
        [2, 3, 64, 2, 8],
        content="semantic",
        planes=2,
    ),
    Case(
        "planes first, no hint",
        apart((0, 1, 2, 3, 4), hint=None),
        SUBPAGED,
        [2, 3, 64, 2, 8],
        content="semantic",
        planes=2,
    ),
    Case("planes first, heads outside tokens", apart((0, 1, 3, 2, 4)), SUBPAGED, [2, 3, 64, 1, 16], planes=2),
    Case(
        "planes first, heads outside, no hint", apart((0, 1, 3, 2, 4), hint=None), SUBPAGED, [2, 3, 64, 1, 16], planes=2
    ),
    Case("planes first, heads outside, HND", apart((0, 1, 3, 2, 4), hint="HND"), SUBPAGED, [2, 3, 64, 1, 16], planes=2),
    Case("planes first, 2 blocks", apart((0, 1, 2, 3, 4), 2), SUBPAGED, [2, 2, 64, 2, 8], content="semantic", planes=2),
    Case("planes first, 1 block", apart((0, 1, 2, 3, 4), 1), SUBPAGED, [2, 1, 64, 2, 8], content="semantic", planes=2),
    Case(
        "planes first, one head",
        one(attention(heads=1), tensor([2, 12, 16, 1, 8], [1536, 128, 8, 999, 1])),
        SUBPAGED,
        [2, 3, 64, 1, 8],
        content="semantic",
        planes=2,
    ),
    Case(
        "planes first, kernel pages of one token",
        one(KV, tensor([2, 192, 1, 2, 8], [3072, 16, 1, 8, 1])),
        SUBPAGED,
        [2, 3, 64, 2, 8],
        content="semantic",
        planes=2,
    ),
    # planes first in shape, inside the kernel page in memory: what 0.25 makes of it in a hybrid model
    Case("planes inside", apart((1, 0, 2, 3, 4)), SUBPAGED, SPLIT),
    Case("planes inside, heads outside tokens", apart((1, 0, 3, 2, 4)), SUBPAGED, SPLIT),
    Case("planes inside under HND", apart((1, 0, 2, 3, 4), hint="HND"), SUBPAGED, HND),
    Case("planes inside, 2 blocks", apart((1, 0, 2, 3, 4), 2), SUBPAGED, [2, 64, 1, 32]),
    Case("planes inside, 1 block", apart((1, 0, 2, 3, 4), 1), SUBPAGED, [1, 2, 64, 1, 16]),
    # other element types; heads and channels that the spec declares
    Case(
        "bytes of fp8",
        one(attention(dtype="float8_e4m3fn"), tensor([12, 2, 16, 16], dtype="uint8")),
        SUBPAGED,
        NHD,
        "uint8",
    ),
    Case(
        "head slots of a quantised cache",
        one(
            attention(heads=2, num_head_slots=4, dtype="uint8", content=9, page=64 * 4 * 9)
            | {"derived": {"num_states": 64, "num_heads": 4, "state_content_size_bytes": 9, "page_size_bytes": 2304}},
            tensor([12, 4, 16, 9], dtype="uint8"),
        ),
        SUBPAGED,
        [3, 64, 1, 36],
        "uint8",
    ),
    Case("values of another size", one(attention(head=8, head_v=4), tensor([12, 2, 16, 12])), SUBPAGED, [3, 64, 1, 24]),
    Case(
        "a sliding window",
        one(attention(name="SlidingWindowSpec", sliding_window=32), tensor([12, 2, 16, 16])),
        SUBPAGED,
        NHD,
    ),
    Case(
        "a chunk",
        one(attention(name="ChunkedLocalAttentionSpec", attention_chunk_size=32), tensor([12, 2, 16, 16])),
        SUBPAGED,
        NHD,
    ),
    Case("a sink", one(attention(name="SinkFullAttentionSpec", sink_len=4), tensor([12, 2, 16, 16])), SUBPAGED, NHD),
    Case(
        "a plug-in's class",
        one(attention(name="MySpec") | {"bases": ["FullAttentionSpec", "AttentionSpec"]}, tensor([12, 2, 16, 16])),
        SUBPAGED,
        NHD,
    ),
    # compression that the spec declares: states, not tokens, are what a page has
    Case(
        "4 tokens a state, kernel pages of 8 states",
        one(attention(states=16, tokens_per_state=4), tensor([6, 2, 8, 16])),
        SUBPAGED,
        [3, 16, 1, 32],
    ),
    Case(
        "4 states a token, kernel pages of 16 tokens",
        one(attention(states=256, tokens_per_state=[1, 4]), tensor([12, 2, 64, 16])),
        SUBPAGED,
        [3, 256, 1, 32],
    ),
    Case(
        "compress_ratio, kernel pages of 8 states",
        one(attention(states=16, compress_ratio=4), tensor([6, 2, 8, 16])),
        SUBPAGED,
        [3, 16, 1, 32],
    ),
]

LATENT = [
    Case("rank 3", one(ROWS, tensor([12, 16, 24])), TILES, [3, 64, 24], content="semantic"),
    Case("rank 3 without a hint", one(ROWS, tensor([12, 16, 24]), hint=None), TILES, [3, 64, 24], content="semantic"),
    Case("the head before the rows", one(ROWS, tensor([12, 1, 16, 24])), TILES, [3, 1, 64, 24], content="semantic"),
    Case("the head behind the rows", one(ROWS, tensor([12, 16, 1, 24])), TILES, [3, 64, 1, 24], content="semantic"),
    Case("1 block", one(ROWS, tensor([4, 16, 24]), 1), TILES, [1, 64, 24], content="semantic"),
    Case("2 blocks", one(ROWS, tensor([8, 16, 24]), 2), TILES, [2, 64, 24], content="semantic"),
    Case("tiles of 1 row", one(ROWS, tensor([192, 1, 24])), TILES, [3, 64, 24], content="semantic"),
    Case("tiles of 1 row and a head", one(ROWS, tensor([192, 1, 1, 24])), TILES, [3, 1, 64, 24], content="semantic"),
    Case(
        "sliding",
        one(latent(name="SlidingWindowMLASpec", sliding_window=32), tensor([12, 16, 24])),
        TILES,
        [3, 64, 24],
        content="semantic",
    ),
    Case(
        "hidden states",
        one(latent(name="HiddenStateCacheSpec"), tensor([12, 16, 24])),
        TILES,
        [3, 64, 24],
        content="semantic",
    ),
    Case(
        "4 tokens a state",
        one(latent(states=16, tokens_per_state=4), tensor([6, 8, 24])),
        TILES,
        [3, 16, 24],
        content="semantic",
    ),
    Case(
        "compress_ratio",
        one(latent(states=16, compress_ratio=4), tensor([6, 8, 24])),
        TILES,
        [3, 16, 24],
        content="semantic",
    ),
    Case(
        "packed rows",
        one(latent(head=512, dtype="uint8", content=584), tensor([12, 16, 584], dtype="uint8")),
        TILES,
        [3, 64, 584],
        "uint8",
    ),
    Case(
        "a planar indexer",
        one(latent(head=132, dtype="uint8", cache_role="INDEXER"), tensor([12, 16, 132], dtype="uint8")),
        TILES,
        [3, 64, 132],
        "uint8",
    ),
    Case(
        "a planar indexer in lower case",
        one(
            latent(head=132, dtype="uint8", cache_role="SparseCacheRole.indexer"), tensor([12, 16, 132], dtype="uint8")
        ),
        TILES,
        [3, 64, 132],
        "uint8",
    ),
]

LISTS = [
    Case("a list", one(STATE, state_list(STATE, 3, 1024)), PAGES, [3, 2, 64, 1, 4]),
    Case("a list under HND", one(STATE, state_list(STATE, 3, 1024), hint="HND"), PAGES, [3, 1, 64, 8]),
    Case("a list under BLNHC", one(STATE, state_list(STATE, 3, 1024), hint="BLNHC"), PAGES, [3, 64, 1, 8]),
    Case("a list under BLHNC", one(STATE, state_list(STATE, 3, 1024), hint="BLHNC"), PAGES, [3, 1, 64, 8]),
    Case("a list, 1 block", one(STATE, state_list(STATE, 1, 1024), 1), PAGES, [1, 2, 64, 1, 4]),
    Case("a list, 2 blocks", one(STATE, state_list(STATE, 2, 1024), 2), PAGES, [2, 64, 1, 8]),
    Case("a list, 2 blocks under HND", one(STATE, state_list(STATE, 2, 1024), 2, "HND"), PAGES, [2, 1, 64, 8]),
    Case("a list further on", one(STATE, state_list(STATE, 3, 1024, base=3072)), PAGES, [3, 2, 64, 1, 4]),
    Case("a list in a pool", in_two_groups(STATE, state_list(STATE, 3, 2048), 2048), PAGES, [3, 64, 1, 8]),
    Case("a list, second in a pool", one(STATE, state_list(STATE, 3, 4096, base=1024)), PAGES, [3, 64, 1, 8]),
    Case(
        "a list of one state",
        one(
            mamba(shapes=[[4, 16]], dtypes=["float32"], page=512),
            state_list(mamba(shapes=[[4, 16]], dtypes=["float32"]), 3, 512),
        ),
        PAGES,
        [3, 2, 64, 1, 1],
        "float32",
    ),
    Case(
        "a list of three states",
        one(
            mamba(shapes=[[4], [6], [2, 2]], dtypes=["float32", "bfloat16", "int8"], page=512),
            state_list(mamba(shapes=[[4], [6], [2, 2]], dtypes=["float32", "bfloat16", "int8"]), 3, 512),
        ),
        PAGES,
        [3, 2, 64, 1, 1],
        "float32",
    ),
    Case(
        "a list that fills its page", one(mamba(block=28), state_list(mamba(block=28), 3, 112)), PAGES, [3, 2, 28, 1, 1]
    ),
]

UNIFIED_ROWS = [
    # 112 bytes in 64 rows of ceil(112/64) = 2, rounded up to 16: 1024 bytes, the page
    Case("a row", one(STATE, state_row(STATE, 3)), UNIFIED, [3, 64, 1, 16], "int8"),
    Case("a row under HND", one(STATE, state_row(STATE, 3), hint="HND"), UNIFIED, [3, 1, 64, 16], "int8"),
    Case("a row under BLNHC", one(STATE, state_row(STATE, 3), hint="BLNHC"), UNIFIED, [3, 64, 1, 16], "int8"),
    Case("a row under BLHNC", one(STATE, state_row(STATE, 3), hint="BLHNC"), UNIFIED, [3, 1, 64, 16], "int8"),
    Case(
        "a row, LBHNC for a hint",
        one(STATE, state_row(STATE, 3), hint=None, layout="LBHNC"),
        UNIFIED,
        [3, 1, 64, 16],
        "int8",
    ),
    Case("a row, 1 block", one(STATE, state_row(STATE, 1), 1), UNIFIED, [1, 64, 1, 16], "int8"),
    Case("a row, 2 blocks", one(STATE, state_row(STATE, 2), 2), UNIFIED, [2, 64, 1, 16], "int8"),
    Case("a row further on", one(STATE, state_row(STATE, 3, base=7168)), UNIFIED, [3, 64, 1, 16], "int8"),
    Case("a row as long as the page", one(STATE, state_row(STATE, 3, row=1024)), UNIFIED, [3, 64, 1, 16], "int8"),
    Case("a row in between", one(STATE, state_row(STATE, 3, row=900)), UNIFIED, [3, 64, 1, 16], "int8"),
    Case("a row in a pool", in_two_groups(STATE, state_row(STATE, 3, 2048), 2048), UNIFIED, [3, 64, 1, 16], "int8"),
    Case("a row in a pool with an odd stride", one(STATE, state_row(STATE, 3, 1028)), UNIFIED, [3, 64, 1, 4], "int8"),
    Case("a row at an odd distance", one(STATE, state_row(STATE, 3, 1026)), UNIFIED, [3, 64, 1, 2], "int8"),
    Case(
        "a page too short for 16", one(mamba(page=768), state_row(mamba(page=768), 3)), UNIFIED, [3, 64, 1, 8], "int8"
    ),
    Case("a page too short for 8", one(mamba(page=256), state_row(mamba(page=256), 3)), UNIFIED, [3, 64, 1, 4], "int8"),
    Case("no padding", one(mamba(block=14), state_row(mamba(block=14), 3)), UNIFIED, [3, 14, 1, 8], "int8"),
    Case(
        "more rows than bytes to fill",
        one(mamba(block=1, page=1024), state_row(mamba(block=1, page=1024), 3)),
        UNIFIED,
        [3, 1, 1, 112],
        "int8",
    ),
    Case(
        "a row of wider elements", one(STATE, state_row(STATE, 3, dtype="float32")), UNIFIED, [3, 64, 1, 4], "float32"
    ),
]

KEPT = [
    Case("rank 4", one(KV, tensor([3, 2, 64, 16])), None, [3, 2, 64, 16], content="semantic"),
    Case(
        "rank 4, tokens first in memory",
        one(KV, tensor([3, 2, 64, 16], order=(0, 2, 1, 3))),
        None,
        [3, 2, 64, 16],
        content="semantic",
    ),
    Case("rank 4 without a hint", one(KV, tensor([3, 2, 64, 16]), hint=None), None, [3, 2, 64, 16], content="semantic"),
    Case(
        "rank 4, 1 block",
        one(KV, tensor([1, 2, 64, 16], [7, 1024, 16, 1]), 1),
        None,
        [1, 2, 64, 16],
        content="semantic",
    ),
    Case(
        "rank 4, padded",
        one(attention(page=5000), tensor([3, 2, 64, 16], [2500, 1024, 16, 1])),
        None,
        [3, 2, 64, 16],
        content="semantic",
    ),
    Case(
        "rank 4 in a pool",
        in_two_groups(KV, tensor([3, 2, 64, 16], [4096, 1024, 16, 1]), 8192),
        None,
        [3, 2, 64, 16],
        content="semantic",
    ),
    Case(
        "rank 4, as many heads as tokens",
        one(attention(block=4, heads=4), tensor([3, 4, 4, 16])),
        None,
        [3, 4, 4, 16],
        content="semantic",
    ),
    Case(
        "as many blocks as states",
        one(attention(block=4, heads=2), tensor([4, 2, 4, 16]), 4),
        None,
        [4, 2, 4, 16],
        content="semantic",
    ),
    Case("rank 5 as it is", one(KV, tensor([3, 2, 64, 2, 8])), None, [3, 2, 64, 2, 8], content="semantic"),
    Case(
        "rank 5, heads first in memory, as it is",
        one(KV, tensor([3, 2, 64, 2, 8], order=HND_ORDER)),
        None,
        [3, 2, 64, 2, 8],
        content="semantic",
    ),
    Case(
        "planes first as they are",
        one(KV, tensor([2, 3, 64, 2, 8])),
        None,
        [2, 3, 64, 2, 8],
        content="semantic",
        planes=2,
    ),
    Case(
        "planes inside as they are",
        one(KV, tensor([2, 3, 64, 2, 8], order=(1, 0, 2, 3, 4))),
        None,
        [2, 3, 64, 2, 8],
        content="semantic",
    ),
    Case("latent rank 3", one(ROWS, tensor([3, 64, 24])), None, [3, 64, 24], content="semantic"),
    Case("latent rank 4", one(ROWS, tensor([3, 1, 64, 24])), None, [3, 1, 64, 24], content="semantic"),
    Case("latent rank 4, head last", one(ROWS, tensor([3, 64, 1, 24])), None, [3, 64, 1, 24], content="semantic"),
    Case("a latent row a block", one(latent(block=1), tensor([3, 1, 1, 24])), None, [3, 1, 1, 24], content="semantic"),
    Case(
        "latent rows padded to 576",
        one(
            latent(head=512, dtype="uint8", content=584, page=37440),
            tensor([3, 64, 584], [37440, 584, 1], dtype="uint8"),
        ),
        None,
        [3, 64, 584],
        "uint8",
    ),
    Case(
        "several latent heads", one(latent(heads=2), tensor([3, 2, 64, 24])), None, [3, 2, 64, 24], content="semantic"
    ),
    Case(
        "4 tokens a state",
        one(attention(states=16, tokens_per_state=4), tensor([3, 2, 16, 16])),
        None,
        [3, 2, 16, 16],
        content="semantic",
    ),
    Case(
        "4 states a token",
        one(attention(states=256, tokens_per_state=[1, 4]), tensor([3, 2, 256, 16])),
        None,
        [3, 2, 256, 16],
        content="semantic",
    ),
    Case(
        "compress_ratio",
        one(latent(states=16, compress_ratio=4), tensor([3, 16, 24])),
        None,
        [3, 16, 24],
        content="semantic",
    ),
    Case(
        "slots, heads behind states",
        one(
            attention(name="TQFullAttentionSpec", content=20, tq_slot_size=20, dtype="uint8"),
            tensor([3, 64, 2, 20], dtype="uint8"),
        ),
        None,
        [3, 64, 2, 20],
        "uint8",
    ),
    Case(
        "slots, heads before states",
        one(
            attention(name="TQFullAttentionSpec", content=20, tq_slot_size=20, dtype="uint8"),
            tensor([3, 2, 64, 20], dtype="uint8"),
        ),
        None,
        [3, 2, 64, 20],
        "uint8",
    ),
    Case(
        "bytes of fp8",
        one(attention(dtype="float8_e4m3fn"), tensor([3, 2, 64, 16], dtype="uint8")),
        None,
        [3, 2, 64, 16],
        "uint8",
        "semantic",
    ),
    Case(
        "packed bytes",
        one(attention(dtype="uint8", content=18), tensor([3, 2, 64, 18], dtype="uint8")),
        None,
        [3, 2, 64, 18],
        "uint8",
    ),
    Case("keys packed by vLLM on a CPU", one(KV, tensor([3, 2, 64, 16]), platform="cpu"), None, [3, 2, 64, 16]),
    Case("latent rows on a CPU", one(ROWS, tensor([3, 64, 24]), platform="cpu"), None, [3, 64, 24], content="semantic"),
    Case(
        "LHBNC with one head",
        one(attention(heads=1), tensor([3, 1, 64, 16]), hint=None, layout="LHBNC"),
        None,
        [3, 1, 64, 16],
        content="semantic",
    ),
]

ALL = [*ATTENTION, *LATENT, *LISTS, *UNIFIED_ROWS, *KEPT]
NAMES = [case.name for case in ALL]

cases = pytest.mark.parametrize("case", ALL, ids=NAMES)


def test_the_table_has_no_case_twice() -> None:
    shown = [str(case.document) for case in ALL]
    assert len(set(shown)) == len(shown)


@cases
def test_the_lmcache_presentation(case: Case) -> None:
    found = view(case.document)
    assert (found["rule"], found["verdict"]) == (case.rule, "view" if case.rule else "same")
    assert (found["shape"], found["dtype"], found["content"]) == (case.shape, case.dtype, case.content)
    blocks = case.document["num_blocks"]
    assert found["shape"][found["block_axis"]] == blocks
    for block in range(blocks):
        hits_its_pages(case.document, "a", found, block)


@cases
def test_the_bytes_presentation(case: Case) -> None:
    found = view(case.document, form="bytes")
    blocks, page = case.document["num_blocks"], page_bytes_of(spec_for(case.document, "a"))
    shape = [blocks, page] if case.planes == 1 else [2, blocks, page // 2]
    assert (found["verdict"], found["rule"]) == ("view", case.rule)
    assert (found["shape"], found["dtype"], found["content"]) == (shape, "int8", "opaque")
    for block in range(blocks):
        hits_its_pages(case.document, "a", found, block, whole=True)


@cases
def test_pages_say_the_same_in_every_order(case: Case) -> None:
    """Axes of size 1 have the stride of what lies inside them, in the hint's order, whatever the engine left there."""
    found = view(case.document)
    if found["verdict"] == "same":
        return
    item, shape, strides = {"bfloat16": 2, "float32": 4}.get(found["dtype"], 1), found["shape"], found["strides"]
    order = list(range(len(shape)))
    if case.rule == "subpaged-mla-attention-view" and len(shape) == 4:
        head = order.pop(shape.index(1, 1))
        order.insert({"NHD": 2, "BLNHC": 2}.get(case.document["layout_hint"], 1), head)
    for place, axis in enumerate(order):
        inside = order[place + 1] if place + 1 < len(order) else None
        if shape[axis] == 1:
            assert strides[axis] == (item if inside is None else strides[inside] * shape[inside])


# ------------------------------------------------------------------------------------------------- any block count


def unknown(made: Json) -> Json:
    """Return a document with its block count unknown: rows and planes that lie apart grow with it."""
    blocks = made["num_blocks"]
    new = copy.deepcopy(made) | {"num_blocks": None}
    for entry in new["caches"].values():
        for part in entry if isinstance(entry, list) else [entry]:
            shape, stride = part["shape"], part["stride"]
            axis = 1 if len(shape) == 5 and shape[0] == 2 and shape[1] % blocks == 0 else 0
            if axis and stride[0] > stride[1]:
                stride[0] = f"{stride[0] // blocks}n"
            whole, rest = divmod(part["storage_offset"], stride[axis] * blocks)
            if whole:
                part["storage_offset"] = f"{rest}+{whole * stride[axis]}n"
            shape[axis] = f"{shape[axis] // blocks}n"
    return new


MANY = [case for case in ALL if case.document["num_blocks"] == 3]


@pytest.mark.parametrize("case", MANY, ids=[case.name for case in MANY])
@pytest.mark.parametrize("form", ["lmcache", "bytes"])
def test_a_plan_without_a_block_count_is_that_of_every_count(case: Case, form: Any) -> None:
    loose = planned(unknown(case.document), form)
    assert not loose.errors
    here = plan_json(planned(case.document, form).plan)
    assert plan_json(loose.plan.bind(3).unwrap()) == here
    layer: Any = plan_json(loose.plan)["layers"]
    shape = view(case.document, form=form)["shape"]
    assert layer["a"]["shape"] == ["1n" if i == layer["a"]["block_axis"] else n for i, n in enumerate(shape)]
    for blocks in (1, 4, 1000):
        bound: Any = plan_json(loose.plan.bind(blocks).unwrap())["layers"]
        assert bound["a"]["shape"] == [blocks if n == "1n" else n for n in layer["a"]["shape"]]


def test_an_unknown_number_of_blocks_is_not_2() -> None:
    loose = planned(unknown(rank5(NHD_ORDER))).plan
    assert loose.layers["a"].view is not None
    assert str(loose.layers["a"].view.shape[0]) == "1n"
    assert len(loose.layers["a"].view.shape) == 5
    bound = loose.bind(2).unwrap().layers["a"].view
    assert bound is not None
    assert bound.shape == (2, 64, 1, 32)
