"""The rules that kvlayout brings, and those that installed packages declare."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from kvlayout.errors import Code, LayoutError
from kvlayout.rules.attention import subpaged_attention_view, subpaged_mla_attention_view
from kvlayout.rules.rule import Registry, Rule
from kvlayout.rules.state import mamba_page_view, mamba_unified_view

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BUILTIN", "ENTRY_POINTS", "installed"]

#: The entry-point group under which a package declares a rule, or a registry of them.
ENTRY_POINTS = "kvlayout.rules"

#: The four rules, in the order in which they are tried.
BUILTIN: Registry = Registry.of(
    mamba_page_view,
    subpaged_attention_view,
    mamba_unified_view,
    subpaged_mla_attention_view,
)


@cache
def installed() -> Registry:
    """Return the built-in rules and those of installed packages; read once in a process.

    A package whose rule can't be loaded is an error value, ``rule-load-failed``, which planning reports.
    """
    if "importlib.metadata" not in sys.modules and not _declared(sys.path):
        return BUILTIN
    from importlib.metadata import entry_points

    found = BUILTIN
    for point in entry_points(group=ENTRY_POINTS):
        try:
            loaded = point.load()
        except Exception as error:  # noqa: BLE001 - a foreign package may raise anything
            found |= _failed(point.name, f"{type(error).__name__}: {error}")
            continue
        if isinstance(loaded, Registry):
            found |= loaded
        elif isinstance(loaded, Rule):
            found |= Registry.of(loaded)
        else:
            found |= _failed(point.name, f"a {type(loaded).__name__}")
    return found


def _declared(folders: Iterable[str]) -> bool:
    """Return whether an installed package may declare rules: one that does names the group in a file of its own.

    Importing importlib.metadata to be told "none" takes 30 ms, which is a fifth of a command; these files take 3.
    Where packages lie in anything but a folder (an archive), it has to be asked; so it is where it is imported anyway.
    """
    group = ENTRY_POINTS.encode()
    for folder in folders:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - a hundred names, without an object for each
        except FileNotFoundError:
            continue
        except OSError:
            return True
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:  # noqa: PTH118, PTH123
                        if group in file.read():
                            return True
                except OSError:  # it declares nothing
                    continue
    return False


def _failed(name: str, actual: str) -> Registry:
    error = LayoutError(
        Code.RULE_LOAD_FAILED, expected=f"a Rule or a Registry from the entry point {name!r}", actual=actual
    )
    return Registry((), (error,))
