"""One process of the installed engine for all tests that ask it: it starts in twenty seconds and answers in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvlayout.engines.installed import Deriver


@pytest.fixture(scope="session")
def deriver() -> Iterator[Deriver]:
    """Derive as on a CPU with AMX tiles, so that the machine of the tests does not matter."""
    from kvlayout.engines.installed import Deriver

    with Deriver(amx=True) as started:
        yield started
