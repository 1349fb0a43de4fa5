"""Models of attention alone: full, sliding, in FP8, and with layers that read the cache of another."""

from __future__ import annotations

import pytest

from tests.end_to_end.roundtrip import MARKS, RoundTrip, Shown, show
from tests.end_to_end.running import Engines

pytestmark = MARKS

NAMES = ("llama", "llama-fp8", "gemma-3", "gpt-oss", "gemma-3n")


@pytest.fixture(scope="module", params=[name + pages for name in NAMES for pages in ("", ", pages of 32")])
def shown(
    request: pytest.FixtureRequest,
    engines: Engines,
    other_engines: Engines,
    tmp_path_factory: pytest.TempPathFactory,
) -> Shown:
    return show(request.param, engines, other_engines, tmp_path_factory.mktemp("attention"))


class TestAttentionModels(RoundTrip):
    """Gemma 3n's last two layers own no cache; they read what is retrieved for others."""
