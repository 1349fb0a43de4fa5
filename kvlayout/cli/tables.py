"""Plans and refusals for people: rich tables, as wide as the terminal, plain where the output is none.

Column widths are settled here, not left to wrapping: at less than 140 columns the facts of a layer stand below one
another, at more beside one another.
"""
# ruff: noqa: TID253 - imported by the commands that print tables, when they print them

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TextIO

from rich.text import Text

from kvlayout.cli.printing import console_of, refusal_parts, rendered, table_of, text_of, texts_of, warning_parts
from kvlayout.cli.treatments import Treatment, treatments
from kvlayout.cli.wording import clean, counted, names, number, ranges, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from kvlayout.errors import LayoutError
    from kvlayout.plans import Plan
    from kvlayout.summaries import GroupPlan

__all__ = ["kind_of", "layers_table", "show_check", "show_errors", "show_plan", "verdict_of"]

_WIDE: Final = 140


def show_plan(plan: Plan, errors: Sequence[LayoutError]) -> str:
    """Return a plan, or what there is of one and every refusal."""
    console = console_of(sys.stdout)
    parts: list[RenderableType] = [_header(plan), verdict_of(plan, errors), Text()]
    if plan.groups:
        parts += [_groups(plan), Text()]
    if plan.layers:
        parts += [layers_table(plan, console.width), Text()]
    if plan.warnings and not errors:
        parts += [*warning_parts(plan.warnings), text_of(counted(len(plan.warnings), "warning"), "bold yellow"), Text()]
    if errors:
        parts += [*refusal_parts(errors), text_of(counted(len(errors), "error"), "bold red")]
    else:
        parts.pop()
    return rendered(console, parts)


def show_errors(errors: Sequence[LayoutError], stream: TextIO) -> str:
    """Return refusals alone, for the stream that they go to."""
    return rendered(console_of(stream), [*refusal_parts(errors), text_of(counted(len(errors), "error"), "bold red")])


def show_check(plan: Plan) -> str:
    """Return that a stored plan holds."""
    what = f"{counted(len(plan.layers), 'layer')} of {counted(len(plan.groups), 'group')}"
    return rendered(
        console_of(sys.stdout),
        [_header(plan), text_of(f"holds: {what} proved again, with the stored results", "green")],
    )


def _header(plan: Plan) -> Text:
    """Return what was planned: its name, its engine, its blocks, its layout."""
    registration = plan.registration
    engine = registration.engine
    blocks = "no layer to count blocks by" if plan.blocks is None else f"{number(plan.blocks)} blocks"
    facts = [
        " ".join(filter(None, (engine.name, engine.version, engine.platform and f"on {engine.platform}"))),
        "1 block" if plan.blocks == 1 else "any number n of blocks" if number(plan.blocks) == "n" else blocks,
        registration.kv_cache_layout and f"layout {registration.kv_cache_layout}",
        registration.layout_hint and f"hint {registration.layout_hint}",
        engine.dcp > 1 and f"dcp {engine.dcp}",
        plan.form == "bytes" and "shown as bytes",
    ]
    title, about = clean(registration.name) or "registration", ", ".join(str(fact) for fact in facts if fact)
    return Text.assemble((title, "bold"), f": {clean(about)}")


def verdict_of(plan: Plan, errors: Sequence[LayoutError]) -> Text:
    """Return in one line what became of the layers."""
    verdicts = [layer.verdict for layer in plan.layers.values()]
    total = len({*plan.registration.caches, *(layer for group in plan.groups for layer in group.layers)})
    if errors:
        return text_of(f"refused: {len(verdicts)} of {counted(total, 'layer')} planned, so none is to be stored", "red")
    kinds = {"view": "re-presented", "same": "left as they are", "alias": "shared", "excluded": "excluded"}
    counts = [f"{verdicts.count(one)} {word}" for one, word in kinds.items() if one in verdicts]
    counts = ["1 left as it is" if count == "1 left as they are" else count for count in counts]
    return text_of(f"planned: {', '.join([counted(total, 'layer'), *counts])}", "green")


