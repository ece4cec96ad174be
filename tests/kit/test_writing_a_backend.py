"""The commands of docs/writing-a-backend.md work as written, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.conftest import Shell

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "writing-a-backend.md"
BLOCK = re.compile(r"^```sh (run|run soak)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(*tags: str) -> str:
    """All commands of the blocks with these tags."""
    blocks = BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))
    return "".join(text for tag, text in blocks if tag in tags)


def test_every_block_has_a_known_tag() -> None:
    fences = re.findall(r"^```sh.*$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == len(BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))) > 0


@pytest.mark.slow
def test_commands(shell: Shell) -> None:
    printed = shell.output(commands("run"))
    assert "profile core: works, 1 operators native" in printed
    assert (shell.folder / "report" / "report.html").exists()
    last = printed[printed.index("dumped/") :]
    assert "passed rms_norm[eps=1e-06,rows=17,width=96," in last


@pytest.mark.soak
def test_all_commands(shell: Shell) -> None:
    assert "quick tier: no claim" in shell.output(commands("run", "run soak"))
