"""Where our views differ from LMCache 0.5.6's own: every document of tests/data, and live objects of vLLM.

``python -m tests.lmcache.differential`` writes the tables of docs/lmcache.md anew; a test holds the page against them.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kvlayout.errors import LayoutErrors
from tests.lmcache.reading import Interval, Layer, downstream
from tests.lmcache.registered import Registered, documents, live_model, registered
from tests.lmcache.truth import applied, hits, owned, wrong
from tests.real.models import HINTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvlayout.plans import Plan

PAGE: Final = Path(__file__).parents[2] / "docs" / "lmcache.md"
START: Final = "<!-- tables: python -m tests.lmcache.differential -->\n"
END: Final = "<!-- end of the tables -->\n"

#: The kinds of difference, in the order of the page, and what each is.
KINDS: Final = {
    "bytes": "LMCache copies other bytes",
    "refused": "LMCache refuses the registration",
    "slots": "LMCache copies the right bytes, and counts them otherwise",
    "form": "Another form of the same bytes",
}


class Subject(NamedTuple):
    """A registration, what both made of it, and how LMCache reads that; ``said``: why its functions raise."""

    name: str
    live: Registered
    plan: Plan
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any] | None
    said: str
    read_ours: Mapping[str, Layer]
    read_theirs: Mapping[str, Layer]


class Row(NamedTuple):
    """One difference; byte ranges are of block 1 (0 where it is the only one), from the layer's first byte.

    ``their_bytes`` and ``our_bytes`` are what LMCache's kernels copy through either view.
    """

    kind: str
    family: str
    registered: str
    their_view: str
    their_bytes: str
    engine_bytes: str
    our_bytes: str
    our_view: str


class Refusal(NamedTuple):
    """A registration that we refuse, and what LMCache makes of it."""

    name: str
    codes: tuple[str, ...]
    theirs: str


def their_edits(live: Registered) -> dict[str, Any]:
    edits: Any = import_module("lmcache.integration.vllm.kv_cache_group_edits")
    made: dict[str, Any] = edits.apply_kv_cache_group_edits(live.config, live.caches, {"kv_layout": live.hint})
    return made


def subject(name: str, live: Registered) -> Subject | None:
    """Let both make views, and LMCache read both; None where we refuse."""
    try:
        made = applied(live)
    except LayoutErrors:
        return None
    theirs: Mapping[str, Any] | None = None
    said = ""
    try:
        theirs = their_edits(live)
    except ValueError as error:
        said = str(error)
    read = [
        {} if views is None else downstream(live.config, views, live.hint, live.dcp, windows=False)
        for views in (made.views, theirs)
    ]
    return Subject(name, live, made.plan, made.views, theirs, said, *read)


@cache
def subjects() -> tuple[Subject, ...]:
    """Return all that is compared: documents by name, then models by layout, kernel pages and blocks."""
    accepted: Any = import_module("tests.real.test_vllm_views").ACCEPTED
    found = [subject(name, registered(made)) for name, made in sorted(documents().items())]
    for model, layout, kernel in accepted:
        for blocks in (2, 3) if layout in HINTS else ():
            pages = f", kernel pages of {kernel}" if kernel else ""
            name = f"{model}, {layout}{pages}, {blocks} blocks"
            found.append(subject(name, live_model(model, layout, kernel, blocks)))
    return tuple(one for one in found if one is not None)


def refusals() -> list[Refusal]:
    """Return the documents that we refuse."""
    found = []
    for name, made in sorted(documents().items()):
        live = registered(made)
        try:
            applied(live)
        except LayoutErrors as refused:
            codes = tuple(dict.fromkeys(error.code.value for error in refused.errors))
            found.append(Refusal(name, codes, their_answer(live)))
    return found


def their_answer(live: Registered) -> str:
    try:
        read = downstream(live.config, their_edits(live), live.hint, live.dcp)
    except ValueError as error:
        return f"refused: {first_line(str(error))}"
    bad = {layer: said for layer, one in read.items() if (said := wrong(live.document, None, layer, one, live.dcp))}
    return "served" + "".join(f"; {layer}: {first_line(said[0])}" for layer, said in bad.items())


def served(one: Subject) -> Iterator[tuple[str, str]]:
    """Yield the layers that the plan serves, with the word for their kind."""
    for group in one.plan.groups:
        if group.disposition == "served":
            for layer in group.layers:
                yield layer, group.kind


def facts(view: Any) -> tuple[object, ...]:
    """Return what a view is; strides of axes of size 1 are nobody's business."""
    if not hasattr(view, "stride"):
        return ("a list",)
    strides = [step for step, size in zip(view.stride(), view.shape, strict=True) if size != 1]
    return tuple(view.shape), strides, view.storage_offset(), view.dtype, view.untyped_storage().data_ptr()


def their_faults(one: Subject, layer: str) -> list[str]:
    """Return what is wrong with LMCache's reading of its own view."""
    if one.theirs is None:
        return [one.said]
    return wrong(one.live.document, None, layer, one.read_theirs.get(layer), one.live.dcp)


def rows() -> dict[Row, list[tuple[str, str]]]:
    """Return the differences, each with the registrations and layers that have it."""
    found: dict[Row, list[tuple[str, str]]] = {}
    for one in subjects():
        for layer, family in served(one):
            if one.theirs is None or facts(one.theirs[layer]) != facts(one.ours[layer]):
                found.setdefault(row(one, layer, family), []).append((one.name, layer))
    return found


