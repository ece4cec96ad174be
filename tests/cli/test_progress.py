"""The line of counts: on a terminal only, and never in the way of results."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from deepinfer.cli.progress import Rate, Show, counting
from deepinfer.conformance.golden import GoldenReport
from deepinfer.errors import ConfigError
from tests.cli.conftest import Launch


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def draw(patch: pytest.MonkeyPatch, enabled: bool = True) -> str:
    """What a bar draws where stderr is a terminal."""
    terminal = Terminal()
    patch.setenv("TERM", "xterm")
    with patch.context() as inner:
        inner.setattr(sys, "stderr", terminal)
        with counting("golden", enabled=enabled) as show:
            show("3 done")
            print("a result")
    return terminal.getvalue()


def test_counts_are_drawn_and_results_stay_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = draw(monkeypatch)
    assert "golden" in drawn
    assert "3 done" in drawn
    assert capsys.readouterr().out == "a result\n"


def test_nothing_is_drawn_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draw(monkeypatch, enabled=False) == ""
    monkeypatch.setenv("DEEPINFER_LOG_FORMAT", "json")
    assert draw(monkeypatch) == ""


def test_nothing_is_drawn_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with counting("golden") as show:
        show("3 done")
    assert capsys.readouterr().err == ""


def test_a_rate() -> None:
    times = iter([10.0, 10.0, 14.0])
    rate = Rate(lambda: next(times))
    assert rate.per_second == 0
    rate.add(5)
    rate.add(3)
    assert (rate.count, rate.per_second) == (8, 2.0)


@pytest.mark.parametrize("flag", [True, False], ids=["default", "no-progress"])
def test_commands_draw_unless_told_not_to(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flag: bool
) -> None:
    seen: list[tuple[str, bool]] = []

    @contextmanager
    def record(description: str, *, enabled: bool) -> Iterator[Show]:
        seen.append((description, enabled))
        yield lambda counts: None

    def opened(*arguments: object, progress: bool, **options: object) -> NoReturn:
        seen.append(("load", progress))
        raise ConfigError("loaded enough")

    monkeypatch.setattr("deepinfer.cli.progress.counting", record)
    monkeypatch.setattr("deepinfer.cli.generate.counting", record)
    monkeypatch.setattr("deepinfer.conformance.golden.run_golden", lambda *_, **__: GoldenReport())
    arguments = [] if flag else ["--no-progress"]
    (tmp_path / "in.jsonl").touch()
    null = ["--accelerator", "null", "--allow-null", "--max_model_len", "64"]
    assert launch("generate", str(tmp_path / "in.jsonl"), *null, *arguments).returncode == 0
    launch("golden", str(tmp_path), "--json", *arguments)
    monkeypatch.setattr("deepinfer.cli.session.open_engine", opened)
    launch("run", "x", *null, *arguments)
    assert seen == [("generate", flag), ("golden", flag), ("load", flag)]
