"""What ``kvlayout model`` prints for people: block sizes, pages, capacity, settings, and the plan below them."""
# ruff: noqa: TID253 - imported by the command that prints these tables, when it prints them

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from rich.padding import Padding
from rich.text import Text

from kvlayout.cli.printing import console_of, refusal_parts, rendered, table_of, text_of, warning_parts
from kvlayout.cli.tables import kind_of, layers_table, verdict_of
from kvlayout.cli.wording import clean, counted, names, number, ranges
from kvlayout.offline.flags import as_flags
from kvlayout.offline.settings import keeps_states, payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rich.console import RenderableType
    from rich.table import Table

    from kvlayout.cache.registration import Group
    from kvlayout.cli.checking import Checked
    from kvlayout.offline.answering import Answer
    from kvlayout.offline.capacity import Capacity
    from kvlayout.offline.comparing import Comparison, GroupMatch, Remedy

__all__ = ["show_pair", "show_report"]

_VERDICTS: Final = {
    "identical": ("the pair agrees: every page is the same", "green"),
    "same-form": ("the pair agrees on pages of one form", "yellow"),
    "same-blocks": ("the pair agrees on blocks: a block id is the same tokens, in other pages", "yellow"),
    "different": ("the pair does not agree", "red"),
}
#: A share of padding that is worth a word.
_MUCH: Final = 0.1
#: Characters of a fingerprint that are shown.
_PRINT: Final = 12
_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"))


def show_report(made: Answer, checked: Checked | None, stream: TextIO) -> str:
    """Return the answer for one deployment, and the engine's own word where it was asked."""
    console = console_of(stream)
    parts: list[RenderableType] = [_head(made), verdict_of(made.plan, made.errors), *_alarm(made), Text()]
    if checked is not None:
        parts += [*_checked(checked), Text()]
    parts += [_blocks(made), Text(), _pages(made), Text(), *_room(made), Text(), _settings(made), Text()]
    parts += _cautions(made)
    if made.plan.layers:
        parts += [layers_table(made.plan, console.width), Text()]
    parts += _refusals(made) if made.errors else ()
    return rendered(console, parts if made.errors else parts[:-1])


def show_pair(made: Comparison, stream: TextIO) -> str:
    """Return what the two of a pair are, whether they agree, and what would make them; then why either is refused."""
    parts: list[RenderableType] = []
    for name, one in (("first", made.first), ("second", made.second)):
        parts += [
            Text.assemble((f"{name}  ", "bold"), _head(one)),
            verdict_of(one.plan, one.errors),
            *_alarm(one),
            Text(),
        ]
    text, style = _VERDICTS[made.verdict]
    text += _elsewhere(made) if made.verdict == "same-form" else ""
    parts += [text_of(text, f"bold {style}"), Text(), _differences(made)]
    if made.remedies:
        parts += [Text(), *(text_of(_remedy(one), "bold") for one in made.remedies)]
    for one in (made.first, made.second):
        if one.errors:
            parts += [Text(), *_refusals(one)]
    return rendered(console_of(stream), parts)


def _refusals(made: Answer) -> list[RenderableType]:
    return [*refusal_parts(made.errors), text_of(counted(len(made.errors), "error"), "bold red")]


def _head(made: Answer) -> Text:
    """Return what was planned: the model, the engine, the ranks, the layout, and what is to fit."""
    served, deployment = made.served, made.served.deployment
    registration = served.registration
    facts = [
        f"{deployment.engine.replace('-', ' ')} on {deployment.platform}",
        f"tp {deployment.tp}",
        deployment.pp > 1 and f"rank {deployment.pp_rank} of pp {deployment.pp}",
        deployment.dcp > 1 and f"dcp {deployment.dcp}",
        f"cache {deployment.cache_dtype}",
        registration.kv_cache_layout and f"layout {registration.kv_cache_layout}",
        registration.layout_hint and f"hint {registration.layout_hint}",
        deployment.max_model_len and f"requests of up to {deployment.max_model_len:,} tokens",
        deployment.cache_memory and f"{_memory(deployment.cache_memory)} for the cache",
    ]
    about = ", ".join(str(fact) for fact in facts if fact)
    return Text.assemble((clean(served.model.architecture), "bold"), f": {clean(about)}")


