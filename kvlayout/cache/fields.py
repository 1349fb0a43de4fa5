"""The fields of an engine's spec, read with their types checked, from a document or from a live engine.

>>> read = Fields({"block_size": 16, "num_kv_heads": True}, {"page_size_bytes": 32768})
>>> read.required("block_size"), read.number("page_size_padded", derived="page_size_bytes")
(16, 32768)
>>> try:
...     read.number("num_kv_heads")
... except FieldError as error:
...     print(error)
fields.num_kv_heads: expected a whole number from 0, got True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeGuard

from kvlayout.cache.spec import Ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LIMIT", "MAX_RANK", "FieldError", "Fields", "is_shape", "plain_dtype"]

#: Numbers of an engine fit in 64 bits; anything larger is hostile or broken.
LIMIT: Final = 2**63

#: More axes than any cache or state has, and more states than any layer has; products and lists of more take long.
MAX_RANK: Final = 16


class FieldError(ValueError):
    """A field that can't be read: its path, what was expected and what was there."""

    def __init__(self, path: str, expected: str, actual: object) -> None:
        self.path, self.expected, self.actual = path, expected, _shorten(actual)
        super().__init__(f"{path}: expected {expected}, got {self.actual}")


def _shorten(value: object) -> str:
    """Return a value as text; a container by its size unless it is a shape, since it can be too deep to print."""
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, (list, tuple)) and not (len(value) <= MAX_RANK and all(type(n) in (int, str) for n in value)):
        return f"a list of {len(value)}"
    text = repr(value) if type(value) is not int or value.bit_length() <= 1024 else "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_shape(value: object) -> TypeGuard[Sequence[int]]:
    """Return whether a value is a short list of whole numbers from 1, so that their product is cheap."""
    if not isinstance(value, (list, tuple)) or len(value) > MAX_RANK:
        return False
    return all([type(n) is int and 0 < n < LIMIT for n in value])  # noqa: C419 - quicker


class Fields:
    """The fields and derived values of one spec, read with their types checked."""

    def __init__(self, fields: Mapping[str, object], derived: Mapping[str, object]) -> None:
        self.fields, self.derived = fields, derived

    def number(self, *names: str, derived: str = "", least: int = 0) -> int | None:
        """Return the derived value, or the first field that holds a number."""
        where, name, value = "derived", derived, self.derived.get(derived)
        for field in names if value is None else ():
            where, name, value = "fields", field, self.fields.get(field)
            if value is not None:
                break
        if value is None or (type(value) is int and least <= value < LIMIT):
            return value
        raise FieldError(f"{where}.{name}", f"a whole number from {least}", value)

    def required(self, name: str) -> int:
        """Return a field's number, of 1 or more, that must be there."""
        value = self.number(name, least=1)
        if value is None:
            raise FieldError(f"fields.{name}", "a whole number from 1", None)
        return value

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001 - a private reader
        """Return a truth value, derived or declared."""
        value, where = self.derived.get(key), "derived"
        if value is None:
            value, where = self.fields.get(key), "fields"
        if value is None or isinstance(value, bool):
            return default if value is None else value
        raise FieldError(f"{where}.{key}", "true or false", value)

    def text(self, key: str) -> str:
        """Return a name; enumerations and element types come as text or as the engine's objects."""
        value = self.fields.get(key)
        return "" if value is None else str(value)

    def ratio(self, block_size: int) -> Ratio:
        """Return tokens per state: an int (-1 for one state a block), or a fraction as the pair [tokens, states]."""
        where, key, value = "derived", "tokens_per_state", self.derived.get("tokens_per_state")
        if value is None:
            where, value = "fields", self.fields.get(key)
        if value is None:
            key, value = "compress_ratio", self.fields.get("compress_ratio")
        if value is None or (type(value) is int and value == 1):
            return (1, 1)
        pair = (block_size if value == -1 else value, 1) if type(value) is int else value
        if not isinstance(value, (int, list, tuple)):  # a live engine's Fraction
            pair = (getattr(value, "numerator", None), getattr(value, "denominator", None))
        if is_shape(pair) and len(pair) == 2:
            return pair[0], pair[1]
        raise FieldError(f"{where}.{key}", "a whole number from 1, -1, or [tokens, states]", value)


def plain_dtype(name: str) -> str:
    """Return torch's name of an element type without its module.

    >>> plain_dtype("torch.bfloat16")
    'bfloat16'
    """
    return name.removeprefix("torch.")
