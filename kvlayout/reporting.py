"""Plans as JSON: what ``--json`` prints, and the document in which a plan is stored.

A stored plan is its registration and its results. Reading it plans again, and results that differ from the new
ones are ``stale-plan``: a stored proof is never believed.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import asdict

from kvlayout.algebra.affine import Affine, Size, format_size
from kvlayout.algebra.layout import Axis
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.units import raw
from kvlayout.cache.document import read_registration
from kvlayout.cache.members import Object
from kvlayout.cache.strict_json import EnoughError, Notes, SkipError, parse
from kvlayout.cache.writing import write_registration
from kvlayout.errors import Code, LayoutError, LayoutErrors, explain, remedy
from kvlayout.planning import attempt
from kvlayout.plans import Plan
from kvlayout.summaries import GroupPlan, LayerPlan
from kvlayout.warning import PlanWarning

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvlayout.rules.presentation import Form

__all__ = ["Json", "error_json", "plan_json", "read_plan", "write_plan"]

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | bool | None"

_FORMAT: Final = "kvlayout/plan"
_VERSION: Final = 1
_FORMS: Final = ("lmcache", "bytes")


def _size(value: Size | None) -> Json:
    return format_size(value) if isinstance(value, Affine) else value


def layer_json(layer: LayerPlan) -> dict[str, Json]:
    """Return one layer as ``--json`` has it; sizes in elements, strides and offset in bytes."""
    view = layer.view
    made: dict[str, Json] = {"verdict": layer.verdict, "rule": layer.rule}
    if view is None:
        return made | dict.fromkeys(("shape", "strides", "offset", "dtype", "block_axis", "content"))
    return made | {
        "shape": [_size(extent) for extent in view.shape],
        "strides": [_size(raw(stride)) for stride in view.strides],
        "offset": _size(raw(view.offset)),
        "dtype": view.dtype.name,
        "block_axis": view.where(Axis.BLOCK),
        "content": None if layer.content is None else layer.content.tag,
    }


def group_json(group: GroupPlan) -> dict[str, Json]:
    """Return one group as ``--json`` has it."""
    ratio = group.compress_ratio
    return {
        "index": group.index,
        "kind": group.kind,
        "layers": list(group.layers),
        "disposition": group.disposition,
        "reason": group.reason,
        "num_blocks": _size(group.num_blocks),
        "block_tokens": group.block_tokens,
        "states_per_block": group.states_per_block,
        "page_bytes": group.page_bytes,
        "payload_bytes": group.payload_bytes,
        "compress_ratio": list(ratio) if isinstance(ratio, tuple) else ratio,
        "window_tokens": group.window_tokens,
        "recurrent": group.recurrent,
        "draft": group.draft,
        "fingerprint": group.fingerprint,
    }


def error_json(error: LayoutError) -> dict[str, Json]:
    """Return one error as ``--json`` has it."""
    witness = error.witness
    return {
        "code": error.code.value,
        "group": error.group,
        "layer": error.layer,
        "message": explain(error),
        "fix": error.fix or remedy(error.code),
        "expected": error.expected or None,
        "actual": error.actual or None,
        "path": error.path or None,
        "layers": list(error.layers),
        "witness": None if witness is None else asdict(witness),
    }


def warning_json(warning: PlanWarning) -> dict[str, Json]:
    """Return one warning as ``--json`` has it."""
    return {
        "code": warning.code,
        "group": warning.group,
        "layers": list(warning.layers),
        "message": warning.message,
    }


def plan_json(plan: Plan | None, errors: Iterable[LayoutError] = ()) -> dict[str, Json]:
    """Return what ``--json`` prints: the layers that planned, all groups, all errors; warnings where there are any.

    A refusal hands nothing on, so there is nothing to warn of.
    """
    refused: list[Json] = [error_json(error) for error in errors]
    warnings: list[Json] = [] if plan is None or refused else [warning_json(warning) for warning in plan.warnings]
    made: dict[str, Json] = {
        "layers": {} if plan is None else {name: layer_json(layer) for name, layer in plan.layers.items()},
        "groups": [] if plan is None else [group_json(group) for group in plan.groups],
        "errors": refused,
    }
    return made | {"warnings": warnings} if warnings else made


def write_plan(plan: Plan) -> str:
    """Write a plan: its registration, its presentation and its results."""
    registration = json.loads(write_registration(plan.registration))
    document = {"format": _FORMAT, "version": _VERSION, "presentation": plan.form, "registration": registration}
    results = plan_json(plan)
    del results["errors"]
    return json.dumps(document | results, indent=1)


def read_plan(text: str | bytes) -> Result[Plan, LayoutErrors]:
    """Read a stored plan and plan it again, with the installed rules.

    Errors: ``bad-document``; any error of planning; ``stale-plan`` for each result that is not the new one.
    """
    notes = Notes()
    with suppress(SkipError, EnoughError):
        top = Object(notes, "$", parse(text, notes))
        if top.values.get("format") != _FORMAT:
            top.fault("format", f'"{_FORMAT}"')
        if type(top.values.get("version")) is not int or top.values["version"] != _VERSION:
            top.fault("version", f"{_VERSION}, the only version so far")
        form = top.choice("presentation", _FORMS)
        stored = top.part("layers").values, top.items("groups")
        registration = read_registration(json.dumps(top.part("registration").values))
        if isinstance(registration, Err):
            return registration
        if not notes.faults:
            form_wanted: Form = "bytes" if form == "bytes" else "lmcache"
            made = attempt(registration.value, presentation=form_wanted)
            errors = made.errors or tuple(_stale(made.plan, *stored))
            return Err(LayoutErrors(errors)) if errors else Ok(made.plan)
    return Err(LayoutErrors(notes.faults))


def _stale(plan: Plan, layers: dict[str, object], groups: list[object]) -> Iterable[LayoutError]:
    """Compare stored results with new ones, by what they print."""
    new = plan_json(plan)
    fresh = {name: layer_json(layer) for name, layer in plan.layers.items()}
    for name in dict.fromkeys((*fresh, *layers)):
        if fresh.get(name) != layers.get(name):
            yield LayoutError(
                Code.STALE_PLAN, layer=name, expected=_short(fresh.get(name)), actual=_short(layers.get(name))
            )
    if new["groups"] != groups:
        yield LayoutError(Code.STALE_PLAN, expected="the groups of this registration", actual="other groups")


def _short(value: object) -> str:
    text = "no such layer" if value is None else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
