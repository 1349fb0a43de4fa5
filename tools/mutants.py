"""The mutation run over the prover: `python tools/mutants.py [--file NAME] [--list] [--workers N]`.

Each comparison (to every other of its kind), constant (numbers, strings, booleans, ``None``), connective, arithmetic
operator, sign and ``min``/``max`` of the modules below is changed, one at a time, and a test must fail. What survives
must be listed in tools/mutants_equivalent.toml with the reason why no test can fail; the run fails where an unlisted
mutant survives, and where a listed one is killed or gone.

Why not mutmut or cosmic-ray: both start an interpreter and pytest for every mutant (a second and more each, so half an
hour here), neither has all of these operators, and neither keeps a reason beside a survivor. Here the parent imports
what takes long (pytest, hypothesis, attrs); each mutant is a forked child that imports kvlayout, with the changed
syntax tree in the place of one module, and calls test functions until one raises: half a second each, on average.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import itertools
import os
import resource
import sys
import time
import tomllib
import traceback
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")
MODULES = ("kernel", "refuting", "canonical", "affine")

#: What is imported once, in the parent; nothing of kvlayout.
PRELOADED = ("attrs", "hypothesis", "pytest", "random", "itertools", "collections", "ast", "pickle", "subprocess")
#: The tests that a child calls, the quickest that say most first; the others of tests/algebra add nothing here.
TESTS = ("test_witnesses", "test_values", "test_seal", "test_random_layouts", "test_small_layouts", "test_transforms")
MEMORY = 4 << 30
RANDOM_CASES = 600  # for each judgement, concrete and symbolic; the suite itself runs 100,000
#: Not called: they are about the sources, and start processes or take long without adding anything.
LEFT_OUT = (
    "test_no_answer_is_false",
    "test_there_are_a_hundred_thousand_layouts_and_views",
    "test_optimised_python_judges_alike",
    "test_only_the_kernel_makes_a_proof",
    "test_the_kernel_is_short_and_asserts_nothing",
    "test_algebra_imports_attrs_and_the_standard_library_only",
)

#: Each for every other of its kind, and not only for its opposite.
KINDS: tuple[tuple[type[ast.cmpop], ...], ...] = (
    (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
)
COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    old: [new for new in kind if new is not old] for kind in KINDS for old in kind
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
SYMBOLS: dict[type[ast.AST], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.And: "and",
    ast.Or: "or",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}


class Name(NamedTuple):
    """What a mutant is called, here and in the list of equivalent ones: no line number, so that code may move."""

    file: str
    line: str
    mutation: str
    nth: int

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.file}: {self.mutation}{f' (no. {self.nth})' if self.nth > 1 else ''}: {self.line}"


class Mutant(NamedTuple):
    """A changed module."""

    name: Name
    module: str
    tree: ast.Module


# ------------------------------------------------------------------------------------------------------- mutations


def _changes(node: ast.AST) -> Iterator[tuple[int, str, Callable[[ast.AST], None]]]:  # noqa: C901, PLR0912 - one case each
    """Return for each change of a node its line, its description, and what makes it on a copy of the node."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for i, op in enumerate(ops):
                lineno = (left, *comparators)[i].end_lineno or node.lineno
                for new in COMPARISONS[type(op)]:
                    yield lineno, f"{SYMBOLS[type(op)]} -> {SYMBOLS[new]}", _set_item("ops", i, new())
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            for other in (value + 1, value - 1):
                yield node.lineno, f"{value} -> {other}", _set("value", other)
        case ast.Constant(value=bool() as value):
            yield node.lineno, f"{value} -> {not value}", _set("value", not value)
        case ast.Constant(value=str() as value):
            yield node.lineno, f"{value!r} -> 'mutant'", _set("value", "mutant")
        case ast.Constant(value=None):
            yield node.lineno, "None -> 0", _set("value", 0)
        case ast.BoolOp(op=op):
            new_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node.lineno, f"{SYMBOLS[type(op)]} -> {SYMBOLS[type(new_op)]}", _set("op", new_op)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            new_type = ARITHMETIC[type(op)]
            yield node.lineno, f"{SYMBOLS[type(op)]} -> {SYMBOLS[new_type]}", _set("op", new_type())
        case ast.UnaryOp(op=ast.Not()):
            yield node.lineno, "not x -> x", _set("op", None)
        case ast.UnaryOp(op=ast.USub()):
            yield node.lineno, "-x -> x", _set("op", None)
        case ast.Name(id="min" | "max" as function):
            swapped = "max" if function == "min" else "min"
            yield node.lineno, f"{function} -> {swapped}", _set("id", swapped)
        case _:
            return


def _set(field: str, value: object) -> Callable[[ast.AST], None]:
    return lambda node: setattr(node, field, value)


def _set_item(field: str, i: int, value: ast.AST) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        getattr(node, field)[i] = value

    return change


class _DropOperator(ast.NodeTransformer):
    """Put the operand in the place of a unary operator that was taken away."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Return the operand where there is no operator."""
        self.generic_visit(node)
        return node if getattr(node, "op", None) is not None else node.operand


