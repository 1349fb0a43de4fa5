"""vLLM's objects become registrations: without vLLM and torch, over the class shapes of 0.22 to 0.33."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, make_dataclass, replace
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.algebra.result import Err, Ok
from kvlayout.cache.registration import Placement, Registration
from kvlayout.cache.spec import AttentionSpec, LatentSpec, RawSpec, StateSpec, UniformSpec, UnknownSpec
from kvlayout.engines.specs import plain, spec_facts
from kvlayout.engines.vllm import dump, registration
from kvlayout.errors import Code
from tests.engines import fakes

DATA = Path(__file__).parents[1] / "data"
DOCUMENTS = sorted([*DATA.glob("registrations/*.json"), *DATA.glob("cases/*.json")])


@dataclass(frozen=True)
class FullAttentionSpec:
    """As in 0.22: no heads, states or content of its own."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: object
    page_size_padded: int | None = None
    sliding_window: int | None = None

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or 2 * self.block_size * self.num_kv_heads * self.head_size * 2


class KVCacheLayout(Enum):
    BLNHC = (1, 0, 3, 2, 4)


class KVQuantMode(IntEnum):
    NVFP4 = 5


class SparseCacheRole(str, Enum):  # noqa: UP042 - as vLLM has it, so that it prints as its member's name
    INDEXER = "indexer"


LLAMA = FullAttentionSpec(128, 8, 128, fakes.DTYPES["bfloat16"])


def one_group(spec: object, layers: int = 1, **changes: Any) -> fakes.Config:
    names = [f"layers.{i}" for i in range(layers)]
    return replace(fakes.Config(4, [], [fakes.Group(names, spec)]), **changes)


def read(config: object, caches: Any = None, hints: Any = None, **options: Any) -> Registration:
    result = registration(config, caches or {}, hints, **{"engine_version": "0.32.0", "platform": "cuda"} | options)
    assert isinstance(result, Ok), result
    return result.value


def faults(config: object, caches: Any = None, hints: Any = None) -> list[tuple[str, str, str]]:
    result = registration(config, caches or {}, hints, engine_version="", platform="")
    assert isinstance(result, Err)
    assert {error.code for error in result.error.errors} == {Code.BAD_CONFIG}
    return [(error.path, error.expected, error.actual) for error in result.error.errors]


def only_spec(spec: object) -> Any:
    return read(one_group(spec)).groups[0].spec


# ------------------------------------------------------------------------------------------------ captured documents


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_rebuilt_objects_register_as_their_document(path: Path) -> None:
    text = path.read_text()
    document = json.loads(text)
    hints = {"kv_layout": document["layout_hint"], "num_kv_heads": 3}
    engine = document["engine"]
    live = registration(
        fakes.config(document),
        fakes.caches(document),
        hints,
        engine_version=engine["version"],
        platform=engine["platform"],
        dcp=engine.get("dcp", 1),
        name=document["name"],
    )
    expected = Registration.from_json(text).unwrap()
    assert live == Ok(with_kinds_of_classes(expected))
    assert list(live.unwrap().caches) == list(expected.caches)


def with_kinds_of_classes(registration: Registration) -> Registration:
    """A fake uniform group has no vLLM to ask for the kind of its members."""
    groups = tuple(
        attrs.evolve(group, spec=attrs.evolve(group.spec, kind="unknown")) if group.leaves else group
        for group in registration.groups
    )
    return attrs.evolve(registration, groups=groups)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_a_dump_reads_back_as_the_registration_of_the_same_objects(path: Path, tmp_path: Path) -> None:
    document = json.loads(path.read_text())
    config, caches = fakes.config(document), fakes.caches(document)
    hints = {"kv_layout": document["layout_hint"] or "none"}
    text = dump(config, caches, hints, engine_version="0.32.0", file=tmp_path / "dump.json", dcp=2)
    assert Registration.from_json(text) == registration(config, caches, hints, engine_version="0.32.0", dcp=2)
    assert (tmp_path / "dump.json").read_text() == text + "\n"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_a_dump_has_the_fields_of_the_captured_document(path: Path) -> None:
    document = json.loads(path.read_text())
    dumped = json.loads(dump(fakes.config(document), fakes.caches(document), {"kv_layout": document["layout_hint"]}))
    for key in ("num_blocks", "kv_cache_layout", "layout_hint", "placements", "caches"):
        assert dumped[key] == document[key]
    for ours, theirs in zip(dumped["groups"], document["groups"], strict=True):
        assert ours == {"layer_specs": {}} | theirs | {"spec": ours["spec"]}
        assert ours["spec"] == theirs["spec"] | ({"kind": "unknown"} if theirs.get("layer_specs") else {}) | {
            "derived": ours["spec"]["derived"]
        }
        assert ours["spec"]["derived"].items() >= theirs["spec"]["derived"].items()


