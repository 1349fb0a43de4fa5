"""Recurrent state: one page a block, shown as rows that only address bytes."""

from __future__ import annotations

from typing import Final

from kvlayout.algebra.affine import Size, divide
from kvlayout.algebra.result import Err
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.spec import StateSpec
from kvlayout.errors import Code, LayoutError
from kvlayout.rules.presentation import Presentation, bytes_page, missing_hint, opaque_page, token_page
from kvlayout.rules.rule import NoMatch, Outcome, rule

__all__ = ["aligned_width", "mamba_page_view", "mamba_unified_view"]

#: Widths in bytes that transfer kernels vectorise by, widest first.
_VECTORS: Final = (16, 8, 4, 2)


@rule(StateSpec, name="mamba-page-view")
def mamba_page_view(spec: StateSpec, cache: CacheLayout, goal: Presentation) -> Outcome:  # noqa: ARG001 - the cache has its numbers
    """Show the padded page of a ``[conv, ssm, ...]`` list, in the first state's element type.

    ``(N, 2, T, 1, page/(2*T*item))`` where rank 5 is read right and pages lie dense; ``(N, T, 1, w)`` or
    ``(N, 1, T, w)`` of the same page elsewhere. Source: vLLM up to 0.26 registers states this way.
    """
    if not cache.listed:
        return NoMatch()
    return bytes_page(cache) if goal.form == "bytes" else opaque_page(cache, goal, planes=True)


def aligned_width(row: int, tokens: int, page: int, stride: Size, itemsize: int) -> int | None:
    """Return the bytes a token for a state row of ``row`` bytes, or ``None`` where nothing aligned fits the page.

    >>> aligned_width(row=1085440, tokens=1072, page=1097728, stride=1097728, itemsize=1)
    1024
    >>> aligned_width(row=1408, tokens=96, page=1408, stride=1408, itemsize=1) is None
    True
    """
    for vector in _VECTORS:
        if vector % itemsize or divide(stride, vector) is None:
            continue
        width = -(-row // (tokens * vector)) * vector
        if width * tokens <= page:
            return width
    return None


@rule(StateSpec, name="mamba-unified-view")
def mamba_unified_view(spec: StateSpec, cache: CacheLayout, goal: Presentation) -> Outcome:  # noqa: ARG001 - the cache has its numbers
    """Show a state row ``[N, 1, 1, row]`` as T rows that may reach into the page's own padding, and no further.

    Source: vLLM from 0.27 on registers states this way.
    """
    if cache.listed:
        return NoMatch()
    if goal.form == "bytes":
        return bytes_page(cache)
    if goal.heads_first is None:
        return missing_hint()
    row, tokens, page = cache.pages.covered, cache.states, cache.page_bytes
    width = aligned_width(row, tokens, page, cache.pages.stride, cache.source.dtype.itemsize)
    if width is None:
        expected = f"an aligned width a token, {tokens} of them in a page of {page} bytes"
        return Err(LayoutError(Code.STATE_ROW_UNTILEABLE, expected=expected, actual=f"a row of {row} bytes"))
    return token_page(cache, width, heads_first=goal.heads_first)
