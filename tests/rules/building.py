"""Small registrations, written as the documents that users send: every test here goes through the reader."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from kvlayout.cache.registration import Registration
from kvlayout.planning import Attempt, attempt
from kvlayout.reporting import layer_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvlayout.rules.presentation import Form
    from kvlayout.rules.rule import Registry

Json: TypeAlias = dict[str, Any]

ITEM = {"bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
BASES = ["AttentionSpec", "KVCacheSpec"]


def attention(
    block: int = 64,
    heads: int = 2,
    head: int = 8,
    dtype: str = "bfloat16",
    *,
    name: str = "FullAttentionSpec",
    states: int | None = None,
    content: int | None = None,
    page: int | None = None,
    head_v: int | None = None,
    **fields: Any,
) -> Json:
    """Return a spec of keys and values; numbers that are not given are vLLM's own."""
    wide = content or (head + (head if head_v is None else head_v)) * ITEM[dtype]
    rows = states or block
    made: Json = {"block_size": block, "num_kv_heads": heads, "head_size": head, "dtype": dtype}
    if head_v is not None:
        made["head_size_v"] = head_v
    derived = {
        "page_size_bytes": page or rows * heads * wide,
        "num_states": rows,
        "num_heads": heads,
        "state_content_size_bytes": wide,
        "prefix_cacheable": True,
        "has_layer_views": True,
    }
    return {"type": name, "bases": BASES, "kind": "full_attention", "fields": made | fields, "derived": derived}


def latent(block: int = 64, head: int = 24, dtype: str = "bfloat16", **more: Any) -> Json:
    """Return a spec of latent rows: one head, no values."""
    name = more.pop("name", "MLAAttentionSpec")
    heads = more.pop("heads", 1)
    made = attention(block, heads, head, dtype, name=name, head_v=0, **more)
    return made | {"kind": "mla_attention"}


def mamba(
    block: int = 64,
    shapes: Sequence[Sequence[int]] = ((3, 8), (4, 4)),
    dtypes: Sequence[str] = ("bfloat16", "float32"),
    page: int | None = None,
    mode: str = "align",
) -> Json:
    """Return a spec of recurrent state."""
    content = sum(prod(shape) * ITEM.get(dtype, 1) for shape, dtype in zip(shapes, dtypes, strict=True))
    fields = {
        "block_size": block,
        "shapes": [list(shape) for shape in shapes],
        "dtypes": list(dtypes),
        "page_size_padded": page,
        "mamba_cache_mode": mode,
        "tokens_per_state": -1,
    }
    derived = {"page_size_bytes": page or content, "num_states": 1, "state_content_size_bytes": content}
    return {"type": "MambaSpec", "bases": ["KVCacheSpec"], "kind": "mamba", "fields": fields, "derived": derived}


def strides_of(shape: Sequence[int], order: Sequence[int] | None = None) -> list[int]:
    """Return dense element strides for a memory order of the axes, outermost first."""
    step, strides = 1, [0] * len(shape)
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        step *= shape[axis]
    return strides


def tensor(
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    *,
    order: Sequence[int] | None = None,
    offset: int = 0,
    dtype: str = "bfloat16",
    storage: int = 0,
    nbytes: int | None = None,
) -> Json:
    """Return the facts of a tensor; dense where no strides are given."""
    return {
        "shape": list(shape),
        "stride": list(strides_of(shape, order) if strides is None else strides),
        "storage_offset": offset,
        "dtype": dtype,
        "storage": storage,
        "storage_nbytes": nbytes,
    }


def state_list(spec: Json, blocks: int, stride: int, *, base: int = 0, storage: int = 0) -> Any:
    """Return the list of states of a spec, one page every ``stride`` bytes, from byte ``base`` on."""
    parts = []
    for shape, dtype in zip(spec["fields"]["shapes"], spec["fields"]["dtypes"], strict=True):
        item = ITEM[dtype]
        strides = [stride // item, *strides_of(shape)]
        facts = tensor([blocks, *shape], strides, offset=base // item, dtype=dtype, storage=storage)
        parts.append(facts)
        base += prod(shape) * item
    return parts


def state_row(
    spec: Json,
    blocks: int,
    stride: int | None = None,
    *,
    row: int | None = None,
    base: int = 0,
    storage: int = 0,
    dtype: str = "int8",
) -> Json:
    """Return the row of a spec's states: of its content, or of as many bytes as given."""
    wide, step = row or spec["derived"]["state_content_size_bytes"], stride or spec["derived"]["page_size_bytes"]
    item = ITEM[dtype]
    strides = [step // item, wide // item, wide // item, 1]
    return tensor([blocks, 1, 1, wide // item], strides, offset=base // item, dtype=dtype, storage=storage)


def group(layers: Sequence[str], spec: Json, **flags: Any) -> Json:
    return {"layers": list(layers), "spec": spec, **flags}


def uniform(leaves: Mapping[str, Json], **flags: Any) -> Json:
    """Return a group whose layers have specs of their own."""
    first = next(iter(leaves.values()))
    spec = {"type": "UniformTypeKVCacheSpecs", "bases": ["KVCacheSpec"], "kind": first["kind"]}
    spec |= {"fields": {"block_size": first["fields"]["block_size"]}, "derived": {}}
    return {"layers": list(leaves), "spec": spec, "layer_specs": dict(leaves), **flags}


def place(layers: Sequence[str], **numbers: int | str | None) -> Json:
    return dict.fromkeys(("size", "offset", "layer_stride", "block_stride")) | {"layers": list(layers)} | numbers


def document(
    groups: Sequence[Json],
    caches: Mapping[str, Any],
    blocks: int | None = 3,
    hint: str | None = "NHD",
    *,
    layout: str | None = None,
    placements: Sequence[Json] = (),
    platform: str = "cuda",
    dcp: int = 1,
) -> Json:
    """Return a registration document."""
    return {
        "format": "kvlayout/registration",
        "version": 1,
        "name": "test",
        "engine": {"name": "vllm", "version": "0.32.0", "platform": platform, "dcp": dcp},
        "num_blocks": blocks,
        "kv_cache_layout": layout,
        "layout_hint": hint,
        "placements": list(placements),
        "groups": list(groups),
        "caches": dict(caches),
    }


def one(spec: Json, cache: Any, blocks: int | None = 3, hint: str | None = "NHD", **more: Any) -> Json:
    """Return a document of one layer, ``a``."""
    return document([group(["a"], spec)], {"a": cache}, blocks, hint, **more)


def registered(made: Json) -> Registration:
    return Registration.from_json(json.dumps(made)).unwrap()


def planned(made: Json, form: Form = "lmcache", rules: Registry | None = None) -> Attempt:
    return attempt(registered(made), presentation=form, rules=rules)


def codes(
    made: Json, form: Form = "lmcache", rules: Registry | None = None
) -> list[tuple[str, int | None, str | None]]:
    """Return code, group and layer of every error."""
    return [(error.code.value, error.group, error.layer) for error in planned(made, form, rules).errors]


def code(made: Json, form: Form = "lmcache", rules: Registry | None = None) -> str | None:
    """Return the code of layer ``a`` of group 0, None where it is served; there may be no other error."""
    found = codes(made, form, rules)
    if not found:
        return None
    assert [(group, layer) for _, group, layer in found] == [(0, "a")], found
    return found[0][0]


def view(made: Json, layer: str = "a", form: Form = "lmcache", rules: Registry | None = None) -> Json:
    """Return one planned layer as ``--json`` has it; nothing may be refused."""
    result = planned(made, form, rules)
    assert not result.errors, result.errors
    return dict(layer_json(result.plan.layers[layer]))
