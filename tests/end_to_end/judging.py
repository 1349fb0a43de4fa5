"""Whether two answers are the same, down to the last bit of their log-probabilities, and else where they part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["differences"]


def differences(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    """Return how an answer differs from another, in a sentence; nothing where both are the same.

    >>> one = {"tokens": [7, 9], "logprobs": [[[7, "-0x1.0p-1"]], [[9, "-0x1.0p-2"]]]}
    >>> other = {"tokens": [7, 8], "logprobs": [[[7, "-0x1.8p-1"]], [[8, "-0x1.0p-2"]]]}
    >>> differences(one, one)
    ''
    >>> differences(one, other)
    'tokens part at 1 of 2, log-probabilities at 0, where they are up to 0.25 apart'
    """
    tokens = _first_difference(expected["tokens"], got["tokens"])
    logprobs = _first_difference(expected["logprobs"], got["logprobs"])
    if tokens is None and logprobs is None:
        return ""
    said = "tokens are the same" if tokens is None else f"tokens part at {tokens} of {len(expected['tokens'])}"
    if logprobs is None:
        return f"{said}, log-probabilities are the same"
    apart = _apart(expected["logprobs"][logprobs], got["logprobs"][logprobs])
    return f"{said}, log-probabilities at {logprobs}, where they are up to {apart:.3g} apart"


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    if len(one) != len(other):
        return min(len(one), len(other))
    return next((i for i, (x, y) in enumerate(zip(one, other, strict=True)) if x != y), None)


def _apart(one: Sequence[tuple[int, str]], other: Sequence[tuple[int, str]]) -> float:
    """Return the largest difference of a token that both have among the likeliest; infinity where there is none."""
    here, there = dict(one), dict(other)
    common = here.keys() & there.keys()
    return max((abs(float.fromhex(here[t]) - float.fromhex(there[t])) for t in common), default=float("inf"))