# --------------------------------------------------------------------------------------------------------- versions


def test_0_22_has_tensors_without_offset_and_specs_without_states() -> None:
    config = fakes.OldConfig(4, [fakes.OldestTensor(65536, ["a", "b"])], [fakes.OldGroup(["a", "b"], LLAMA)])
    made = read(config)
    assert made.placements == (Placement(("a", "b"), 65536, None, None, None),)
    assert made.kv_cache_layout is None
    group = made.groups[0]
    assert (group.draft, group.host_resident, group.transferable, group.leaves) == (False, False, True, {})
    assert isinstance(group.spec, AttentionSpec)
    assert (group.spec.page_bytes, group.spec.heads, group.spec.states) == (128 * 8 * 128 * 4, 8, 128)
    assert group.spec.kind == "full_attention"


def test_a_block_stride_of_0_is_no_packed_pool_before_0_29() -> None:
    tensors = [fakes.SharedTensor(64, ["a"]), fakes.SharedTensor(64, ["b"], offset=16, block_stride=32)]
    made = read(fakes.OldConfig(2, tensors))
    assert made.placements == (Placement(("a",), 64, 0, None, None), Placement(("b",), 64, 16, None, 32))


def test_since_0_29_a_tensor_places_its_layers() -> None:
    made = read(fakes.Config(2, [fakes.PlacedTensor(96, ["a", "b"], 32, 16, 32)], kv_cache_layout="LBNHC"))
    assert made.placements == (Placement(("a", "b"), 96, 32, 32, 16),)
    assert made.kv_cache_layout == "LBNHC"


def test_compression_of_old_and_new_versions() -> None:
    fields = {"block_size": 256, "num_kv_heads": 1, "head_size": 512, "dtype": "torch.bfloat16", "head_size_v": 0}
    old = make_dataclass("MLAAttentionSpec", [*fields, "compress_ratio", "storage_block_size"])
    new = make_dataclass("MLAAttentionSpec", [*fields, "tokens_per_state"])
    compressed = only_spec(old(**fields, compress_ratio=4, storage_block_size=64))
    assert isinstance(compressed, LatentSpec)
    assert compressed == only_spec(new(**fields, tokens_per_state=4))
    assert (compressed.states, compressed.tokens_per_state) == (64, (4, 1))
    assert only_spec(new(**fields, tokens_per_state=Fraction(1, 4))).tokens_per_state == (1, 4)
    assert only_spec(new(**fields, tokens_per_state=Fraction(4))).tokens_per_state == (4, 1)


def test_a_layout_is_an_enumeration_or_its_name() -> None:
    for layout in (KVCacheLayout.BLNHC, "BLNHC"):
        assert read(one_group(LLAMA, kv_cache_layout=layout)).kv_cache_layout == "BLNHC"


def test_flags_of_a_group() -> None:
    groups = [
        fakes.Group(["a"], LLAMA, is_eagle_group=True),
        fakes.Group(["b"], LLAMA, host_resident=True),
        fakes.Group(["c"], LLAMA, enable_kv_transfer=False),
    ]
    flags = [(g.draft, g.host_resident, g.transferable) for g in read(fakes.Config(4, [], groups)).groups]
    assert flags == [(True, False, True), (False, True, True), (False, False, False)]


def test_a_group_is_on_the_host_where_its_tensor_is() -> None:
    host = SimpleNamespace(size=64, layers=["b", "c"], layer_stride=8, block_stride=8, offset=0, host_resident=True)
    groups = [fakes.Group([name], LLAMA) for name in "abc"]
    made = read(fakes.Config(4, [fakes.PlacedTensor(64, ["a"], 8, 8), host], groups))
    assert [group.host_resident for group in made.groups] == [False, True, True]


