"""README.md and docs/offline.md print what the commands print: `python -m tests.cli.test_readme` rewrites them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.running import Terminal, process

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PRINTED = (README, ROOT / "docs" / "offline.md")
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
COLUMNS = 80


def commands(block: str) -> list[str]:
    return re.findall(r"^\$ (.*)$", block, re.MULTILINE)


def transcript(block: str) -> str:
    """Return the block as the shell would have it."""
    lines, code = [], 0
    for command in commands(block):
        lines.append(f"$ {command}\n")
        if command == "echo $?":
            lines.append(f"{code}\n")
            continue
        name, *words = shlex.split(command)
        assert name == "kvlayout"
        done = process(*words, COLUMNS=str(COLUMNS))
        assert done.stderr == b""
        code = done.returncode
        lines.append(done.stdout.decode())
    return "".join(lines)


@pytest.mark.parametrize("path", PRINTED, ids=lambda path: path.name)
def test_what_a_page_prints_is_what_the_commands_print(terminal: Terminal, path: Path) -> None:
    terminal.patch.chdir(ROOT)
    blocks = BLOCK.findall(path.read_text())
    assert len(blocks) >= 2
    for block in blocks:
        assert block == transcript(block)


def test_the_readme_shows_a_plan_and_a_refusal() -> None:
    text = README.read_text()
    assert "\nplanned: " in text
    assert "\nrefused: " in text
    assert "kvlayout.plan_then_apply(kv_cache_config, kv_caches, layout_hints)" in text
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("path", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-")
        for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif not target.startswith("https://"):
            assert (path.parent / target.partition("#")[0]).exists(), target


if __name__ == "__main__":
    for page in PRINTED:
        page.write_text(BLOCK.sub(lambda found: f"```console\n{transcript(found[1])}```", page.read_text()))
