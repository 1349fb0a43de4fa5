"""The facts of live tensors, without importing torch: only the tensors' own methods are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.reading import plain_dtype
from kvlayout.cache.registration import Entry, RegisteredTensor
from kvlayout.errors import Code, LayoutError, LayoutErrors

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "LiveCaches",
    "LiveStorage",
    "LiveTensor",
    "device_type",
    "entry_document",
    "facts",
    "read_caches",
    "shown",
]


class LiveStorage(Protocol):
    """What is read of a storage."""

    def data_ptr(self) -> int: ...  # noqa: D102 - torch's
    def nbytes(self) -> int: ...  # noqa: D102 - torch's


class LiveTensor(Protocol):
    """What is read of a tensor: ``torch.Tensor`` has it all."""

    @property
    def shape(self) -> Sequence[int]: ...  # noqa: D102 - torch's
    @property
    def dtype(self) -> object: ...  # noqa: D102 - torch's
    def stride(self) -> tuple[int, ...]: ...  # noqa: D102 - torch's
    def storage_offset(self) -> object: ...  # noqa: D102 - torch's
    def data_ptr(self) -> int: ...  # noqa: D102 - torch's
    def element_size(self) -> int: ...  # noqa: D102 - torch's
    def untyped_storage(self) -> LiveStorage: ...  # noqa: D102 - torch's


class _Concrete(LiveTensor, Protocol):
    """A tensor outside a compiler, whose offset is a number and no symbol."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def storage_offset(self) -> int: ...


#: What ``register_kv_caches`` is called with: layer name -> tensor, or the list of tensors of a recurrent layer.
LiveCaches: TypeAlias = Mapping[str, LiveTensor | Sequence[LiveTensor]]


def facts(kv_caches: LiveCaches) -> dict[str, Entry]:
    """Return the facts of live tensors, in less than a microsecond each.

    Sizes, strides and offsets are in elements, storages in bytes. Storages are numbered in the order in which they
    appear; one storage is one base address or, for tensors without memory (meta, fake, empty), one storage object.

    Raises:
        AttributeError: an entry is neither a tensor nor a list of tensors.
        TypeError: an entry is an empty list.

    >>> class Pool:
    ...     data_ptr, nbytes = lambda self: 4096, lambda self: 1024
    >>> class Keys:
    ...     shape, dtype, element_size = (4, 64), "torch.bfloat16", lambda self: 2
    ...     stride, storage_offset, data_ptr = lambda self: (128, 1), lambda self: 64, lambda self: 4096 + 2 * 64
    ...     untyped_storage = lambda self: Pool()
    >>> facts({"attn": Keys()})["attn"]
    RegisteredTensor(shape=(4, 64), strides=(128, 1), offset=64, dtype='bfloat16', storage=0, storage_nbytes=1024)
    """
    elements: dict[object, tuple[str, int]] = {}
    storages: dict[object, tuple[int, int]] = {}
    made, tensor_class, element = tuple.__new__, object, object()
    name, itemsize = "", 1
    found: dict[str, Entry] = {}
    for layer, entry in cast("Mapping[str, _Concrete]", kv_caches).items():
        if type(entry) is not tensor_class:  # isinstance of a tensor takes 80 ns, and it is nearly always one
            if isinstance(entry, list | tuple):
                if not entry:
                    raise TypeError(f"{layer}: an empty list of tensors")
                found[layer] = tuple(_one(part, elements, storages) for part in entry)
                continue
            tensor_class = type(entry)
        dtype, offset = entry.dtype, entry.storage_offset()
        if dtype is not element:  # neighbours are mostly alike
            name, itemsize = elements.get(dtype) or _element(elements, entry)
            element = dtype
        try:  # what _one does, without the calls: half of the layers' time would be calls
            known = storages.get(entry.data_ptr() - offset * itemsize)
        except Exception:  # noqa: BLE001 - no memory, where a tensor raises what its class likes
            known = None
        shape = entry.shape  # a tuple with a longer name: a copy of it takes 100 ns
        if known is None:
            known, shape = _storage(storages, entry), tuple(shape)
        storage, nbytes = known
        found[layer] = made(RegisteredTensor, (shape, entry.stride(), offset, name, storage, nbytes))
    return found


