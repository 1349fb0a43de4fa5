"""JSON read as if an enemy had written it: every fault with its path, and nothing sized or recursed by what it says.

Python's parser takes repeated keys, NaN and numbers that take long to convert; here they are refused where they stand.
A fault is noted and reading goes on, so that one run names all of them, up to 64. By hand and not with cattrs: its tree
of errors costs 0.1 ms a fault and can't be stopped, so that a megabyte of wrong entries takes ten seconds.

>>> notes = Notes()
>>> try:
...     parse('{"groups": [{"layers": [], "layers": []}, {"size": NaN}]}', notes)
... except SkipError:
...     [(error.path, error.expected, error.actual) for error in notes.faults]
[('groups[0]', 'each key once', '"layers" twice'), ('groups[1].size', 'a number', 'NaN')]
"""

from __future__ import annotations

import json
from functools import reduce
from typing import Final, NamedTuple, NoReturn, TypeAlias

from kvlayout.errors import Code, LayoutError

__all__ = ["ABSENT", "EnoughError", "Notes", "SkipError", "parse", "show", "step"]

_MAX_FAULTS: Final = 64
_MAX_SHOWN: Final = 60
_MAX_KEY: Final = 240
_MAX_DIGITS: Final = 100

#: What a missing member is, since null is a value.
ABSENT: Final = object()

#: A path that is not spelled out yet: what it goes on from, and a key.
_Link: TypeAlias = tuple["_Link | None", str | int]


class SkipError(Exception):
    """What is being read is so wrong that its parts would only give faults that follow from it."""


class EnoughError(Exception):
    """There are as many faults as anyone will read."""


class Notes:
    """The faults of a document.

    Attributes:
        faults: ``bad-document`` errors, in the order of reading.
        blocks: the block count that symbolic sizes are bound to, ``None`` to leave them symbolic.
    """

    def __init__(self) -> None:
        self.faults: list[LayoutError] = []
        self.blocks: int | None = None

    def fault(self, path: str, expected: str, actual: str) -> None:
        """Note a fault.

        Raises:
            EnoughError: it is the 64th.
        """
        self.faults.append(LayoutError(Code.BAD_DOCUMENT, path=path, expected=expected, actual=actual))
        if len(self.faults) == _MAX_FAULTS:
            raise EnoughError

    def stop(self, path: str, expected: str, actual: str) -> NoReturn:
        """Note a fault that leaves nothing to read here.

        Raises:
            SkipError: always.
        """
        self.fault(path, expected, actual)
        raise SkipError


def step(path: str, key: str | int) -> str:
    """Return the path to a part; a hostile key is neither repeated at length nor printed raw.

    >>> step(step(step("$", "caches"), "model.layers.0.attn"), 1)
    'caches["model.layers.0.attn"][1]'
    """
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not (key.isidentifier() and key.isascii() and len(key) <= _MAX_KEY):
        return f"{path}[{show(key, _MAX_KEY)}]"
    return key if path == "$" else f"{path}.{key}"


def show(value: object, length: int = _MAX_SHOWN) -> str:
    """Return a value in JSON's words; a container, which can be too deep to print, by its size.

    >>> show(True), show([[]]), show("float" * 1000, 12), show(ABSENT)
    ('true', 'a list of 1', '"floatfloa..."', 'nothing')
    """
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= length else value[: length - 3] + "...")
    return "nothing" if value is ABSENT else json.dumps(value)


class _Unreadable(NamedTuple):
    """Stands in the parsed document for a number or an object that was no good, so that its place can be found."""

    expected: str
    actual: str


class _Parser:
    """JSON without what Python's parser lets through: repeated keys, NaN, and numbers that take long to convert."""

    def __init__(self) -> None:
        self.clean = True

    def refuse(self, expected: str, actual: str) -> _Unreadable:
        self.clean = False
        return _Unreadable(expected, actual)

    def integer(self, digits: str) -> int | _Unreadable:
        return int(digits) if len(digits) <= _MAX_DIGITS else self.refuse("a number", f"{len(digits)} digits")

    def fraction(self, digits: str) -> float | _Unreadable:
        return float(digits) if len(digits) <= _MAX_DIGITS else self.refuse("a number", f"{len(digits)} digits")

    def constant(self, word: str) -> _Unreadable:
        return self.refuse("a number", word)

    def members(self, pairs: list[tuple[str, object]]) -> dict[str, object] | _Unreadable:
        made: dict[str, object] = {}
        for key, value in pairs:
            if key in made:
                return self.refuse("each key once", f"{show(key)} twice")
            made[key] = value
        return made


def parse(text: str | bytes, notes: Notes) -> object:
    """Parse a text (in UTF-8 where it is bytes).

    Raises:
        SkipError: it is no JSON, or has repeated keys, NaN, or numbers of more than a hundred digits anywhere.
        EnoughError: it has 64 of these.
    """
    parser = _Parser()
    try:
        document: object = json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=parser.members,
            parse_int=parser.integer,
            parse_float=parser.fraction,
            parse_constant=parser.constant,
        )
    except UnicodeDecodeError as error:
        notes.stop("$", "text in UTF-8", f"byte {error.object[error.start]:#04x} at {error.start}")
    except json.JSONDecodeError as error:
        notes.stop("$", "JSON", f"line {error.lineno}, column {error.colno}: {error.msg}")
    except (RecursionError, MemoryError) as error:
        notes.stop("$", "a size and a nesting that the parser can hold", type(error).__name__)
    if not parser.clean:
        _locate(document, notes)
    return document


def _locate(document: object, notes: Notes) -> NoReturn:
    """Note the places of unreadable values. Paths stay links until one is needed: a document can be all depth."""
    heap: list[tuple[object, _Link | None]] = [(document, None)]
    while heap:
        value, link = heap.pop()
        if isinstance(value, _Unreadable):
            notes.fault(_spell(link), value.expected, value.actual)
        elif isinstance(value, dict):
            heap.extend((part, (link, key)) for key, part in reversed(value.items()))
        elif isinstance(value, list):
            heap.extend((value[i], (link, i)) for i in reversed(range(len(value))))
    raise SkipError


def _spell(link: _Link | None) -> str:
    keys: list[str | int] = []
    while link is not None:
        link, key = link
        keys.append(key)
    return reduce(step, reversed(keys), "$")
