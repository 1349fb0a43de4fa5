"""Documents: reading one, and planning it."""

from __future__ import annotations

from benchmarks.hybrids import document
from benchmarks.table import Section, timed
from benchmarks.timing import in_turns
from kvlayout import Registration, plan

__all__ = ["LAYERS", "documents"]

LAYERS = 30


def documents(rounds: int) -> Section:
    """Time a document of 30 layers, at 136 blocks and at any number of them."""
    concrete, symbolic = document(LAYERS, 136), document(LAYERS, None)
    bound, unbound = (Registration.from_json(text).unwrap() for text in (concrete, symbolic))
    for registration in (bound, unbound):
        plan(registration).unwrap()
    taken = in_turns(
        {
            "read": lambda: Registration.from_json(concrete),
            "plan": lambda: plan(bound),
            "read, any N": lambda: Registration.from_json(symbolic),
            "plan, any N": lambda: plan(unbound),
        },
        rounds,
    )
    size = f"{len(concrete) / 1000:.0f} kB"
    return Section(
        f"a document of {LAYERS} layers, {size}",
        (
            timed("reading it, N = 136", taken["read"]),
            timed("planning it, N = 136", taken["plan"]),
            timed("reading it, any N", taken["read, any N"]),
            timed("planning it, any N", taken["plan, any N"]),
        ),
    )
