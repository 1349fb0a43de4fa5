"""The fields of a config.json, read with their types checked and every fault noted.

A fault does not end the reading: a field that is no good reads as the least value that it may have, so that one run
names all of them. What has no good value at all (a list that is no list) ends the reading of what depends on it.

>>> config = Config({"num_hidden_layers": 0, "head_dim": True}, Faults())
>>> config.whole("num_hidden_layers"), config.whole("head_dim", default=64)
(1, 1)
>>> for error in config.faults.errors:
...     print(error.path, "|", error.expected, "|", error.actual)
num_hidden_layers | a whole number from 1 to 100000 | 0
head_dim | a whole number from 1 to 100000 | true
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from kvlayout.cache.strict_json import ABSENT, EnoughError, SkipError, show, step
from kvlayout.errors import Code, LayoutError

__all__ = ["MAX_LAYERS", "MAX_LENGTH", "MAX_SIZE", "Config", "Faults"]

#: More layers than any model has. Layers are made one by one, so a larger number is refused before any is made.
MAX_LAYERS: Final = 10_000

#: No width or count of heads comes near, and bytes that are the product of some of these still fit in 64 bits.
MAX_SIZE: Final = 100_000

#: The same of windows and of the tokens of a request.
MAX_LENGTH: Final = 1_000_000_000

_MAX_FAULTS: Final = 64

_T = TypeVar("_T", int, str)


class Faults:
    """The faults of a config, in the order of reading.

    Attributes:
        errors: ``bad-config`` errors with the path of the field; of one field only the first.
    """

    def __init__(self) -> None:
        self.errors: list[LayoutError] = []
        self._paths: set[str] = set()

    def at(self, path: str) -> bool:
        """Tell whether there is a fault at a path."""
        return path in self._paths

    def note(self, path: str, expected: str, actual: str, fix: str = "") -> None:
        """Note a fault.

        Raises:
            EnoughError: it is the 64th.
        """
        if path in self._paths:
            return
        self._paths.add(path)
        self.errors.append(LayoutError(Code.BAD_CONFIG, path=path, expected=expected, actual=actual, fix=fix))
        if len(self.errors) == _MAX_FAULTS:
            raise EnoughError


class Config:
    """An object of a config.json: its own fields, then the defaults of its kind of model.

    Attributes:
        fields: the fields as they stand.
        faults: where faults are noted.
        path: where the object stands in the file.
        defaults: what the model's own config class puts in for a field that is absent.
        asked: the fields that were asked for.
    """

    def __init__(
        self,
        fields: Mapping[str, object],
        faults: Faults,
        path: str = "$",
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self.fields, self.faults, self.path = fields, faults, path
        self.defaults: Mapping[str, object] = {} if defaults is None else defaults
        self.asked: set[str] = set()

    def get(self, key: str) -> object:
        """Return a field as it stands (null is ``None``), or else the default of the model's kind."""
        self.asked.add(key)
        return self.fields[key] if key in self.fields else self.defaults.get(key)

    def has(self, key: str) -> bool:
        """Tell whether a field is there and is not null."""
        return self.get(key) is not None

    def at(self, key: str) -> str:
        """Return the path of a field."""
        return step(self.path, key)

    def fault(self, key: str, expected: str, fix: str = "") -> None:
        """Note that a field is not what was expected."""
        value = self.get(key)
        absent = value is None and key not in self.fields
        self.faults.note(self.at(key), expected, show(ABSENT if absent else value), fix)

    def sound(self, *keys: str) -> bool:
        """Tell whether fields have no fault, so that what follows from them may be held against others."""
        return not any(self.faults.at(self.at(key)) for key in keys)

    def whole(self, key: str, *, least: int = 1, most: int = MAX_SIZE, default: int | None = None) -> int:
        """Return a whole number; a fault reads as ``least``."""
        value = self.maybe(key, least=least, most=most)
        if value is not None:
            return value
        if default is not None:
            return default
        self.fault(key, _range(least, most))
        return least

    def maybe(self, key: str, *, least: int = 1, most: int = MAX_SIZE) -> int | None:
        """Return a whole number, or ``None`` where the field is absent; a fault reads as ``least``."""
        value = self.get(key)
        if value is None:
            return None
        if type(value) is int and least <= value <= most:
            return value
        self.fault(key, _range(least, most))
        return least

    def length(self, key: str, *, least: int = 1) -> int | None:
        """Return a number of tokens, or ``None`` where the field is absent; a fault reads as ``least``."""
        return self.maybe(key, least=least, most=MAX_LENGTH)

    def layers(self, key: str = "num_hidden_layers") -> int:
        """Return a number of layers."""
        return self.whole(key, most=MAX_LAYERS)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a truth value; a fault reads as the default."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(key, "true or false")
            return default
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return a text; a fault reads as the default."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fault(key, "text")
            return default
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts, or ``None`` where it is absent."""
        return self._listed(key, str, "a list of texts")

    def wholes(self, key: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers (of either sign), or ``None`` where it is absent."""
        return self._listed(key, int, "a list of whole numbers")

    def _listed(self, key: str, of: type[_T], expected: str) -> tuple[_T, ...] | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(type(item) is of for item in value):
            self.fault(key, expected)
            raise SkipError
        return tuple(value)

    def child(self, key: str, defaults: Mapping[str, object] | None = None) -> Config | None:
        """Return an object of its own, or ``None`` where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fault(key, "an object")
            raise SkipError
        return Config(value, self.faults, self.at(key), defaults)


def _range(least: int, most: int) -> str:
    return f"a whole number from {least} to {most}"
