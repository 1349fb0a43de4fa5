"""What LMCache itself makes of views: its grouping, its detection and its layer-group manager, run as it runs them.

The bytes of a block are worked out from its own shape descriptor as its kernels do: the pointer of the layer, the
block stride of the descriptor (or the tight one where it has none), and K and V apart in formats that have planes
first.
"""

from __future__ import annotations

from importlib import import_module
from itertools import combinations
from math import lcm
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Interval = tuple[int, int]


class Layer(NamedTuple):
    """What LMCache takes a layer for; or why it can't be registered, in ``error``.

    ``slots`` and ``tokens`` are a block's, ``slot_stride`` is in bytes, and so are the intervals of ``block``, counted
    from the storage's first byte.
    """

    error: str = ""
    form: str = ""
    slots: int = 0
    slot_stride: int = 0
    tokens: int = 0
    blocks: int = 0
    start: int = 0
    stride: int = 0
    covered: int = 0
    second: int | None = None

    def block(self, index: int) -> tuple[Interval, ...]:
        starts = [self.start] if self.second is None else [self.start, self.second]
        found = [(at + index * self.stride, at + index * self.stride + self.covered) for at in starts]
        return joined(found)


def joined(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Join intervals that touch."""
    made: list[Interval] = []
    for start, end in sorted(intervals):
        if made and made[-1][1] == start:
            made[-1] = (made[-1][0], end)
        else:
            made.append((start, end))
    return tuple(made)


def downstream(
    config: Any, views: Mapping[str, Any], hint: str, dcp: int = 1, *, windows: bool = True
) -> dict[str, Layer]:
    """Return what LMCache makes of each layer that it moves.

    Where it refuses a registration, it is asked for each group alone, then for each layer alone, so that the refusal
    is said of those layers only that it is about. The chunk is the smallest that it takes; without ``windows`` it is
    not asked whether windows fit that.
    """
    groups = [group for group in config.kv_cache_groups if not scratch(group)]
    chunk = lcm(*(tokens(group, dcp) for group in groups)) * (1 if windows else -1)
    found: dict[str, Layer] = {}
    try:
        return registration(groups, views, hint, dcp, chunk)
    except Exception:  # noqa: BLE001 - it raises what it likes
        for group in groups:
            found |= alone(group, views, hint, dcp, chunk)
    assert any(layer.error for layer in found.values()), "refused as a whole, but no group of it is"
    return found


def alone(group: Any, views: Mapping[str, Any], hint: str, dcp: int, chunk: int) -> dict[str, Layer]:
    """Register one group; where LMCache refuses it, each layer alone, then each pair of those that it takes alone."""

    def of(*layers: str) -> dict[str, Layer]:
        part = SimpleNamespace(layer_names=list(layers), kv_cache_spec=group.kv_cache_spec)
        return registration([part], views, hint, dcp, chunk)

    found: dict[str, Layer] = {}
    try:
        return of(*group.layer_names)
    except Exception as error:  # noqa: BLE001 - as above
        together = said(error)
    for layer in group.layer_names:
        try:
            found |= of(layer)
        except Exception as error:  # noqa: BLE001 - as above
            found[layer] = Layer(error=said(error))
    taken = [layer for layer in group.layer_names if layer in found and not found[layer].error]
    for pair in combinations(taken, 2):
        try:
            of(*pair)
        except Exception as error:  # noqa: BLE001 - as above
            found |= dict.fromkeys(pair, Layer(error=said(error)))
    if any(layer.error for layer in found.values()):
        # what it says of the others it says of them together, the first one's numbers for all
        rest = [layer for layer in group.layer_names if not found[layer].error]
        return found | (of(*rest) if rest else {})
    return {layer: Layer(error=together) for layer in group.layer_names}


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def scratch(group: Any) -> bool:
    groups: Any = import_module("lmcache.integration.vllm.kv_cache_groups")
    return bool(groups.is_scratch_spec(group.kv_cache_spec))


def tokens(group: Any, dcp: int) -> int:
    groups: Any = import_module("lmcache.integration.vllm.kv_cache_groups")
    return int(groups.get_tokens_per_block(group.kv_cache_spec, dcp))


def registration(groups: list[Any], views: Mapping[str, Any], hint: str, dcp: int, chunk: int) -> dict[str, Layer]:
    """Register, and read what came of it."""
    made = managed(groups, views, hint, dcp, chunk)
    found = (layer for group in made.groups for layer in kernel_group(group, made.tensors))
    return {made.names[i]: layer for i, layer in found}


class Managed(NamedTuple):
    """What LMCache's server keeps: its kernel groups, the tensors that it settled on, and their names."""

    groups: list[Any]
    tensors: list[Any]
    names: list[str]


def managed(groups: list[Any], views: Mapping[str, Any], hint: str, dcp: int, chunk: int) -> Managed:
    """Register as the connector does (groups from the configuration), then as the server does (formats, manager)."""
    integration: Any = import_module("lmcache.integration.vllm.kv_cache_groups")
    utils: Any = import_module("lmcache.v1.gpu_connector.utils")
    manager: Any = import_module("lmcache.v1.kv_layer_groups")
    view: Any = import_module("lmcache.v1.multiprocess.group_view")
    engine: Any = import_module("lmcache.utils").EngineType.VLLM
    wanted = {layer for group in groups for layer in group.layer_names}
    shown = {layer: tensor for layer, tensor in views.items() if layer in wanted}
    config, hints = SimpleNamespace(kv_cache_groups=groups), {"kv_layout": hint}
    infos = integration.create_engine_group_infos_from_vllm(config, shown, layout_hints=hints, dcp_size=dcp)
    indices = view.engine_group_layer_indices(infos)
    tensors, formats = utils.normalize_and_discover_per_layer_formats(list(shown.values()), indices, engine, hints)
    if chunk < 0:
        infos = [import_module("msgspec").structs.replace(info, sw_size_tokens=-1) for info in infos]
    made = manager.KVLayerGroupsManager(tensors, formats, infos, lmcache_tokens_per_chunk=abs(chunk))
    return Managed(made.kernel_groups, tensors, list(shown))


def kernel_group(group: Any, tensors: list[Any]) -> Iterator[tuple[int, Layer]]:
    """Yield index and reading of each layer of a kernel group."""
    utils: Any = import_module("lmcache.v1.gpu_connector.utils")
    specs: Any = import_module("lmcache.v1.gpu_connector.kv_format")
    form, shape = group.engine_kv_format, group.shape_desc
    facts = specs.get_spec_class(form)
    plane = shape.bs * shape.nh * shape.hs
    tight = plane if facts.is_two_major else plane * shape.kv_size
    stride = shape.block_stride_elems if shape.block_stride_elems > 0 else tight
    item = shape.element_size
    for index in group.layer_indices:
        (pointer,) = utils.get_group_data_ptrs(tensors, form, [index])
        tensor = tensors[index]
        start = pointer - tensor.untyped_storage().data_ptr()
        yield (
            index,
            Layer(
                form=form.name,
                slots=group.slots_per_block,
                slot_stride=slot_stride(facts, tensor) * item,
                tokens=group.tokens_per_block,
                blocks=shape.nb,
                start=start,
                stride=stride * item,
                covered=tight * item,
                second=start + shape.nb * plane * item if facts.is_two_major else None,
            ),
        )


def slot_stride(facts: Any, tensor: Any) -> int:
    """Return the elements between slots: of the axis that LMCache takes for the tokens of a block."""
    tokens = tensor.dim() - (2 if facts.is_hnd or facts.is_mla else 3)
    return int(tensor.stride(tokens))
