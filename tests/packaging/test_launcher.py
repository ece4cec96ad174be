"""The launcher: errors become messages and exit statuses; unknown failures stay visible."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import deepinfer_launcher as launcher
from deepinfer.errors import ConfigError, DeepInferError


@pytest.fixture(autouse=True)
def sound_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "environment_problem", lambda: None)
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


def launch(error: BaseException) -> int:
    def command() -> int:
        raise error

    return launcher._launch(command)


@pytest.mark.parametrize(
    ("error", "status"), [(DeepInferError("a"), 1), (ConfigError("b"), ConfigError.exit_code)]
)
def test_own_error_is_a_message_and_its_exit_code(
    error: DeepInferError, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(error) == status
    assert capsys.readouterr() == ("", f"error: {error}\n")


def test_other_error_keeps_its_trace() -> None:
    with pytest.raises(ZeroDivisionError):
        launch(ZeroDivisionError())


def test_missing_module_that_is_no_dependency_keeps_its_trace() -> None:
    with pytest.raises(ModuleNotFoundError, match="no such thing"):
        launch(ModuleNotFoundError("no such thing", name="nosuchthing"))


def test_missing_dependency_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    error = ModuleNotFoundError("No module named 'tokenizers.x'", name="tokenizers.x")
    assert launch(error) == launcher.ENVIRONMENT_EXIT_CODE
    message = capsys.readouterr().err
    assert "`tokenizers` is not installed: run ./build.sh" in message
    assert message.count("\n") == 1


def test_interrupt_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(KeyboardInterrupt()) == launcher.INTERRUPTED_EXIT_CODE
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "EBADF"])
def test_output_that_cannot_be_written_is_a_message(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    number = getattr(errno, name)
    assert launch(OSError(number, os.strerror(number))) == launcher.OUTPUT_EXIT_CODE
    assert capfd.readouterr().err == (
        f"error: the output cannot be written: {os.strerror(number)}\n"
    )


def test_other_failure_of_a_file_keeps_its_trace() -> None:
    with pytest.raises(FileNotFoundError):
        launch(FileNotFoundError(errno.ENOENT, "no such file", "x"))


def test_quoted_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(ConfigError("a\x1b[31m\rb\u2028c\nd é")) == ConfigError.exit_code
    assert capsys.readouterr().err == "error: a\\x1b[31m\\rb\\u2028c\nd é\n"


def test_own_warnings_are_one_line_and_others_keep_their_place() -> None:
    shown: list[str] = []

    def command() -> int:
        for file in (str(launcher.HERE / "deepinfer" / "x.py"), "elsewhere.py"):
            shown.append(warnings.formatwarning("an odd\x1b value", UserWarning, file, 7))
        return 0

    assert launcher._launch(command) == 0
    assert shown[0] == "warning: an odd\\x1b value\n"
    assert shown[1].startswith("elsewhere.py:7: UserWarning: an odd")


def test_removed_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert launch(AssertionError("must not run")) == launcher.ENVIRONMENT_EXIT_CODE
    assert "the working directory cannot be used" in capsys.readouterr().err


def test_environment_problem_stops_before_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "environment_problem", lambda: "error: mixed")
    assert launch(AssertionError("must not run")) == launcher.ENVIRONMENT_EXIT_CODE
    assert capsys.readouterr().err == "error: mixed\n"


def test_run_hands_over_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    module = ModuleType("deepinfer.cli.run")
    module.main = lambda argv: seen.append(argv)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepinfer.cli.run", module)
    assert launcher.run(("--json", "hello")) == 0
    assert seen == [["--json", "hello"]]


@pytest.mark.parametrize(("given", "kept"), [(None, "0"), ("1", "1")])
def test_autoload_of_torch_extensions_is_off_unless_set(
    given: str | None, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is None:
        monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD")
    else:
        monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", given)
    seen: list[str] = []
    assert (
        launcher._launch(lambda: seen.append(launcher.os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]))
        == 0
    )
    assert seen == [kept]
