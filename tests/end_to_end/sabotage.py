"""The example connector with one fault at a time, as connectors have really had them: what the comparison must see.

A fault is chosen while the engine runs, for all that follows. Where a fault would cancel out if stores and loads both
had it, only loads have it.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from examples.page_store_connector import PageStoreConnector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from kvlayout.summaries import LayerPlan

__all__ = ["FAULTS", "SabotagedConnector"]

STORES, LOADS, BOTH = frozenset({"store"}), frozenset({"load"}), frozenset({"store", "load"})


class SabotagedConnector(PageStoreConnector):
    """Does what its base does, except that it has the fault that is chosen."""

    fault: ClassVar[str] = "none"

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        super().register_kv_caches(kv_caches)
        self._registered, self._faulty = kv_caches, False
        groups = self._kv_cache_config.kv_cache_groups
        specs: dict[str, Any] = {layer: group.kv_cache_spec for group in groups for layer in group.layer_names}
        self._states = [layer for layer, spec in specs.items() if hasattr(spec, "shapes")]
        self._attention = [layer for layer in specs if layer not in self._states]
        self._first_part = {
            layer: specs[layer].dtypes[0].itemsize * math.prod(specs[layer].shapes[0]) for layer in self._states
        }

    @classmethod
    def choose(cls, fault: str) -> None:
        """Have a fault of :data:`FAULTS` from now on, or ``"none"``."""
        cls.fault, cls.asynchronous = fault, fault != "a synchronous load"

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        with self._having("load"):
            super().start_load_kv(forward_context, **kwargs)

    def wait_for_save(self) -> None:
        with self._having("store"):
            super().wait_for_save()

    @contextmanager
    def _having(self, direction: str) -> Iterator[None]:
        right = self.views
        sides, wrong = FAULTS.get(self.fault, (frozenset[str](), None))
        self._faulty = direction in sides
        if self._faulty and wrong is not None:
            self.views = right | wrong(self)
        yield
        self.views, self._faulty = right, False

    def _planned(self, layer: str) -> LayerPlan | None:
        """The plan of a layer would not let another view than its own pass."""
        return None if self._faulty else super()._planned(layer)

    def _sizes(self, group: int) -> list[tuple[str, int]]:
        """Bytes of a page as the view has them: a wrong view may have fewer."""
        layers = self.plan.groups[group].layers
        return [(layer, self.views[layer].nbytes // self.views[layer].shape[0]) for layer in layers]

    def _block_ids(self, ids: list[int]) -> list[int]:
        off = self._faulty and self.fault.startswith("a block off by one")
        return [block + 1 for block in ids] if off else ids

    def _by_kernel_page(self) -> dict[str, torch.Tensor]:
        """The tensor as it is registered: its first axis counts kernel pages."""
        return {layer: self._registered[layer] for layer in self._attention}

    def _first_kernel_page(self) -> dict[str, torch.Tensor]:
        pages = {layer: len(self._registered[layer]) // self._kv_cache_config.num_blocks for layer in self._attention}
        return {layer: self._registered[layer][::each] for layer, each in pages.items()}

    def _first_part_only(self) -> dict[str, torch.Tensor]:
        return {layer: self.views[layer][:, : self._first_part[layer]] for layer in self._states}

    def _attention_swapped(self) -> dict[str, torch.Tensor]:
        return self._swapped(*self._attention[:2])

    def _states_swapped(self) -> dict[str, torch.Tensor]:
        return self._swapped(*self._states[:2])

    def _swapped(self, one: str, other: str) -> dict[str, torch.Tensor]:
        return {one: self.views[other], other: self.views[one]}


#: Each with the directions that have it, and the views that are wrong then.
FAULTS: dict[str, tuple[frozenset[str], Callable[[SabotagedConnector], dict[str, torch.Tensor]] | None]] = {
    "addressing by kernel page": (BOTH, SabotagedConnector._by_kernel_page),
    "addressing by kernel page in loads": (LOADS, SabotagedConnector._by_kernel_page),
    "only the first kernel page": (BOTH, SabotagedConnector._first_kernel_page),
    "a state without its second part": (BOTH, SabotagedConnector._first_part_only),
    "two attention layers swapped": (LOADS, SabotagedConnector._attention_swapped),
    "two state layers swapped": (LOADS, SabotagedConnector._states_swapped),
    "a block off by one in loads": (LOADS, None),
    "a block off by one in stores": (STORES, None),
    "a block off by one in both": (BOTH, None),
    "a synchronous load": (LOADS, None),
}
