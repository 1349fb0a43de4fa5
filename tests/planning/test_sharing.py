"""Layers on one storage keep out of each other's blocks: judged against every pair of blocks, byte by byte."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvlayout.algebra.affine import BLOCK_COUNT
from kvlayout.cache.registration import RegisteredTensor
from kvlayout.errors import Code
from kvlayout.planning import attempt
from tests.rules.building import attention, document, group, latent, mamba, planned, registered, state_row, tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvlayout.planning import Attempt

KV = attention()
STATE = mamba(page=1024)


class Seat(NamedTuple):
    """A layer of states: its group, where its first page starts, and how far apart its pages are."""

    group: int
    base: int
    stride: int
    page: int


def states(page: int) -> dict[str, Any]:
    return mamba(block=1, shapes=[[page]], dtypes=["int8"], page=page)


def attempt_of(seats: Iterable[Seat], blocks: int) -> Attempt:
    groups: dict[int, dict[str, Any]] = {}
    caches = {}
    for i, seat in enumerate(seats):
        spec = states(seat.page)
        groups.setdefault(seat.group, {})[f"l{i}"] = spec
        caches[f"l{i}"] = state_row(spec, blocks, seat.stride, base=seat.base)
    listed = []
    for number in range(max(groups) + 1):
        leaves = groups.get(number, {})
        kind: dict[str, Any] = {"type": "UniformTypeKVCacheSpecs", "bases": [], "kind": "mamba"}
        kind |= {"fields": {"block_size": 1}, "derived": {}}
        listed.append({"layers": list(leaves), "spec": kind, "layer_specs": leaves} if leaves else group([], KV))
    return planned(document(listed, caches, blocks), "bytes")


def blocks_meet(x: Seat, y: Seat, blocks: int) -> bool:
    """Tell whether a byte is shared under ids that can be in use together: two ids, or one id of one group."""
    return any(
        (i != j or x.group == y.group)
        and x.base + i * x.stride < y.base + j * y.stride + y.page
        and y.base + j * y.stride < x.base + i * x.stride + x.page
        for i in range(blocks)
        for j in range(blocks)
    )


def spans_meet(x: Seat, y: Seat, blocks: int) -> bool:
    ends = [seat.base + (blocks - 1) * seat.stride + seat.page for seat in (x, y)]
    return x.base < ends[1] and y.base < ends[0]


def clash(x: Seat, y: Seat, blocks: int) -> bool:
    """The rule of one storage: one block stride and no shared bytes, or spans that never meet."""
    if x == y:
        return False  # one window in one group: aliases
    other = blocks > 1 and x.stride != y.stride and spans_meet(x, y, blocks)
    return other or blocks_meet(x, y, blocks)


def expected(seats: list[Seat], blocks: int) -> dict[tuple[int, int], set[str]]:
    found: dict[tuple[int, int], set[str]] = {}
    for (i, x), (j, y) in itertools.combinations(enumerate(seats), 2):
        if clash(x, y, blocks):
            found.setdefault((min(x.group, y.group), max(x.group, y.group)), set()).update((f"l{i}", f"l{j}"))
    return found


SEATS = st.builds(
    lambda group, base, stride, page: Seat(group, base, max(stride, page), page),
    st.integers(0, 2),
    st.integers(0, 40),
    st.sampled_from([4, 6, 8, 12, 16]),
    st.integers(1, 8),
)


@given(st.lists(SEATS, min_size=2, max_size=5), st.integers(1, 4))
@settings(max_examples=400)
@example([Seat(0, 0, 8, 4), Seat(0, 4, 8, 4), Seat(1, 0, 8, 8), Seat(1, 24, 8, 8)], 3)
@example([Seat(0, 0, 8, 8), Seat(0, 4, 8, 4)], 2)
@example([Seat(0, 0, 8, 8), Seat(1, 4, 8, 8)], 2)
@example([Seat(0, 0, 8, 8), Seat(1, 4, 8, 8)], 1)
@example([Seat(0, 0, 8, 8), Seat(1, 4, 12, 8)], 2)
@example([Seat(0, 0, 8, 8), Seat(1, 0, 8, 8), Seat(1, 2, 8, 2)], 3)
@example([Seat(0, 0, 4, 1), Seat(0, 3, 4, 1), Seat(1, 3, 4, 2)], 2)
def test_every_pair_of_groups_that_meets_is_named_once(seats: list[Seat], blocks: int) -> None:
    names_what_meets(seats, blocks)


#: Layers of few shapes in few places, as the groups of a hybrid share a pool: mostly several of them have one seat.
SHARED = st.builds(
    Seat,
    st.integers(0, 3),
    st.sampled_from([0, 8, 16, 48]),
    st.sampled_from([16, 16, 16, 8]),
    st.sampled_from([8, 8, 8, 4]),
)


@given(st.lists(SHARED, min_size=2, max_size=10), st.integers(1, 4))
@settings(max_examples=400)
def test_seats_that_groups_share(seats: list[Seat], blocks: int) -> None:
    names_what_meets(seats, blocks)


def names_what_meets(seats: list[Seat], blocks: int) -> None:
    result = attempt_of(seats, blocks)
    pairs = expected(seats, blocks)
    assert {error.code for error in result.errors} <= {Code.PAGE_OVERLAP}
    assert [error.layer for error in result.errors] == [None] * len(result.errors)
    firsts = sorted(error.group for error in result.errors if error.group is not None)
    assert firsts == sorted(first for first, _ in pairs)
    for error in result.errors:
        matching = [names for (first, _), names in pairs.items() if first == error.group]
        assert set(error.layers) in matching, (error, pairs)
        assert len(error.layers) == len(set(error.layers))


def test_the_witness_of_an_overlap() -> None:
    (error,) = attempt_of([Seat(0, 0, 8, 8), Seat(1, 12, 8, 8)], 3).errors
    assert (error.group, error.layers) == (0, ("l0", "l1"))
    assert error.witness is not None
    assert error.witness.actual in range(12, 24)


def test_one_error_for_a_pair_over_all_storages() -> None:
    caches = {}
    for storage in (0, 1):
        caches[f"a{storage}"] = state_row(STATE, 3, 2048, storage=storage)
        caches[f"b{storage}"] = state_row(STATE, 3, 2048, base=512, storage=storage)
    made = document([group(list(caches), STATE)], caches)
    (error,) = planned(made).errors
    assert (error.code, error.group, error.layer) == (Code.PAGE_OVERLAP, 0, None)
    assert set(error.layers) == set(caches)


def test_only_layers_that_keep_apart_claim_it() -> None:
    caches = {
        "a": state_row(STATE, 3, 2048),
        "b": state_row(STATE, 3, 2048, base=512),
        "c": state_row(STATE, 3, 2048, storage=1),
    }
    made = planned(document([group(list(caches), STATE)], caches))
    assert [error.layers for error in made.errors] == [("a", "b")]
    claims = {layer: {claim.name for claim in found.claims} for layer, found in made.plan.layers.items()}
    assert [layer for layer, names in claims.items() if "fibre" in names] == ["c"]


def test_layers_first_pools_never_meet() -> None:
    caches = {f"l{i}": state_row(STATE, 3, base=i * 3072) for i in range(4)}
    assert not planned(document([group(list(caches), STATE)], caches)).errors
    nearer = caches | {"l3": state_row(STATE, 3, base=3 * 3072 - 1024)}
    (error,) = planned(document([group(list(nearer), STATE)], nearer)).errors
    assert (error.code, error.group, error.layers) == (Code.PAGE_OVERLAP, 0, ("l2", "l3"))


def test_groups_overlay_each_other_in_a_fibre() -> None:
    caches = {
        "m": state_row(STATE, 3, 8192, base=1024),
        "a": tensor([3, 2, 64, 16], [4096, 1024, 16, 1]),
        "b": tensor([3, 2, 64, 16], [4096, 1024, 16, 1], offset=2048),
    }
    groups = [group(["m"], STATE), group(["a"], KV), group(["b"], KV)]
    assert not planned(document(groups, caches)).errors
    together = [group(["m"], STATE), group(["a", "b"], KV)]
    assert not planned(document(together, caches)).errors
    crossing = caches | {"m": state_row(STATE, 3, 8192, base=7680)}
    # the page of block i ends in block i + 1, where ``a`` begins; of ``b`` it meets the same block only
    (error,) = planned(document(groups, crossing)).errors
    assert (error.group, set(error.layers)) == (0, {"m", "a"})


def test_planes_that_lie_apart_are_two_windows() -> None:
    planes = tensor([2, 3, 64, 2, 8])
    groups = [group(["a"], KV), group(["m"], mamba(page=2048))]
    for base, met in (
        (0, False),
        (6144, False),
        (12288, False),
        (2048, True),
        (7168, True),
        (4096, True),
        (11264, True),
    ):
        row = state_row(mamba(page=2048), 3, base=base)
        found = [(error.code, error.layers) for error in planned(document(groups, {"a": planes, "m": row})).errors]
        assert found == ([(Code.PAGE_OVERLAP, ("a", "m"))] if met else []), base


def test_one_tensor_listed_twice_in_a_group_is_an_alias_there() -> None:
    caches = {"a": tensor([12, 2, 16, 16]), "b": tensor([12, 2, 16, 16])}
    assert not planned(document([group(["a", "b"], KV)], caches)).errors


def test_one_window_with_two_meanings_in_a_group_is_an_overlap() -> None:
    caches = {"a": tensor([3, 2, 64, 16]), "b": tensor([3, 2, 64, 16], order=(0, 2, 1, 3))}
    (error,) = planned(document([group(["a", "b"], KV)], caches)).errors
    assert (error.code, error.group, error.layer) == (Code.PAGE_OVERLAP, 0, None)
    assert set(error.layers) == {"a", "b"}
    assert not planned(document([group(["a"], KV), group(["b"], KV)], caches)).errors


def test_a_failed_layer_meets_nobody() -> None:
    caches = {"a": tensor([3, 2, 64, 16]), "b": tensor([3, 3, 64, 16])}
    assert [e.code for e in planned(document([group(["a", "b"], KV)], caches)).errors] == [Code.AXES_MISMATCH]


def test_excluded_layers_meet_nobody() -> None:
    caches = {"a": tensor([3, 2, 64, 16]), "b": tensor([3, 2, 64, 16], offset=8)}
    groups = [group(["a"], KV), group(["b"], KV, transferable=False)]
    assert not planned(document(groups, caches)).errors


def test_two_storages_are_two_places() -> None:
    caches = {"a": tensor([3, 2, 64, 16]), "b": tensor([3, 2, 64, 16], offset=8, storage=1)}
    assert not planned(document([group(["a", "b"], KV)], caches)).errors


@pytest.mark.parametrize(
    ("offset", "met"), [("0+0n", True), ("3072n", False), ("2048n", True), ("1024+3072n", False), ("3071n", True)]
)
def test_any_number_of_blocks(offset: str, met: bool) -> None:
    rows = latent()
    first, second = tensor([3, 64, 24]), tensor([3, 64, 24])
    first |= {"shape": ["n", 64, 24]}
    second |= {"shape": ["n", 64, 24], "storage_offset": offset_in_elements(offset)}
    made = document(
        [group(["a"], rows), group(["b"], latent(block=64, head=24, name="SlidingWindowMLASpec"))],
        {"a": first, "b": second},
        None,
    )
    codes = [error.code for error in planned(made).errors]
    assert codes == ([Code.PAGE_OVERLAP] if met and offset != "0+0n" else [])


def test_a_place_that_is_not_known_is_next_to_no_other() -> None:
    """A registration made by hand: three blocks, and a layer that starts wherever the number of blocks puts it."""
    made = registered(document([group(["a", "b"], KV)], {name: tensor([3, 2, 64, 16]) for name in "ab"}, 3))
    entry = made.caches["a"]
    assert isinstance(entry, RegisteredTensor)
    nowhere = {**made.caches, "a": entry._replace(offset=BLOCK_COUNT * 8)}
    (error,) = attempt(evolve(made, caches=nowhere)).errors
    assert error.code is Code.PAGE_OVERLAP


def offset_in_elements(text: str) -> str | int:
    constant, _, slope = text.rpartition("+")
    number = int(slope[:-1]) // 2
    return f"{int(constant or 0) // 2}+{number}n" if number else 0