def test_layers_that_share_a_cache_are_passed_on_in_order() -> None:
    kv = fakes.Tensor([4, 2, 16, 128], [4096, 2048, 128, 1], 0, "bfloat16", fakes.Storage(4096, 32768))
    made = read(one_group(LLAMA), {"shared.late": kv, "layers.0": kv, "shared": [kv, kv]})
    assert list(made.caches) == ["shared.late", "layers.0", "shared"]
    assert made.caches["shared"] == (made.caches["layers.0"],) * 2


# ------------------------------------------------------------------------------------------------------------ specs


def uniform(leaves: dict[str, object]) -> object:
    made = make_dataclass("UniformTypeKVCacheSpecs", ["block_size", "kv_cache_specs"])
    return made(128, leaves)


def test_a_uniform_group_is_taken_apart_in_the_order_of_its_layers() -> None:
    small = replace(LLAMA, head_size=64)
    config = fakes.Config(4, [], [fakes.Group(["b", "a"], uniform({"a": LLAMA, "b": small, "elsewhere": LLAMA}))])
    group = read(config).groups[0]
    assert isinstance(group.spec, UniformSpec)
    assert list(group.leaves) == ["b", "a"]
    assert [getattr(leaf, "head_size", 0) for leaf in group.leaves.values()] == [64, 128]


def test_a_uniform_group_without_the_spec_of_a_layer_is_a_fault() -> None:
    config = fakes.Config(4, [], [fakes.Group(["a", "b"], uniform({"a": LLAMA}))])
    path = "kv_cache_groups[0].kv_cache_spec.kv_cache_specs['b']"
    assert faults(config) == [(path, "a spec for each layer", "nothing")]


def test_equal_specs_become_one_value() -> None:
    specs = [LLAMA, replace(LLAMA), replace(LLAMA, head_size=64), replace(LLAMA)]
    made = read(fakes.Config(4, [], [fakes.Group([str(i)], spec) for i, spec in enumerate(specs)]))
    first, second, other, last = (group.spec for group in made.groups)
    assert first is second is last
    assert first is not other
    assert first != other


def test_equal_fields_of_another_class_are_another_spec() -> None:
    window = type("SlidingWindowSpec", (FullAttentionSpec,), {})(128, 8, 128, fakes.DTYPES["bfloat16"])
    made = read(fakes.Config(4, [], [fakes.Group(["a"], LLAMA), fakes.Group(["b"], window)]))
    assert [group.spec.type for group in made.groups] == ["FullAttentionSpec", "SlidingWindowSpec"]


@dataclass(frozen=True, slots=True)
class Slotted(FullAttentionSpec):
    """A plug-in's class: its own fields and those of its base are slots, and its dict is empty."""

    rank: int = 0


class PartlySlotted(FullAttentionSpec):
    """A plug-in's class: what its page is padded to is in a slot, and all else in its dict."""

    __slots__ = ("padding",)
    padding: int

    def __init__(self, padding: int) -> None:
        super().__init__(128, 8, 128, fakes.DTYPES["bfloat16"])
        object.__setattr__(self, "padding", padding)

    @property
    def page_size_bytes(self) -> int:
        return 2 * 128 * 8 * 128 * 2 + self.padding


def test_specs_that_keep_fields_in_slots_are_told_apart() -> None:
    specs = [Slotted(128, heads, 128, fakes.DTYPES["bfloat16"]) for heads in (8, 4)]
    made = read(fakes.Config(4, [], [fakes.Group([str(i)], spec) for i, spec in enumerate(specs)]))
    found: list[Any] = [group.spec for group in made.groups]
    assert [spec.heads for spec in found] == [8, 4]
    made = read(fakes.Config(4, [], [fakes.Group([str(i)], PartlySlotted(i)) for i in (0, 4096)]))
    assert [group.spec.page_bytes for group in made.groups] == [524288, 528384]


