"""Documents with a few numbers changed: planning never fails, and whatever it serves still hits its own pages."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.algebra.result import Ok
from kvlayout.cache.registration import Registration
from kvlayout.planning import attempt
from kvlayout.plans import Plan
from kvlayout.reporting import plan_json
from tests.documents.enumeration import hits_its_pages
from tests.rules.test_cases import ALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvlayout.rules.presentation import Form

Json = dict[str, Any]

HINTS = st.sampled_from(["NHD", "HND", "BLNHC", "BLHNC", None])
LAYOUTS = st.sampled_from([None, None, "LBNHC", "LBHNC", "BLNHC", "BLHNC", "LHBNC", "BHLNC", "NHD", "HND"])
DTYPES = st.sampled_from(["bfloat16", "float16", "float32", "int8", "uint8", "float64"])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every number and every element type of the caches, and of the numbers of specs."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))
        elif (type(item) is int and key != "version") or (key == "dtype" and "caches" in path):
            yield (*path, key)


def changed(draw: st.DrawFn, number: int) -> int:
    return draw(
        st.sampled_from([number, number + 1, number - 1, number * 2, number // 2, number * 4, number // 4, 1, 2, 3, 0])
        | st.integers(0, 64)
    )


@st.composite
def documents(draw: st.DrawFn) -> Json:
    made: Json = copy.deepcopy(draw(st.sampled_from(ALL)).document)
    made["layout_hint"], made["kv_cache_layout"] = draw(HINTS), draw(LAYOUTS)
    for path in draw(st.lists(st.sampled_from(list(places({k: made[k] for k in ("groups", "caches")}))), max_size=3)):
        owner: Any = made
        for key in path[:-1]:
            owner = owner[key]
        least = 1 if path[0] == "groups" else 0  # of a spec, 0 is "not said"
        owner[path[-1]] = draw(DTYPES) if path[-1] == "dtype" else max(changed(draw, owner[path[-1]]), least)
    made["num_blocks"] = draw(st.sampled_from([made["num_blocks"], made["num_blocks"], None, 1, 2, 3, 4]))
    entry = made["caches"]["a"]
    if isinstance(entry, dict) and draw(st.booleans()):
        order = draw(st.permutations(range(len(entry["shape"]))))
        step = 1
        for axis in reversed(order):
            entry["stride"][axis] = step
            step *= entry["shape"][axis]
    return made


@given(documents(), st.sampled_from(["lmcache", "bytes"]))
@settings(max_examples=1500)
def test_planning_answers_and_what_it_serves_is_right(made: Json, form: Form) -> None:
    read = Registration.from_json(json.dumps(made))
    if not isinstance(read, Ok):
        return
    result = attempt(read.value, presentation=form)
    printed: Any = plan_json(result.plan, result.errors)
    json.dumps(printed)
    named = [error.layer for error in result.errors if error.layer is not None]
    assert len(named) == len(set(named))
    for name, layer in printed["layers"].items():
        assert name not in named
        blocks = layer["shape"][layer["block_axis"]]
        assert made["num_blocks"] in (None, blocks)
        for block in range(min(blocks, 4)):
            hits_its_pages(made, name, layer, block, whole=form == "bytes")
    if not result.errors:
        assert isinstance(Plan.from_json(result.plan.to_json()), Ok)