def _alarm(made: Answer) -> Iterator[Text]:
    """Yield what makes all numbers below it worthless: memory in which there is no block, or none for a request."""
    if made.capacity is not None and made.capacity.longest == 0:
        yield from (text_of(one.text, "bold red") for one in made.cautions if one.code == "memory")


def _memory(size: int) -> str:
    """Return bytes in the largest unit that they are a whole number of."""
    return next((f"{size // unit:,} {name}" for unit, name in _UNITS if size % unit == 0), f"{size:,} bytes")


# -------------------------------------------------------------------------------------------------- blocks and pages


def _blocks(made: Answer) -> Table:
    served, table = (
        made.served,
        table_of([("block size", False), ("groups", False), ("tokens", True), ("of what", False)]),
    )
    asked = made.asked.block_size is not None
    table.add_row("user", "", number(served.user_block), "asked for" if asked else "the engine's default")
    for name, sizes, what in (
        ("scheduler", served.scheduler_blocks, "one block id"),
        ("kernel", served.kernel_blocks, "one page of the attention kernel"),
    ):
        alike: dict[int, list[int]] = {}
        for group, size in enumerate(sizes):
            if size is not None:
                alike.setdefault(size, []).append(group)
        for size, groups in alike.items():
            table.add_row(name, ranges(groups), number(size), what)
    if keeps_states(served):
        table.add_row("hash", "", number(served.hash_block), "one hash of prefix caching")
    return table


def _pages(made: Answer) -> Table:
    """Return a row for each kind of page; groups that are alike share it, a group of unlike layers has several."""
    heads = ("#", "group", "layers", "tokens", "page bytes", "payload", "padding")
    table = table_of([(head, head not in ("#", "group")) for head in heads])
    alike: dict[tuple[str, ...], list[int]] = {}
    shown: dict[tuple[str, ...], Text] = {}
    for group, registered in zip(made.plan.groups, made.served.registration.groups, strict=True):
        kind = kind_of(group, sum(layer in made.plan.layers for layer in group.layers))
        for layers, page, kept in _sizes(registered):
            padding = "-" if kept is None else f"{page - kept:,} ({(page - kept) / page:.1%})" if page > kept else "0"
            cells = (number(layers), number(group.block_tokens), number(page), number(kept), padding)
            alike.setdefault((kind.plain, *cells), []).append(group.index)
            shown[kind.plain, *cells] = kind
    for facts, groups in alike.items():
        table.add_row(ranges(groups), shown[facts], *facts[1:])
    return table


def _sizes(group: Group) -> list[tuple[int, int, int | None]]:
    """Return layers, bytes of a page and bytes of it that carry state, for each kind of page of a group."""
    pages = [(spec.page_bytes, payload(spec)) for spec in group.specs]
    if not group.leaves:
        return [(len(group.layers), *pages[0])]
    return [(pages.count(one), *one) for one in dict.fromkeys(pages)]


# ----------------------------------------------------------------------------------------------------------- capacity


def _room(made: Answer) -> Iterator[RenderableType]:
    room = made.capacity
    if room is None:
        yield text_of("no capacity: what a request holds of a group does not follow from its tokens", "yellow")
        return
    fixed = f"up to {number(room.fixed_bytes)} bytes for states and windows, and " if room.fixed_bytes else ""
    yield text_of(f"on each rank a request takes {fixed}{room.token_bytes:,.0f} bytes a token")
    blocks = "" if room.num_blocks is None else f"{counted(room.num_blocks, 'block')} of "
    tail = "" if room.num_blocks is not None else "; --cache-memory says how many requests fit"
    if room.num_blocks:
        tail = ", one of them the engine's null block" if room.num_blocks > 1 else ", the engine's null block"
    yield text_of(f"{blocks}{number(room.block_bytes)} bytes {'each' if blocks else 'a block'}{tail}")
    yield Text()
    yield _lengths(room)