class Prickly:
    """A value that refuses to be compared, as arrays do."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")


def test_specs_that_refuse_to_be_compared_are_read_one_by_one() -> None:
    def odd() -> SimpleNamespace:
        return SimpleNamespace(block_size=16, weight=Prickly())

    made = read(fakes.Config(4, [], [fakes.Group(["a"], odd()), fakes.Group(["b"], odd())]))
    assert all(isinstance(group.spec, UnknownSpec) for group in made.groups)


def test_a_plug_in_class_is_read_as_the_class_it_derives_from() -> None:
    special = type("SpecialAttentionSpec", (FullAttentionSpec,), {})(128, 8, 128, fakes.DTYPES["bfloat16"])
    spec = only_spec(special)
    assert (type(spec), spec.type) == (AttentionSpec, "SpecialAttentionSpec")


@attrs.frozen
class HiSparseHotSpec:
    block_size: int
    page_size: int
    has_layer_views = False


@dataclass(frozen=True, slots=True)
class MambaSpec:
    block_size: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[object, ...]
    mamba_cache_mode: str = "align"


class MLAAttentionSpec:
    __slots__ = ("block_size", "dtype", "head_size", "unset")

    def __init__(self) -> None:
        self.block_size, self.head_size, self.dtype = 64, 576, fakes.DTYPES["bfloat16"]


def test_fields_of_attrs_classes_slotted_dataclasses_and_plain_slots() -> None:
    hot = only_spec(HiSparseHotSpec(64, 4096))
    assert isinstance(hot, RawSpec)
    assert (hot.page_bytes, hot.has_layer_views) == (4096, False)
    mamba = only_spec(MambaSpec(128, ((3, 512), (4, 64, 64)), (fakes.DTYPES["bfloat16"], fakes.DTYPES["float32"])))
    assert isinstance(mamba, StateSpec)
    assert (mamba.content_bytes, mamba.cache_mode) == (68608, "align")
    latent = only_spec(MLAAttentionSpec())
    assert isinstance(latent, LatentSpec)
    assert latent.content_bytes == 1152


@pytest.mark.parametrize("padded", [None, 300_000])
def test_the_bytes_of_rows_are_vllms_own_word_in_any_quantisation(padded: int | None) -> None:
    """A mode may keep scales beside the values, which no declared field says: 128 + 4 bytes a half of a head's row."""

    @dataclass(frozen=True)
    class Scaled(FullAttentionSpec):
        state_content_bytes: int | None = None
        state_content_size_bytes = 264
        page_size_bytes = property(lambda self: self.page_size_padded or 8 * 128 * 264)

    Scaled.__name__ = "FullAttentionSpec"
    spec = read(one_group(Scaled(128, 8, 128, fakes.DTYPES["uint8"], padded))).groups[0].spec
    assert isinstance(spec, AttentionSpec)
    assert (spec.content_bytes, spec.page_bytes) == (264, padded or 270_336)
    assert not spec.proves_reading


def test_cached_properties_are_no_fields() -> None:
    spec = replace(LLAMA)
    vars(spec)["cached"] = 7
    assert "cached" not in spec_facts(spec).fields


