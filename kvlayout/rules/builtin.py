"""The rules that kvlayout brings, and those that installed packages declare."""

from __future__ import annotations

from functools import cache

from kvlayout.errors import Code, LayoutError
from kvlayout.rules.attention import subpaged_attention_view, subpaged_mla_attention_view
from kvlayout.rules.rule import Registry, Rule
from kvlayout.rules.state import mamba_page_view, mamba_unified_view

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


def _failed(name: str, actual: str) -> Registry:
    error = LayoutError(
        Code.RULE_LOAD_FAILED, expected=f"a Rule or a Registry from the entry point {name!r}", actual=actual
    )
    return Registry((), (error,))
