"""A test of an engine ends in time, says what happened, and leaves nothing running. None is needed to see that."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.end_to_end import mishaps
from tests.end_to_end.running import EngineError, running

pytestmark = pytest.mark.slow


def living(group: int) -> list[str]:
    """Return the processes of a group that are not dead and only not yet buried."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, facts = stat.read_text().rpartition(")")
            state, _, of = facts.split()[:3]
            if int(of) == group and state not in "ZX":
                found.append(name)
    return found


def test_what_goes_wrong_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    with running(tmp_path, modules=()) as engines:
        with pytest.raises(EngineError, match=r"(?s)fail: exit status 1; .*ValueError: the page is torn"):
            engines.run(mishaps.fail)
        with pytest.raises(EngineError, match=r"(?s)crash: exit status -6; "):
            engines.run(mishaps.crash)
        with pytest.raises(EngineError, match=r"(?s)hang: not done after 1 s; .*about to wait"):
            engines.run(mishaps.hang, seconds=1)
        group = engines.group
        assert group is not None
        assert len(living(group)) == 2
    ended = time.monotonic() + 10  # a signal is sent, not awaited
    while living(group) and time.monotonic() < ended:
        time.sleep(0.01)
    assert not living(group)
