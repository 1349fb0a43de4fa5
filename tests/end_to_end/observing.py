"""The example connector in a running engine: switched between requests, and every block that it moves written down."""

from __future__ import annotations

import itertools
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor

    from kvlayout.summaries import LayerPlan
    from tests.end_to_end.engine import Engine

__all__ = ["CONNECTOR", "Connector", "Move", "transfer_config"]

CONNECTOR = "examples.page_store_connector"


def transfer_config(root: Path, module: str = CONNECTOR, name: str = "PageStoreConnector") -> dict[str, Any]:
    """Return the kv_transfer_config of the example connector, or of a class derived from it."""
    return {
        "kv_connector": name,
        "kv_connector_module_path": module,
        "kv_connector_extra_config": {"root": str(root), "store": False, "load": False},
    }


@attrs.frozen
class Move:
    """Blocks of one layer that were stored or loaded: their ids, in order, and how many bytes that were."""

    direction: str
    layer: str
    block_ids: list[int]
    nbytes: int


class Connector:
    """The two halves of the connector of an engine that runs in this process."""

    def __init__(self, engine: Engine) -> None:
        state: Any = import_module("vllm.distributed.kv_transfer.kv_transfer_state")
        self.worker, self.scheduler = state.get_kv_transfer_group(), engine.scheduler.connector
        self.moves: list[Move] = []
        self.matched: list[tuple[int, bool]] = []
        self.null_blocks = 0
        self.untouched: frozenset[str] = frozenset()
        self._watch()

    def switch(self, *, store: bool = False, load: bool = False, untouched: Collection[str] = ()) -> None:
        """Say what the next request does; loads leave the layers in ``untouched`` as they are."""
        self.moves, self.matched, self.null_blocks = [], [], 0
        self.untouched = frozenset(untouched)
        for half in (self.worker, self.scheduler):
            half.storing, half.loading = store, load

    def keep_pages_in(self, root: Path) -> None:
        """Use another folder from now on."""
        for half in (self.worker, self.scheduler):
            half.files = type(half.files)(root)

    @property
    def aliases(self) -> list[str]:
        """Return the layers that have no cache of their own."""
        return [name for name, layer in self.worker.plan.layers.items() if layer.verdict == "alias"]

    @property
    def layers(self) -> list[str]:
        """Return the layers of served groups."""
        return [layer for group in self.worker.plan.groups if group.disposition == "served" for layer in group.layers]

    def _watch(self) -> None:
        """Put ourselves between the engine and its connector, and between that and the functions that move bytes."""
        pages: Any = import_module(CONNECTOR)
        pages.store, pages.retrieve = self._stored(pages.store), self._retrieved(pages.retrieve)
        match, allocated = self.scheduler.get_num_new_matched_tokens, self.scheduler.update_state_after_alloc

        def matched(request: Any, computed: int) -> tuple[int, bool]:
            self.matched.append(match(request, computed))
            return self.matched[-1]

        def note_null_blocks(request: Any, blocks: Any, external: int) -> None:
            ids = list(itertools.chain.from_iterable(blocks.get_block_ids()))
            self.null_blocks += ids.count(0) if external else 0
            allocated(request, blocks, external)

        self.scheduler.get_num_new_matched_tokens = matched
        self.scheduler.update_state_after_alloc = note_null_blocks

    def _stored(self, store: Callable[..., bytearray]) -> Callable[..., bytearray]:
        def watched(view: Tensor, block_ids: Sequence[int], *, layer: LayerPlan | None, **options: Any) -> bytearray:
            data = store(view, block_ids, layer=layer, **options)
            self._note("store", layer, block_ids, data)
            return data

        return watched

    def _retrieved(self, retrieve: Callable[..., None]) -> Callable[..., None]:
        def watched(
            view: Tensor, block_ids: Sequence[int], data: bytes, *, layer: LayerPlan | None, **options: Any
        ) -> None:
            if layer is None or layer.layer not in self.untouched:
                retrieve(view, block_ids, data, layer=layer, **options)
                self._note("load", layer, block_ids, data)

        return watched

    def _note(self, direction: str, layer: LayerPlan | None, ids: Sequence[int], data: bytes | bytearray) -> None:
        self.moves.append(Move(direction, "" if layer is None else layer.layer, list(ids), len(data)))
