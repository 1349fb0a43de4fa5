"""A deployment as the words of a command line: read with every fault named, and written back.

>>> read_flags({"tp": "4", "cache_memory": "8GiB"}).unwrap().cache_memory
8589934592
>>> [(error.path, error.expected) for error in read_flags({"tp": "0"}).error.errors]
[('--tp', 'a whole number from 1')]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from attrs import evolve

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.errors import Code, LayoutError, LayoutErrors
from kvlayout.offline.deployment import CacheMode, Deployment, KernelSize, LayoutName, Platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FLAGS", "Flag", "as_flags", "field_text", "flag_of", "in_flags", "kernel_text", "read_flags"]

_LIMIT: Final = 2**63
_MODES: Final[tuple[CacheMode, ...]] = ("none", "align", "all")
_LAYOUTS: Final[tuple[LayoutName, ...]] = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
#: The names that the engine had for two of them before it had six, and still takes.
_FORMER: Final[Mapping[str, LayoutName]] = {"NHD": "LBNHC", "HND": "LBHNC"}
_PLATFORMS: Final[tuple[Platform, ...]] = ("cuda", "cpu")
_UNITS: Final = {
    "": 1,
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
}


class Flag(NamedTuple):
    """A flag: the field that it sets, what its value is called, what it means, and the engine's own name for it."""

    field: str
    metavar: str
    help: str
    alias: str = ""

    @property
    def name(self) -> str:
        """The flag as it is typed."""
        return "--" + self.field.replace("_", "-")


#: In the order in which help lists them.
FLAGS: Final = (
    Flag("engine", "ENGINE", "vllm-0.25 to vllm-0.33, or installed: also ask the vLLM that is installed."),
    Flag("platform", "cuda|cpu", "Whose attention backends and defaults hold."),
    Flag("tp", "N", "Tensor-parallel ranks.", "--tensor-parallel-size"),
    Flag("pp", "N", "Pipeline-parallel ranks.", "--pipeline-parallel-size"),
    Flag("pp_rank", "N", "The pipeline rank whose cache is planned, from 0."),
    Flag("dcp", "N", "Decode-context-parallel ranks.", "--decode-context-parallel-size"),
    Flag("dtype", "TYPE", "Element type of the model."),
    Flag("cache_dtype", "TYPE", "Element type of attention caches: auto, fp8, bfloat16, ...", "--kv-cache-dtype"),
    Flag("block_size", "TOKENS", "Tokens a block, as asked for."),
    Flag("kernel_block_sizes", "SIZES", "Tokens that the attention kernel pages by: 32,64 or multiple:16 or both."),
    Flag("mamba_cache_mode", "MODE", "Which recurrent states are kept: none, align or all."),
    Flag("mamba_cache_dtype", "TYPE", "Element type of convolution states."),
    Flag("mamba_ssm_dtype", "TYPE", "Element type of recurrent states.", "--mamba-ssm-cache-dtype"),
    Flag("layout", "NAME", "Order of the axes in memory: " + ", ".join((*_LAYOUTS, *_FORMER)) + "."),
    Flag("prefix_caching", "on|off", "Blocks are found again by their content."),
    Flag("hybrid_manager", "on|off", "Kinds of layers are managed apart; off for a connector that can't take that."),
    Flag("cache_memory", "BYTES", "What one rank has for its cache, as 8GiB.", "--kv-cache-memory-bytes"),
    Flag("max_model_len", "TOKENS", "The longest request."),
    Flag("max_batched_tokens", "TOKENS", "Tokens of one scheduler step.", "--max-num-batched-tokens"),
    Flag("chunk_size", "TOKENS", "Tokens of one object of the store."),
)


def flag_of(word: str) -> Flag | None:
    """Return the flag that a word names: as listed, with underscores, or by the engine's own name.

    >>> flag_of("--tensor-parallel-size").field, flag_of("--block_size").field, flag_of("--nonsense")
    ('tp', 'block_size', None)
    """
    if not word.startswith("--"):
        return None
    field = word[2:].replace("-", "_")
    return next((flag for flag in FLAGS if field == flag.field or word == flag.alias), None)


def read_flags(given: Mapping[str, str]) -> Result[Deployment, LayoutErrors]:
    """Return the deployment that flags describe.

    Args:
        given: field of the deployment -> the text behind its flag; absent ones are the engine's choice.

    Errors: ``bad-config`` for every value that can't be read, its path the flag.
    """
    read, plain = _Reader(given), Deployment()
    made = Deployment(
        engine=read.text("engine") or plain.engine,
        platform=read.choice("platform", _PLATFORMS) or plain.platform,
        tp=read.count("tp") or plain.tp,
        pp=read.count("pp") or plain.pp,
        pp_rank=read.count("pp_rank", 0) or plain.pp_rank,
        dcp=read.count("dcp") or plain.dcp,
        dtype=read.text("dtype") or plain.dtype,
        cache_dtype=read.text("cache_dtype") or plain.cache_dtype,
        block_size=read.count("block_size"),
        kernel_block_sizes=read.kernel_sizes("kernel_block_sizes"),
        mamba_cache_mode=read.choice("mamba_cache_mode", _MODES),
        mamba_cache_dtype=read.text("mamba_cache_dtype") or plain.mamba_cache_dtype,
        mamba_ssm_dtype=read.text("mamba_ssm_dtype"),
        layout=_FORMER.get(given.get("layout", "")) or read.choice("layout", _LAYOUTS),
        cache_memory=read.memory("cache_memory"),
        max_model_len=read.count("max_model_len"),
        max_batched_tokens=read.count("max_batched_tokens"),
        chunk_size=read.count("chunk_size"),
        prefix_caching=read.choice("prefix_caching", ("on", "off")) != "off",
        hybrid_manager=read.choice("hybrid_manager", ("on", "off")) != "off",
    )
    return Err(LayoutErrors(read.faults)) if read.faults else Ok(made)


