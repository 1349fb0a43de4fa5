from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlayout.algebra.affine import Affine, Size, parse_size
from kvlayout.algebra.result import Err, Ok
from kvlayout.cache.document import read_registration, write_registration
from kvlayout.cache.reading import LIMIT, FieldError, read_spec
from kvlayout.cache.registration import Engine, Entry, Group, Placement, RegisteredTensor, Registration
from kvlayout.cache.spec import AttentionSpec, LatentSpec, Spec, StateSpec, UniformSpec, UnknownSpec
from kvlayout.errors import Code, LayoutError, LayoutErrors

SAMPLES = sorted((Path(__file__).parents[1] / "data").glob("*/*.json"))
LATENT = "cases/sliding-latent-tiles.json"
STATES = "registrations/qwen35-align.json"
LISTS = "registrations/v025-qwen3next-align.json"
UNIFORM = "cases/uniform-unequal-pages.json"


def sample(name: str) -> Any:
    return json.loads((Path(__file__).parents[1] / "data" / name).read_text())


def read(document: Any) -> Registration:
    return read_registration(json.dumps(document)).unwrap()


def faults(text: str | bytes) -> tuple[LayoutError, ...]:
    result = read_registration(text)
    assert isinstance(result, Err)
    assert isinstance(result.error, LayoutErrors)
    assert result.error.errors
    for error in result.error.errors:
        assert error.code is Code.BAD_DOCUMENT
        assert error.path
        assert error.expected
        assert error.actual
        assert len(str(error)) < 2_000
    str(result.error).encode()
    return result.error.errors


def paths(document: Any) -> list[str]:
    return [error.path for error in faults(json.dumps(document))]


def put(document: Any, place: list[str | int], value: object) -> Any:
    """Return the document with one value replaced."""
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return document


# ------------------------------------------------------------------------------------------------- good documents


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_reads_and_round_trips(path: Path) -> None:
    registration = read_registration(path.read_bytes()).unwrap()
    document = json.loads(path.read_text())
    assert list(registration.caches) == list(document["caches"])
    assert [list(group.layers) for group in registration.groups] == [g["layers"] for g in document["groups"]]
    assert not any(isinstance(group.spec, UnknownSpec) for group in registration.groups)
    assert read_registration(write_registration(registration)) == Ok(registration)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_declared_page_and_content_is_kept(path: Path) -> None:
    registration = read_registration(path.read_bytes()).unwrap()
    for group, declared in zip(registration.groups, json.loads(path.read_text())["groups"], strict=True):
        derived = declared["spec"]["derived"]
        assert group.spec.page_bytes == derived["page_size_bytes"]
        if "state_content_size_bytes" in derived and isinstance(group.spec, AttentionSpec | LatentSpec | StateSpec):
            assert group.spec.content_bytes == derived["state_content_size_bytes"]


def test_methods_of_the_registration_read_and_write() -> None:
    text = json.dumps(sample(STATES))
    registration = Registration.from_json(text).unwrap()
    assert Registration.from_json(registration.to_json()) == Ok(registration)
    assert isinstance(Registration.from_json("{}"), Err)


def test_text_and_bytes_read_the_same() -> None:
    text = json.dumps(put(sample(LATENT), ["name"], "Schichten-Größe"), ensure_ascii=False)
    assert read_registration(text) == read_registration(text.encode())


def test_what_is_optional_may_be_absent() -> None:
    document = {
        "format": "kvlayout/registration",
        "version": 1,
        "groups": [
            {"layers": ["s"], "spec": {"type": "MambaSpec", "fields": sample(STATES)["groups"][0]["spec"]["fields"]}}
        ],
        "caches": {"s": {"shape": [], "stride": [], "storage_offset": 0, "dtype": "torch.int8", "storage": 0}},
    }
    registration = read(document)
    assert registration.engine == Engine()
    assert (registration.num_blocks, registration.kv_cache_layout, registration.layout_hint) == (None, None, None)
    assert registration.placements == ()
    group = registration.groups[0]
    assert (group.draft, group.host_resident, group.transferable, group.leaves) == (False, False, True, {})
    assert registration.caches["s"] == RegisteredTensor((), (), 0, "int8", 0, None)