def read_caches(kv_caches: LiveCaches) -> Result[dict[str, Entry], LayoutErrors]:
    """Return the facts of live tensors, or a ``bad-config`` for each entry that has none.

    >>> [error.path for error in read_caches({"a": "no tensor", "b": []}).error.errors]
    ["kv_caches['a']", "kv_caches['b']"]
    """
    try:
        if all([issubclass(made, str) for made in {*map(type, kv_caches)}]):  # noqa: C419 - quicker
            return Ok(facts(kv_caches))
    except Exception:  # noqa: BLE001, S110 - what is no tensor raises what it likes
        pass
    faults = tuple(_unreadable(kv_caches))
    # No refusal without a reason: where each cache can be read by itself, what they raise together is not hidden.
    return Err(LayoutErrors(faults)) if faults else Ok(facts(kv_caches))


def _unreadable(kv_caches: object) -> Iterator[LayoutError]:
    if not isinstance(kv_caches, Mapping):
        yield _unread("kv_caches", "a mapping from layer names to tensors", type(kv_caches))
        return
    for layer, entry in kv_caches.items():
        path = f"kv_caches[{layer!r}]"
        if not isinstance(layer, str):
            yield _unread(path, "a text for a layer's name", layer)
            continue
        try:
            facts({layer: entry})
        except Exception:  # noqa: BLE001 - the same
            yield _unread(path, "a tensor or a list of tensors", entry, layer)


def _unread(path: str, expected: str, actual: object, layer: str | None = None) -> LayoutError:
    return LayoutError(Code.BAD_CONFIG, layer=layer, expected=expected, actual=shown(actual), path=path)


def shown(value: object) -> str:
    """Return what was found instead of something, in at most 60 characters.

    >>> shown(None), shown("3")
    ('nothing', "'3'")
    """
    try:
        text = "nothing" if value is None else repr(value)
    except Exception:  # noqa: BLE001 - of a foreign class
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _one(
    tensor: _Concrete, elements: dict[object, tuple[str, int]], storages: dict[object, tuple[int, int]]
) -> RegisteredTensor:
    """Return the facts of one tensor, entering its element type and its storage where they are new."""
    name, _ = elements.get(tensor.dtype) or _element(elements, tensor)
    storage, nbytes = _storage(storages, tensor)
    return RegisteredTensor(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), name, storage, nbytes)


def _element(elements: dict[object, tuple[str, int]], tensor: LiveTensor) -> tuple[str, int]:
    """Return the name and the size of a tensor's elements, entering what is new."""
    known = elements[tensor.dtype] = plain_dtype(str(tensor.dtype)), tensor.element_size()
    return known


def device_type(kv_caches: LiveCaches) -> str:
    """Return the kind of device of the first tensor (``cpu``, ``cuda``), ``""`` where there is none.

    >>> device_type({})
    ''
    """
    caches: object = kv_caches  # whoever calls may not know of types
    first: object = next(iter(caches.values()), None) if isinstance(caches, (dict, Mapping)) else None
    if isinstance(first, list | tuple):
        first = next(iter(first), None)
    return str(getattr(getattr(first, "device", None), "type", ""))


def entry_document(entry: Entry) -> object:
    """Return a layer's tensor, or its tensors, as the registration document has them.

    >>> entry_document(RegisteredTensor((4, 64), (64, 1), 0, "int8", 0, 256))["stride"]
    (64, 1)
    """
    if not isinstance(entry, RegisteredTensor):
        return [entry_document(part) for part in entry]
    keys = ("shape", "stride", "storage_offset", "dtype", "storage", "storage_nbytes")
    return dict(zip(keys, entry, strict=True))


def _storage(storages: dict[object, tuple[int, int]], tensor: LiveTensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    try:
        base = storage.data_ptr()
    except Exception:  # noqa: BLE001 - the same
        base = 0
    key = base or ("no memory", getattr(storage, "_cdata", id(storage)))
    return storages.setdefault(key, (len(storages), storage.nbytes()))
