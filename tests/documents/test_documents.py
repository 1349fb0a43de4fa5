"""Every captured registration and every public case gives what it should, judged by enumeration of bytes."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from kvlayout.algebra.result import Ok
from kvlayout.cache.registration import Registration
from kvlayout.planning import Attempt, attempt
from kvlayout.reporting import plan_json
from kvlayout.rules.presentation import Form
from tests.documents.enumeration import Json, covered_bytes, hits_its_pages, page_bytes_of, spec_for, view_block

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[1] / "data"
PATHS = sorted([*DATA.glob("registrations/*.json"), *DATA.glob("cases/*.json")])
FORMS: tuple[Form, ...] = get_args(Form)

every_document = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
every_form = pytest.mark.parametrize("form", FORMS)


@cache
def read(path: Path) -> Json:
    made: Json = json.loads(path.read_text())
    return made


def planned(made: Json, form: Form = "lmcache") -> Attempt:
    return attempt(Registration.from_json(json.dumps(made)).unwrap(), presentation=form)


def printed(made: Json, form: Form = "lmcache") -> Json:
    """Return what ``--json`` prints, as a reader of it has it."""
    result = planned(made, form)
    text: Json = json.loads(json.dumps(plan_json(result.plan, result.errors)))
    return text


def served(layers: Json) -> Iterator[tuple[str, Json]]:
    return ((name, layer) for name, layer in layers.items() if layer["verdict"] in ("view", "same"))


def pages_of(layer: Json) -> list[list[int]]:
    """Return ``[offset, block stride, covered bytes]`` of block 0, one entry an interval."""
    stride = layer["strides"][layer["block_axis"]]
    whole = view_block(layer, 0).interval()
    if whole is not None:
        return [[whole[0], stride, covered_bytes(layer)]]
    planes = [layer | {"offset": layer["offset"] + plane * layer["strides"][0]} for plane in range(2)]
    halves = [view_block(half | {"shape": [1, *layer["shape"][1:]]}, 0).interval() for half in planes]
    return [[start, stride, end - start] for start, end in (half for half in halves if half is not None)]


# ---------------------------------------------------------------------------------------------------- what is expected


@every_document
def test_a_document_gives_what_it_expects(path: Path) -> None:
    made = read(path)
    expect = made.get("expect", {})
    out = printed(made)
    errors = [[error["code"], error["group"], error["layer"]] for error in out["errors"]]
    assert errors == expect.get("errors", [])
    for layer, wanted in expect.items():
        if layer == "errors":
            continue
        found = out["layers"][layer]
        for key in ("verdict", "rule", "shape", "dtype"):
            if key in wanted:
                assert found[key] == wanted[key], (layer, key)
        if "pages" in wanted:
            assert pages_of(found) == wanted["pages"], layer


@every_document
def test_layers_are_all_there_unless_they_failed(path: Path) -> None:
    made = read(path)
    out = printed(made)
    refused = [layer for group in out["groups"] if group["disposition"] == "refused" for layer in group["layers"]]
    failed = {error["layer"] for error in out["errors"]} | set(refused)
    assert set(out["layers"]) == set(made["caches"]) - failed
    assert [group["index"] for group in out["groups"]] == list(range(len(made["groups"])))


@every_document
@every_form
def test_every_served_layer_hits_its_own_pages(path: Path, form: Form) -> None:
    made = read(path)
    out = printed(made, form)
    blocks = made["num_blocks"]
    for name, layer in served(out["layers"]):
        assert layer["shape"][layer["block_axis"]] == blocks
        for block in sorted({0, 1, blocks - 1} & set(range(blocks))):
            hits_its_pages(made, name, layer, block, whole=form == "bytes")


@every_document
def test_bytes_are_whole_pages_of_int8(path: Path) -> None:
    made = read(path)
    for name, layer in served(printed(made, "bytes")["layers"]):
        assert layer["dtype"] == "int8"
        assert layer["verdict"] == "view"
        assert layer["content"] == "opaque"
        assert layer["shape"] == [made["num_blocks"], page_bytes_of(spec_for(made, name))]
        assert covered_bytes(layer) == page_bytes_of(spec_for(made, name))


@every_document
@every_form
def test_both_presentations_refuse_the_same_groups_and_fingerprint_the_same_pages(path: Path, form: Form) -> None:
    one, other = printed(read(path), form), printed(read(path))
    assert one["groups"] == other["groups"]
    assert [error["code"] for error in one["errors"]] == [error["code"] for error in other["errors"]]


# ------------------------------------------------------------------------------------------------------- any number


def symbolic(made: Json) -> Json:
    """Return a document with its block count unknown: every number that grows with the blocks is a text.

    A number grows where the same registration with other counts would have another one: row counts, storage sizes,
    the distance of layers that lie one behind the other, and that of planes which lie apart.
    """
    count = made["num_blocks"]
    new: Json = copy.deepcopy(made)
    new["num_blocks"] = None
    new.pop("expect", None)

    def grown(number: int, step: int) -> int | str:
        whole, rest = divmod(number, step * count)
        text = f"{whole * step}n" if whole * step != 1 else "n"
        return f"{rest}+{text}" if whole and rest else text if whole else number

    def tensor(spec: Json, facts: Json) -> None:
        shape, strides = facts["shape"], facts["stride"]
        axis = 1 if len(shape) == 5 and shape[0] == 2 and shape[1] % count == 0 else 0
        pages = shape[axis] // count
        step = strides[axis] * pages
        shape[axis] = grown(shape[axis], 1)
        if axis:
            strides[0] = grown(strides[0], step) if strides[0] > step else strides[0]
        facts["storage_offset"] = grown(facts["storage_offset"], step)
        facts["storage_nbytes"] = grown(facts["storage_nbytes"], 1)
        del spec

    for name, entry in new["caches"].items():
        for part in entry if isinstance(entry, list) else [entry]:
            tensor(spec_for(made, name) if any(name in g["layers"] for g in made["groups"]) else {}, part)
    for placement in new["placements"]:
        stride = placement["block_stride"] or 1
        for key in ("size", "layer_stride"):
            if placement[key] is not None:
                placement[key] = grown(placement[key], 1) if placement[key] >= count * stride else placement[key]
        if placement["offset"]:
            placement["offset"] = grown(placement["offset"], stride)
    return new


@every_document
@every_form
def test_a_plan_for_any_number_of_blocks_binds_to_the_concrete_one(path: Path, form: Form) -> None:
    made = read(path)
    unknown = symbolic(made)
    loose = planned(unknown, form)
    here = printed(made, form)
    assert [[e.code.value, e.group, e.layer] for e in loose.errors] == [
        [e["code"], e["group"], e["layer"]] for e in here["errors"]
    ]
    if loose.errors:
        return
    bound = loose.plan.bind(made["num_blocks"]).unwrap()
    assert plan_json(bound)["layers"] == here["layers"]
    assert plan_json(bound)["groups"] == here["groups"]


@every_document
def test_an_unknown_number_is_written_as_n(path: Path) -> None:
    out = printed(symbolic(read(path)))
    for _, layer in served(out["layers"]):
        assert layer["shape"][layer["block_axis"]] == "1n"
    assert {group["num_blocks"] for group in out["groups"] if group["disposition"] == "served"} <= {"1n"}


@every_document
@pytest.mark.parametrize("blocks", [1, 2, 3, 100_003])
def test_any_number_is_the_number_of_a_document_with_it(path: Path, blocks: int) -> None:
    """Binding plans again; and a document that says its number, with sizes that still depend on it, is the same."""
    unknown = symbolic(read(path))
    loose = planned(unknown)
    told = printed(unknown | {"num_blocks": blocks})
    if loose.errors:
        assert told["errors"]
        return
    if [blocks, path.stem] == [2, "v025-llama-rank5-HND"]:
        # [2, 2, 128, 2, 64], two blocks of two planes or the other way round: no placement and no layout name decides
        assert {error["code"] for error in told["errors"]} == {"axes-ambiguous"}
        return
    assert not told["errors"]
    bound = loose.plan.bind(blocks).unwrap()
    assert plan_json(bound)["layers"] == told["layers"]
    for name, layer in served(told["layers"]):
        for block in sorted({0, 1, blocks - 1} & set(range(blocks))):
            hits_its_pages(concrete(unknown, blocks), name, layer, block)


def concrete(made: Json, blocks: int) -> Json:
    """Return a document with its texts evaluated: separate code from the library's."""

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(item) for item in value]
        if not isinstance(value, str) or not value.endswith("n"):
            return value
        constant, _, slope = value.rpartition("+")
        return int(constant or 0) + int(slope[:-1] or 1) * blocks

    new = copy.deepcopy(made)
    for entry in new["caches"].values():
        for part in entry if isinstance(entry, list) else [entry]:
            for key in ("shape", "stride", "storage_offset", "storage_nbytes"):
                part[key] = number(part[key])
    for placement in new["placements"]:
        for key in ("size", "offset", "layer_stride", "block_stride"):
            placement[key] = number(placement[key])
    return new


# ----------------------------------------------------------------------------------------------------- kept plans


@every_document
@every_form
def test_a_stored_plan_reads_back_as_it_was(path: Path, form: Form) -> None:
    for made in (read(path), symbolic(read(path))):
        result = planned(made, form)
        if result.errors:
            continue
        stored = result.plan.to_json()
        again = type(result.plan).from_json(stored)
        assert isinstance(again, Ok), again
        assert again.value.to_json() == stored
        assert plan_json(again.value) == plan_json(result.plan)


@every_document
def test_the_order_of_layers_is_that_of_registration(path: Path) -> None:
    made = read(path)
    out = list(printed(made)["layers"])
    assert out == [name for name in made["caches"] if name in out]
