"""LMCache 0.5.6 reads our views as the engine means them, or the plan said before that it does not."""

from __future__ import annotations

from importlib import import_module

import pytest

import kvlayout
from kvlayout.errors import LayoutErrors
from tests.lmcache.registered import DATA, documents, live_model, registered
from tests.lmcache.truth import applied, faults, warned_of
from tests.real.models import HINTS, LAYOUTS, MODELS, allocate
from tests.real.test_vllm_views import ACCEPTED, KERNELS

pytestmark = [pytest.mark.engine, pytest.mark.lmcache, pytest.mark.torch]

SERVED = sorted(name for name, made in documents().items() if not made.get("expect", {}).get("errors"))


@pytest.mark.parametrize("name", SERVED)
def test_every_group_of_a_document(name: str) -> None:
    live = registered(documents()[name])
    made = applied(live)
    warned_of(made.plan, faults(live, made.plan, made.views))


def test_captured_registrations_are_read_right_but_for_what_is_known() -> None:
    """A warning on a real engine's registration is news: it is looked at, and then listed here."""
    found = {}
    for name in SERVED:
        if (DATA / "registrations" / f"{name}.json").exists():
            plan = applied(registered(documents()[name])).plan
            if plan.warnings:
                found[name] = sorted({warning.code for warning in plan.warnings})
    assert found == {}


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize(("model", "layout", "kernel"), [one for one in ACCEPTED if one[1] in HINTS])
def test_every_group_of_a_live_model(model: str, layout: str, kernel: int | None, blocks: int) -> None:
    live = live_model(model, layout, kernel, blocks)
    made = applied(live)
    warned_of(made.plan, faults(live, made.plan, made.views))


REFUSED_BY_NAME = [(model, layout) for model, layout, kernel in ACCEPTED if layout not in HINTS and kernel is None]


@pytest.mark.parametrize(("model", "layout"), REFUSED_BY_NAME)
def test_layouts_that_lmcache_refuses_by_name(model: str, layout: str) -> None:
    translate = import_module("lmcache.integration.vllm.utils").translate_vllm_kv_cache_layout
    with pytest.raises(NotImplementedError):
        translate(layout)
    live = allocate(model, layout, None)
    try:
        plan = kvlayout.plan_then_apply(live.config, live.caches, {}).plan
    except LayoutErrors:
        return
    (warning,) = plan.warnings
    assert warning.code == "lmcache-layout"
    assert set(warning.layers) == set(live.caches)
    assert layout in warning.message


def test_all_layouts_kernel_sizes_and_models_are_there() -> None:
    assert {kernel for _, _, kernel in ACCEPTED} == set(KERNELS)
    assert {layout for _, layout, _ in ACCEPTED} == set(LAYOUTS)
    assert (
        {model for model, _, _ in ACCEPTED}
        == {model for model, _ in REFUSED_BY_NAME} | {"deepseek-v3.2"}
        == set(MODELS)
    )