def _types_only(tree: ast.AST) -> set[ast.AST]:
    """Return the nodes that nothing runs: annotations, docstrings, and what only a type checker reads."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
                found.update(ast.walk(node))
            case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.expr() as annotation):
                found.update(ast.walk(annotation))
            case ast.FunctionDef(returns=ast.expr() as returns):
                found.update(ast.walk(returns))
            case ast.Assign(value=ast.BinOp(op=ast.BitOr())) | ast.Expr(value=ast.Constant()):
                found.update(ast.walk(node))
            case _:
                pass
    return found


def mutants_of(module: str) -> Iterator[Mutant]:
    """Return every mutant of a module of kvlayout.algebra, in the order of its source."""
    path = ROOT / "kvlayout" / "algebra" / f"{module}.py"
    text = path.read_text(encoding="utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    left_out, seen = _types_only(tree), Counter[tuple[str, str]]()
    for position, node in enumerate(ast.walk(tree)):
        if node in left_out:
            continue
        for lineno, mutation, change in _changes(node):
            line = lines[lineno - 1].strip()
            seen[line, mutation] += 1
            changed = copy.deepcopy(tree)
            change(next(itertools.islice(ast.walk(changed), position, None)))
            name = Name(f"kvlayout/algebra/{module}.py", line, mutation, seen[line, mutation])
            yield Mutant(name, f"kvlayout.algebra.{module}", ast.fix_missing_locations(_DropOperator().visit(changed)))


# ----------------------------------------------------------------------------------------------------------- a child


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import one module from a syntax tree."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.mutant.module else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.mutant.tree, self.mutant.name.file, "exec"), module.__dict__)  # noqa: S102


def _cases(function: Callable[..., None]) -> Iterator[dict[str, object]]:
    """Return the arguments of each case of a test function, from its ``parametrize`` marks."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            axes.append([dict(zip(names, row if len(names) > 1 else [row], strict=True)) for row in mark.args[1]])
    for rows in itertools.product(*axes):
        yield {name: value for row in rows for name, value in row.items()}


def run_tests() -> None:
    """Call the tests, quickest first; the first failure raises. Of kvlayout only the room under test is imported."""
    package = sys.modules["kvlayout"] = ModuleType("kvlayout")
    package.__path__ = [str(ROOT / "kvlayout")]
    for name in TESTS:
        module = importlib.import_module(f"tests.algebra.{name}")
        for function in [
            value for key, value in vars(module).items() if key.startswith("test_") and key not in LEFT_OUT
        ]:
            for arguments in _cases(function):
                function(**arguments)
        for judge, symbolic in itertools.product(getattr(module, "CASES", ()), (False, True)):
            module.run_cases(judge, RANDOM_CASES, symbolic=symbolic)


def spawn(mutant: Mutant | None, seconds: int) -> int:
    """Fork a child that runs the tests on a mutant; it exits with 0 where all pass."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # a mutant that never ends is killed
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if mutant is not None:
            sys.meta_path.insert(0, _Changed(mutant))
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
        run_tests()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever is raised, the mutant is noticed
        if mutant is None:
            traceback.print_exc()
    finally:
        os._exit(code)


# ------------------------------------------------------------------------------------------------------------ report


def equivalent() -> dict[Name, str]:
    """Return the listed survivors, each with its reason."""
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    listed = {}
    for entry in entries:
        name = Name(entry["file"], entry["line"], entry["mutation"], entry.get("nth", 1))
        if not entry["reason"].strip() or name in listed:
            raise SystemExit(f"listed without a reason, or twice: {name}")
        listed[name] = entry["reason"]
    return listed


def survivors(mutants: Sequence[Mutant], workers: int, seconds: int) -> set[Name]:
    """Run the tests on every mutant, several at a time."""
    running: dict[int, Name] = {}
    alive: set[Name] = set()
    waiting = iter(mutants)
    while True:
        for mutant in itertools.islice(waiting, workers - len(running)):
            running[spawn(mutant, seconds)] = mutant.name
        if not running:
            return alive
        process, status = os.waitpid(-1, 0)
        name = running.pop(process)
        if status == 0:
            alive.add(name)
            print(f"alive  {name}", flush=True)


def sources() -> list[tuple[Path, str]]:
    """Return what the children read, so that a change during the run is noticed: it would kill mutants for nothing."""
    rooms = (ROOT / "kvlayout" / "algebra", ROOT / "tests" / "algebra", ROOT / "tests")
    return [(path, path.read_text(encoding="utf-8")) for room in rooms for path in sorted(room.glob("*.py"))]


def main() -> int:
    """Run, compare with the list, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", action="append", choices=MODULES, help="only this module (may be repeated)")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 8))
    options = parser.parse_args()
    modules = options.file or MODULES
    mutants = [mutant for module in modules for mutant in mutants_of(module)]
    if options.list:
        print(*(mutant.name for mutant in mutants), sep="\n")
        return 0
    sys.path.insert(0, str(ROOT))
    for name in PRELOADED:
        importlib.import_module(name)
    before = sources()
    started = time.monotonic()
    _, status, used = os.wait4(spawn(None, 600), 0)
    if status:
        raise SystemExit("the tests fail without any mutation")
    whole = used.ru_utime + used.ru_stime  # of processor time, so a busy machine kills no mutant
    print(f"{len(mutants)} mutants of {', '.join(modules)}; the tests take {whole:.1f} s where all pass", flush=True)
    alive = survivors(mutants, options.workers, int(5 + 2 * whole))
    if sources() != before:
        raise SystemExit("the sources have changed during the run: run it again")
    listed = {name for name in equivalent() if Path(name.file).stem in modules}
    for survivor in sorted(alive - listed):
        print(f"SURVIVED, and not listed as equivalent: {survivor}")
    for stale in sorted(listed - alive):
        print(f"LISTED as equivalent, but killed or not there: {stale}")
    killed = len(mutants) - len(alive)
    print(f"{killed} of {len(mutants)} killed, {len(alive & listed)} equivalent, {time.monotonic() - started:.0f} s")
    return 1 if alive ^ listed else 0


if __name__ == "__main__":
    sys.exit(main())
