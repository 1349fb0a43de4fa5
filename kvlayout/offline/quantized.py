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


def asked_cache_type(root: Config, inner: Config | None = None, *, schemes: bool = True) -> str | None:
    """Return the engine's word for the type, ``None`` where the checkpoint asks for none that the engine knows.

    Args:
        root: the config.
        inner: that of its language model, where there is another one around it.
        schemes: the engine's attention takes the scheme of a compressed-tensors checkpoint.
    """
    places = [(root, "quantization_config"), (inner or root, "quantization_config"), (root, "compression_config")]
    found = next((value for config, key in places if (value := config.get(key)) is not None), None)
    if not isinstance(found, Mapping):
        return None
    method = found.get("quant_method")
    if method == "compressed-tensors":
        return "fp8" if schemes and isinstance(found.get("kv_cache_scheme"), Mapping) else None
    if not isinstance(method, str) or not method.startswith("modelopt") or not root.has("quantization_config"):
        return None
    spelled = (found.get("quantization", found), found)
    asked = [
        place.get(key)
        for key in ("kv_cache_scheme", "kv_cache_quant_algo")
        for place in spelled
        if isinstance(place, Mapping)
    ]
    return _word(next((value for value in asked if value), None))


def _word(asked: object) -> str | None:
    if isinstance(asked, Mapping):
        if (asked.get("dynamic"), asked.get("num_bits"), asked.get("type")) == (False, 8, "float"):
            return "fp8"
        return "nvfp4" if (asked.get("num_bits"), asked.get("type")) == (4, "float") else None
    return _ALGORITHMS.get(asked.lower()) if isinstance(asked, str) else None
