"""The registration document: what users send with a bug report, and what ``kvlayout plan`` reads.

>>> match read_registration('{"format": "kvlayout/registration", "version": 1, "groups": [], "caches": {"a": []}}'):
...     case Err(refused):
...         [(error.path, error.expected, error.actual) for error in refused.errors]
[('caches.a', 'a tensor, or a list of at least one', 'an empty list')]
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from kvlayout.algebra.affine import Size, format_size
from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.members import Object
from kvlayout.cache.reading import MAX_RANK, FieldError, plain_dtype, read_spec
from kvlayout.cache.registration import Engine, Entry, Group, Placement, RegisteredTensor, Registration
from kvlayout.cache.spec import Spec, UniformSpec, UnknownSpec
from kvlayout.cache.strict_json import EnoughError, Notes, SkipError, parse, step
from kvlayout.cache.writing import FORMAT, VERSION, write_registration
from kvlayout.errors import LayoutErrors

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read_registration", "write_registration"]

_LAYOUTS: Final = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC", "NHD", "HND")
_HINTS: Final = ("NHD", "HND", "BLHNC", "BLNHC")


def read_registration(text: str | bytes) -> Result[Registration, LayoutErrors]:
    """Read a registration document; symbolic sizes are bound where the document has a block count.

    Args:
        text: the document, in UTF-8 where it is bytes.

    Returns:
        The registration, or ``bad-document`` errors, each with the path to the place (``$`` is the whole document).

    >>> registration = Registration(groups=(), caches={}, num_blocks=4096, name="empty")
    >>> read_registration(write_registration(registration)) == Ok(registration)
    True
    """
    notes = Notes()
    with suppress(SkipError, EnoughError):
        registration = _registration(Object(notes, "$", parse(text, notes)), notes)
        if not notes.faults:
            return Ok(registration)
    return Err(LayoutErrors(notes.faults))


def _registration(top: Object, notes: Notes) -> Registration:
    _check_format(top)
    notes.blocks = top.number("num_blocks", 1) if top.has("num_blocks") else None
    engine = top.optional("engine")
    return Registration(
        groups=tuple(_group(group) for group in top.objects("groups")),
        caches=_Caches(top, notes).read(),
        placements=tuple(_placement(p) for p in top.objects("placements")) if top.has("placements") else (),
        num_blocks=notes.blocks,
        kv_cache_layout=top.choice("kv_cache_layout", _LAYOUTS),
        layout_hint=top.choice("layout_hint", _HINTS),
        engine=Engine(
            name=engine.text("name", "vllm"),
            version=engine.text("version", ""),
            platform=engine.text("platform", ""),
            dcp=engine.number("dcp", 1, default=1),
        ),
        name=top.text("name", ""),
    )


def _check_format(top: Object) -> None:
    version = top.values.get("version")
    if top.values.get("format") != FORMAT:
        top.fault("format", f'"{FORMAT}"')
    if type(version) is not int or version != VERSION:
        top.fault("version", f"{VERSION}, the only version so far")
    if top.notes.faults:  # the members of another document would be judged by the wrong rules
        raise SkipError


def _placement(value: Object) -> Placement:
    numbers = (value.size(key) if value.has(key) else None for key in Placement._fields[1:])
    return Placement(value.texts("layers"), *numbers)


def _group(value: Object) -> Group:
    layers, own = value.texts("layers"), value.optional("layer_specs")
    spec = _spec(value, "spec")
    leaves = {layer: _spec(own, layer) for layer in dict.fromkeys(layers) if layer in own.values}
    if isinstance(spec, UniformSpec):
        for layer in layers:
            if layer not in leaves:
                own.fault(layer, "a spec for each layer of the group")
    return Group(
        layers=layers,
        spec=spec,
        leaves=leaves,
        draft=value.flag("draft", default=False),
        host_resident=value.flag("host_resident", default=False),
        transferable=value.flag("transferable", default=True),
    )


def _spec(owner: Object, key: str) -> Spec:
    """Read a spec. The numbers are judged by :func:`read_spec`, texts here: a live engine has objects for them."""
    notes = owner.notes
    before = len(notes.faults)
    try:
        value = owner.part(key)
        name, fields, derived = value.text("type"), value.part("fields"), value.optional("derived")
        bases = value.texts("bases") if value.has("bases") else ()
        kind = value.text("kind") if value.has("kind") else None
        for word in ("dtype", "cache_role", "mamba_cache_mode"):
            fields.text(word, "") if fields.has(word) else None
        if fields.has("dtypes"):
            fields.texts("dtypes")
        if len(notes.faults) == before:
            return read_spec(name, bases, kind, fields.values, derived.values)
    except FieldError as error:
        notes.fault(f"{step(owner.path, key)}.{error.path}", error.expected, error.actual)
    except SkipError:
        pass
    return UnknownSpec("", "", 0, 0, dcp_sharded=False, prefix_cacheable=False, has_layer_views=False)


class _Caches:
    """The cache tensors, and the storages that they share."""

    def __init__(self, top: Object, notes: Notes) -> None:
        self.caches, self.notes = top.part("caches"), notes
        self.numbers = _storage_numbers(self.caches.values)
        self.known: dict[int, tuple[str, Size]] = {}

    def read(self) -> dict[str, Entry]:
        """Return the entry of each layer."""
        made: dict[str, Entry] = {}
        for layer in self.caches.names():
            try:
                made[layer] = self.entry(layer)
            except SkipError:
                continue
        return made

    def entry(self, layer: str) -> Entry:
        """Return one layer's tensor, or the tensors of its states."""
        value = self.caches.values[layer]
        if not isinstance(value, list):
            return self.tensor(self.caches.part(layer))
        if not value:
            self.notes.stop(step(self.caches.path, layer), "a tensor, or a list of at least one", "an empty list")
        return tuple(self.tensor(part) for part in self.caches.objects(layer))

    def tensor(self, value: Object) -> RegisteredTensor:
        """Return the facts of one tensor."""
        before = len(self.notes.faults)
        shape, strides = value.sizes("shape", 1, MAX_RANK), value.sizes("stride", 0, MAX_RANK)
        if len(shape) != len(strides) and len(self.notes.faults) == before:
            self.notes.fault(value.path, "as many strides as axes", f"{len(strides)} strides, {len(shape)} axes")
        named = value.values.get("storage")
        return RegisteredTensor(
            shape,
            strides,
            value.size("storage_offset"),
            plain_dtype(value.text("dtype")),
            storage := self.numbers[named] if isinstance(named, str) else value.number("storage", 0),
            self.extent(value, storage),
        )

    def extent(self, value: Object, storage: int) -> Size | None:
        """Return the bytes of a storage, on which all its tensors must agree."""
        if not value.has("storage_nbytes"):
            return None
        before = len(self.notes.faults)
        extent = value.size("storage_nbytes")
        if len(self.notes.faults) > before:
            return None
        path, known = self.known.setdefault(storage, (value.path, extent))
        if extent != known:
            value.fault("storage_nbytes", f"{format_size(known)}, as {path} has it for the same storage")
        return extent


def _storage_numbers(caches: Mapping[str, object]) -> dict[str, int]:
    """Number the storages that are named by text, in order of appearance, past those that have a number."""
    parts = [part for entry in caches.values() for part in (entry if isinstance(entry, list) else [entry])]
    named = [part.get("storage") for part in parts if isinstance(part, dict)]
    taken = {storage for storage in named if isinstance(storage, int)}
    free = (number for number in count() if number not in taken)
    return {storage: next(free) for storage in dict.fromkeys(s for s in named if isinstance(s, str))}