def _lengths(room: Capacity) -> Table:
    heads = ["request tokens", "blocks", "bytes"] + (
        ["requests", "tokens in all"] if room.num_blocks is not None else []
    )
    table = table_of([(head, True) for head in heads])
    for one in room.fits:
        cells = [number(one.tokens), number(one.blocks), number(one.bytes)]
        if one.requests is not None:
            cells += [f"{one.requests:,.2f}", number(one.tokens_in_all)]
        table.add_row(*cells)
    return table


# --------------------------------------------------------------------------------------------- settings and cautions


def _settings(made: Answer) -> Table:
    table = table_of([("setting", False), ("value", False), ("why", False)])
    for one in made.settings:
        table.add_row(text_of(one.name, "cyan"), clean(one.value or "none"), clean(one.reason))
    return table


def _cautions(made: Answer) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for one in made.cautions:
        place = f" (group{'s' if len(one.groups) > 1 else ''} {ranges(one.groups)})" if one.groups else ""
        parts.append(Text.assemble((one.code, "bold yellow"), f"{place}: {clean(one.text)}"))
    return [*parts, Text(), *warning_parts(made.plan.warnings)] if parts or made.plan.warnings else []


# ---------------------------------------------------------------------------------------------------------- comparing


def _remedy(one: Remedy) -> str:
    """Return what to set for what, and what it costs where that is much."""
    wanted = {"identical": "the same pages", "same-form": "pages of one form"}.get(one.gives, "the same blocks")
    sides = [(as_flags(flags), side) for flags, side in ((one.first, "first"), (one.second, "second")) if flags]
    flags = ", ".join(f"{flags} on the {side}" for flags, side in sides)
    if one.first == one.second:
        flags = f"{as_flags(one.first)} on both"
    cost = [
        f"{share:.0%} of the {side}'s"
        for share, side in zip(one.padding, ("first", "second"), strict=True)
        if share > _MUCH
    ]
    return f"for {wanted}: {flags}" + (f" ({' and '.join(cost)} pages are padding then)" if cost else "")


def _elsewhere(made: Comparison) -> str:
    """Return what pages of one form hold that is not the same."""
    apart = {name for one in made.groups for name in one.differences}
    heads = ["rank r holds other heads than rank r of the other"] * ("tp" in apart)
    layers = ["they are not of the same layers"] * ("layers" in apart)
    return f", but {' and '.join([*heads, *layers])}"


def _differences(made: Comparison) -> Table:
    table = table_of([("#", False), ("verdict", False), ("of what", False), ("first", True), ("second", True)])
    alike: dict[tuple[tuple[str, str, str], ...], list[GroupMatch]] = {}
    for one in made.groups:
        alike.setdefault(tuple(_facts(one.differences)), []).append(one)
    for facts, groups in alike.items():
        verdict = groups[0].verdict.replace("-", " ")
        for at, fact in enumerate(facts or (("", "", ""),)):
            table.add_row(*(("", "") if at else (ranges(one.group for one in groups), verdict)), *fact)
    return table


def _facts(differences: Mapping[str, tuple[object, object]]) -> Iterable[tuple[str, str, str]]:
    """Return the rows of a group; a fingerprint says only that pages differ, so it is shown where nothing else does."""
    for name, (mine, theirs) in differences.items():
        if name != "fingerprint":
            yield name.replace("_", " "), _value(mine), _value(theirs)
        elif len(differences) == 1:
            yield name, _value(str(mine)[:_PRINT]), _value(str(theirs)[:_PRINT])


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return names(list(map(str, value)))
    return number(value) if isinstance(value, int) else clean(str(value)) if value is not None else "-"


def _checked(made: Checked) -> Iterator[RenderableType]:
    if not made.differences:
        yield text_of(
            f"vLLM {made.version}, asked itself, makes the same of it: every group, page, place and stride", "green"
        )
        return
    yield text_of(f"vLLM {made.version}, asked itself, makes something else of it:", "bold red")
    table = table_of([("of what", False), ("worked out", False), ("installed", False)])
    for one in made.differences:
        table.add_row(clean(one.path), clean(one.offline), clean(one.installed))
    yield Padding(table, (0, 0, 0, 2))
