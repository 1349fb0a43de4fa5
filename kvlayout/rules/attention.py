"""Attention that the backend pages finer than the scheduler: kernel pages joined to blocks."""

from __future__ import annotations

from kvlayout.algebra.affine import nonneg
from kvlayout.algebra.layout import HEAD, PLANE, STATE, TOKEN, Layout
from kvlayout.algebra.result import Err
from kvlayout.algebra.transforms import beside_rows, join_rows
from kvlayout.algebra.units import raw
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.spec import AttentionSpec, LatentSpec
from kvlayout.rules.presentation import Presentation, bytes_page, opaque_page, planes_first, prove_view, refused
from kvlayout.rules.rule import NoMatch, Outcome, rule

__all__ = ["subpaged_attention_view", "subpaged_mla_attention_view"]


def _joined(cache: CacheLayout, *, heads_first: bool | None = None) -> Outcome:
    """Join kernel pages row by row, so that the axes keep their meaning; proved to read the same bytes in order."""
    ordered = beside_rows(cache.source)
    paged = (ordered.then(planes_first) if cache.apart else ordered).unwrap()  # an order of all axes is never refused
    joined = join_rows(paged)
    return (
        Err(refused(joined.error))
        if isinstance(joined, Err)
        else prove_view(joined.value, cache, paged, _hinted(joined.value, heads_first=heads_first))
    )


def _hinted(view: Layout, *, heads_first: bool | None) -> list[int]:
    """Order axes as the hint names them: LMCache tells heads from tokens by strides, even where there is one head."""
    order = list(range(len(view.axes)))
    if heads_first is not None and HEAD in view.axes:
        head = view.axes.index(HEAD)
        order.remove(head)
        order.insert(1 if heads_first else -1, head)
    return order


@rule(AttentionSpec, name="subpaged-attention-view")
def subpaged_attention_view(spec: AttentionSpec, cache: CacheLayout, goal: Presentation) -> Outcome:  # noqa: ARG001 - the cache has its numbers
    """Show kernel-paged keys and values by the scheduler's blocks, whatever their order in memory.

    Rank 5: ``(N, 2, T, 1, page/(2*T*item))``; fused rank 4: ``(N, T, 1, w)`` or ``(N, 1, T, w)``; both only address
    bytes. K and V apart, tokens outside heads: ``(2, N, T, H, D)``, as meant; heads outside: ``(2, N, T, 1, w)``.
    """
    if cache.untouched or cache.kernel_pages == 1:
        return NoMatch()
    if goal.form == "bytes":
        return bytes_page(cache)
    if cache.apart and _tokens_outside_heads(cache):
        return _joined(cache)
    return opaque_page(cache, goal, planes=PLANE in cache.source.axes)


def _tokens_outside_heads(cache: CacheLayout) -> bool:
    source = cache.source
    head = source.axes.index(HEAD)
    token = next(i for i, axis in enumerate(source.axes) if axis in (TOKEN, STATE))
    if 1 in (source.shape[head], source.shape[token]):  # one of either has no stride
        return True
    return nonneg(raw(source.strides[token]) - raw(source.strides[head]))


@rule(LatentSpec, name="subpaged-mla-attention-view")
def subpaged_mla_attention_view(spec: LatentSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
    """Join the kernel pages of latent rows: ``[N*12, 64, 576]`` becomes ``[N, 768, 576]``, at the same rank."""
    if cache.untouched or cache.kernel_pages == 1 or spec.heads != 1:
        return NoMatch()
    return bytes_page(cache) if goal.form == "bytes" else _joined(cache, heads_first=goal.heads_first)
