"""Layers that are alike are judged together, and each as if it were alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvlayout.algebra.layout import Axis
from kvlayout.algebra.units import raw
from kvlayout.errors import Code
from tests.rules.building import Json, attention, document, group, mamba, place, planned, state_list, state_row, tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvlayout.planning import Attempt

KV = attention(16, 2, 8)
STATE = mamba(16, page=1024)
LAYERS = ["a", "b", "c", "d", "e"]
PAGE = 1024


def alike(layers: list[str]) -> Json:
    """Return kernel-paged layers, one behind the other on one storage, with a placement for each."""
    caches = {
        layer: tensor([12, 2, 4, 16], offset=i * 3 * PAGE // 2, nbytes=15 * PAGE) for i, layer in enumerate(layers)
    }
    placed = [place([layer], offset=i * 3 * PAGE, block_stride=PAGE, size=15 * PAGE) for i, layer in enumerate(layers)]
    return document([group(layers, KV)], caches, placements=placed)


def found(made: Attempt) -> list[tuple[Code, str | None]]:
    return [(error.code, error.layer) for error in made.errors]


FAULTS: dict[str, tuple[Code, Callable[[Json, str, int], object]]] = {
    "offset": (Code.PLACEMENT_MISMATCH, lambda made, _, i: made["placements"][i].update(offset=1)),
    "block stride": (Code.PLACEMENT_MISMATCH, lambda made, _, i: made["placements"][i].update(block_stride=PAGE + 1)),
    "size": (Code.PLACEMENT_MISMATCH, lambda made, _, i: made["placements"][i].update(size=3 * PAGE * (i + 1) - 1)),
    "another placement": (
        Code.PLACEMENT_MISMATCH,
        lambda made, layer, _: made["placements"].append(place([layer], block_stride=PAGE - 1)),
    ),
    "storage": (
        Code.STORAGE_OVERRUN,
        lambda made, layer, i: made["caches"][layer].update(storage=9, storage_nbytes=3 * PAGE * (i + 1) - 1),
    ),
    "shape": (Code.NOT_DIVISIBLE, lambda made, layer, _: made["caches"][layer]["shape"].__setitem__(0, 11)),
    "element type": (Code.AXES_MISMATCH, lambda made, layer, _: made["caches"][layer].update(dtype="float32")),
    "missing": (Code.MISSING_LAYER, lambda made, layer, _: made["caches"].pop(layer)),
}


@pytest.mark.parametrize("at", range(len(LAYERS)))
@pytest.mark.parametrize("fault", list(FAULTS))
def test_one_bad_layer_among_layers_that_are_alike_is_refused_alone(fault: str, at: int) -> None:
    code, spoil = FAULTS[fault]
    made = alike(LAYERS)
    assert not planned(made).errors
    spoil(made, LAYERS[at], at)
    result = planned(made)
    assert found(result) == [(code, LAYERS[at])]
    assert list(result.plan.layers) == [layer for layer in LAYERS if layer != LAYERS[at]]
    for layer, view in result.plan.layers.items():
        assert view.view is not None
        assert raw(view.view.offset) == LAYERS.index(layer) * 3 * PAGE


@pytest.mark.parametrize("at", range(len(LAYERS)))
def test_a_list_of_states_that_crosses_its_stride_is_seen_between_others(at: int) -> None:
    caches = {layer: state_list(STATE, 3, 5 * PAGE, base=i * PAGE) for i, layer in enumerate(LAYERS)}
    made = document([group(LAYERS, STATE)], caches)
    assert not planned(made).errors
    base = 3 * 5 * PAGE + 4 * PAGE + 64  # the last page of a stride, and a part of it more
    caches[LAYERS[at]] = state_list(STATE, 3, 5 * PAGE, base=base)
    caches[LAYERS[-1] if at < len(LAYERS) - 1 else "a"] = state_list(STATE, 3, 5 * PAGE, base=2 * 3 * 5 * PAGE)
    result = planned(document([group(LAYERS, STATE)], caches))
    assert found(result) == [(Code.STATE_NOT_AT_PAGE_BASE, LAYERS[at])]


def test_each_layer_of_two_readings_is_read_as_its_own_placement_says() -> None:
    caches = {layer: tensor([2, 2, 16, 2, 8], storage=i) for i, layer in enumerate(LAYERS)}
    strides = [PAGE, PAGE // 2, PAGE, PAGE // 2, PAGE]
    placed = [place([layer], block_stride=stride) for layer, stride in zip(LAYERS, strides, strict=True)]
    result = planned(document([group(LAYERS, KV)], caches, 2, placements=placed))
    assert not result.errors
    views = [layer.view for layer in result.plan.layers.values()]
    found = [raw(view.strides[view.axes.index(Axis.BLOCK)]) for view in views if view is not None]
    assert found == strides


def test_each_bad_layer_has_an_error_in_the_order_of_the_group() -> None:
    made = alike(LAYERS)
    for layer in ("d", "b"):
        FAULTS["offset"][1](made, layer, LAYERS.index(layer))
    FAULTS["missing"][1](made, "c", 2)
    expected = [(Code.PLACEMENT_MISMATCH, "b"), (Code.MISSING_LAYER, "c"), (Code.PLACEMENT_MISMATCH, "d")]
    assert found(planned(made)) == expected


def test_a_run_of_which_no_layer_is_left_is_none() -> None:
    made = alike(["a", "b"])
    made["caches"]["m"] = state_row(STATE, 3, storage=1)
    made["groups"].append(group(["m"], STATE))
    for placed in made["placements"]:
        placed["offset"] += 1
    result = planned(made)
    assert found(result) == [(Code.PLACEMENT_MISMATCH, "a"), (Code.PLACEMENT_MISMATCH, "b")]
    assert [run.layers for run in result.plan.runs] == [("m",)]
    assert result.plan.warnings == ()
    stored: Any = json.loads(result.plan.to_json())
    assert list(stored["layers"]) == ["m"]


@pytest.mark.parametrize("storages", [(0, 1), (1, 0)])
def test_groups_that_meet_are_told_in_their_order_whatever_their_storages_are_called(storages: tuple[int, int]) -> None:
    late, early = storages
    caches = {
        "c": state_row(STATE, 3, 2048, base=1536, storage=late),
        "a": state_row(STATE, 3, 2048, storage=early),
        "b": state_row(STATE, 3, 2048, base=1536, storage=early),
        "d": state_row(STATE, 3, 2048, storage=late),
    }
    result = planned(document([group(["d", "a"], STATE), group(["b"], STATE), group(["c"], STATE)], caches))
    assert [(error.group, error.layers) for error in result.errors] == [(0, ("a", "b")), (0, ("d", "c"))]


@pytest.mark.parametrize(("blocks", "strides"), [(3, (PAGE, None)), (3, (None, PAGE)), (1, (PAGE, PAGE - 1))])
def test_one_tensor_under_two_names_is_one_whatever_placements_say_of_it(
    blocks: int, strides: tuple[int | None, int | None]
) -> None:
    cache = tensor([4 * blocks, 2, 4, 16])
    placed = [place([layer], block_stride=stride) for layer, stride in zip("ab", strides, strict=True)]
    assert not planned(document([group(["a", "b"], KV)], dict.fromkeys("ab", cache), blocks, placements=placed)).errors