def test_null_is_unknown_where_that_makes_sense() -> None:
    document = sample(LATENT)
    document |= {"num_blocks": None, "kv_cache_layout": None, "layout_hint": None, "engine": None}
    document["placements"] = [{"layers": ["s"], "size": None, "offset": 7}]
    document["groups"][0]["spec"] |= {"bases": None, "kind": None}
    document["caches"]["s"]["storage_nbytes"] = None
    registration = read(document)
    assert registration.placements == (Placement(("s",), None, 7, None, None),)
    assert registration.groups[0].spec.kind == "sliding_window_mla"
    document["placements"] = None
    assert read(document).placements == ()


def test_unknown_keys_are_ignored_at_every_level() -> None:
    document = sample(LATENT)
    expected = read(document)
    for inner in (
        document,
        document["engine"],
        document["groups"][0],
        document["groups"][0]["spec"],
        document["caches"]["s"],
    ):
        inner["from-the-future"] = [1.5, None, {"x": [[]]}]
    assert read(document) == expected


def test_the_cache_dtype_stays_text_even_where_nobody_knows_it() -> None:
    document = put(sample(LATENT), ["caches", "s", "dtype"], "torch.float3_e1m1")
    tensor = read(document).caches["s"]
    assert isinstance(tensor, RegisteredTensor)
    assert tensor.dtype == "float3_e1m1"


def test_symbolic_sizes_stay_symbolic_without_a_block_count() -> None:
    document = put(sample(LATENT), ["num_blocks"], None)
    document["caches"]["s"] |= {"shape": ["4n", 64, 576], "storage_nbytes": "64+294912n", "storage_offset": "n"}
    document["placements"] = [{"layers": ["s"], "layer_stride": "2n"}]
    registration = read(document)
    tensor = registration.caches["s"]
    assert isinstance(tensor, RegisteredTensor)
    assert tensor.shape == (Affine(4, 4), 64, 576)
    assert tensor.storage_nbytes == Affine(64 + 294912, 294912)
    assert tensor.offset == Affine(1, 1)
    assert registration.placements[0].layer_stride == Affine(2, 2)
    assert read_registration(write_registration(registration)) == Ok(registration)


def test_symbolic_sizes_are_bound_by_a_block_count() -> None:
    document = put(sample(LATENT), ["num_blocks"], 3)
    symbolic = copy.deepcopy(document)
    symbolic["caches"]["s"] |= {"shape": ["4n", 64, 576], "storage_nbytes": "294912n"}
    assert read(symbolic) == read(document)
    unbound = read(put(copy.deepcopy(symbolic), ["num_blocks"], None))
    assert unbound.bind(3) == read(symbolic)


def test_storages_named_by_text_get_numbers_in_order_of_appearance() -> None:
    document = sample(LATENT)
    tensor = document["caches"]["s"] | {"storage_nbytes": None}
    names: list[str | int] = ["0x7f01", 0, "0x7f00", "0x7f01", 2]
    document["caches"] = {f"layer.{i}": tensor | {"storage": name} for i, name in enumerate(names)}
    entries = read(document).caches.values()
    assert [entry.storage for entry in entries if isinstance(entry, RegisteredTensor)] == [1, 0, 3, 1, 2]


def test_leaves_are_read_for_the_listed_layers_only() -> None:
    document = sample(UNIFORM)
    group = next(g for g in document["groups"] if g.get("layer_specs"))
    expected = read(document)
    group["layer_specs"]["not.listed"] = {"type": 7}
    assert read(document) == expected
    uniform = next(g for g in expected.groups if g.leaves)
    assert isinstance(uniform.spec, UniformSpec)
    assert set(uniform.leaves) == set(uniform.layers)


# -------------------------------------------------------------------------------------------------- bad documents