_Choice = TypeVar("_Choice", bound=str)


class _Reader:
    """Values of flags, each checked; faults are collected."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given
        self.faults: list[LayoutError] = []

    def fault(self, field: str, expected: str) -> None:
        flag = "--" + field.replace("_", "-")
        actual = self.given[field] or "nothing"
        actual = actual if len(actual) <= 60 else f"{actual[:57]}..."
        fix = f"give {flag} {expected}"
        self.faults.append(LayoutError(Code.BAD_CONFIG, path=flag, expected=expected, actual=actual, fix=fix))

    def text(self, field: str) -> str | None:
        value = self.given.get(field)
        if value is None:
            return None
        if value and value.isprintable() and len(value) <= 60 and not value.isspace():
            return value
        self.fault(field, "a name")
        return None

    def count(self, field: str, least: int = 1) -> int | None:
        value = self.given.get(field)
        if value is None:
            return None
        made = _whole(value)
        if made is None or made < least:
            self.fault(field, f"a whole number from {least}")
        return made

    def choice(self, field: str, choices: tuple[_Choice, ...]) -> _Choice | None:
        value = self.given.get(field)
        if value is None:
            return None
        for one in choices:
            if value == one:
                return one
        self.fault(field, f"one of {', '.join(choices)}")
        return None

    def memory(self, field: str) -> int | None:
        value = self.given.get(field)
        if value is None:
            return None
        made = _bytes(value)
        if not made:
            self.fault(field, "a number of bytes from 1, as 8GiB")
        return made

    def kernel_sizes(self, field: str) -> tuple[KernelSize, ...]:
        value = self.given.get(field)
        if value is None:
            return ()
        made = []
        for part in value.split(","):
            word, colon, number = part.rpartition(":")
            tokens = _whole(number)
            if not tokens or (colon and word != "multiple"):
                self.fault(field, "tokens as 32,64 or multiple:32")
                return ()
            made.append(KernelSize(tokens, bool(colon)))
        return tuple(made)


def _whole(text: str) -> int | None:
    """Return a whole number of 63 bits, or ``None``."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        return None
    number = int(digits)
    return number if number < _LIMIT else None


def _bytes(text: str) -> int | None:
    """Return a number of bytes: bare, or in a unit with powers of 1,024 (KiB ...) or 1,000 (KB ...)."""
    number = text.strip().rstrip("KMGTiB")
    unit = _UNITS.get(text.strip()[len(number) :])
    whole, point, part = number.strip().partition(".")
    if unit is None or _whole(whole) is None or (point and _whole(part) is None) or len(part) > 9:
        return None
    made = _whole(whole + part)
    total = (made or 0) * unit // 10 ** len(part)
    return total if total < _LIMIT else None


def kernel_text(sizes: tuple[KernelSize, ...]) -> str:
    """Return kernel block sizes the way their flag has them.

    >>> kernel_text((KernelSize(16, multiple=True), KernelSize(64)))
    'multiple:16,64'
    """
    return ",".join(f"multiple:{one.tokens}" if one.multiple else str(one.tokens) for one in sizes)


def as_flags(given: Mapping[str, str]) -> str:
    """Return flags the way they are typed.

    >>> as_flags({"tp": "4", "block_size": "1056"})
    '--tp 4 --block-size 1056'
    """
    return " ".join(f"--{field.replace('_', '-')} {text}" for field, text in given.items())


def field_text(deployment: Deployment, field: str) -> str | None:
    """Return a field of a deployment the way its flag has it; ``None`` where it is the engine's choice.

    >>> field_text(Deployment(kernel_block_sizes=(KernelSize(32), KernelSize(64))), "kernel_block_sizes")
    '32,64'
    >>> field_text(Deployment(), "prefix_caching"), field_text(Deployment(), "layout")
    ('on', None)
    """
    value: object = getattr(deployment, field)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return kernel_text(deployment.kernel_block_sizes) or None
    return None if value is None else str(value)


def in_flags(errors: Iterable[LayoutError]) -> LayoutErrors:
    """Return errors of a deployment with the flag for their place, where that is a field.

    >>> [error.path for error in in_flags([LayoutError(Code.BAD_CONFIG, path="block_size")]).errors]
    ['--block-size']
    """
    flags = {flag.field: flag.name for flag in FLAGS}
    return LayoutErrors(evolve(error, path=flags.get(error.path, error.path)) for error in errors)
