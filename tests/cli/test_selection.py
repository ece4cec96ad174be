"""Backend and mode of a command: flag, environment, announcement, and a fresh process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deepinfer.backend import Mode
from deepinfer.cli.selection import choose
from tests.backend.conftest import Install
from tests.backend.plugins import HARDWARE, entry, spec, write_plugin
from tests.cli.conftest import Command, Launch

SIMULATED = Mode("simulated", "a simulator", "cpu", {"CHIP_SIMULATED": "1"})


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEEPINFER_ACCELERATOR", "DEEPINFER_SKIP_BACKENDS", "CHIP_SIMULATED"):
        monkeypatch.delenv(name, raising=False)


def test_flag_wins_over_the_environment(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(entry("a"), entry("b"))
    monkeypatch.setenv("DEEPINFER_ACCELERATOR", "a")
    assert choose(None, None).spec.name == "a"
    assert choose("b", None).spec.name == "b"


def test_named_backend_is_not_announced(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(entry("a"))
    choose("a", None)
    assert capsys.readouterr() == ("", "")


def test_best_backend_is_announced_in_one_line(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(entry("a"))
    choose(None, None)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "accelerator a (best available; DEEPINFER_ACCELERATOR names another)\n"


def test_skipped_backends(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(entry("a"), entry("b"))
    monkeypatch.setenv("DEEPINFER_SKIP_BACKENDS", "a")
    assert choose(None, None).spec.name == "b"


class Executed(Exception):
    """Stands for the process that takes over."""


def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], dict[str, str]]]:
    calls: list[tuple[str, list[str], dict[str, str]]] = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        calls.append((path, arguments, environment))
        raise Executed

    monkeypatch.setattr(os, "execve", execve)
    return calls


def test_mode_with_an_environment_starts_afresh(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(entry("chip", answer=spec("chip", modes=(HARDWARE, SIMULATED))))
    calls = executed(monkeypatch)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "run.py", "--mode", "simulated"])
    with pytest.raises(Executed):
        choose("chip", "simulated")
    ((path, arguments, environment),) = calls
    assert path == sys.executable
    assert arguments == [sys.executable, "-X", "dev", "run.py", "--mode", "simulated"]
    assert environment == {**os.environ, "CHIP_SIMULATED": "1"}


def test_mode_whose_environment_is_set_stays(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(entry("chip", answer=spec("chip", modes=(HARDWARE, SIMULATED))))
    calls = executed(monkeypatch)
    monkeypatch.setenv("CHIP_SIMULATED", "1")
    assert choose("chip", "simulated").mode is SIMULATED
    assert calls == []


def test_default_mode_stays(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(entry("chip", answer=spec("chip", modes=(HARDWARE, SIMULATED))))
    calls = executed(monkeypatch)
    assert choose("chip", None).mode is HARDWARE
    assert calls == []


MODES = (
    'Mode("hardware", "a chip", "cpu"),'
    'Mode("simulated", "a simulator", "cpu", {"CHIP_SIMULATED": "1"}),'
)


@pytest.fixture
def chip(site: Path) -> None:
    """A backend that tells on stderr how its module is imported."""
    write_plugin(site, "sim", modes=MODES)
    module = site / "chip_sim.py"
    tell = (
        "import os, sys\nprint('simulated:', os.environ.get('CHIP_SIMULATED'), file=sys.stderr)\n"
    )
    module.write_text(tell + module.read_text())


@pytest.mark.slow
def test_process_starts_afresh_once(command: Command, chip: None, tmp_path: Path) -> None:
    done = command("golden", str(tmp_path / "none"), "--accelerator=sim", "--mode", "simulated")
    told = [line for line in done.stderr.splitlines() if line.startswith("simulated:")]
    assert told == ["simulated: None", "simulated: 1"]
    assert "is not a directory of golden data" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_mode(launch: Launch, chip: None) -> None:
    done = launch("run", "--accelerator", "sim", "--mode", "fast")
    assert done.returncode == 2
    assert "no mode 'fast'; its modes are: hardware, simulated" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "missing", "remedy"),
    [
        ("nvidia", ["NVIDIA"], "Install the"),
        ("ascend", ["No CANN runtime", "torch_npu is not installed"], "Install the Ascend driver"),
    ],
)
def test_first_party_backend_without_its_device(
    launch: Launch, first_party: None, name: str, missing: list[str], remedy: str
) -> None:
    done = launch("run", DEEPINFER_ACCELERATOR=name)
    assert done.returncode == 3
    assert f"accelerator '{name}' is not usable on this machine" in done.stderr
    assert all(reason in done.stderr for reason in missing)
    assert remedy in done.stderr
    assert "  reference: usable" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_process_with_a_backend_without_its_device(command: Command, first_party: None) -> None:
    done = command("run", DEEPINFER_ACCELERATOR="ascend")
    assert done.returncode == 3
    assert "accelerator 'ascend' is not usable on this machine" in done.stderr
    assert "Traceback" not in done.stderr


def test_backend_that_is_not_installed(launch: Launch) -> None:
    done = launch("run", DEEPINFER_ACCELERATOR="abacus")
    assert done.returncode == 3
    assert "accelerator 'abacus' is not installed. Installed: " in done.stderr
    assert "Traceback" not in done.stderr


def test_broken_plugin_shows_its_own_traceback_and_the_way_around(
    launch: Launch, site: Path
) -> None:
    write_plugin(site, "broken")
    (site / "chip_broken.py").write_text("raise OSError('libbroken.so')\n")
    done = launch("run")
    assert done.returncode == 3
    assert "OSError: libbroken.so" in done.stderr
    assert "DEEPINFER_SKIP_BACKENDS=broken" in done.stderr
    skipped = launch("backends", DEEPINFER_SKIP_BACKENDS="broken")
    assert (skipped.returncode, "broken" in skipped.stdout) == (0, False)
