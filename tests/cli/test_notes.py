"""stderr under DEEPINFER_LOG_FORMAT=json: every line is an object, whatever is said."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import deepinfer
import deepinfer_launcher
from deepinfer.errors import ConfigError
from tests.cli.conftest import Launch

JSON = {"DEEPINFER_LOG_FORMAT": "json"}


def objects(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(one) for one in found)
    return found


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["frobnicate"], 2, "No such command 'frobnicate'."),
        (["run", "--frobnicate"], 2, "No such option: --frobnicate"),
        (["golden", "DIR", "--require", "some"], 2, "--require is 'some'; allowed: \"all\""),
        (["inspect", "nowhere"], 4, "no such directory, and not a Hub id"),
    ],
)
def test_errors(launch: Launch, arguments: list[str], status: int, message: str) -> None:
    done = launch(*arguments, **JSON)
    assert done.returncode == status
    last = objects(done.stderr)[-1]
    assert message in last["message"]
    assert last["level"] == "error"
    assert not last["message"].startswith("error:")


def test_what_was_chosen(launch: Launch) -> None:
    first, *_ = objects(launch("inspect", "nowhere", **JSON).stderr)
    assert first["message"].startswith("accelerator ")
    assert first["level"] == "info"


def test_help_is_a_result(launch: Launch) -> None:
    done = launch("backends", "--help", **JSON)
    assert done.returncode == 0
    assert "Usage:" in done.stdout
    assert done.stderr == ""


def said(
    command: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, Any]]]:
    """Status and messages of a command under the launcher."""
    for name, value in JSON.items():
        monkeypatch.setenv(name, value)
    status = deepinfer_launcher._launch(command)
    return status, objects(capsys.readouterr().err)


def test_errors_of_several_lines_are_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise ConfigError("one\ntwo")

    _, (one,) = said(fail, monkeypatch, capsys)
    assert one["message"] == "one\ntwo"


def test_defects_have_their_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        return 1 // 0

    status, (one,) = said(fail, monkeypatch, capsys)
    assert status == 1
    assert one["level"] == "critical"
    assert "ZeroDivisionError" in one["message"]
    assert "Traceback" in one["exception"]


def test_warnings_of_anyone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn() -> int:
        for file in ("elsewhere.py", deepinfer.__file__):
            sys.stderr.write(warnings.formatwarning("odd", UserWarning, file, 7))
        return 0

    _, (others, ours) = said(warn, monkeypatch, capsys)
    assert "elsewhere.py:7" in others["message"]
    assert ours["message"] == "odd"
    assert (others["level"], ours["level"]) == ("warning", "warning")
