"""A live spec as plain values: the arguments of ``read_spec``, and what the registration document keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from fractions import Fraction
from math import isfinite
from typing import Final, NamedTuple

from kvlayout.cache.reading import FieldError, family_of, plain_dtype, read_spec
from kvlayout.cache.spec import Spec

__all__ = ["SpecFacts", "declared_fields", "plain", "read_live", "spec_document", "spec_facts"]

#: Properties that vLLM computes; a spec that has no such number raises, whatever it likes.
_DERIVED: Final = (
    "page_size_bytes",
    "num_states",
    "num_heads",
    "tokens_per_state",
    "state_content_size_bytes",
    "prefix_cacheable",
    "has_layer_views",
)
_FLAGS: Final = ("prefix_cacheable", "has_layer_views")
_UNPADDED: Final = tuple(name for name in _DERIVED if name != "state_content_size_bytes")
_AS_IT_IS: Final = frozenset((int, str, bool, type(None)))
_INTERFACE: Final = "vllm.v1.kv_cache_interface"


class SpecFacts(NamedTuple):
    """A spec's class and values, in the order of ``read_spec``'s arguments; ``kind`` only where vLLM itself says it."""

    type: str
    bases: list[str]
    kind: str | None
    fields: dict[str, object]
    derived: dict[str, object]


def spec_facts(spec: object) -> SpecFacts:
    """Return the class, declared fields and computed values of a spec; what it has not is absent.

    >>> from types import SimpleNamespace
    >>> spec_facts(SimpleNamespace(block_size=64, tokens_per_state=Fraction(1, 4), page_size_padded=None))
    SpecFacts(type='SimpleNamespace', bases=[], kind=None, fields={'block_size': 64, 'tokens_per_state': [1, 4]}, \
derived={'tokens_per_state': [1, 4]})
    """
    made = type(spec)
    fields: dict[str, object] = {}
    for name in _field_names(spec):
        value = getattr(spec, name, None)
        if value is not None and name != "kv_cache_specs":
            fields[name] = value if type(value) in _AS_IT_IS else plain(value)
    derived: dict[str, object] = {}
    for name, value in _answers(spec, _DERIVED).items():
        if type(value) in _AS_IT_IS:
            derived[name] = value
        elif isinstance(value, Fraction):
            derived[name] = [value.numerator, value.denominator]
    return SpecFacts(made.__name__, [base.__name__ for base in made.__mro__[1:-1]], _kind(spec), fields, derived)


def _computed(spec: object, family: str | None, declared: Mapping[str, object]) -> dict[str, object]:
    """Return the computed values of a live spec that are needed: vLLM's are slow to compute.

    The bytes of rows are vLLM's own word, whatever the mode that they are quantised in; but where a class known by name
    has no padding, its page is shared among its rows. A recurrent layer declares the shapes of its states, and its
    padded page, which is that number or vLLM raises.
    """
    asked: Iterable[str] = _DERIVED
    if family == "state":
        asked = _FLAGS if declared.get("page_size_padded") is not None else ("page_size_bytes", *_FLAGS)
    elif family is not None and declared.get("page_size_padded", 0) is None:
        asked = _UNPADDED
    return _answers(spec, asked)


def _answers(spec: object, names: Iterable[str]) -> dict[str, object]:
    """Return computed values; a spec that has no such number raises what it likes."""
    found: dict[str, object] = {}
    for name in names:
        try:
            found[name] = getattr(spec, name)
        except Exception:  # noqa: BLE001, S112 - NotImplementedError, AssertionError, ...
            continue
    return found


def read_live(spec: object, declared: Mapping[str, object] | None = None) -> Spec:
    """Return what a live spec declares, by way of ``read_spec``.

    Args:
        spec: vLLM's spec.
        declared: its :func:`declared_fields`, where they are known.

    Raises:
        FieldError: a number is missing, of a wrong type, negative or beyond 64 bits.
    """
    made = type(spec)
    fields = declared_fields(spec) if declared is None else declared
    name = made.__name__
    family = family_of(name)
    bases = () if family else [base.__name__ for base in made.__mro__[1:-1]]
    kind = _kind(spec) if family in (None, "uniform") else None
    return read_spec(name, bases, kind, fields, _computed(spec, family, fields))


def declared_fields(spec: object) -> Mapping[str, object]:
    """Return the fields that a spec declares: its own dict where that has all of them, so where no base has slots.

    >>> from types import SimpleNamespace
    >>> declared_fields(Fraction(1, 4)), declared_fields(SimpleNamespace(block_size=64))
    ({'_numerator': 1, '_denominator': 4}, {'block_size': 64})
    """
    fields: Mapping[str, object] | None = getattr(spec, "__dict__", None)
    if fields is not None and "block_size" in fields:
        slotted = any([base.__dict__.get("__slots__") for base in type(spec).__mro__])  # noqa: C419 - quicker
        if not slotted:
            return fields
    return {name: getattr(spec, name, None) for name in _field_names(spec)}


def _field_names(spec: object) -> Iterable[str]:
    """Return the fields of a dataclass or an attrs class; of any other class the attributes in its dict or slots."""
    made = type(spec)
    declared: Iterable[str] | None = getattr(made, "__dataclass_fields__", None)
    if declared is None and hasattr(made, "__attrs_attrs__"):
        declared = [field.name for field in made.__attrs_attrs__]
    if declared is not None:
        return declared
    slots = (slot for base in made.__mro__ for slot in vars(base).get("__slots__", ()))
    return [*getattr(spec, "__dict__", ()), *slots]


def _kind(spec: object) -> str | None:
    """Return vLLM's own word for the kind of a spec of vLLM's, where vLLM is loaded and has a word."""
    module = sys.modules.get(_INTERFACE)
    base, ask = getattr(module, "KVCacheSpec", None), getattr(module, "get_kv_cache_spec_kind", None)
    if ask is None or not isinstance(base, type) or not isinstance(spec, base):
        return None
    try:
        return str(ask(spec).value)
    except Exception:  # noqa: BLE001 - a class that is not in vLLM's registry of specs
        return None


def plain(value: object) -> object:
    """Return a value as JSON has it: names of enumerations and element types, pairs for fractions.

    >>> plain((Fraction(1, 4), float("inf"), {64: Ellipsis}))
    [[1, 4], 'inf', {'64': 'Ellipsis'}]
    """
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, float) and isfinite(value):
        return value
    if isinstance(value, Fraction):
        return [value.numerator, value.denominator]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return plain_dtype(str(value))


def spec_document(spec: object) -> dict[str, object]:
    """Return a spec as the registration document has it: with a kind always, that of the class where vLLM has none.

    >>> from types import SimpleNamespace
    >>> spec_document(SimpleNamespace(block_size=64))["kind"]
    'unknown'
    """
    raw = spec_facts(spec)
    kind = raw.kind
    if kind is None:
        try:
            kind = read_spec(*raw).kind
        except FieldError:
            kind = "unknown"
    return raw._replace(kind=kind)._asdict()
