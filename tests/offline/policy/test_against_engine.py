"""Groups, placement and tensors of layers drawn at random, against vLLM's own functions on its own specs."""

from __future__ import annotations

from math import lcm
from random import Random
from typing import TYPE_CHECKING, get_args

import pytest

from kvlayout.cache.registration import Registration
from kvlayout.cache.spec import StateField
from kvlayout.offline.deployment import KernelSize, LayoutName
from kvlayout.offline.policy.grouping import grouped
from kvlayout.offline.policy.hashing import hash_block, spans
from kvlayout.offline.policy.layers import state_bytes
from kvlayout.offline.policy.registering import group
from kvlayout.offline.policy.request import Request
from kvlayout.offline.policy.stages import on_stage
from kvlayout.offline.policy.v0_29 import arrange
from kvlayout.offline.policy.values import LayerSpec, RefusedError
from kvlayout.offline.policy.versions import policy_of
from tests.offline.policy.engine import REFUSALS, Asked, hashed, made

if TYPE_CHECKING:
    from kvlayout.offline.policy.kernels import Sizes

pytestmark = [pytest.mark.engine, pytest.mark.torch]

FACTS = policy_of("vllm-0.32").facts
INDEXER = (KernelSize(64),)
SIZES: tuple[Sizes, ...] = (
    (KernelSize(16, multiple=True),),
    (KernelSize(32, multiple=True),),
    (KernelSize(32),),
    (KernelSize(64),),
    (KernelSize(32), KernelSize(64)),
    (KernelSize(16), KernelSize(64, multiple=True)),
    (KernelSize(1, multiple=True),),
)
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)


def spec(random: Random, block: int, sizes: Sizes) -> LayerSpec:
    """Return a layer of any kind, as a model may have it."""
    whole = KernelSize(max(s.tokens for s in sizes), multiple=True) if not any(s.multiple for s in sizes) else None
    kind = random.choice(
        ["full", "full", "sliding", "sliding", "chunked", "latent", "sliding-latent", "state", "cross"]
    )
    window = random.choice([128, 1024])
    if kind == "state":
        fields = (
            StateField((random.choice([2, 3]), random.choice([96, 128])), "bfloat16"),
            StateField((random.choice([2, 4]), 16, random.choice([16, 32])), random.choice(["float32", "bfloat16"])),
        )
        content = state_bytes(fields)
        padded = random.choice([None, None, -(-content // 16384) * 16384])
        backend = random.choice(["MAMBA2", "GDN_ATTN"])
        return LayerSpec(
            "state", block, 1, content, padded=padded, sharded=False, fields=fields, backend=backend, cache_mode="align"
        )
    if kind in ("latent", "sliding-latent"):
        mode, dtype, row = random.choice(
            [("auto", "bfloat16", 1152), ("fp8", "uint8", 576), ("fp8_ds_mla", "uint8", 656)]
        )
        align = random.choice([whole, None, row])
        latent = LayerSpec("latent", block, 1, row, 576, 0, dtype, mode, align=align)
        if kind == "sliding-latent":
            return latent._replace(kind="sliding-latent", window=window)
        if random.random() < 0.3:
            return LayerSpec(
                "latent", block, 1, 132, 132, 0, "uint8", "", align=KernelSize(64, multiple=True), indexer=True
            )
        return latent._replace(leader=random.random() < 0.3)
    size, heads = random.choice([32, 64, 80, 128]), random.choice([1, 2, 4])
    mode, dtype, item = random.choice([("auto", "bfloat16", 2), ("auto", "bfloat16", 2), ("fp8", "uint8", 1)])
    value = size if kind in ("chunked", "cross") else random.choice([size, size, size, 64])
    made_spec = LayerSpec("full", block, heads, (size + value) * item, size, value, dtype, mode, align=whole)
    if kind == "sliding":
        return made_spec._replace(
            kind="sliding", window=window, block=random.choice([block, block, max(block // 2, 16)])
        )
    if kind == "chunked":
        return made_spec._replace(kind="chunked", chunk=window)
    return made_spec._replace(kind="cross") if kind == "cross" else made_spec


def draw(seed: int) -> Asked:
    random = Random(seed)
    sizes = random.choice(SIZES)
    block = random.choice([16, 32, 64, 64, 128, 128, 192, 544])
    kinds = [spec(random, block, sizes) for _ in range(random.choice([1, 1, 2, 2, 3, 4]))]
    count = random.randint(1, 12)
    layers = {f"layers.{i}.attn": random.choice(kinds) for i in range(count)}
    if random.random() < 0.5:  # a pattern, as models have one
        layers = {name: kinds[i % len(kinds)] for i, name in enumerate(layers)}
    cut = random.randint(1, count) if random.random() < 0.2 else count
    names = list(layers)
    stages = [{n: layers[n] for n in part} for part in (names[:cut], names[cut:]) if part]
    hybrid = random.random() < 0.85
    return Asked(stages, random.choice(LAYOUTS), sizes, INDEXER, random.choice([1, 2, 7, 1000]), hybrid)


def request_of(asked: Asked) -> Request:
    layout: LayoutName = next(name for name in LAYOUTS if name == asked.layout)
    return Request(FACTS, "cuda", layout, asked.sizes, asked.indexer, hybrid=asked.hybrid)


def worked_out(asked: Asked, stage: int) -> Registration:
    request = request_of(asked)
    every = {name: spec for layers in asked.stages for name, spec in layers.items()}
    home = {name: index for index, layers in enumerate(asked.stages) for name in layers}
    bunches = grouped(every, request)
    staged = [bunches] if len(asked.stages) == 1 else [on_stage(bunches, home, n) for n in range(len(asked.stages))]
    arranged = [arrange(each, request) for each in staged]
    mine = arranged[stage]
    groups = tuple(group(bunch, FACTS) for bunch in staged[stage])
    return Registration(groups, mine.caches, mine.placements, None, mine.layout, mine.hint)


def compare(seed: int) -> str:
    """Assert that both make the same, or that both refuse; return which."""
    asked = draw(seed)
    stage = seed % len(asked.stages)
    theirs: Registration | Exception
    try:
        theirs = made(asked, stage)
    except REFUSALS as error:
        theirs = error
    ours: Registration | RefusedError
    try:
        ours = worked_out(asked, stage)
    except RefusedError as error:
        ours = error
    if isinstance(ours, RefusedError) or isinstance(theirs, Exception):
        assert isinstance(ours, RefusedError), (seed, theirs, asked)
        assert isinstance(theirs, Exception), (seed, ours.error, asked)
        return "refused"
    bound = ours.bind(asked.blocks)
    assert bound.groups == theirs.groups, seed
    assert bound.placements == theirs.placements, seed
    assert list(bound.caches.items()) == list(theirs.caches.items()), seed
    assert (bound.kv_cache_layout, bound.layout_hint) == (theirs.kv_cache_layout, theirs.layout_hint), seed
    return "equal"


def test_hashes_are_as_long_as_vllm_makes_them() -> None:
    compared = 0
    for seed in range(300):
        asked, dcp = draw(seed), 1 + seed % 2
        if len(asked.stages) > 1:
            continue
        try:
            bunches = grouped(asked.stages[0], request_of(asked))
        except RefusedError:
            continue
        tokens = spans(bunches, dcp)
        assert (lcm(*tokens), hash_block(bunches, tokens, by_mode=True)) == hashed(asked, dcp), seed
        compared += 1
    assert compared > 100


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_layers_of_any_kind_in_any_layout(first: int) -> None:
    answers = [compare(seed) for seed in range(first, first + 100)]
    assert answers.count("equal") > 30
    assert answers.count("refused") > 3
