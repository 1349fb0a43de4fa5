"""The element type of attention caches that a quantised checkpoint asks for.

>>> from kvlayout.offline.config import Config, Faults
>>> fields = {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}
>>> asked_cache_type(Config(fields, Faults()))
'fp8_e4m3'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvlayout.offline.config import Config

__all__ = ["asked_cache_type"]

#: The quantiser's words for types of caches, and the engine's.
_ALGORITHMS: Final = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def asked_cache_type(config: Config) -> str | None:
    """Return the engine's word for the type, ``None`` where the checkpoint asks for none that the engine knows."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return None
    method = found.get("quant_method")
    if method == "compressed-tensors":
        return "fp8" if isinstance(found.get("kv_cache_scheme"), Mapping) else None
    if not isinstance(method, str) or not method.startswith("modelopt"):
        return None
    inner = found.get("quantization", found)
    places = [place for place in (inner, found) if isinstance(place, Mapping)]
    asked = [place.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo") for place in places]
    return _word(next((value for value in asked if value), None))


def _word(asked: object) -> str | None:
    if isinstance(asked, Mapping):
        if (asked.get("dynamic"), asked.get("num_bits"), asked.get("type")) == (False, 8, "float"):
            return "fp8"
        return "nvfp4" if (asked.get("num_bits"), asked.get("type")) == (4, "float") else None
    return _ALGORITHMS.get(asked.lower()) if isinstance(asked, str) else None
