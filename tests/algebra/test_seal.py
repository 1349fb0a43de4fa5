"""A ``Proved`` can't be forged, changed, copied or stored: whoever holds one holds what the kernel has proved."""

from __future__ import annotations

import ast
import copy
import pickle
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

import kvlayout
from kvlayout.algebra import kernel
from kvlayout.algebra.affine import BLOCK_COUNT
from kvlayout.algebra.claims import Pages, Track
from kvlayout.algebra.kernel import Proved
from tests.brute import make

if TYPE_CHECKING:
    from collections.abc import Callable

ROOM = Path(kvlayout.__path__[0])


def proof() -> Proved:
    verdict = kernel.page(make((4, 8), (8, 1)), Pages((0,), 8, 8), 4)
    assert isinstance(verdict, Proved)
    return verdict


def test_a_proof_says_what_was_proved() -> None:
    view = make((4, 8), (8, 1))
    verdict = kernel.prove(view, Pages((0,), 8, 8), 8, 8, 4, None, view)
    assert isinstance(verdict, Proved)
    assert verdict.view is view
    assert {claim.name: dict(claim.reasons) for claim in verdict.claims} == {
        "page": {"bases": (0,), "stride": 8, "covered": 8},
        "own": {"payload": 8, "covered": 8, "page": 8, "stride": 8},
        "grain": {"blocks": 4, "states": None},
        "same": {"offset": 0, "canonical": ((32, 0, 1, 0),)},
    }


def test_every_proof_has_the_numbers_to_check_it_by() -> None:
    view = make((BLOCK_COUNT, 2, 4), (16, -8, 1), 8)
    track = Track(0, 16, 16, frozenset({0}))
    proofs = kernel.within(view, BLOCK_COUNT * 16), kernel.injective(view), kernel.fibre([track], BLOCK_COUNT)
    assert all(isinstance(verdict, Proved) for verdict in proofs)
    claims = [claim for verdict in proofs if isinstance(verdict, Proved) for claim in verdict.claims]
    assert [(claim.name, dict(claim.reasons)) for claim in claims] == [
        ("within", {"low": 0, "high": BLOCK_COUNT * 16 - 5, "storage": BLOCK_COUNT * 16}),
        ("injective", {"slacks": (1, 5, 5)}),
        ("fibre", {"tracks": (track,)}),
    ]


@pytest.mark.parametrize(
    "seal", [None, object(), 0, True, kernel._Seal()], ids=["none", "object", "0", "true", "another"]
)
def test_the_constructor_takes_no_other_seal(seal: object) -> None:
    forge: Any = Proved
    with pytest.raises(TypeError, match="only the kernel makes a Proved"):
        forge(None, (), seal)


def test_the_constructor_needs_a_seal() -> None:
    forge: Any = Proved
    with pytest.raises(TypeError, match="seal"):
        forge(None, ())


def test_a_proof_is_not_copied_or_stored() -> None:
    attempts: tuple[Callable[[Proved], object], ...] = (copy.copy, copy.deepcopy, pickle.dumps)
    for attempt in attempts:
        with pytest.raises(TypeError, match="prove it again"):
            attempt(proof())


def test_a_proof_is_not_changed() -> None:
    it = proof()
    attempts: tuple[Callable[[], None], ...] = (
        lambda: setattr(it, "view", None),
        lambda: setattr(it, "claims", ()),
        lambda: setattr(it, "other", 1),
        lambda: delattr(it, "claims"),
    )
    for attempt in attempts:
        with pytest.raises(TypeError, match="prove it again"):
            attempt()
    assert not hasattr(it, "__dict__")


def test_a_proof_is_not_evolved() -> None:
    evolve: Any = attrs.evolve
    with pytest.raises(attrs.exceptions.NotAnAttrsClassError):
        evolve(proof(), view=None)


def test_a_proof_has_no_subclass() -> None:
    with pytest.raises(TypeError, match="no subclass"):
        type("Forged", (Proved,), {})


def test_a_bare_instance_proves_nothing() -> None:
    """Python lets anyone allocate an object, but it has no view and no claims, and they can't be set."""
    bare: Any = object.__new__(Proved)
    assert not hasattr(bare, "view")
    assert not hasattr(bare, "claims")
    with pytest.raises(TypeError, match="prove it again"):
        bare.view = make((1,), (1,))


def sources() -> list[Path]:
    return sorted(ROOM.rglob("*.py"))


def test_only_the_kernel_makes_a_proof() -> None:
    """Nothing else calls ``Proved``, touches its seal, or gets around its ``__init__``."""
    assert len(sources()) > 8
    for path in sources():
        if path == ROOM / "algebra" / "kernel.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="Proved") | ast.Attribute(attr="Proved" | "__new__")):
                    pytest.fail(f"{path}:{node.lineno} makes a Proved")
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                    assert name not in {"_SEAL", "_Seal", "_sealed"}, path
                case _:
                    pass


def test_the_kernel_is_short_and_asserts_nothing() -> None:
    text = (ROOM / "algebra" / "kernel.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    for path in sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), path


def test_algebra_imports_attrs_and_the_standard_library_only() -> None:
    for path in sorted((ROOM / "algebra").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top == "attrs" or top in sys.stdlib_module_names or name.startswith("kvlayout.algebra"), path


def test_optimised_python_judges_alike() -> None:
    """``python -O`` drops asserts; the kernel has none, so proofs, refusals and the seal are the same."""
    code = textwrap.dedent("""
        from kvlayout.algebra import kernel
        from kvlayout.algebra.affine import BLOCK_COUNT as N
        from kvlayout.algebra.claims import Pages, Track
        from tests.brute import make
        good, bad = make((N, 8), (16, 1)), make((N, 8), (16, 2))
        pages = Pages((0,), 16, 8)
        a, b = (Track(base, 16, 8, frozenset({0})) for base in (0, 8))
        for verdict in (
            kernel.prove(good, pages, 16, 8, N, None, good), kernel.prove(bad, pages, 16, 8, N, None),
            kernel.same(good, bad), kernel.own(pages, 17, 8, N), kernel.grain(good, N, 4), kernel.within(good, 16 * N),
            kernel.within(good, 16 * N - 9), kernel.injective(good), kernel.fibre([a, b], N), kernel.fibre([a, a], N),
            kernel.page(good, Pages((N * 0 + 1,), 16, 8), N),
        ):
            print(type(verdict).__name__, getattr(verdict, "claims", verdict))
        try:
            kernel.Proved(None, (), None)
        except TypeError as error:
            print(error)
        print(__debug__)
    """)
    outputs = []
    for flags in ([], ["-O"], ["-OO"]):
        command = [sys.executable, *flags, "-c", code]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=_environment())
        outputs.append(done.stdout.splitlines())
    plain, *optimised = outputs
    assert plain.pop() == "True"
    for lines in optimised:
        assert lines.pop() == "False"
        assert lines == plain
    assert [line.split()[0] for line in plain] == [
        *["Proved", "Refuted", "Refuted", "Refuted", "Refuted", "Proved"],
        *["Refuted", "Proved", "Proved", "Refuted", "Refuted", "only"],
    ]


def _environment() -> dict[str, str]:
    """Find kvlayout and the tests where this process found them."""
    tests = find_spec("tests")
    assert tests is not None
    assert tests.origin is not None
    return {"PYTHONPATH": f"{Path(tests.origin).parents[1]}:{ROOM.parent}", "PATH": ""}
