"""Every refusal as data, and the one function that explains them.

>>> error = LayoutError(
...     Code.MISSING_LAYER, group=0, layer="model.layers.3.attn", expected="a cache tensor", actual="none"
... )
>>> print(explain(error))
the group lists a layer that registered no cache
>>> raise LayoutErrors((error,))
Traceback (most recent call last):
    ...
kvlayout.errors.LayoutErrors: 1 layout error
missing-layer: the group lists a layer that registered no cache
  where     group 0, layer model.layers.3.attn
  expected  a cache tensor
  actual    none
  to do     register a cache for every layer that a group lists, or remove the layer from the group
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvlayout.algebra.claims import Witness

__all__ = ["Code", "LayoutError", "LayoutErrors", "describe", "explain", "remedy"]


class Code(enum.Enum):
    """The codes of all refusals; the values are what JSON and users see."""

    UNSUPPORTED_CROSS_ATTENTION = "unsupported-cross-attention"
    UNSUPPORTED_MAMBA_MODE = "unsupported-mamba-mode"
    UNSUPPORTED_SPEC = "unsupported-spec"
    UNSUPPORTED_LAYOUT = "unsupported-layout"
    MISSING_LAYER = "missing-layer"
    UNKNOWN_LAYER = "unknown-layer"
    LAYER_IN_TWO_GROUPS = "layer-in-two-groups"
    GRANULARITY_MISMATCH = "granularity-mismatch"
    NOT_DIVISIBLE = "not-divisible"
    PAGE_BYTES_MISMATCH = "page-bytes-mismatch"
    PAGE_NOT_CONTIGUOUS = "page-not-contiguous"
    STATE_NOT_AT_PAGE_BASE = "state-not-at-page-base"
    STATE_STRIDE_MISMATCH = "state-stride-mismatch"
    STATE_ROW_UNTILEABLE = "state-row-untileable"
    STORAGES_DIFFER = "storages-differ"
    STORAGE_OVERRUN = "storage-overrun"
    PAGE_OVERLAP = "page-overlap"
    PLACEMENT_MISMATCH = "placement-mismatch"
    AXES_MISMATCH = "axes-mismatch"
    AXES_AMBIGUOUS = "axes-ambiguous"
    MISSING_LAYOUT_HINT = "missing-layout-hint"
    DTYPE_MISALIGNED = "dtype-misaligned"
    UNKNOWN_DTYPE = "unknown-dtype"
    RULE_NOT_PROVED = "rule-not-proved"
    RULE_CONFLICT = "rule-conflict"
    RULE_LOAD_FAILED = "rule-load-failed"
    STALE_PLAN = "stale-plan"
    BAD_DOCUMENT = "bad-document"
    BAD_CONFIG = "bad-config"
    BAD_BLOCK_IDS = "bad-block-ids"
    RANKS_DISAGREE = "ranks-disagree"
    WITNESS_FAILED = "witness-failed"


@final
@frozen
class LayoutError:
    """Why a layer, a group or a document is refused.

    Attributes:
        code: what kind of refusal.
        group: index of the group, where it concerns one.
        layer: name of the layer, where it concerns one.
        expected: what the engine's own numbers call for.
        actual: what was found.
        fix: what the user can change; :func:`remedy` of the code unless a better one is known.
        witness: a block count, an index and the bytes there, where the prover found one.
        path: the place in a document or configuration.
        layers: the layers that meet, for ``page-overlap``.
    """

    code: Code
    group: int | None = None
    layer: str | None = None
    expected: str = ""
    actual: str = ""
    fix: str = ""
    witness: Witness | None = None
    path: str = ""
    layers: tuple[str, ...] = ()


@final
class LayoutErrors(ValueError):  # noqa: N818 - the name is part of the contract: it carries many
    """All refusals of one registration, document or plan, as ``.errors``."""

    def __init__(self, errors: Iterable[LayoutError]) -> None:
        self.errors: tuple[LayoutError, ...] = tuple(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        """Print them grouped by code, the place and the remedy with each."""
        count = len(self.errors)
        blocks = [f"{count} layout error{'' if count == 1 else 's'}"]
        order = {code: i for i, code in enumerate(dict.fromkeys(e.code for e in self.errors))}
        blocks += [describe(error) for error in sorted(self.errors, key=lambda e: order[e.code])]
        return "\n".join(blocks)


def place(error: LayoutError) -> str:
    """Return where an error is, in words.

    >>> place(LayoutError(Code.UNKNOWN_LAYER, layer="draft.attn"))
    'layer draft.attn'
    """
    parts = []
    if error.group is not None:
        parts.append(f"group {error.group}")
    if error.layer is not None:
        parts.append(f"layer {error.layer}")
    if error.layers:
        parts.append("layers " + ", ".join(error.layers))
    if error.path:
        parts.append(f"at {error.path}")
    return ", ".join(parts) or "the registration"


def describe(error: LayoutError) -> str:
    """Return an error as a few aligned lines: what, where, expected, actual, witness, what to do."""
    rows = [("where", place(error)), ("expected", error.expected), ("actual", error.actual)]
    if error.witness is not None:
        rows.append(("witness", show_witness(error.witness)))
    rows.append(("to do", error.fix or remedy(error.code)))
    lines = [f"{error.code.value}: {explain(error)}"]
    lines += [f"  {label:<9} {text}" for label, text in rows if text]
    return "\n".join(lines)


def show_witness(witness: Witness) -> str:
    """Return a counter-example as a sentence.

    >>> from kvlayout.algebra.claims import Witness
    >>> show_witness(Witness(blocks=3, index=17, expected=None, actual=34816))
    'with 3 blocks, index 17 is byte 34816, not no byte'
    """
    actual, expected = ("no byte" if byte is None else f"byte {byte}" for byte in (witness.actual, witness.expected))
    return f"with {witness.blocks} blocks, index {witness.index} is {actual}, not {expected}"


def explain(error: LayoutError) -> str:  # noqa: C901, PLR0911, PLR0912 - one exhaustive match, one sentence a code
    """Return what an error means, in one sentence; its place, its numbers and its remedy are fields of their own.

    >>> explain(LayoutError(Code.MISSING_LAYER, group=0, layer="model.layers.3.self_attn.attn"))
    'the group lists a layer that registered no cache'
    """
    match error.code:
        case Code.UNSUPPORTED_CROSS_ATTENTION:
            return "encoder-decoder caches are keyed by encoder input and can't be stored by block id"
        case Code.UNSUPPORTED_MAMBA_MODE:
            return "this cache mode keeps no reusable state for each block"
        case Code.UNSUPPORTED_SPEC:
            return "no one here knows what this cache spec means, so its pages can't be vouched for"
        case Code.UNSUPPORTED_LAYOUT:
            return "this layout puts the blocks of one head together, so a page is many intervals"
        case Code.MISSING_LAYER:
            return "the group lists a layer that registered no cache"
        case Code.UNKNOWN_LAYER:
            return "a registered cache belongs to no group and is no alias of a layer that does"
        case Code.LAYER_IN_TWO_GROUPS:
            return "two groups list the layer, so its block ids are not one sequence"
        case Code.GRANULARITY_MISMATCH:
            return "the tensor is not paged by the block ids of its group"
        case Code.NOT_DIVISIBLE:
            return "the numbers do not divide into whole parts"
        case Code.PAGE_BYTES_MISMATCH:
            return "the bytes of a block are not the page that the spec declares"
        case Code.PAGE_NOT_CONTIGUOUS:
            return "the bytes of one block are not one interval (or one interval a plane)"
        case Code.STATE_NOT_AT_PAGE_BASE:
            return "the first state does not start its page, or the page would run into the next block"
        case Code.STATE_STRIDE_MISMATCH:
            return "the distance between the blocks of a state does not fit its page"
        case Code.STATE_ROW_UNTILEABLE:
            return "no aligned width a token covers the state row inside the layer's own page"
        case Code.STORAGES_DIFFER:
            return "the parts of one page lie in different storages"
        case Code.STORAGE_OVERRUN:
            return "the view would reach beyond its storage"
        case Code.PAGE_OVERLAP:
            return "two layers share bytes under block ids that can be in use together"
        case Code.PLACEMENT_MISMATCH:
            return "the tensor is not where the engine's placement says its pages are"
        case Code.AXES_MISMATCH:
            return "the tensor's shape is no reading of its spec"
        case Code.AXES_AMBIGUOUS:
            return "two readings fit, and nothing that the engine declares decides between them"
        case Code.MISSING_LAYOUT_HINT:
            return "the form of the view depends on the layout, and neither hint nor layout name is given"
        case Code.DTYPE_MISALIGNED:
            return "the item size does not divide an offset or a stride"
        case Code.UNKNOWN_DTYPE:
            return "the element type is unknown, so bytes can't be counted"
        case Code.RULE_NOT_PROVED:
            return "a rule's view is not proved for this layer"
        case Code.RULE_CONFLICT:
            return "two rules have one name, or a rule can never be reached"
        case Code.RULE_LOAD_FAILED:
            return "a rule package could not be loaded"
        case Code.STALE_PLAN:
            return "the plan is not about these tensors"
        case Code.BAD_DOCUMENT:
            return "the document is not a registration that can be read"
        case Code.BAD_CONFIG:
            return "the configuration is not one that can be read"
        case Code.BAD_BLOCK_IDS:
            return "a block id is no block of the view, or comes twice, or the data are not those of the blocks"
        case Code.RANKS_DISAGREE:
            return "two ranks plan different pages"
        case Code.WITNESS_FAILED:
            return "a counter-example did not re-evaluate: please report this as a bug of kvlayout"


def remedy(code: Code) -> str:
    """Return what a user can change, for want of a better idea from the place of the error."""
    return _REMEDIES.get(code, "send the registration document with a bug report")


_REMEDIES = {
    Code.UNSUPPORTED_CROSS_ATTENTION: "serve this model without the external store",
    Code.UNSUPPORTED_MAMBA_MODE: "use --mamba-cache-mode align (with prefix caching on)",
    Code.UNSUPPORTED_SPEC: "update kvlayout, or pass a rule and a spec for it",
    Code.UNSUPPORTED_LAYOUT: "set VLLM_KV_CACHE_LAYOUT=LBNHC (or LBHNC, BLNHC, BLHNC)",
    Code.MISSING_LAYER: "register a cache for every layer that a group lists, or remove the layer from the group",
    Code.UNKNOWN_LAYER: "list the layer in a group, or leave it out of the registered caches",
    Code.LAYER_IN_TWO_GROUPS: "list each layer in one group",
    Code.GRANULARITY_MISMATCH: "set --block-size to the block size that the tensors are paged at",
    Code.NOT_DIVISIBLE: "set --block-size to a multiple of the kernel block size",
    Code.PAGE_BYTES_MISMATCH: "check page_size_bytes against the tensor: padded pages can't be split into kernel pages",
    Code.PAGE_NOT_CONTIGUOUS: "set VLLM_KV_CACHE_LAYOUT=LBNHC, or register the tensor whose pages are dense",
    Code.STATE_NOT_AT_PAGE_BASE: "register the first state at the start of its page",
    Code.STATE_STRIDE_MISMATCH: "give all states of a layer one block stride, of at least its page",
    Code.STATE_ROW_UNTILEABLE: "use --presentation bytes, or pad the page (a larger --block-size)",
    Code.STORAGES_DIFFER: "register the states of a layer over one storage",
    Code.STORAGE_OVERRUN: "check the block count against the storage that was allocated",
    Code.PAGE_OVERLAP: "give layers of one group windows of their own in the block",
    Code.PLACEMENT_MISMATCH: "register the tensors that belong to this placement",
    Code.AXES_MISMATCH: "check that spec and tensor are of the same layer",
    Code.AXES_AMBIGUOUS: "use another block count, or an engine version that declares its placement",
    Code.MISSING_LAYOUT_HINT: "pass layout_hints={'kv_layout': 'NHD'} or 'HND'",
    Code.DTYPE_MISALIGNED: "use --presentation bytes",
    Code.UNKNOWN_DTYPE: "update kvlayout, or register the tensor as int8",
    Code.RULE_NOT_PROVED: "report it to the rule's author; the layer is served without the rule if it is removed",
    Code.RULE_CONFLICT: "remove or rename one of the rules",
    Code.RULE_LOAD_FAILED: "repair or uninstall the package that declares the rule",
    Code.STALE_PLAN: "plan again from the registration of these tensors",
    Code.BAD_DOCUMENT: "write the document with kvlayout.engines.vllm.dump",
    Code.BAD_CONFIG: "check the field that is named",
    Code.BAD_BLOCK_IDS: "pass block ids from 0 up to the block count, each once where blocks are written",
}
