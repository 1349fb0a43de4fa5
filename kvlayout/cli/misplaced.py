"""A file that is good for another command: which one, said instead of every field that it lacks."""

from __future__ import annotations

from typing import Final

from attrs import evolve

from kvlayout.errors import Code, LayoutError

__all__ = ["for_check", "for_model", "for_plan"]

_CONFIG: Final = "a model's config.json"
_REGISTRATION: Final = "a registration document"
_PLAN: Final = "a stored plan"


def for_plan(name: str, text: bytes, errors: tuple[LayoutError, ...]) -> tuple[LayoutError, ...]:
    """Return the errors of what ``kvlayout plan`` was given, or the one that it belongs to another command.

    >>> for_plan("config.json", b'{"architectures": ["LlamaForCausalLM"]}', ())[0].fix
    'kvlayout model config.json'
    """
    fixes = {_CONFIG: f"kvlayout model {name}", _PLAN: f"kvlayout check {name}"}
    found = _what(text)
    return (_other(name, _REGISTRATION, found, fixes[found]),) if found in fixes else errors


def for_check(name: str, text: bytes, errors: tuple[LayoutError, ...]) -> tuple[LayoutError, ...]:
    """Return the errors of what ``kvlayout check`` was given, with how a plan is stored.

    >>> for_check("doc.json", b'{"format": "kvlayout/registration"}', ())[0].fix
    'kvlayout plan doc.json --out PLAN stores a plan; then kvlayout check PLAN'
    """
    doc = {_REGISTRATION: name, _CONFIG: "DOC"}
    found = _what(text)
    if found in doc:
        fix = f"kvlayout plan {doc[found]} --out PLAN stores a plan; then kvlayout check PLAN"
        return (_other(name, _PLAN, found, fix),)
    return tuple(evolve(one, fix=one.fix or "store it again: kvlayout plan DOC --out PLAN") for one in errors)


def for_model(name: str, errors: tuple[LayoutError, ...]) -> tuple[LayoutError, ...]:
    """Return the errors of a config, those of the whole file with the file as what to see to.

    >>> whole = LayoutError(Code.BAD_CONFIG, path="$", expected="JSON", actual="nothing")
    >>> for_model("config.json", (whole,))[0].fix
    'config.json is not JSON: cut off? fetch it again'
    """
    whole = ("JSON", "text in UTF-8")
    place = "standard input" if name == "-" else name
    fixes = dict.fromkeys(whole, f"{place} is not JSON: cut off? fetch it again")
    return tuple(
        evolve(one, fix=fixes.get(one.expected, f"give a model's config.json: {place} is none"))
        if one.path == "$" and not one.fix
        else one
        for one in errors
    )


def _other(name: str, expected: str, actual: str, fix: str) -> LayoutError:
    return LayoutError(Code.BAD_DOCUMENT, path=name, expected=expected, actual=actual, fix=fix)


def _what(text: bytes) -> str:
    """Return what a file is, as far as its first keys tell; empty where they don't."""
    import json

    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict):
        return ""
    kinds = {"kvlayout/registration": _REGISTRATION, "kvlayout/plan": _PLAN}
    if "format" in found:
        return kinds.get(str(found["format"]), "")
    return _CONFIG if "architectures" in found or "model_type" in found else ""
