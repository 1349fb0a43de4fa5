"""The words of ``kvlayout model``: a config, the flags of its deployment, and what to do with them.

Read by hand and not by the option parser of the other commands: flags of a deployment are read again, over those of the
first, for ``--compare`` and once a deployment for ``--sweep``; and the parser's import alone is half of the 150 ms that
this command may take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.errors import Code, LayoutError, LayoutErrors
from kvlayout.offline.flags import FLAGS, flag_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Words", "help_text", "read_other", "read_words"]

_VALUED: Final = (
    ("--compare", "OTHER", "Compare with another deployment: flags over those given, a config, or both, in quotes."),
    ("--sweep", "NAME=VALUES", "Try each of several values, as tp=1,2,4; of more than one name, their product."),
)
_SWITCHES: Final = (
    ("--generic", "", "Read an architecture that nobody here knows as plain attention."),
    ("--csv", "", "Print a sweep as CSV."),
    ("--json", "", "Print JSON, and nothing else, on standard output."),
    ("--help", "", "Display this message and exit."),
)

#: The engine's own way to turn something off, and the field.
_OFF: Final = {
    "--no-prefix-caching": "prefix_caching",
    "--no-enable-prefix-caching": "prefix_caching",
    "--no-hybrid-manager": "hybrid_manager",
    "--disable-hybrid-kv-cache-manager": "hybrid_manager",
}


class Words(NamedTuple):
    """What was asked for.

    Attributes:
        config: the name of the config.
        given: field of the deployment -> the text behind its flag.
        switches: those of ``--generic``, ``--csv``, ``--json`` and ``--help`` that were there.
        compare: the other of a pair, as it was typed.
        sweeps: fields, each with its values.
    """

    config: str
    given: dict[str, str]
    switches: frozenset[str] = frozenset()
    compare: str | None = None
    sweeps: tuple[tuple[str, tuple[str, ...]], ...] = ()


def read_words(words: Sequence[str], config: str | None = None) -> Result[Words, LayoutErrors]:
    """Read the words behind ``kvlayout model``.

    Args:
        words: what was typed.
        config: the config where the words name none.

    Errors: ``bad-config`` for a word that is no flag, a flag without a value, and what does not go together.

    >>> read_words(["config.json", "--tp", "4", "--sweep", "block_size=16,32"]).unwrap().sweeps
    (('block_size', ('16', '32')),)
    """
    reading = _Reading()
    rest = iter(words)
    for word in rest:
        refused = reading.take(word, rest)
        if refused is not None:
            return refused
        if "--help" in reading.switches:
            return Ok(Words("", {}, frozenset(reading.switches)))
    return reading.done(config)


class _Reading:
    """What has been read so far."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.given: dict[str, str] = {}
        self.switches: set[str] = set()
        self.compare: str | None = None
        self.sweeps: list[tuple[str, tuple[str, ...]]] = []

    def take(self, word: str, rest: Iterator[str]) -> Err[LayoutErrors] | None:
        """Take a word, and the value behind it; return why it can't be taken."""
        if word == "-" or not word.startswith("-"):
            self.names.append(word)
            return None
        name, equals, text = word.partition("=")
        if word == "-h" or (_is_switch(name) and not equals):
            self.switch("--help" if word == "-h" else name)
            return None
        if not _is_valued(name):
            return _bad(name, "a flag that kvlayout model --help lists", word)
        value = text if equals else next(rest, None)
        if value is None:
            return _bad(name, "a value behind it", "nothing")
        if not equals and name != "--compare" and (_is_switch(value) or _is_valued(value.partition("=")[0])):
            return _bad(name, "a value behind it", f"the flag {value}")
        return self.set(name, value)

    def switch(self, name: str) -> None:
        """Note a flag that has no value."""
        if name in _OFF:
            self.given[_OFF[name]] = "off"
        else:
            self.switches.add(name)

    def set(self, name: str, value: str) -> Err[LayoutErrors] | None:
        """Note a flag and its value."""
        flag = flag_of(name)
        if flag is not None:
            self.given[flag.field] = value
        elif name == "--compare":
            self.compare = value
        else:
            sweep = _sweep(value)
            if isinstance(sweep, Err):
                return sweep
            self.sweeps.append(sweep.value)
        return None

    def done(self, config: str | None) -> Result[Words, LayoutErrors]:
        """Return what was asked for, if it is one thing."""
        names = self.names or ([] if config is None else [config])
        fields = [field for field, _ in self.sweeps]
        if len(names) != 1:
            expected = "one config.json, the folder that it is in, or - for standard input"
            return _bad("CONFIG", expected, ", ".join(names) or "nothing")
        if len(set(fields)) < len(fields):
            return _bad("--sweep", "each name once", ", ".join(fields))
        if self.sweeps and self.compare is not None:
            return _bad("--sweep", "no --compare beside it", "both")
        if (self.sweeps or self.compare is not None) and self.given.get("engine") == "installed":
            flag = "--sweep" if self.sweeps else "--compare"
            return _bad(flag, "an engine by its version beside it", "--engine installed")
        if "--csv" in self.switches and (not self.sweeps or "--json" in self.switches):
            return _bad("--csv", "a --sweep, and no --json", "another form" if self.sweeps else "no --sweep")
        return Ok(Words(names[0], self.given, frozenset(self.switches), self.compare, tuple(self.sweeps)))


