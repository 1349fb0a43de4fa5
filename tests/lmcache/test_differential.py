"""Our views and LMCache's own, on the same registrations: equal wherever LMCache is right, the engine's everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvlayout.cache.spec import AttentionSpec
from tests.lmcache.differential import (
    KINDS,
    PAGE,
    Subject,
    facts,
    hits_all,
    rows,
    served,
    subjects,
    their_faults,
    written,
)
from tests.lmcache.truth import hits, probes, wrong

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.engine, pytest.mark.lmcache, pytest.mark.torch]


def layers() -> Iterator[tuple[Subject, str]]:
    return ((one, layer) for one in subjects() for layer, _ in served(one))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == written(PAGE.read_text())


def test_every_kind_of_difference_is_met() -> None:
    assert {row.kind for row in rows()} == set(KINDS)


def test_through_our_views_lmcache_copies_the_engines_blocks() -> None:
    checked = 0
    for one, layer in layers():
        read = one.read_ours[layer]
        assert not read.error, (one.name, layer, read.error)
        for block in probes(one.live.document):
            assert hits(one.live.document, layer, block, read.block(block)), (one.name, layer, block)
        checked += 1
    assert checked > 500


def test_views_are_equal_wherever_lmcache_is_right() -> None:
    """But for keys and values that were fused: LMCache splits them again, which only some hints and counts allow."""
    right = 0
    for one, layer in layers():
        if one.theirs is None or their_faults(one, layer):
            continue
        right += 1
        theirs, ours = one.theirs[layer], one.ours[layer]
        if theirs is one.live.caches[layer]:
            assert ours is theirs, (one.name, layer)
        elif facts(theirs) != facts(ours):
            shape = next(run.shape for run in one.plan.runs if layer in run.layers)
            assert isinstance(shape.spec, AttentionSpec)
            assert (theirs.dim(), ours.dim(), one.live.caches[layer].dim()) == (5, 4, 4)
            assert (theirs.dtype, theirs.storage_offset()) == (ours.dtype, ours.storage_offset())
            assert hits_all(one, layer, one.read_ours[layer])
            assert one.read_ours[layer].slots == one.read_theirs[layer].slots
    assert right > 300


def test_where_views_are_unequal_ours_is_the_one_that_is_right() -> None:
    for row, places in rows().items():
        for name, layer in places:
            one = next(subject for subject in subjects() if subject.name == name)
            told = {warned for warning in one.plan.warnings for warned in warning.layers}
            found = wrong(one.live.document, one.plan, layer, one.read_ours[layer], one.live.dcp)
            assert not found or layer in told, (row, found)
            assert row.our_bytes == row.engine_bytes