NOT_NUMBERS = [
    True,
    False,
    4.0,
    4.5,
    "4",
    "",
    "n+4",
    "-4n",
    "4N",
    "0n",
    "\u0664n",
    -1,
    LIMIT,
    10**99,
    None,
    [],
    {},
    [4],
]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=repr)
def test_a_size_is_a_whole_number_or_a_symbolic_text(value: object) -> None:
    assert paths(put(sample(LATENT), ["caches", "s", "storage_offset"], value)) == ["caches.s.storage_offset"]
    assert paths(put(sample(LATENT), ["caches", "s", "stride", 1], value)) == ["caches.s.stride[1]"]
    assert paths(put(sample(LATENT), ["caches", "s", "shape", 2], value)) == ["caches.s.shape[2]"]


@pytest.mark.parametrize("value", [value for value in NOT_NUMBERS if value is not None] + ["4n", 0], ids=repr)
def test_counts_are_plain_numbers_from_one(value: object) -> None:
    assert paths(put(sample(LATENT), ["num_blocks"], value))[0] == "num_blocks"
    assert paths(put(sample(LATENT), ["engine", "dcp"], value)) == ["engine.dcp"]
    spec: list[str | int] = ["groups", 0, "spec", "fields", "block_size"]
    assert paths(put(sample(LATENT), spec, value)) == ["groups[0].spec.fields.block_size"]


def test_a_shape_is_at_least_one_for_every_block_count() -> None:
    assert paths(put(sample(LATENT), ["caches", "s", "shape", 0], 0)) == ["caches.s.shape[0]"]
    document = put(put(sample(LATENT), ["num_blocks"], None), ["caches", "s", "shape", 0], "n")
    assert isinstance(read(document).caches["s"], RegisteredTensor)


def test_a_symbolic_size_is_held_to_the_limit_when_it_is_bound() -> None:
    document = put(sample(LATENT), ["caches", "s", "storage_nbytes"], f"{2**62}n")
    assert paths(document) == ["caches.s.storage_nbytes"]
    assert read(put(document, ["num_blocks"], None)).num_blocks is None
    assert paths(put(document, ["caches", "s", "storage_nbytes"], f"{2**63 - 1}+{2**62}n")) == [
        "caches.s.storage_nbytes"
    ]