def _is_switch(name: str) -> bool:
    return name in _OFF or any(name == known for known, _, _ in _SWITCHES)


def _is_valued(name: str) -> bool:
    return flag_of(name) is not None or any(name == known for known, _, _ in _VALUED)


def _sweep(text: str) -> Result[tuple[str, tuple[str, ...]], LayoutErrors]:
    """Return a field and its values; kernel block sizes, which have commas of their own, are joined with ``+``."""
    name, _, values = text.partition("=")
    flag = flag_of("--" + name.strip().removeprefix("--"))
    parts = tuple(dict.fromkeys(part.strip() for part in values.split(",")))
    if flag is None or not all(parts):
        return _bad("--sweep", "NAME=VALUES, the name that of a flag, the values separated by commas", text)
    if flag.field == "kernel_block_sizes":
        parts = tuple(part.replace("+", ",") for part in parts)
    return Ok((flag.field, parts))


def read_other(text: str, first: Words) -> Result[Words, LayoutErrors]:
    """Return the other of a pair: its own config or the first's, its flags over the first's.

    >>> read_other("--tp 1", read_words(["-", "--tp", "4", "--dcp", "2"]).unwrap()).unwrap().given
    {'tp': '1', 'dcp': '2'}
    """
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        return _bad("--compare", "flags in quotes, a config, or both", str(error))
    read = read_words(words, first.config)
    if isinstance(read, Err):
        return Err(LayoutErrors(map(within_other, read.error.errors)))
    other = read.value
    if not words or other.sweeps or other.compare is not None or other.switches - {"--generic"}:
        return _bad("--compare", "flags of a deployment, a config, or both", text or "nothing")
    return Ok(other._replace(given=first.given | other.given, switches=other.switches | first.switches))


def within_other(error: LayoutError) -> LayoutError:
    """Return an error of the other of a pair, with its place marked, once."""
    from attrs import evolve

    return error if error.path.startswith("--compare") else evolve(error, path=f"--compare: {error.path}")


def _bad(path: str, expected: str, actual: str) -> Err[LayoutErrors]:
    fix = "see kvlayout model --help"
    actual = actual if len(actual) <= 200 else f"{actual[:197]}..."
    return Err(LayoutErrors((LayoutError(Code.BAD_CONFIG, path=path, expected=expected, actual=actual, fix=fix),)))


def help_text() -> str:
    """Return what ``kvlayout model --help`` prints."""
    rows = [(f"{flag.name} {flag.metavar}", flag.help) for flag in FLAGS]
    rows += [(f"{name} {value}".rstrip(), text) for name, value, text in (*_VALUED, *_SWITCHES)]
    return f"""Usage: kvlayout model CONFIG [OPTIONS]

Plan a model from its config.json and its deployment: block sizes, pages,
capacity and settings, without the engine.

CONFIG is a config.json, the folder that it is in, or - for standard input.
What is not given is the engine's own choice. The engine's names of flags
(--tensor-parallel-size, --kv-cache-dtype, ...) are taken too.

{"".join(_row(name, text) for name, text in rows)}
Exit codes: 0 planned, 2 refused, 1 unusable input.
"""


def _row(name: str, text: str) -> str:
    """Return a flag and what it means, in lines of 80 columns."""
    import textwrap

    lines = textwrap.wrap(text, 50)
    return f"  {name:<27} {lines[0]}\n" + "".join(f"{'':<30}{line}\n" for line in lines[1:])
