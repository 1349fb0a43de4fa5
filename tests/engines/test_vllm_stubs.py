"""typings/vllm says of each class and function what the installed vLLM 0.32 says."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
from pathlib import Path

import pytest

STUBS = Path(__file__).parents[2] / "typings" / "vllm"
MODULES = {
    ".".join(("vllm", *path.relative_to(STUBS).with_suffix("").parts)): path
    for path in sorted(STUBS.rglob("*.pyi"))
    if path.stem != "__init__"
}
NODES = [
    (module, node)
    for module, path in MODULES.items()
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.ClassDef | ast.FunctionDef)
]
CLASSES = [(module, node) for module, node in NODES if isinstance(node, ast.ClassDef)]
FUNCTIONS = [(module, node) for module, node in NODES if isinstance(node, ast.FunctionDef)]

pytestmark = pytest.mark.engine


def installed(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def name_of(item: object) -> str:
    return getattr(item, "name", "")


@pytest.mark.parametrize(("module", "node"), CLASSES, ids=name_of)
def test_bases_are_the_installed_ones(module: str, node: ast.ClassDef) -> None:
    made = installed(module, node.name)
    assert isinstance(made, type)
    ours = [ast.unparse(base) for base in node.bases]
    assert ours == [base.__name__ for base in made.__bases__ if base is not object]


@pytest.mark.parametrize(("module", "node"), CLASSES, ids=name_of)
def test_fields_are_the_installed_ones(module: str, node: ast.ClassDef) -> None:
    made = installed(module, node.name)
    assert isinstance(made, type)
    if not dataclasses.is_dataclass(made) or not node.decorator_list:
        return
    declared = [line for line in node.body if isinstance(line, ast.AnnAssign)]
    ours = {ast.unparse(line.target): ast.unparse(line.annotation) for line in declared}
    assert ours == vars(made).get("__annotations__", {})
    fields = made.__dataclass_fields__
    missing = dataclasses.MISSING
    needed = {name for name in ours if fields[name].default is missing and fields[name].default_factory is missing}
    assert {ast.unparse(line.target) for line in declared if line.value is None} == needed
    by_keyword = any("kw_only=True" in ast.unparse(decorator) for decorator in node.decorator_list)
    for line in declared:
        own = line.value is not None and "kw_only=True" in ast.unparse(line.value)
        assert fields[ast.unparse(line.target)].kw_only is (by_keyword or own)


@pytest.mark.parametrize(("module", "node"), CLASSES, ids=name_of)
def test_properties_are_the_installed_ones(module: str, node: ast.ClassDef) -> None:
    made = installed(module, node.name)
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.decorator_list:
            found = vars(made)[method.name]
            assert isinstance(found, property)
            assert method.returns is not None
            assert inspect.signature(found.fget or len).return_annotation == ast.unparse(method.returns)


@pytest.mark.parametrize(("module", "node"), CLASSES, ids=name_of)
def test_members_of_enumerations_are_the_installed_ones(module: str, node: ast.ClassDef) -> None:
    made = installed(module, node.name)
    if isinstance(made, type) and issubclass(made, enum.Enum):
        values = (line for line in node.body if isinstance(line, ast.Assign))
        ours = {ast.unparse(line.targets[0]): ast.literal_eval(line.value) for line in values}
        assert ours == {name: member.value for name, member in made.__members__.items()}


@pytest.mark.parametrize(("module", "node"), FUNCTIONS, ids=name_of)
def test_functions_take_what_the_installed_ones_take(module: str, node: ast.FunctionDef) -> None:
    made = installed(module, node.name)
    assert callable(made)
    theirs = inspect.signature(made)
    assert [argument.arg for argument in node.args.args] == list(theirs.parameters)
    assert len(node.args.defaults) == sum(p.default is not p.empty for p in theirs.parameters.values())


def test_the_stubs_are_of_the_installed_version() -> None:
    import vllm

    assert vllm.__version__.startswith("0.32.")
