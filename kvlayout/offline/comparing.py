"""Whether the two deployments of a pair (prefill and decode) keep the same blocks, and which flags would make them.

A remedy is found by serving both again with it and comparing, so what is said to help has been tried.
"""

from __future__ import annotations

from itertools import combinations, zip_longest
from math import lcm
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from attrs import evolve

from kvlayout.algebra.result import Err
from kvlayout.cache.spec import AttentionSpec, LatentSpec, StateSpec
from kvlayout.offline.answering import Answer
from kvlayout.offline.flags import field_text, read_flags
from kvlayout.offline.serving import Served, serve
from kvlayout.offline.settings import padding_share
from kvlayout.planning import attempt
from kvlayout.plans import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvlayout.offline.model import Model
    from kvlayout.summaries import GroupPlan

__all__ = ["Comparison", "GroupMatch", "Match", "Remedy", "Side", "compare"]

#: The same pages; pages of one form, of other layers or heads; blocks of the same tokens, in other pages; neither.
Match: TypeAlias = Literal["identical", "same-form", "same-blocks", "different"]
_RANK: Final[dict[Match, int]] = {"different": 0, "same-blocks": 1, "same-form": 2, "identical": 3}

#: Fields that decide what a page is.
_DECIDING: Final = (
    "block_size",
    "mamba_cache_mode",
    "cache_dtype",
    "mamba_ssm_dtype",
    "mamba_cache_dtype",
    "dtype",
    "layout",
    "kernel_block_sizes",
    "prefix_caching",
    "hybrid_manager",
    "max_model_len",
    "dcp",
    "tp",
    "pp",
    "pp_rank",
    "engine",
    "platform",
)
_TRIES: Final = 64
_MOST_AT_ONCE: Final = 3


class Side(NamedTuple):
    """One of a pair: its model, its flags (field -> text), and the answer for them."""

    model: Model
    given: Mapping[str, str]
    answer: Answer


class GroupMatch(NamedTuple):
    """Two groups of one index: whether they agree, and each fact in which they do not, of both."""

    group: int
    verdict: Match
    differences: Mapping[str, tuple[object, object]]


class Remedy(NamedTuple):
    """Flags to add to either side, what the pair is then, and the share of either's pages that is padding then."""

    first: Mapping[str, str]
    second: Mapping[str, str]
    gives: Match
    padding: tuple[float, float]


class Comparison(NamedTuple):
    """A pair: each group's verdict, and flags that make it a better one."""

    first: Answer
    second: Answer
    groups: tuple[GroupMatch, ...]
    remedies: tuple[Remedy, ...]

    @property
    def verdict(self) -> Match:
        """The worst of all groups."""
        return _worst(self.groups)


def compare(first: Side, second: Side) -> Comparison:
    """Compare two deployments, group by group, and look for flags that would make them agree."""
    one, other = ((side.answer.served, side.answer.plan) for side in (first, second))
    groups = _matches(one, other)
    found = tuple(_remedies(first, second, _worst(groups)))
    return Comparison(first.answer, second.answer, groups, found)


def _worst(groups: Sequence[GroupMatch]) -> Match:
    return min((one.verdict for one in groups), key=_RANK.__getitem__, default="identical")


#: A deployment, and its plan.
_Planned: TypeAlias = "tuple[Served, Plan]"


def _matches(first: _Planned, second: _Planned) -> tuple[GroupMatch, ...]:
    pairs = zip_longest(first[1].groups, second[1].groups)
    found = tuple(_match(index, one, other) for index, (one, other) in enumerate(pairs))
    return tuple(_placed(one, first[0], second[0]) for one in found)


def _match(index: int, one: GroupPlan | None, other: GroupPlan | None) -> GroupMatch:
    """Compare the form of pages, and the layers that they are of."""
    if one is None or other is None:
        return GroupMatch(index, "different", {"group": (one and one.kind, other and other.kind)})
    facts = [(name, getattr(one, name), getattr(other, name)) for name in _FACTS]
    apart = {name: (mine, theirs) for name, mine, theirs in facts if mine != theirs}
    if one.fingerprint is None or other.fingerprint is None:
        apart["disposition"] = (one.disposition, other.disposition)
        return GroupMatch(index, "different", apart)
    verdict: Match = "identical"
    if apart:
        verdict = "different" if _BLOCK.intersection(apart) else "same-blocks"
    if one.layers != other.layers:
        apart["layers"] = (one.layers, other.layers)
        verdict = "same-form" if verdict == "identical" else verdict
    return GroupMatch(index, verdict, apart)


def _placed(found: GroupMatch, first: Served, second: Served) -> GroupMatch:
    """Add what two deployments hold in pages of one form, or what is behind pages of two."""
    apart = dict(found.differences)
    if found.verdict in ("identical", "same-form"):
        ranks = first.deployment.tp, second.deployment.tp
        if ranks[0] == ranks[1] or (_whole(first, found.group) and _whole(second, found.group)):
            return found
        return found._replace(verdict="same-form", differences={**apart, "tp": ranks})
    if "fingerprint" in apart:
        mark = apart.pop("fingerprint")
        order = first.registration.kv_cache_layout, second.registration.kv_cache_layout
        types = _types(first, found.group), _types(second, found.group)
        apart |= {name: both for name, both in (("layout", order), ("element type", types)) if both[0] != both[1]}
        apart["fingerprint"] = mark
    return found._replace(differences=apart)