def hits_all(one: Subject, layer: str, read: Layer | None) -> bool:
    """Tell whether LMCache copies the engine's bytes for a block."""
    probe = min(1, one.live.document["num_blocks"] - 1)
    return read is not None and not read.error and hits(one.live.document, layer, probe, read.block(probe))


def row(one: Subject, layer: str, family: str) -> Row:
    probe = min(1, one.live.document["num_blocks"] - 1)
    base = owned(one.live.document, layer, 0)[0][0]
    read = None if one.theirs is None else one.read_theirs.get(layer)
    if read is None or read.error:
        kind, text = "refused", first_line(one.said if read is None else read.error)
    else:
        kind = "slots" if their_faults(one, layer) else "form"
        kind = kind if hits_all(one, layer, read) else "bytes"
        text = intervals(read.block(probe), base)
    ours = one.read_ours[layer]
    return Row(
        kind,
        family.replace("_", " "),
        sizes(one.live.caches[layer], one.live.document["num_blocks"]),
        "none" if one.theirs is None else viewed(one.theirs[layer], read, one.live.document["num_blocks"]),
        text,
        intervals(owned(one.live.document, layer, probe), base),
        first_line(ours.error) if ours.error else intervals(ours.block(probe), base),
        viewed(one.ours[layer], ours, one.live.document["num_blocks"]),
    )


def viewed(view: Any, read: Layer | None, blocks: int) -> str:
    if read is None or read.error:
        return sizes(view, blocks)
    return f"{sizes(view, blocks)}, read as {read.slots} slot{'' if read.slots == 1 else 's'}"


def sizes(entry: Any, blocks: int) -> str:
    """Return the sizes of tensors, with n for the block count."""
    parts = entry if isinstance(entry, list) else [entry]
    return " + ".join(f"[{', '.join(counted(part.shape, blocks))}]" for part in parts)


def counted(shape: tuple[int, ...], blocks: int) -> list[str]:
    axis = 1 if len(shape) == 5 and shape[0] == 2 != blocks and shape[1] != 2 else 0
    pages, left = divmod(shape[axis], blocks)
    assert not left
    return [f"{pages if pages > 1 else ''}n" if i == axis else str(size) for i, size in enumerate(shape)]


def intervals(block: tuple[Interval, ...], base: int) -> str:
    return " and ".join(f"[{start - base:,}, {end - base:,})" for start, end in block)


def first_line(text: str) -> str:
    """Return the start of an error: what is wrong, without the numbers of a tensor."""
    for end in (" (shape", " -- ", " (only 'align'", "; group"):
        text = text.partition(end)[0]
    return text.splitlines()[0]


# ----------------------------------------------------------------------------------------------------------- the page


def tables() -> str:
    """Return the tables of the page."""
    found = rows()
    total = sum(1 for one in subjects() for _ in served(one))
    differing = sum(map(len, found.values()))
    same = f"Of {total:,} layers in {len(subjects())} registrations, {total - differing:,} get the same view from both."
    parts = [
        f"{same} The other {differing:,}:",
        "",
        *_counts(found),
    ]
    for kind, title in KINDS.items():
        of_kind = {one: where for one, where in found.items() if one.kind == kind}
        if of_kind:
            parts += ["", f"### {title}", "", *_table(of_kind)]
    parts += ["", "### What kvlayout refuses", "", "| registration | kvlayout | LMCache |", "|---|---|---|"]
    parts += [f"| {one.name} | {', '.join(one.codes)} | {one.theirs} |" for one in refusals()]
    return "\n".join(parts) + "\n"


def _counts(found: Mapping[Row, list[tuple[str, str]]]) -> Iterator[str]:
    yield "| difference | layers | registrations |"
    yield "|---|---|---|"
    for kind, title in KINDS.items():
        places = [place for one, where in found.items() if one.kind == kind for place in where]
        if places:
            yield f"| {title} | {len(places):,} | {len({name for name, _ in places})} |"


def _table(found: Mapping[Row, list[tuple[str, str]]]) -> Iterator[str]:
    """Yield a row a difference: the first registration that has it, and how many more have."""
    yield "| where | kind | registered | LMCache's view | its bytes of block 1 | the engine's | ours | our view |"
    yield "|---|---|---|---|---|---|---|---|"
    for one, where in sorted(found.items(), key=lambda item: (item[0].family, item[1][0], item[0])):
        names = list(dict.fromkeys(name for name, _ in where))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        layers = f"{len(where)} layer{'' if len(where) == 1 else 's'}"
        yield f"| {names[0]}{more} ({layers}) | " + " | ".join(one[1:]) + " |"


def written(page: str) -> str:
    """Return a page with the tables of now."""
    head, _, rest = page.partition(START)
    _, end, tail = rest.partition(END)
    assert end, f"the page has no place for the tables: {START}{END}"
    return f"{head}{START}\n{tables()}\n{END}{tail}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    import_module("tests.conftest").prepare_engine()
    PAGE.write_text(written(PAGE.read_text()))
    sys.stdout.write(f"{PAGE}: {sum(map(len, rows().values()))} differences\n")
