"""The `deepinfer` command: exit codes, and messages without a stack trace."""

from __future__ import annotations

import sys

import pytest
import typer

from deepinfer.cli.invocation import invoke
from deepinfer.cli.main import main as deepinfer
from tests.cli.conftest import Command, Launch


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["backends", "--frobnicate"], "No such option: --frobnicate"),
        (["run", "--frobnicate"], "No such option: --frobnicate"),
        (["golden", "--compute"], "requires an argument"),
        (["golden", "DIR", "--require", "some"], "--require is 'some'; allowed: \"all\""),
        (["golden"], "no directory; give DIR or set DEEPINFER_GOLDEN_DIR"),
        (["run", "--ep", "2"], "not built yet"),
    ],
)
def test_usage_errors(launch: Launch, arguments: list[str], named: str) -> None:
    done = launch(*arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_no_arguments_show_the_help_and_are_a_usage_error(launch: Launch) -> None:
    done = launch()
    assert done.returncode == 2
    assert "backends" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_usage_error_of_a_process(command: Command) -> None:
    done = command("frobnicate")
    assert done.returncode == 2
    assert "No such command 'frobnicate'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["backends", "--help"], ["run", "--help"]])
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert deepinfer(arguments) == 0
    assert "Usage:" in capsys.readouterr().out


def test_main_does_not_end_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert deepinfer(["frobnicate"]) == 2
    assert "No such command" in capsys.readouterr().err


def test_status_of_a_command() -> None:
    app = typer.Typer(add_completion=False)

    @app.command()
    def end(status: int) -> None:
        if status:
            raise typer.Exit(status)

    assert [invoke(app, [str(status)], "end") for status in (0, 1, 7)] == [0, 1, 7]
    assert invoke(app, ["seven"], "end") == 2


def test_closed_pipe_is_left_to_the_launcher() -> None:
    app = typer.Typer(add_completion=False)

    @app.command()
    def show() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.MonkeyPatch.context() as patch:  # typer wraps both streams then
        patch.setattr(sys, "stdout", sys.stdout)
        patch.setattr(sys, "stderr", sys.stderr)
        with pytest.raises(BrokenPipeError):
            invoke(app, [], "show")


def test_interrupt_is_130() -> None:
    app = typer.Typer(add_completion=False)

    @app.command()
    def wait() -> None:
        raise KeyboardInterrupt

    try:
        status = invoke(app, [], "wait")
    except KeyboardInterrupt:  # left to the launcher, which ends with 130
        status = 130
    assert status == 130