@pytest.mark.parametrize(
    ("place", "value", "path"),
    [
        (["name"], 7, "name"),
        (["engine"], [], "engine"),
        (["engine", "version"], 0.32, "engine.version"),
        (["kv_cache_layout"], "lbhnc", "kv_cache_layout"),
        (["kv_cache_layout"], ["NHD"], "kv_cache_layout"),
        (["layout_hint"], "LBNHC", "layout_hint"),
        (["layout_hint"], {}, "layout_hint"),
        (["groups"], None, "groups"),
        (["groups"], {"0": {}}, "groups"),
        (["groups", 0], "group", "groups[0]"),
        (["groups", 0, "layers"], "s", "groups[0].layers"),
        (["groups", 0, "layers", 0], None, "groups[0].layers[0]"),
        (["groups", 0, "layer_specs"], [], "groups[0].layer_specs"),
        (["groups", 0, "layer_specs"], {"s": None}, "groups[0].layer_specs.s"),
        (["groups", 0, "draft"], 0, "groups[0].draft"),
        (["groups", 0, "host_resident"], "false", "groups[0].host_resident"),
        (["groups", 0, "transferable"], None, "groups[0].transferable"),
        (["groups", 0, "spec"], None, "groups[0].spec"),
        (["groups", 0, "spec", "type"], None, "groups[0].spec.type"),
        (["groups", 0, "spec", "bases"], "AttentionSpec", "groups[0].spec.bases"),
        (["groups", 0, "spec", "bases"], [None], "groups[0].spec.bases[0]"),
        (["groups", 0, "spec", "kind"], 3, "groups[0].spec.kind"),
        (["groups", 0, "spec", "fields"], [], "groups[0].spec.fields"),
        (["groups", 0, "spec", "fields", "dtype"], ["bfloat16"], "groups[0].spec.fields.dtype"),
        (["groups", 0, "spec", "fields", "head_size"], -1, "groups[0].spec.fields.head_size"),
        (["groups", 0, "spec", "derived"], 1, "groups[0].spec.derived"),
        (["groups", 0, "spec", "derived", "page_size_bytes"], True, "groups[0].spec.derived.page_size_bytes"),
        (["groups", 0, "spec", "derived", "tokens_per_state"], [1, 0], "groups[0].spec.derived.tokens_per_state"),
        (["groups", 0, "spec", "derived", "prefix_cacheable"], 1, "groups[0].spec.derived.prefix_cacheable"),
        (["placements"], {}, "placements"),
        (["placements"], [None], "placements[0]"),
        (["placements"], [{"offset": 0}], "placements[0].layers"),
        (["placements"], [{"layers": [], "block_stride": -1}], "placements[0].block_stride"),
        (["caches"], [], "caches"),
        (["caches", "s"], None, "caches.s"),
        (["caches", "s"], [], "caches.s"),
        (["caches", "s"], [None], "caches.s[0]"),
        (["caches", "s"], "tensor", "caches.s"),
        (["caches", "s", "shape"], "144", "caches.s.shape"),
        (["caches", "s", "shape"], {"0": 12}, "caches.s.shape"),
        (["caches", "s", "dtype"], None, "caches.s.dtype"),
        (["caches", "s", "storage"], None, "caches.s.storage"),
        (["caches", "s", "storage"], True, "caches.s.storage"),
        (["caches", "s", "storage"], 0.0, "caches.s.storage"),
        (["caches", "s", "storage_nbytes"], -1, "caches.s.storage_nbytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_place_of_a_wrong_value_is_named(place: list[str | int], value: object, path: str) -> None:
    assert paths(put(sample(LATENT), place, value)) == [path]


@pytest.mark.parametrize("key", ["format", "version", "groups", "caches"])
def test_what_is_required_at_the_top_is_missed(key: str) -> None:
    document = sample(LATENT)
    del document[key]
    error = faults(json.dumps(document))[0]
    assert (error.path, error.actual) == (key, "nothing")


@pytest.mark.parametrize("key", ["shape", "stride", "storage_offset", "dtype", "storage"])
def test_what_is_required_of_a_tensor_is_missed(key: str) -> None:
    document = sample(LATENT)
    del document["caches"]["s"][key]
    assert f"caches.s.{key}" in paths(document)


@pytest.mark.parametrize("version", [0, 2, True, 1.0, "1", None, 10**50])
def test_another_version_is_refused_before_its_members_are_judged(version: object) -> None:
    assert paths(put(put(sample(LATENT), ["groups"], 7), ["version"], version)) == ["version"]


def test_another_format_is_refused() -> None:
    assert paths({"format": "kvlayout/plan", "version": 1}) == ["format"]
    assert paths({}) == ["format", "version"]


@pytest.mark.parametrize("text", ["[]", "null", "3", '"registration"', "true", "[{}]"])
def test_the_top_is_an_object(text: str) -> None:
    assert [error.path for error in faults(text)] == ["$"]


@pytest.mark.parametrize(
    "text", ["", " ", "{", '{"a": 1,}', "{'a': 1}", "{} {}", "\ufeff{}", '{"a": tru}', '{"a": "\x00"}']
)
def test_what_is_no_json_is_refused_with_line_and_column(text: str) -> None:
    (error,) = faults(text)
    assert (error.path, error.expected) == ("$", "JSON")


@pytest.mark.parametrize("data", [b"\xff\xfe{\x00}\x00", b'{"name": "\xe9"}', b"\x80" * 100])
def test_what_is_not_utf8_is_refused(data: bytes) -> None:
    (error,) = faults(data)
    assert (error.path, error.expected) == ("$", "text in UTF-8")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_words_that_are_no_json_numbers_are_refused_even_where_nobody_looks(word: str) -> None:
    text = json.dumps(sample(LATENT) | {"model": ["here"]}).replace('"here"', word)
    assert [(error.path, error.actual) for error in faults(text)] == [("model[0]", word)]


@pytest.mark.parametrize(
    "digits", ["9" * 5_000, "-" + "9" * 5_000, "9" * 5_000 + ".0", "0." + "1" * 5_000, "9" * 2_000_000]
)
def test_numbers_of_thousands_of_digits_are_refused_quickly(digits: str) -> None:
    text = json.dumps(put(sample(LATENT), ["caches", "s", "shape", 1], "here")).replace('"here"', digits)
    start = time.process_time()
    assert [error.path for error in faults(text)] == ["caches.s.shape[1]"]
    assert time.process_time() - start < 15


def test_a_float_too_large_for_a_float_is_no_size() -> None:
    text = json.dumps(put(sample(LATENT), ["num_blocks"], "here")).replace('"here"', "1e999")
    assert "num_blocks" in [error.path for error in faults(text)]


def test_repeated_keys_are_refused_where_they_are() -> None:
    text = json.dumps(sample(LATENT)).replace('"block_size": 256', '"block_size": 256, "block_size": 512')
    (error,) = faults(text)
    assert (error.path, error.actual) == ("groups[0].spec.fields", '"block_size" twice')
    (error,) = faults('{"format": "kvlayout/registration", "format": "kvlayout/registration"}')
    assert error.path == "$"
    (error,) = faults('{"caches": {"a.b": {"\\u0061": 1, "a": 1}}}')
    assert error.path == 'caches["a.b"]'


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"caches":' + "[" * 50_000 + "]" * 50_000 + "}"])
def test_nesting_that_exhausts_the_parser_is_refused(text: str) -> None:
    assert faults(text)[0].path


@pytest.mark.parametrize(
    "place",
    [
        ["model"],
        ["caches", "s", "shape"],
        ["groups", 0, "spec", "fields", "dtype"],
        ["groups", 0, "spec", "derived", "tokens_per_state"],
        ["groups", 0, "spec", "derived", "page_size_bytes"],
    ],
    ids=str,
)
def test_deep_nesting_that_the_parser_takes_is_never_followed(place: list[str | int]) -> None:
    deep: Any = 1
    for _ in range(700):
        deep = [deep]
    result = read_registration(json.dumps(put(sample(LATENT), place, deep)))
    assert isinstance(result, Ok) == (place == ["model"])


def test_a_layer_name_with_dots_is_quoted_in_a_path() -> None:
    document = sample(LATENT)
    document["caches"]["model.layers.0.attn"] = put(copy.deepcopy(document["caches"]["s"]), ["shape", 2], 0)
    document["caches"]['a"b'] = None
    assert paths(document) == ['caches["model.layers.0.attn"].shape[2]', 'caches["a\\"b"]']


def test_a_name_of_megabytes_is_not_repeated_in_errors() -> None:
    document = sample(LATENT)
    document["caches"]["x" * 3_000_000] = [{}] * 1_000
    assert sum(len(path) for path in paths(document)) < 64 * 400


def test_half_a_character_is_no_text() -> None:
    document = sample(LATENT)
    document["name"] = "\ud800"
    document["caches"]["\udfff"] = document["caches"]["s"]
    assert paths(document) == ['caches["\\udfff"]', "name"]


def test_shape_and_stride_have_one_length() -> None:
    assert paths(put(sample(LATENT), ["caches", "s", "stride"], [576, 1])) == ["caches.s"]


def test_more_axes_than_any_tensor_has_are_refused() -> None:
    document = put(sample(LATENT), ["caches", "s", "shape"], [1] * 17)
    assert "caches.s.shape" in paths(document)
    document = sample(LATENT)
    document["caches"]["s"] |= {"shape": [1] * 16, "stride": [0] * 16}
    read(document)


def test_one_storage_has_one_size() -> None:
    document = sample(LATENT)
    document["caches"]["t"] = document["caches"]["s"] | {"storage_nbytes": 884737}
    assert paths(document) == ["caches.t.storage_nbytes"]
    document["caches"]["t"]["storage_nbytes"] = None
    read(document)
    document["caches"]["t"] |= {"storage": 1, "storage_nbytes": 884737}
    read(document)
    document["caches"]["t"] |= {"storage": 0, "storage_nbytes": "294912n"}
    read(document)


def test_each_layer_of_a_uniform_group_has_a_spec_of_its_own() -> None:
    document = sample(UNIFORM)
    index, group = next((i, g) for i, g in enumerate(document["groups"]) if g.get("layer_specs"))
    layer = group["layers"][-1]
    del group["layer_specs"][layer]
    (error,) = faults(json.dumps(document))
    assert error.path.startswith(f"groups[{index}].layer_specs")
    assert layer in error.path
    del group["layer_specs"]
    assert len(paths(document)) == len(group["layers"])


def test_independent_faults_are_all_named() -> None:
    document = sample(LISTS)
    document["num_blocks"] = 0
    document["kv_cache_layout"] = "?"
    document["groups"][0]["spec"]["fields"]["block_size"] = "256"
    document["groups"][1]["draft"] = None
    layer = next(layer for layer, entry in document["caches"].items() if isinstance(entry, list))
    document["caches"][layer][1]["dtype"] = 1
    document["caches"][layer][0]["shape"][0] = -4
    assert paths(document) == [
        "num_blocks",
        "groups[0].spec.fields.block_size",
        "groups[1].draft",
        f'caches["{layer}"][0].shape[0]',
        f'caches["{layer}"][1].dtype',
        "kv_cache_layout",
    ]


def test_faults_beyond_what_anyone_reads_are_not_collected() -> None:
    document = sample(LATENT)
    document["caches"] = {f"l{i}": {} for i in range(1_000)}
    assert len(paths(document)) == 64


def hostile() -> dict[str, str]:
    """Return documents of about 10 MB, by what is wrong with them."""
    head = '{"format": "kvlayout/registration", "version": 1, "num_blocks": 9223372036854775807, '
    state = (
        head + '"caches": {}, "groups": [{"layers": ["s"], "spec": {"type": "MambaSpec", "fields": {"block_size": 1, '
    )
    many = 2_000_000
    return {
        "arrays": "[" * 10_000_000,
        "objects": '{"a":' * 2_000_000,
        "nan": head + '"model": [' + "NaN," * many + "NaN]}",
        "repeated": "{" + '"a":1,' * many + '"a":1}',
        "nan at depth": '{"a":' * 400 + "[" + "NaN," * many + "NaN]" + "}" * 400,
        "wrong entries": head + '"groups": [], "caches": {' + ",".join(f'"{i}":1' for i in range(1_000_000)) + "}}",
        "empty tensors": head + '"groups": [], "caches": {"a": [' + "{}," * many + "{}]}}",
        "long shape": head + '"groups": [], "caches": {"a": {"shape": [' + "1," * many + '1], "stride": []}}}',
        "long layers": head + '"caches": {}, "groups": [{"layers": [' + '"a",' * many + '"a"], "spec": 1}]}',
        "wide state": state + '"dtypes": ["int8"], "shapes": [[' + "9223372036854775807," * 500_000 + "1]]}}}]}",
        "many states": state + '"dtypes": [' + '"b",' * many + '"b"], "shapes": [' + "[]," * many + "[]]}}}]}",
        "letters": "a" * 10_000_000,
        "spaces": " " * 10_000_000,
        "quotes": '{"' + '\\"' * 5_000_000,
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(hostile()))
def test_ten_megabytes_of_anything_are_read_in_seconds(kind: str) -> None:
    text = hostile()[kind]
    start = time.process_time()
    result = read_registration(text)
    assert time.process_time() - start < 30
    assert isinstance(result, Err)


def test_a_number_in_the_document_sizes_nothing() -> None:
    document = sample(LATENT)
    big = LIMIT - 1
    document["num_blocks"] = big
    document["caches"]["s"] |= {"shape": [big] * 3, "stride": [big] * 3, "storage_nbytes": big, "storage": big}
    registration = read(document)
    assert read_registration(write_registration(registration)) == Ok(registration)


def test_a_registration_imports_its_document_only_when_asked() -> None:
    code = f"""
import sys
sys.path.append({str(Path(__file__).parents[2])!r})
import kvlayout.cache.registration as registration
assert "kvlayout.cache.document" not in sys.modules
registration.Registration.from_json("{{}}")
assert "kvlayout.cache.document" in sys.modules
assert not {{"cattrs", "torch", "numpy", "vllm"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


# ------------------------------------------------------------------------------------------------------ properties

NASTY: list[object] = [
    *(None, True, False, 0, -1, 1, 2, 4.0, 1e308, 2**63, 2**63 - 1, 10**90),
    *("", "n", "3n", "64+2n", "4", "torch.int8", "\ud800", "UniformTypeKVCacheSpecs", "HiSparseHotSpec", "x" * 300),
    *([], [[]], [1], [1, 4], ["a"], [None], [1] * 20),
    *({}, {"a": 1}, {"shape": [1]}, {"type": "MambaSpec", "fields": {}}),
]
DOCUMENTS = [json.loads(path.read_text()) for path in SAMPLES]


def places(value: object) -> list[tuple[Any, Any]]:
    """Return all (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        inner = todo.pop()
        keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        found += [(inner, key) for key in keys]
        todo += [inner[key] for key in keys]  # type: ignore[index]
    return found


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    document = copy.deepcopy(draw(st.sampled_from(DOCUMENTS)))
    document.pop("expect", None)
    for _ in range(draw(st.integers(1, 3))):
        found = places(document)
        if not found:
            break
        container, key = found[draw(st.integers(0, len(found) - 1))]
        if draw(st.booleans()):
            container[key] = copy.deepcopy(draw(st.sampled_from(NASTY)))  # mutated again, perhaps
        else:
            del container[key]
    return document


def holds(text: str | bytes) -> None:
    """Check that a text gives a registration that round-trips, or faults with a place."""
    start = time.process_time()
    result = read_registration(text)
    assert time.process_time() - start < 15
    if isinstance(result, Ok):
        assert read_registration(write_registration(result.value)) == result
    else:
        faults(text)


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(mutated())
def test_a_mutated_document_reads_or_is_refused_with_a_place(document: Any) -> None:
    holds(json.dumps(document))


@given(st.sampled_from(SAMPLES), st.floats(0, 1, exclude_max=True))
def test_a_truncated_document_is_refused(path: Path, part: float) -> None:
    data = path.read_bytes().rstrip()
    faults(data[: int(len(data) * part)])


@given(st.sampled_from(SAMPLES), st.floats(0, 1), st.binary(min_size=1, max_size=8))
def test_a_document_with_bytes_overwritten_reads_or_is_refused(path: Path, part: float, junk: bytes) -> None:
    data = path.read_bytes()
    at = int(len(data) * part)
    holds(data[:at] + junk + data[at + len(junk) :])


@given(st.binary() | st.text())
def test_random_text_is_refused(text: str | bytes) -> None:
    faults(text)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["model.layers.0.attn", "s"])
NUMBERS = st.integers(0, LIMIT - 1) | st.integers(0, 64)


def sizes(least: int, *, symbolic: bool) -> st.SearchStrategy[Size]:
    numbers: st.SearchStrategy[Size] = st.integers(least, LIMIT - 1)
    affine = st.builds(lambda a, b: Affine(a + b, b), st.integers(0, 2**62), st.integers(1, 2**62 - 1))
    return numbers | affine if symbolic else numbers


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    names = [
        "FullAttentionSpec",
        "TQFullAttentionSpec",
        "SlidingWindowSpec",
        "MLAAttentionSpec",
        "MambaSpec",
        "PlugInSpec",
    ]
    names += [
        "CrossAttentionSpec",
        "EncoderOnlyAttentionSpec",
        "KpoolTailSpec",
        "HiSparseResidentSpec",
        "HiddenStateCacheSpec",
    ]
    small = st.integers(1, 4096)
    fields: dict[str, object] = {
        "block_size": draw(small),
        "num_kv_heads": draw(small),
        "head_size": draw(st.integers(0, 4096)),
        "dtype": draw(st.sampled_from(["bfloat16", "torch.float8_e4m3fn", "float3", "uint8"])),
        "dtypes": ["bfloat16", "float32"],
        "shapes": [draw(st.lists(small, max_size=3)), draw(st.lists(small, max_size=3))],
        "mamba_cache_mode": draw(st.sampled_from(["align", "all", "none"])),
        "tokens_per_state": draw(st.sampled_from([1, 4, -1, [1, 4], [2, 4]])),
    }
    for key in ("head_size_v", "sliding_window", "tq_slot_size", "page_size_padded"):
        if draw(st.booleans()):
            fields[key] = draw(small)
    if draw(st.booleans()):
        fields["cache_role"] = draw(st.sampled_from(["INDEXER", "CacheRole.INDEXER", "MAIN"]))
    derived: dict[str, object] = {
        key: draw(st.booleans()) for key in ("dcp_sharded", "prefix_cacheable", "has_layer_views")
    }
    for key in ("page_size_bytes", "num_states", "state_content_size_bytes"):
        if draw(st.booleans()):
            derived[key] = draw(small)
    bases = draw(st.lists(st.sampled_from(names), max_size=2))
    try:
        return read_spec(draw(st.sampled_from(names)), bases, draw(st.none() | NAMES), fields, derived)
    except FieldError:  # no content bytes are declared for an unknown element type
        return UnknownSpec("X", "unknown", 0, 0, dcp_sharded=False, prefix_cacheable=True, has_layer_views=True)


@st.composite
def registrations(draw: st.DrawFn) -> Registration:
    blocks = draw(st.none() | st.integers(1, LIMIT - 1))
    anything = sizes(0, symbolic=blocks is None)
    extents: dict[int, Size | None] = {}

    def tensor() -> RegisteredTensor:
        rank = draw(st.integers(0, 5))
        storage = draw(st.integers(0, 3))
        if storage not in extents:
            extents[storage] = draw(st.none() | anything)
        return RegisteredTensor(
            tuple(draw(sizes(1, symbolic=blocks is None)) for _ in range(rank)),
            tuple(draw(anything) for _ in range(rank)),
            draw(anything),
            draw(st.sampled_from(["bfloat16", "int8", "float3", ""])),
            storage,
            extents[storage],
        )

    caches: dict[str, Entry] = {}
    for layer in draw(st.lists(NAMES, max_size=3, unique=True)):
        caches[layer] = tensor() if draw(st.booleans()) else tuple(tensor() for _ in range(draw(st.integers(1, 3))))
    groups = []
    for layers in draw(st.lists(st.lists(NAMES, max_size=3, unique=True), max_size=3)):
        leaves = {layer: draw(specs()) for layer in layers} if draw(st.booleans()) else {}
        groups.append(
            Group(tuple(layers), draw(specs()), leaves, draw(st.booleans()), draw(st.booleans()), draw(st.booleans()))
        )
    placed = st.builds(
        Placement,
        st.lists(NAMES, max_size=2).map(tuple),
        *(st.none() | anything for _ in range(4)),
    )
    return Registration(
        groups=tuple(groups),
        caches=caches,
        placements=tuple(draw(st.lists(placed, max_size=2))),
        num_blocks=blocks,
        kv_cache_layout=draw(st.sampled_from([None, "LBHNC", "LHBNC", "NHD"])),
        layout_hint=draw(st.sampled_from([None, "NHD", "BLNHC"])),
        engine=Engine(draw(NAMES), draw(NAMES), draw(NAMES), draw(st.integers(1, 64))),
        name=draw(NAMES),
    )


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(registrations())
def test_every_registration_is_read_as_it_was_written(registration: Registration) -> None:
    text = write_registration(registration)
    assert text.isascii()
    assert read_registration(text) == Ok(registration)
    assert read_registration(text.encode()) == Ok(registration)


@given(st.from_regex(r"(?:[0-9]{1,4}\+)?[0-9]{0,4}n", fullmatch=True))
def test_a_symbolic_size_is_bound_to_what_it_says(text: str) -> None:
    document = put(put(sample(LATENT), ["num_blocks"], 5), ["caches", "s", "stride", 0], text)
    symbolic = parse_size(text)
    if symbolic is None:
        assert paths(document) == ["caches.s.stride[0]"]
    else:
        tensor = read(document).caches["s"]
        assert isinstance(tensor, RegisteredTensor)
        assert tensor.strides[0] == symbolic.at(5)
