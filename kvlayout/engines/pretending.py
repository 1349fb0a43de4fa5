"""What vLLM is made to believe while it derives a registration where the model could not run.

No GPU, no other rank, and packages that were built for another torch: none of them decides what a cache looks like.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final, TypeAlias, cast
from unittest.mock import patch

__all__ = ["NoStream", "alone", "declared_by", "inspection_in_process", "mend", "silent"]

#: An object of vLLM's.
_Live: TypeAlias = Any

#: What the operators of torchvision take that its files ask for when they are imported.
_OPERATOR: Final = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def mend(package: str) -> None:
    """Let vLLM be imported beside a package that was built for another torch, and that it only uses to run models.

    A CPU build of vLLM asks for these packages by name, and what an installer finds are builds for GPUs. Operators that
    such a torchvision fails to declare are declared; a package that still fails is taken for not installed.
    """
    try:
        import_module(package)
    except ModuleNotFoundError:
        return
    except Exception:  # noqa: BLE001 - a library that does not load, an operator that is not there, ...
        _forget(package)
        try:
            if package == "torchvision":
                for operator in ("nms", "qnms"):
                    import_module("torch").library.define(f"torchvision::{operator}", _OPERATOR)
            import_module(package)
        except Exception:  # noqa: BLE001 - the same again
            _forget(package)
            cast("dict[str, ModuleType | None]", sys.modules)[package] = None


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


class NoStream:
    """Stands for a stream of a GPU, which some models ask for where there is none."""

    def __init__(self, *_: object, **__: object) -> None: ...


def alone(new_group: Callable[..., object]) -> Callable[..., object]:
    """Return a maker of groups that wait for nobody, whatever backend is asked for."""

    def made(ranks: object = None, *_: object, **__: object) -> object:
        return new_group(ranks, backend="fake")

    return made


def silent(made: Callable[..., object]) -> Callable[..., object]:
    """Return a maker of vLLM's groups that open no channel."""

    def make(ranks: object, local: object, backend: object, *_: object, **named: object) -> object:
        quiet = {"use_message_queue_broadcaster": False, "use_device_communicator": False}
        return made(ranks, local, backend, group_name=named.get("group_name"), **quiet)

    return make


@contextmanager
def inspection_in_process() -> Iterator[None]:
    """Let vLLM look at a model's class here: a process for each would take ten seconds."""
    registry = import_module("vllm.model_executor.models.registry")

    def inspected(self: _Live) -> object:
        return registry._ModelInfo.from_model_cls(self.load_model_cls())  # noqa: SLF001 - there is no public name

    with patch.object(registry._LazyRegisteredModel, "inspect_model_cls", inspected):  # noqa: SLF001
        yield


def declared_by(backend: _Live, deployment: Mapping[str, Any], stack: ExitStack) -> None:
    """Let a backend declare what the deployment says that it has: kernel block sizes, and every layout."""
    if deployment["kernel_block_sizes"] and not backend.is_ssm():
        multiple = import_module("vllm.v1.attention.backend").MultipleOf
        sizes = [multiple(tokens) if any_of else tokens for tokens, any_of in deployment["kernel_block_sizes"]]
        declared = staticmethod(lambda *_, **__: sizes)
        stack.enter_context(patch.object(backend, "get_supported_kernel_block_sizes", declared))
    if deployment["layout"]:
        layouts = tuple(import_module("vllm.v1.kv_cache_layout").KVCacheLayout)
        every = classmethod(lambda _: layouts)
        stack.enter_context(patch.object(backend, "supported_kv_cache_layouts", every))