# ------------------------------------------------------------------------------------------------------------ tables


def _groups(plan: Plan) -> Table:
    heads = ("#", "group", "layers", "tokens", "states", "page bytes", "padding")
    table = table_of([(head, head != "group") for head in heads])
    for group in plan.groups:
        table.add_row(
            str(group.index),
            kind_of(group, sum(layer in plan.layers for layer in group.layers)),
            number(len(group.layers)),
            number(group.block_tokens),
            number(group.states_per_block),
            number(group.page_bytes) if group.page_bytes else "-",
            _padding(group),
        )
    return table


def kind_of(group: GroupPlan, planned: int) -> Text:
    """Return what a group is, its layers, and what became of it where it is not served whole."""
    notes = [clean(group.kind.replace("_", " "))]
    if group.window_tokens:
        notes.append(f"window {number(group.window_tokens)}")
    notes += ["recurrent"] * group.recurrent + ["draft"] * group.draft
    text = Text(", ".join(notes))
    if group.disposition != "served":
        reason = clean(str(group.reason)).replace("-", " ")
        text.append(f"\n{group.disposition}: {reason}", "red" if group.disposition == "refused" else "yellow")
    elif planned < len(group.layers):
        text.append(f"\n{counted(len(group.layers) - planned, 'layer')} refused", "red")
    return text


def _padding(group: GroupPlan) -> str:
    """Return the padding of a group's pages, and the share that it is."""
    page, payload = group.page_bytes, group.payload_bytes
    if not page or payload is None:
        return "-"
    spare = page - payload
    return f"{number(spare)} ({spare / page:.1%})" if spare else "0"


def layers_table(plan: Plan, width: int) -> Table:
    """Return what happens to layers: facts beside one another where there is room, else below one another."""
    wide = width >= _WIDE
    heads = ("#", "rule, layers", "before -> after", "pages", "proved")
    table = table_of([(head, False) for head in (heads if wide else (*heads[:2], "before -> after, pages, proved"))])
    rows = [(one, [_shapes(one), texts_of(one.pages), _proof(one)]) for one in treatments(plan)]
    widest = max(len(line) for _, facts in rows for fact in facts for line in fact.plain.split("\n"))
    needed = max(len(line) for one, _ in rows for line in _told(one))
    room = min(max(width - 12 - widest * (3 if wide else 1), 28), max(needed, 12))
    table.columns[1].width = room
    for one, facts in rows:
        shown = facts if wide else [Text("\n").join(fact for fact in facts if fact)]
        table.add_row(ranges(one.groups), _treated(one, room), *shown)
    return table


def _told(one: Treatment) -> tuple[str, str, str]:
    """Return the rule, the layers and the content, at full length."""
    count = f"{counted(len(one.layers), 'layer')}: " if len(one.layers) > 1 else ""
    return clean(one.title), count + names(one.layers), clean(one.content)


def _treated(one: Treatment, room: int) -> Text:
    """Return the rule, the layers and the content, no line wider than the column."""
    title, layers, content = _told(one)
    count, _, name = layers.rpartition(": ") if len(one.layers) > 1 else ("", "", layers)
    lines = [layers] if len(layers) <= room else [f"{count}:" if count else "", shortened(name, room)]
    text = text_of(shortened(title, room), "cyan")
    for line in filter(None, (*lines, content)):
        text.append(f"\n{line}", "default")
    return text


def _shapes(one: Treatment) -> Text:
    return texts_of([*one.before, *([f"-> {one.after}"] if one.after else [])])


def _proof(one: Treatment) -> Text:
    text = text_of(", ".join(one.proved), "green")
    if one.open:
        text.append(f"\nopen until applied: {', '.join(one.open)}", "yellow")
    return text
