"""The progress bar is drawn on a terminal and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from deepinfer.checkpoint.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar("reading", 3) as advance:
        advance(3)
    assert stream.getvalue() == ""


def test_a_terminal_sees_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("reading", 3) as advance:
        advance(3)
    assert "reading" in stream.getvalue()


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar("reading", 3, enabled=False) as advance:
        advance(3)
    assert stream.getvalue() == ""
