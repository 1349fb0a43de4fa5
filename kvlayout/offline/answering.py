"""The whole answer for one deployment: block sizes, the plan, capacity, settings and what to look at twice.

>>> from kvlayout.offline.model import AttentionLayer, Model
>>> layers = tuple(AttentionLayer(f"model.layers.{i}.self_attn.attn", 32, 8, 128, 128) for i in range(4))
>>> model = Model("LlamaForCausalLM", "attention", "bfloat16", layers, max_positions=8192)
>>> found = answer(model, Deployment(cache_memory=2**30)).unwrap()
>>> found.served.block_bytes, found.capacity.fits[-1].requests, found.errors
(262144, 8.0, ())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attrs import evolve

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.offline.capacity import Capacity, capacity
from kvlayout.offline.cautions import Caution, cautions
from kvlayout.offline.deployment import Deployment
from kvlayout.offline.serving import Served, serve
from kvlayout.offline.settings import Advice, advise
from kvlayout.planning import attempt
from kvlayout.plans import Plan

if TYPE_CHECKING:
    from kvlayout.errors import LayoutError, LayoutErrors
    from kvlayout.offline.model import Model

__all__ = ["Answer", "answer", "fits"]


class Answer(NamedTuple):
    """What is known of a deployment before it runs.

    Attributes:
        asked: the deployment as it was asked for; to ask for no states is to ask for no prefix caching.
        served: as the engine runs it, with its registration.
        plan: what planned of the registration.
        errors: why it is refused; empty where it is not.
        capacity: what fits; ``None`` where tokens don't tell.
        settings: what to set, and why.
        cautions: what to look at twice.
    """

    asked: Deployment
    served: Served
    plan: Plan
    errors: tuple[LayoutError, ...]
    capacity: Capacity | None
    settings: tuple[Advice, ...]
    cautions: tuple[Caution, ...]


def answer(model: Model, deployment: Deployment) -> Result[Answer, LayoutErrors]:
    """Return all that is known; errors are those of a deployment that the engine would not start."""
    served = serve(model, deployment)
    if isinstance(served, Err):
        return served
    alone = serve(model, evolve(deployment, tp=1)) if deployment.tp > 1 else None
    room = fits(served.value)
    made = attempt(served.value.registration)
    asked = evolve(deployment, prefix_caching=served.value.deployment.prefix_caching)
    one_rank = alone.value if isinstance(alone, Ok) else None
    return Ok(
        Answer(
            asked,
            served.value,
            made.plan,
            made.errors,
            room,
            advise(served.value),
            cautions(asked, served.value, one_rank, room),
        )
    )


def fits(served: Served) -> Capacity | None:
    """Return what fits on the pipeline rank that has least room: the block count is the same for all."""
    return capacity(served.registration.groups, served.deployment, max(served.stage_bytes))