def test_a_computed_value_that_raises_or_is_no_number_is_absent() -> None:
    class Broken(FullAttentionSpec):
        num_states = property(lambda _: 1 // 0)

        def num_heads(self) -> int:
            return 8

    facts = spec_facts(Broken(128, 8, 128, "bfloat16"))
    assert facts.derived == {"page_size_bytes": 524288}
    assert facts.bases == ["FullAttentionSpec"]


def test_values_as_json_has_them() -> None:
    assert [
        plain(v) for v in (KVQuantMode.NVFP4, SparseCacheRole.INDEXER, fakes.DTYPES["int8"], Fraction(3, 2), 1.5)
    ] == [
        "NVFP4",
        "INDEXER",
        "int8",
        [3, 2],
        1.5,
    ]
    assert plain({"a": (float("nan"), None, True)}) == {"a": ["nan", None, True]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.fractions() | st.binary(max_size=3),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text() | st.integers(), items, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_value_can_be_written(value: object) -> None:
    text = json.dumps(plain(value), allow_nan=False)
    assert plain(json.loads(text)) == json.loads(text)


# ------------------------------------------------------------------------------------------------- the environment


@pytest.mark.parametrize("hint", [None, "none"])
def test_a_hint_of_none_is_absent(hint: object) -> None:
    for hints in ({"kv_layout": hint}, {}, None):
        assert read(one_group(LLAMA), hints=hints).layout_hint is None


@pytest.mark.parametrize("hint", ["NHD", "HND", "BLNHC", "BLHNC"])
def test_a_known_hint_is_kept(hint: str) -> None:
    assert read(one_group(LLAMA), hints={"kv_layout": hint}).layout_hint == hint


def test_version_and_platform_are_found_where_they_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = ModuleType("vllm")
    vllm.__dict__["__version__"] = "0.28.0+cu130"
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    kv = fakes.Tensor([4], [1], 0, "int8", fakes.Storage(4096, 4))
    for entry in (kv, [kv]):
        engine = registration(one_group(LLAMA), {"layers.0": entry}, dcp=2).unwrap().engine
        assert engine == ("vllm", "0.28.0+cu130", "cuda", 2)
    monkeypatch.delitem(sys.modules, "vllm")
    assert registration(one_group(LLAMA), {}).unwrap().engine == ("vllm", "", "", 1)


def test_vllms_word_for_the_kind_is_asked_only_about_its_own_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.v1.kv_cache_interface")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert spec_facts(LLAMA).kind is None
    module.__dict__.update(KVCacheSpec=FullAttentionSpec, get_kv_cache_spec_kind=lambda _: SimpleNamespace(value="odd"))
    assert spec_facts(LLAMA).kind == "odd"
    assert spec_facts(MLAAttentionSpec()).kind is None
    module.__dict__["get_kv_cache_spec_kind"] = lambda spec: spec.no_such_attribute
    assert spec_facts(LLAMA).kind is None


# ----------------------------------------------------------------------------------------------------------- faults


def test_every_fault_is_reported_at_once() -> None:
    bad = replace(LLAMA, block_size=0)
    config = fakes.Config(
        0,
        [SimpleNamespace(size=1, offset=0), SimpleNamespace(shared_by=["a"]), fakes.PlacedTensor(8, ["a"], True, -1)],
        [SimpleNamespace(), fakes.Group(["a"], bad), fakes.Group(["a", "b"], uniform({"a": LLAMA, "b": bad}))],
        "HDN",
    )
    caches = {"a": 7, "b": [fakes.DTYPES], "c": []}
    assert faults(config, caches, {"kv_layout": "LBNHC"}) == [
        ("kv_cache_config.num_blocks", "a whole number from 1", "0"),
        ("kv_cache_tensors[0].layers", "a list", "nothing"),
        ("kv_cache_tensors[0].layer_stride", "a whole number from 0", "nothing"),
        ("kv_cache_tensors[0].block_stride", "a whole number from 0", "nothing"),
        ("kv_cache_tensors[1].size", "a whole number from 0", "nothing"),
        ("kv_cache_tensors[2].layer_stride", "a whole number from 0", "True"),
        ("kv_cache_tensors[2].block_stride", "a whole number from 0", "-1"),
        ("kv_caches['a']", "a tensor or a list of tensors", "7"),
        ("kv_caches['b']", "a tensor or a list of tensors", f"{[fakes.DTYPES]!r}"[:57] + "..."),
        ("kv_caches['c']", "a tensor or a list of tensors", "[]"),
        ("kv_cache_config.kv_cache_layout", "one of LBHNC, LBNHC, LHBNC, BLHNC, BLNHC, BHLNC, NHD, HND", "'HDN'"),
        ("layout_hints.kv_layout", "one of NHD, HND, BLNHC, BLHNC", "'LBNHC'"),
        ("kv_cache_groups[0].layer_names", "a list", "nothing"),
        ("kv_cache_groups[0].kv_cache_spec", "a spec", "nothing"),
        ("kv_cache_groups[1].kv_cache_spec.block_size", "a whole number from 1", "0"),
        ("kv_cache_groups[2].kv_cache_spec.kv_cache_specs['b'].block_size", "a whole number from 1", "0"),
    ]


def test_a_fault_of_a_spec_names_its_group_and_layer() -> None:
    bad = replace(LLAMA, block_size=0)
    result = registration(fakes.Config(4, [], [fakes.Group(["a"], uniform({"a": bad}))]), {})
    assert isinstance(result, Err)
    assert [(error.group, error.layer) for error in result.error.errors] == [(0, "a")]


def test_a_configuration_of_nothing_is_three_faults() -> None:
    assert [path for path, _, _ in faults(None)] == [
        "kv_cache_config.num_blocks",
        "kv_cache_config.kv_cache_tensors",
        "kv_cache_config.kv_cache_groups",
    ]


def test_a_dump_needs_a_configuration() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_config\.num_blocks"):
        dump(None, {})


def test_a_dump_keeps_what_a_registration_refuses() -> None:
    config = one_group(replace(LLAMA, head_size=-1))
    document = json.loads(dump(config, {}, {"kv_layout": "HDN"}))
    assert document["layout_hint"] == "HDN"
    assert document["groups"][0]["spec"]["fields"]["head_size"] == -1
    assert document["groups"][0]["spec"]["kind"] == "unknown"
