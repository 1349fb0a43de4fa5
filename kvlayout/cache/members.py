"""The members of an object of a document, read with their types: an int is no bool, and no float.

>>> notes = Notes()
>>> top = Object(notes, "$", {"tokens": True, "axes": [{"size": -1}, {"size": "64+17n"}]})
>>> top.number("tokens", 1), [str(axis.size("size")) for axis in top.objects("axes")]
(1, ['0', '64+17n'])
>>> [(error.path, error.actual) for error in notes.faults]
[('tokens', 'true'), ('axes[0].size', '-1')]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from kvlayout.algebra.affine import Size, at, pair, parse_size
from kvlayout.cache.reading import LIMIT
from kvlayout.cache.strict_json import ABSENT, Notes, show, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Object"]

_SIZE: Final = 'a whole number, or a text like "64+17n",'

_T = TypeVar("_T")


def _text(value: object) -> str | None:
    """Return a text that can be printed and hashed: half a surrogate pair can't."""
    if not isinstance(value, str) or not (value.isascii() or value.encode("utf-8", "replace").decode() == value):
        return None
    return value


def _size(value: object, least: int, blocks: int | None) -> Size | None:
    """Return a size, bound where the block count is known; ``None`` for anything else."""
    if type(value) is int:
        return value if least <= value < LIMIT else None
    size: Size | None = parse_size(value) if isinstance(value, str) else None
    if size is None:
        return None
    size = size if blocks is None else at(size, blocks)
    a, b = pair(size)
    return size if least <= a < LIMIT and b < LIMIT else None


class Object:
    """An object of a document. Its methods read one member; they note a fault and return a stand-in.

    Raises:
        SkipError: it is no object.
    """

    def __init__(self, notes: Notes, path: str, value: object) -> None:
        if not isinstance(value, dict):
            notes.stop(path, "an object", show(value))
        self.notes, self.path = notes, path
        self.values: dict[str, object] = value

    def fault(self, key: str, expected: str) -> None:
        """Note what a member should be."""
        self.notes.fault(step(self.path, key), expected, show(self.values.get(key, ABSENT)))

    def has(self, key: str) -> bool:
        """Return whether a member is there, and not null."""
        return self.values.get(key) is not None

    def names(self) -> Iterator[str]:
        """Yield the keys, without those that are no text."""
        for key in self.values:
            if _text(key) is None:
                self.notes.fault(step(self.path, key), "a text for a key", "half a character")
            else:
                yield key

    def text(self, key: str, default: object = ABSENT) -> str:
        """Return a text."""
        value = _text(self.values.get(key, default))
        if value is None:
            self.fault(key, "a text")
        return value or ""

    def choice(self, key: str, among: tuple[str, ...]) -> str | None:
        """Return one of some words, or ``None`` for null or nothing."""
        value = self.values.get(key)
        if value is None or (isinstance(value, str) and value in among):
            return value
        self.fault(key, f"null, {', '.join(among[:-1])} or {among[-1]}")
        return None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self.fault(key, "true or false")
        return value is True

    def number(self, key: str, least: int, default: object = ABSENT) -> int:
        """Return a whole number from ``least``, below 2**63."""
        value = self.values.get(key, default)
        if type(value) is int and least <= value < LIMIT:
            return value
        self.fault(key, f"a whole number from {least}")
        return least

    def size(self, key: str) -> Size:
        """Return a size of 0 or more."""
        value = _size(self.values.get(key, ABSENT), 0, self.notes.blocks)
        if value is None:
            self.fault(key, f"{_SIZE} from 0")
            return 0
        return value

    def items(self, key: str) -> list[object]:
        """Return a list."""
        value = self.values.get(key, ABSENT)
        if isinstance(value, list):
            return value
        self.fault(key, "a list")
        return []

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        return self._each(key, self.items(key), "a text", _text)

    def sizes(self, key: str, least: int, most: int) -> tuple[Size, ...]:
        """Return a list of at most ``most`` sizes."""
        items = self.items(key)
        if len(items) > most:
            self.fault(key, f"at most {most} sizes")
        expected = f"{_SIZE} from {least}"
        return self._each(key, items[:most], expected, lambda item: _size(item, least, self.notes.blocks))

    def _each(
        self, key: str, items: list[object], expected: str, read: Callable[[object], _T | None]
    ) -> tuple[_T, ...]:
        found: list[_T] = []
        for i, item in enumerate(items):
            value = read(item)
            if value is None:
                self.notes.fault(step(step(self.path, key), i), expected, show(item))
            else:
                found.append(value)
        return tuple(found)

    def part(self, key: str) -> Object:
        """Return an object.

        Raises:
            SkipError: it is none.
        """
        return Object(self.notes, step(self.path, key), self.values.get(key, ABSENT))

    def optional(self, key: str) -> Object:
        """Return an object, an empty one for null, nothing or what can't be one."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            self.fault(key, "an object")
        return Object(self.notes, step(self.path, key), value if isinstance(value, dict) else {})

    def objects(self, key: str) -> Iterator[Object]:
        """Yield the objects of a list, without those that are none."""
        for i, item in enumerate(self.items(key)):
            path = step(step(self.path, key), i)
            if isinstance(item, dict):
                yield Object(self.notes, path, item)
            else:
                self.notes.fault(path, "an object", show(item))
