"""Where the engines of these tests come from: two interpreters, so that what one has stored is news to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.running import Engines, running

if TYPE_CHECKING:
    from collections.abc import Iterator

# Its base is the connector, and that needs an engine.
collect_ignore = ["sabotage.py"]

pytest.register_assert_rewrite("tests.end_to_end.roundtrip")


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with running(tmp_path_factory.mktemp("engines")) as started:
        yield started


@pytest.fixture(scope="session")
def other_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Engines that are no relatives of the first ones: not even the hashes of strings are the same."""
    with running(tmp_path_factory.mktemp("other-engines")) as started:
        yield started
