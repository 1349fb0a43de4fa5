"""Models with recurrent layers, and one of latent attention."""

from __future__ import annotations

import pytest

from tests.end_to_end.roundtrip import MARKS, RoundTrip, Shown, show
from tests.end_to_end.running import Engines

pytestmark = MARKS

NAMES = [name + pages for name in ("qwen3.5", "qwen3-next", "nemotron-h") for pages in ("", ", pages of 32")]


@pytest.fixture(scope="module", params=[*NAMES, "deepseek-v2", "deepseek-v2, pages of 16"])
def shown(
    request: pytest.FixtureRequest,
    engines: Engines,
    other_engines: Engines,
    tmp_path_factory: pytest.TempPathFactory,
) -> Shown:
    return show(request.param, engines, other_engines, tmp_path_factory.mktemp("hybrid"))


class TestHybridModels(RoundTrip):
    """Their states exist only at the end of a step, and only the last is retrieved."""
