"""What a rule is, and where rules are kept.

A rule is a typed function of a spec, the layer's cache and the presentation wanted. It answers with a proof
of its view, with a refusal, or with ``NoMatch`` where the layer is not its business:

>>> from kvlayout.cache.spec import LatentSpec
>>> @rule(LatentSpec, name="leave-latent-alone")
... def leave(spec: LatentSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
...     return NoMatch()
>>> Registry.of(leave).names
('leave-latent-alone',)
>>> [error.code.value for error in (Registry.of(leave) | Registry.of(leave)).errors]
['rule-conflict']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar, final

from attrs import frozen

from kvlayout.algebra.affine import divide, nonneg
from kvlayout.algebra.dtype import DTYPES
from kvlayout.algebra.kernel import Proved
from kvlayout.algebra.layout import BYTES, Layout
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.algebra.units import all_raw
from kvlayout.cache.paging import CacheLayout
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec, StateSpec
from kvlayout.errors import Code, LayoutError
from kvlayout.rules.presentation import Presentation, unviewable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AnyRule", "NoMatch", "Outcome", "Registry", "Rule", "certified", "rule"]


@final
@frozen
class NoMatch:
    """The rule does not take this layer."""


Outcome: TypeAlias = Result[Proved, LayoutError] | NoMatch
S = TypeVar("S", bound=Spec)

#: Specs whose groups can be served; a rule for any other can never be reached.
_SERVED = (AttentionSpec, LatentSpec, StateSpec)


@final
@frozen
class Rule(Generic[S]):
    """A named function from one spec type, the cache and the goal to an outcome; made by :func:`rule`."""

    name: str
    spec: type[S]
    apply: Callable[[S, CacheLayout, Presentation], Outcome]

    def __call__(self, spec: Spec, cache: CacheLayout, goal: Presentation) -> Outcome:
        """Try the rule; a spec of another type is no match."""
        return self.apply(spec, cache, goal) if isinstance(spec, self.spec) else NoMatch()


def rule(spec: type[S], *, name: str) -> Callable[[Callable[[S, CacheLayout, Presentation], Outcome]], Rule[S]]:
    """Declare a rule for exactly one spec type; mypy checks the function against it.

    Args:
        spec: the type of spec that the rule is for; subclasses are other types.
        name: what plans and errors call it.

    Returns:
        A decorator of a function of the layer's spec, its cache and the presentation wanted. The function answers with
        a proof of its view, with a refusal, or with ``NoMatch`` where it is not for this layer.

    >>> @rule(LatentSpec, name="leave-indexers")
    ... def leave(spec: LatentSpec, cache: CacheLayout, goal: Presentation) -> Outcome:
    ...     return NoMatch()
    >>> leave.name, Registry.of(leave).names
    ('leave-indexers', ('leave-indexers',))
    """

    def declare(apply: Callable[[S, CacheLayout, Presentation], Outcome]) -> Rule[S]:
        return Rule(name, spec, apply)

    return declare


class AnyRule(Protocol):
    """A rule of any spec type, as a registry keeps it."""

    @property
    def name(self) -> str:
        """The name that plans show."""

    @property
    def spec(self) -> type[Spec]:
        """The exact spec type that it takes."""

    def __call__(self, spec: Spec, cache: CacheLayout, goal: Presentation) -> Outcome:
        """Try the rule."""


@final
@frozen
class Registry:
    """An immutable list of rules, looked up by exact spec type; the first that matches wins.

    Attributes:
        rules: in the order in which they are tried.
        errors: ``rule-conflict`` for each rule whose name is taken, or that no served layer can reach;
            planning refuses a registry that has any.
    """

    rules: tuple[AnyRule, ...] = ()
    errors: tuple[LayoutError, ...] = ()

    @staticmethod
    def of(*rules: AnyRule) -> Registry:
        """Return a registry of these rules; conflicts are kept as data."""
        seen: set[str] = set()
        errors = []
        for one in rules:
            if one.name in seen:
                errors.append(_conflict("one rule of each name", f"a second {one.name!r}"))
            if one.spec not in _SERVED:
                errors.append(
                    _conflict("a rule that can be reached", f"{one.name!r} takes {one.spec.__name__}, never served")
                )
            seen.add(one.name)
        return Registry(rules, tuple(errors))

    def __or__(self, other: Registry) -> Registry:
        """Join two registries; the left one's rules are tried first."""
        joined = Registry.of(*self.rules, *other.rules)
        kept = tuple(e for e in (*self.errors, *other.errors) if e.code is not Code.RULE_CONFLICT)
        return Registry(joined.rules, (*kept, *joined.errors))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rules, in order."""
        return tuple(one.name for one in self.rules)

    def consider(
        self, spec: Spec, cache: CacheLayout, goal: Presentation
    ) -> tuple[str, Result[Proved, LayoutError]] | NoMatch:
        """Return the name and the outcome of the first rule that takes the layer."""
        for one in self.rules:
            if one.spec is type(spec):
                outcome = _tried(one, spec, cache, goal)
                if not isinstance(outcome, NoMatch):
                    return one.name, certified(one.name, outcome, cache)
        return NoMatch()


def _tried(one: AnyRule, spec: Spec, cache: CacheLayout, goal: Presentation) -> Outcome:
    """Ask a rule; one that raises refuses this layer, and no other one."""
    try:
        return one(spec, cache, goal)
    except Exception as error:  # noqa: BLE001 - a foreign rule may raise anything
        actual = f"{one.name} raised {type(error).__name__}: {error}"
        return Err(LayoutError(Code.RULE_NOT_PROVED, expected="a proof, a refusal or NoMatch", actual=actual))


def _conflict(expected: str, actual: str) -> LayoutError:
    return LayoutError(Code.RULE_CONFLICT, expected=expected, actual=actual)


def certified(name: str, outcome: object, cache: CacheLayout) -> Result[Proved, LayoutError]:
    """Hold a rule's answer against its layer: a proof counts only if it is about these pages, all of it.

    Errors: the rule's own; ``rule-not-proved`` for anything that is no proof, or one of other pages.
    """
    if isinstance(outcome, Err) and isinstance(outcome.error, LayoutError):
        return outcome
    if not (isinstance(outcome, Ok) and isinstance(outcome.value, Proved)):
        expected = "a proof, a refusal or NoMatch"
        return Err(LayoutError(Code.RULE_NOT_PROVED, expected=expected, actual=f"{name} answered {outcome!r:.60}"))
    proof, view = outcome.value, outcome.value.view
    if view is None:
        return Err(LayoutError(Code.RULE_NOT_PROVED, expected="a proof of a view", actual=f"{name}: of bare pages"))
    pages = cache.pages
    rows = cache.states if BYTES not in view.axes else None
    wanted: tuple[tuple[str, tuple[tuple[str, object], ...]], ...] = (
        ("page", (("bases", pages.bases), ("stride", pages.stride))),
        ("own", (("payload", cache.payload), ("page", cache.page_bytes), ("stride", pages.stride))),
        ("grain", (("blocks", cache.blocks), ("states", rows))),
    )
    found = dict(proof.claims)
    for claim, reasons in wanted:
        said = found.get(claim, ())
        for reason in reasons:
            if reason not in said:
                key, number = reason
                expected = f"the claim {claim!r} with {key} {number}"
                actual = f"{dict(said).get(key)}" if said else "no such claim"
                return Err(LayoutError(Code.RULE_NOT_PROVED, expected=expected, actual=f"{name}: {actual}"))
    error = _inexpressible(name, view, cache.source)
    return outcome if error is None else Err(error)


def _inexpressible(name: str, view: Layout, source: Layout) -> LayoutError | None:
    """Refuse a view that no dtype view and ``as_strided`` make: of a type or with strides that it can't have."""
    if DTYPES.get(view.dtype.name) != view.dtype:
        actual = f"{name}: {view.dtype.name} of {view.dtype.itemsize} bytes"
        return LayoutError(Code.UNKNOWN_DTYPE, expected="an element type of torch", actual=actual)
    error = unviewable(view.dtype, source)
    if error is not None:
        return error
    item = view.dtype.itemsize
    for stride in all_raw(view.strides):
        if divide(stride, item) is None:
            code, expected = Code.DTYPE_MISALIGNED, f"multiples of {item} bytes"
        elif not nonneg(stride):
            code, expected = Code.RULE_NOT_PROVED, "strides of 0 or more"
        else:
            continue
        actual = f"{name}: strides of {', '.join(map(str, view.strides))} bytes"
        return LayoutError(code, expected=expected, actual=actual)
    return None
