"""Which policy holds for an engine.

>>> policy_of("vllm-0.27.1").facts.latent_unit
128
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kvlayout.offline.policy import v0_25, v0_26, v0_29
from kvlayout.offline.policy.values import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvlayout.offline.policy.facts import Facts
    from kvlayout.offline.policy.request import Arranged, Request
    from kvlayout.offline.policy.values import Bunch

__all__ = ["Policy", "policy_of"]


class Policy(NamedTuple):
    """What holds for one version: its text, its facts, and how it lays out pages."""

    version: str
    facts: Facts
    arrange: Callable[[Sequence[Bunch], Request], Arranged]


def policy_of(engine: str) -> Policy:
    """Return the policy of an engine, named as ``vllm-0.32``, ``vllm-0.32.0`` or ``vllm-0.32.0+cpu``.

    Raises:
        RefusedError: nothing is known of it.
    """
    found = re.fullmatch(r"vllm-(0\.(\d{1,4})(?:[.+]\w{1,40}){0,6})", engine, re.ASCII)
    for module in (v0_29, v0_26, v0_25):
        for facts in module.FACTS:
            if found is not None and facts.minor == int(found[2]):
                return Policy(found[1], facts, module.arrange)
    raise refused("engine", "vllm-0.25 to vllm-0.33", repr(engine), "set --engine vllm-0.32")
