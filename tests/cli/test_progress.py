"""The line of counts: on a terminal only, and never in the way of results."""

from __future__ import annotations

import io
import sys

import pytest

from deepinfer.cli.progress import Rate, counting


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """stderr is a terminal, stdout is captured."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def draw(enabled: bool = True) -> None:
    with counting("golden", enabled=enabled) as show:
        show("3 done")
        print("a result")


def test_counts_are_drawn_and_results_stay_on_stdout(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    draw()
    assert "golden" in terminal.getvalue() and "3 done" in terminal.getvalue()
    assert capsys.readouterr().out == "a result\n"


def test_nothing_is_drawn_where_it_is_not_wanted(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(enabled=False)
    monkeypatch.setenv("DEEPINFER_LOG_FORMAT", "json")
    draw()
    assert terminal.getvalue() == ""


def test_nothing_is_drawn_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    draw()
    assert capsys.readouterr().err == ""


def test_a_rate() -> None:
    times = iter([10.0, 10.0, 14.0])
    rate = Rate(lambda: next(times))
    assert rate.per_second == 0
    rate.add(5)
    rate.add(3)
    assert (rate.count, rate.per_second) == (8, 2.0)
