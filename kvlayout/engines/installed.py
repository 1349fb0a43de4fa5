"""What the installed vLLM itself makes of a config and a deployment, and how it differs from what was worked out.

The engine derives it with its own classes (configuration, model without weights, cache groups, placement, allocation
without memory), in a process of its own. It is the honest check of :mod:`kvlayout.offline`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self, final

from attrs import asdict, fields

from kvlayout.algebra.result import Err, Ok, Result
from kvlayout.cache.reading import read_spec
from kvlayout.cache.registration import Group, RegisteredTensor, Registration
from kvlayout.cache.spec import Spec
from kvlayout.errors import Code, LayoutError, LayoutErrors
from kvlayout.offline.deployment import Deployment

__all__ = ["Deriver", "Difference", "Layers", "derive", "differences"]

_SPEC: Final = ("type", "bases", "kind", "fields", "derived")
_CHILD: Final = [sys.executable, "-m", "kvlayout.engines.deriving"]


class Difference(NamedTuple):
    """A field in which two registrations differ."""

    path: str
    offline: str
    installed: str


class Layers(NamedTuple):
    """The spec of each layer that has a cache, in the engine's order, and whose cache each other one reads."""

    specs: Mapping[str, Spec]
    shares: Mapping[str, str]


@final
class Deriver:
    """A process in which vLLM derives one registration after another: its import takes longer than a derivation.

    Use it as a context manager; leaving it ends the process.

    Args:
        amx: whether to derive as on a CPU with AMX tiles (which decides the attention backend of latent caches) or as
            on one without; ``None`` is this machine.
        environment: the environment of the process, ``None`` for this process's own.
    """

    def __init__(self, *, amx: bool | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.amx = amx
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
            _CHILD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=None if environment is None else dict(environment),
        )

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def derive(self, config: bytes, deployment: Deployment) -> Result[Registration, LayoutErrors]:
        """Return what vLLM registers for a config.json under a deployment.

        Its block count is large and of no meaning: bind what it is compared with to it. A deployment's kernel block
        sizes and layout are what vLLM's backends are made to declare.
        """
        return self._ask(config, deployment, layers=False).then(Registration.from_json)

    def layers(self, config: bytes, deployment: Deployment) -> Result[Layers, LayoutErrors]:
        """Return the layers of the model that vLLM builds, before it groups them and makes their pages equal."""
        return self._ask(config, deployment, layers=True).then(_read_layers)

    def _ask(self, config: bytes, deployment: Deployment, *, layers: bool) -> Result[str, LayoutErrors]:
        questions, answers = self.process.stdin, self.process.stdout
        if questions is None or answers is None:
            return _refused("its process has no pipes")
        asked = asdict(deployment, recurse=False) | {"amx": self.amx}
        try:
            job = json.dumps({"config": config.decode(), "deployment": asked, "layers": layers})
            questions.write(job + "\n")
            questions.flush()
            answer = answers.readline()
        except (OSError, UnicodeDecodeError) as error:
            return _refused(f"{type(error).__name__}: {error}")
        if not answer:
            return _refused(f"its process ended with {self.process.wait()}")
        found: dict[str, str] = json.loads(answer)
        return Ok(found["document"]) if "document" in found else _refused(found["error"])


def _read_layers(text: str) -> Result[Layers, LayoutErrors]:
    found = json.loads(text)
    specs = {name: read_spec(*(spec[key] for key in _SPEC)) for name, spec in found["specs"].items()}
    return Ok(Layers(specs, found["shares"]))


def derive(config: bytes | Path, deployment: Deployment) -> Result[Registration, LayoutErrors]:
    """Return what the installed vLLM registers for a config.json (its text, its path or its folder).

    The block count is large and of no meaning; :func:`differences` binds the other side to it.

    Returns:
        The registration, or ``bad-config`` with what vLLM has against it (or that there is none).
    """
    if isinstance(config, Path):
        config = (config / "config.json" if config.is_dir() else config).read_bytes()
    with Deriver() as deriver:
        return deriver.derive(config, deployment)


def _refused(reason: str) -> Err[LayoutErrors]:
    fix = "check that this model and deployment start in the installed vLLM"
    error = LayoutError(Code.BAD_CONFIG, expected="a registration from the installed vLLM", actual=reason, fix=fix)
    return Err(LayoutErrors((error,)))


def differences(offline: Registration, installed: Registration) -> tuple[Difference, ...]:
    """Return every field in which a registration that was worked out differs from the engine's own.

    Block counts are no difference where the first has none: it is bound to the other's. Names are not compared, nor
    versions beyond their first two parts.
    """
    if offline.num_blocks is None and installed.num_blocks is not None:
        offline = offline.bind(installed.num_blocks)
    mine, theirs = dict(_facts(offline)), dict(_facts(installed))
    return tuple(
        Difference(path, mine.get(path, "nothing"), theirs.get(path, "nothing"))
        for path in dict.fromkeys([*theirs, *mine])
        if mine.get(path) != theirs.get(path)
    )


def _facts(registration: Registration) -> Iterator[tuple[str, str]]:
    """Yield each field of a registration with its path."""
    engine = registration.engine
    yield "engine", f"{engine.name} {'.'.join(engine.version.split('.')[:2])} on {engine.platform}, dcp {engine.dcp}"
    for name in ("num_blocks", "kv_cache_layout", "layout_hint"):
        yield name, _text(getattr(registration, name))
    yield "groups", str(len(registration.groups))
    for index, group in enumerate(registration.groups):
        yield from _group_facts(f"groups[{index}]", group)
    for index, placement in enumerate(registration.placements):
        yield f"placements[{index}].layers", _text(placement.layers)
        for name, size in zip(placement._fields[1:], placement[1:], strict=True):
            yield f"placements[{index}].{name}", _text(size)
    yield "caches", _text(tuple(registration.caches))
    for layer, entry in registration.caches.items():
        parts = (entry,) if isinstance(entry, RegisteredTensor) else entry
        for index, part in enumerate(parts):
            place = f"caches.{layer}" if part is entry else f"caches.{layer}[{index}]"
            for name, value in zip(part._fields, part, strict=True):
                yield f"{place}.{name}", _text(value)


def _group_facts(place: str, group: Group) -> Iterator[tuple[str, str]]:
    yield f"{place}.layers", _text(group.layers)
    for name in ("draft", "host_resident", "transferable"):
        yield f"{place}.{name}", _text(getattr(group, name))
    specs = {"spec": group.spec} | {f"layer_specs.{layer}": leaf for layer, leaf in group.leaves.items()}
    for name, spec in specs.items():
        for field in fields(type(spec)):
            yield f"{place}.{name}.{field.name}", _text(getattr(spec, field.name))


def _text(value: object) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
