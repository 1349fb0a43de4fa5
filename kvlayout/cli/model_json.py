"""What ``kvlayout model --json`` prints: the document of ``kvlayout plan --json``, and what only a config tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlayout.offline.flags import FLAGS, kernel_text
from kvlayout.offline.settings import chunk_unit, keeps_states
from kvlayout.reporting import error_json, group_json, plan_json

if TYPE_CHECKING:
    from kvlayout.cli.checking import Checked
    from kvlayout.offline.answering import Answer
    from kvlayout.offline.capacity import Capacity
    from kvlayout.offline.comparing import Comparison
    from kvlayout.offline.deployment import Deployment
    from kvlayout.offline.serving import Served

__all__ = ["field_json", "report_json"]


def report_json(made: Answer, comparison: Comparison | None, checked: Checked | None) -> dict[str, object]:
    """Return the whole document: the keys of a plan first, then those of a model."""
    document: dict[str, object] = {**plan_json(made.plan, made.errors)}
    theirs = document.pop("warnings", [])
    warnings = [*theirs] if isinstance(theirs, list) else []
    for one in made.cautions:
        group = one.groups[0] if len(one.groups) == 1 else None
        places = {"group": group, "groups": list(one.groups), "layers": []}
        warnings.append({"code": one.code, **places, "message": one.text})
    document |= _facts(made) | {
        "capacity": None if made.capacity is None else _capacity(made.capacity),
        "settings": [one._asdict() for one in made.settings],
        "warnings": warnings,
    }
    if comparison is not None:
        document["comparison"] = _comparison(comparison)
    if checked is not None:
        document["differences"] = [one._asdict() for one in checked.differences]
    return document


def _facts(made: Answer) -> dict[str, object]:
    return {
        "model": {"architecture": made.served.model.architecture, "family": made.served.model.family},
        "deployment": _deployment(made.served.deployment),
        "block_sizes": _blocks(made.served),
    }


def _deployment(deployment: Deployment) -> dict[str, object]:
    return {flag.field: field_json(deployment, flag.field) for flag in FLAGS}


def field_json(deployment: Deployment, field: str) -> object:
    """Return a field of a deployment as JSON has it: numbers are numbers, kernel block sizes a list of texts.

    >>> from kvlayout.offline.deployment import Deployment
    >>> field_json(Deployment(tp=4), "tp"), field_json(Deployment(), "kernel_block_sizes")
    (4, [])
    """
    value: object = getattr(deployment, field)
    return [kernel_text((one,)) for one in deployment.kernel_block_sizes] if isinstance(value, tuple) else value


def _blocks(served: Served) -> dict[str, object]:
    return {
        "user": served.user_block,
        "aligned": served.aligned_block,
        "scheduler": list(served.scheduler_blocks),
        "kernel": list(served.kernel_blocks),
        "hash": served.hash_block if keeps_states(served) else None,
        "chunk_multiple": chunk_unit(served),
    }


def _capacity(room: Capacity) -> dict[str, object]:
    return {
        "block_bytes": room.block_bytes,
        "num_blocks": room.num_blocks,
        "fixed_bytes_per_request": room.fixed_bytes,
        "bytes_per_token": room.token_bytes,
        "longest_request_tokens": room.longest,
        "groups": [
            {"index": index, "block_tokens": one.block_tokens, "reach_tokens": one.reach, "fixed_blocks": one.fixed}
            for index, one in enumerate(room.growths)
        ],
        "lengths": [
            {
                "tokens": one.tokens,
                "blocks_per_request": one.blocks,
                "bytes_per_request": one.bytes,
                "requests": one.requests,
                "tokens_in_all": one.tokens_in_all,
            }
            for one in room.fits
        ],
    }


def _comparison(made: Comparison) -> dict[str, object]:
    second = made.second
    return {
        "verdict": made.verdict,
        "groups": [
            {
                "index": one.group,
                "verdict": one.verdict,
                "differences": {name: list(both) for name, both in one.differences.items()},
            }
            for one in made.groups
        ],
        "remedies": [
            {"first": dict(one.first), "second": dict(one.second), "gives": one.gives, "padding": list(one.padding)}
            for one in made.remedies
        ],
        "other": _facts(second)
        | {
            "groups": [group_json(group) for group in second.plan.groups],
            "errors": [error_json(error) for error in second.errors],
        },
    }
