"""Proved views of paged KV-cache tensors for external stores."""

from __future__ import annotations

from kvlayout.algebra.kernel import Proved
from kvlayout.algebra.layout import Layout
from kvlayout.algebra.result import Err, Ok
from kvlayout.applying import apply, plan_then_apply
from kvlayout.cache.registration import Registration
from kvlayout.errors import LayoutErrors, explain
from kvlayout.planning import plan, validate
from kvlayout.plans import Plan
from kvlayout.rules.rule import Registry, rule

__all__ = [
    "Err",
    "Layout",
    "LayoutErrors",
    "Ok",
    "Plan",
    "Proved",
    "Registration",
    "Registry",
    "apply",
    "explain",
    "plan",
    "plan_then_apply",
    "rule",
    "validate",
]
