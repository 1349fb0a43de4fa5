"""The algebra against torch: where an index is, which shapes are views, and which element types can be read."""

from __future__ import annotations

from collections import Counter
from math import prod
from random import Random
from typing import TYPE_CHECKING

import pytest

from kvlayout.algebra.affine import at
from kvlayout.algebra.canonical import address, canonical, count, modes_of, refine
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.layout import Axis, Layout
from kvlayout.algebra.result import Ok
from kvlayout.algebra.transforms import retype
from kvlayout.algebra.units import Bytes, raw
from tests.brute import make

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch

_SIZES = (1, 1, 2, 2, 3, 4, 6)


def draw_strides(random: Random, shape: list[int]) -> list[int]:
    """Return strides of a dense layout with its axes permuted, padded or broadcast, or any at all."""
    kind = random.random()
    if kind < 0.3:
        return [random.choice((0, 1, 2, 3, 4, 6, 8, 12)) for _ in shape]
    order = list(range(len(shape)))
    if kind < 0.55:
        random.shuffle(order)
    strides, step = [0] * len(shape), random.choice((1, 1, 1, 2))
    for i in reversed(order):
        strides[i] = step if shape[i] != 1 else random.choice((step, 0, 7))
        step *= shape[i]
        if random.random() < 0.2:
            step += random.choice((1, 2, step))
    return strides


def draw_shape(random: Random, shape: list[int]) -> list[int]:
    """Return a shape of as many elements: axes of another one split, joined and put in another order."""
    factors: list[int] = []
    for extent in shape:
        factors += {4: [2, 2], 6: [2, 3]}.get(extent, [extent]) if random.random() < 0.5 else [extent]
    if random.random() < 0.2:
        random.shuffle(factors)
    new: list[int] = []
    for factor in factors:
        if new and random.random() < 0.4:
            new[-1] *= factor
        elif factor != 1 or random.random() < 0.5:
            new.append(factor)
    if random.random() < 0.3:
        new.insert(random.randint(0, len(new)), 1)
    return new


@pytest.mark.slow
def test_a_shape_is_a_view_exactly_where_torch_says_so() -> None:
    """``torch.view`` raises where ``refine`` refuses, else both give the same strides (but for axes of size 1)."""
    import torch

    arange = torch.arange(4096)
    random = Random("refine")
    answers: Counter[bool] = Counter()
    while answers.total() < 100_000:
        shape = [random.choice(_SIZES) for _ in range(random.randint(0, 4))]
        strides = draw_strides(random, shape)
        new = draw_shape(random, shape)
        assert prod(new) == prod(shape)
        if sum((s - 1) * d for s, d in zip(shape, strides, strict=True)) >= 4096:
            continue
        tensor = arange.as_strided(shape, strides)
        ours = refine(canonical([(s, 0, d, 0) for s, d in zip(shape, strides, strict=True)]), new)
        try:
            theirs = tensor.view(new).stride()
        except RuntimeError:
            assert isinstance(ours, int), (shape, strides, new)
            answers[False] += 1
            continue
        assert not isinstance(ours, int), (shape, strides, new)
        assert all(s == 1 or x == y for s, x, y in zip(new, ours, theirs, strict=True)), (shape, strides, new)
        answers[True] += 1
    assert min(answers[True], answers[False]) > 12_000, answers


def test_an_address_is_where_torch_reads() -> None:
    """The values of an ``as_strided`` over an arange are its addresses."""
    import torch

    arange = torch.arange(4096)
    random = Random("address")
    for _ in range(3000):
        shape = [random.choice(_SIZES) for _ in range(random.randint(0, 4))]
        strides = draw_strides(random, shape)
        offset = random.randint(0, 50)
        if offset + sum((s - 1) * d for s, d in zip(shape, strides, strict=True)) >= 4096:
            continue
        modes = modes_of(make(shape, strides))
        values = arange.as_strided(shape, strides, offset).flatten().tolist()
        assert [address(offset, modes, i) for i in range(count(modes))] == values
        form = canonical(modes)[::-1]
        assert [address(offset, form, i) for i in range(count(form))] == values


def layout_of(tensor: torch.Tensor) -> Layout:
    item = tensor.element_size()
    name = str(tensor.dtype).removeprefix("torch.")
    return Layout(
        tuple(tensor.shape),
        tuple(Bytes(int(stride) * item) for stride in tensor.stride()),
        Bytes(int(tensor.storage_offset()) * item),
        DTYPES[name],
        Bytes(1 << 20),
        (Axis.CHANNEL,) * tensor.dim(),
    )


def test_another_element_type_can_be_read_exactly_where_torch_says_so() -> None:
    import torch

    types = (torch.int8, torch.uint8, torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.complex128)
    storage = torch.zeros(1 << 16, dtype=torch.int8)
    random = Random("retype")
    answers: Counter[bool] = Counter()
    for _ in range(20_000):
        old, new = random.choice(types), random.choice(types)
        shape = [random.choice((1, 2, 3, 4, 8)) for _ in range(random.randint(0, 3))]
        strides = [random.choice((1, 2, 4, 8, 16, 24, 32)) for _ in shape]
        if shape and random.random() < 0.8:
            strides[-1] = 1
        offset = random.choice((0, 0, 1, 2, 4, 8, 16))
        tensor = storage.view(old).as_strided(shape, strides, offset)
        ours = retype(layout_of(tensor), DTYPES[str(new).removeprefix("torch.")])
        try:
            theirs = tensor.view(new)
        except RuntimeError:
            assert not isinstance(ours, Ok), (shape, strides, offset, old, new)
            answers[False] += 1
            continue
        assert isinstance(ours, Ok), (shape, strides, offset, old, new, ours)
        assert ours.value == layout_of(theirs)
        answers[True] += 1
    assert min(answers.values()) > 4000, answers


def test_item_sizes_are_torch_s() -> None:
    import torch

    for name, dtype in DTYPES.items():
        assert dtype.name == name
        assert getattr(torch, name).itemsize == dtype.itemsize


def test_element_strides_are_what_as_strided_takes() -> None:
    import torch

    tensor = torch.zeros(4096, dtype=torch.bfloat16).as_strided((3, 4, 5), (100, 20, 2), 7)
    layout = layout_of(tensor)
    strides = layout.element_strides()
    assert strides is not None
    assert tuple(at(stride, 1) for stride in strides) == tensor.stride()
    assert raw(layout.offset) == 14
