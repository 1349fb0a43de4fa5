"""What the engine refuses before it makes a cache: ranks that divide no heads, context parallelism that can't be.

>>> tuple(divided(GatedDelta(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4), tp=4))
(('key channels', 2048), ('value heads', 32))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlayout.offline.model import AttentionLayer, GatedDelta, KimiDelta, Mamba1, Mamba2, ShortConv
from kvlayout.offline.policy.values import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvlayout.offline.deployment import Deployment
    from kvlayout.offline.model import Model, Recurrence
    from kvlayout.offline.policy.kinds import Kinds

__all__ = ["check_ranks", "divided"]


def check_ranks(model: Model, kinds: Kinds, deployment: Deployment) -> None:
    """Refuse ranks that the engine can't divide this model over.

    Raises:
        RefusedError: heads, channels or tokens do not divide.
    """
    tp = deployment.tp
    for heads in sorted(_query_heads(model, kinds)):
        if heads % tp:
            raise refused("tp", f"a divisor of {heads} attention heads", tp, f"set --tp to a divisor of {heads}")
    for recurrence in {layer.recurrence for layer in kinds.states}:
        for what, number in divided(recurrence, tp):
            if number % tp:
                raise refused("tp", f"a divisor of {number} {what}", tp, f"set --tp to a divisor of {number}")
    if deployment.dcp > 1:
        _check_context(model, kinds, deployment)


def _query_heads(model: Model, kinds: Kinds) -> set[int]:
    if model.query_heads is not None:
        return {model.query_heads}
    return {layer.query_heads for layer in kinds.attending if isinstance(layer, AttentionLayer)}


def divided(recurrence: Recurrence, tp: int) -> Iterator[tuple[str, int]]:
    """Yield what tensor parallelism divides of a recurrent layer, in words and numbers."""
    match recurrence:
        case Mamba1() | ShortConv():
            yield "channels", recurrence.channels
        case Mamba2():
            yield "state heads", recurrence.heads
            if recurrence.groups > 1:  # one group is repeated, one a rank
                yield "groups of a state", recurrence.groups
            groups = tp if recurrence.groups == 1 else recurrence.groups
            yield "channels of a convolution", recurrence.channels + 2 * groups * recurrence.state
        case GatedDelta():
            yield "key channels", recurrence.key_heads * recurrence.key_dim
            yield "value heads", recurrence.value_heads
        case KimiDelta():
            yield "heads", recurrence.heads


def _check_context(model: Model, kinds: Kinds, deployment: Deployment) -> None:
    """Refuse context parallelism over heads that are still divided, or over sliding windows."""
    tp, dcp = deployment.tp, deployment.dcp
    if tp % dcp:
        raise refused("dcp", f"a divisor of the {tp} tensor-parallel ranks", dcp, "set --dcp to a divisor of --tp")
    windows = [layer for layer in kinds.attending if getattr(layer, "window", None) is not None]
    if windows:
        raise refused("dcp", "1, for a model with sliding windows", dcp, "set --dcp 1")
    dense = [layer for layer in kinds.attending if isinstance(layer, AttentionLayer)]
    if kinds.latent:
        return
    if not dense:
        raise refused("dcp", "1, for a model without attention", dcp, "set --dcp 1")
    heads = dense[0].heads
    if tp <= heads or dcp > tp // heads:
        fix = f"set --tp to at least {heads * dcp}, or --dcp 1"
        raise refused("dcp", f"at most the {tp // heads} ranks that repeat each of {heads} heads", dcp, fix)
    share = (model.query_heads or dense[0].query_heads) // heads
    if share % dcp:
        raise refused(
            "dcp", f"a divisor of the {share} query heads of each head", dcp, f"set --dcp to a divisor of {share}"
        )