def _whole(served: Served, group: int) -> bool:
    """Return whether every tensor-parallel rank holds all of a group: its pages are those of one rank alone."""
    if served.deployment.tp == 1:
        return True
    alone = serve(served.model, evolve(served.deployment, tp=1))
    if isinstance(alone, Err) or len(alone.value.registration.groups) != len(served.registration.groups):
        return False
    return alone.value.registration.groups[group].specs == served.registration.groups[group].specs


def _types(served: Served, group: int) -> str:
    """Return the element types of a group's pages."""
    found = [
        ", ".join(one.dtype for one in spec.fields) if isinstance(spec, StateSpec) else spec.dtype
        for spec in served.registration.groups[group].specs
        if isinstance(spec, StateSpec | AttentionSpec | LatentSpec)
    ]
    return "; ".join(dict.fromkeys(found))


#: What a group's pages are known by, and of these what makes a block id mean the same tokens and states.
_FACTS: Final = ("kind", "block_tokens", "states_per_block", "page_bytes", "payload_bytes", "fingerprint")
_BLOCK: Final = frozenset(("kind", "block_tokens", "states_per_block"))


# ----------------------------------------------------------------------------------------------------------- remedies

#: Flags to add to the first, and to the second.
_Move: TypeAlias = "tuple[Mapping[str, str], Mapping[str, str]]"


def _remedies(first: Side, second: Side, now: Match) -> Iterator[Remedy]:
    """Yield what makes blocks the same with the fewest flags, then what makes pages the same, of either side."""
    apart = [field for field in _DECIDING if _asked(first, field) != _asked(second, field)]
    if now == "different":
        found = _for_blocks(first, second, apart)
        if found is None:
            return
        yield found
        now = found.gives
    if now == "identical":
        return
    for fields in _subsets(apart):
        tried = [_tried(first, second, move) for move in _follow(first, second, fields)]
        alike = [one for one in tried if one.gives == "identical"]
        if alike:
            yield from alike
            return


def _asked(side: Side, field: str) -> object:
    value: object = getattr(side.answer.asked, field)
    return value


def _follow(first: Side, second: Side, fields: Sequence[str]) -> tuple[_Move, _Move]:
    """Return the two ways in which one side follows the other in some fields, as the engine has filled them in."""
    return ({}, _flags(first, fields)), (_flags(second, fields), {})


def _flags(side: Side, fields: Sequence[str]) -> dict[str, str]:
    deployment = side.answer.served.deployment
    return {field: text for field in fields if (text := field_text(deployment, field)) is not None}


def _for_blocks(first: Side, second: Side, apart: Sequence[str]) -> Remedy | None:
    """Return a block size for both; where none helps, the fewest flags in which one side follows, and a block size."""
    found = _block_size(first, second, ({}, {}))
    if found is not None:
        return found
    for fields in _subsets(apart):
        for move in _follow(first, second, fields):
            tried = _tried(first, second, move)
            if tried.gives != "different":
                return tried
            found = _block_size(first, second, move)
            if found is not None:
                return found
    return None


def _block_size(first: Side, second: Side, move: _Move) -> Remedy | None:
    """Return the least block size that both sides keep as it is, so that their block ids mean the same tokens."""
    one, other = _served(first, move[0]), _served(second, move[1])
    if one is None or other is None or len(one.scheduler_blocks) != len(other.scheduler_blocks):
        return None
    unit = lcm(*(size for size in (*one.kernel_blocks, *other.kernel_blocks) if size))
    least = max(one.aligned_block, other.aligned_block)
    start = -(-least // unit)
    for size in dict.fromkeys((least, *(unit * times for times in range(start, start + _TRIES)))):
        flags = {"block_size": str(size)}
        both = {**move[0], **flags}, {**move[1], **flags}
        mine, theirs = _served(first, both[0]), _served(second, both[1])
        if mine is None or theirs is None or mine.scheduler_blocks != theirs.scheduler_blocks:
            continue
        tried = _tried(first, second, both)
        if tried.gives != "different":
            return tried
    return None


def _served(side: Side, more: Mapping[str, str]) -> Served | None:
    read = read_flags({**side.given, **more})
    made = read if isinstance(read, Err) else serve(side.model, read.value)
    return None if isinstance(made, Err) else made.value


def _tried(first: Side, second: Side, move: _Move) -> Remedy:
    """Return what the pair is with more flags on either side: served, planned and compared again."""
    one, other = _served(first, move[0]), _served(second, move[1])
    if one is None or other is None:
        return Remedy(*move, "different", (0.0, 0.0))
    matches = _matches(*((made, attempt(made.registration).plan) for made in (one, other)))
    return Remedy(*move, _worst(matches), (padding_share(one), padding_share(other)))


def _subsets(fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the smallest sets first, and last all at once."""
    most = min(len(fields), _MOST_AT_ONCE)
    for count in range(1, most + 1):
        yield from combinations(fields, count)
    if len(fields) > most:
        yield tuple(fields)
