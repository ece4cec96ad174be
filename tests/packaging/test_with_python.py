""".ci/with-python: which interpreter it takes, and the line that says why something is left out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.environments import Environment

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "with-python"
THIS = "{}.{}".format(*sys.version_info)
WARNED = "assert (False, 'always true')\n"
TOOLS = ("bash", "dirname", "grep", "mktemp", "rm", "tail")
SHIM = "#!/bin/sh\necho 'no version is set' >&2\nexit 127\n"

Check = Callable[..., subprocess.CompletedProcess[str]]


def write_command(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """The only folder on PATH: what the script calls, and no interpreter."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    return folder


@pytest.fixture
def check(environment: Environment, tmp_path: Path, commands: Path) -> Iterator[Check]:
    """`check(VERSION)` runs the script in a project of two files; pip has no index."""
    project = tmp_path / "project"
    (project / ".ci").mkdir(parents=True)
    script = Path(shutil.copy(SCRIPT, project / ".ci"))
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["torch==1.2", "numpy"]\n')
    (project / "module.py").write_text("sound = True\n")

    def run(version: str) -> subprocess.CompletedProcess[str]:
        return environment.run(script, version, cwd=tmp_path, PATH=str(commands))

    yield run
    assert not (project / "__pycache__").exists()


def test_no_interpreter(check: Check, commands: Path) -> None:
    write_command(commands / "python9.9", SHIM)
    done = check("9.9")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        ".ci/with-python: left out: there is no interpreter that runs as Python 9.9, on PATH or in "
        "pyenv\n"
    )


def test_an_interpreter_of_another_version_is_not_taken(check: Check, commands: Path) -> None:
    (commands / "python9.9").symlink_to(Path(sys.executable).resolve())
    assert "left out: there is no interpreter" in check("9.9").stdout


@pytest.mark.slow
def test_pyenv_is_asked_where_its_shim_fails(check: Check, commands: Path, tmp_path: Path) -> None:
    interpreter = tmp_path / "pyenv" / "versions" / f"{THIS}.0" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(Path(sys.executable).resolve())
    write_command(commands / f"python{THIS}", SHIM)
    write_command(commands / "pyenv", f"#!/bin/sh\necho '{tmp_path}/pyenv'\n")
    (tmp_path / "project" / "module.py").write_text(WARNED)  # ends it before pip
    assert f"({interpreter})" in check(THIS).stdout


@pytest.mark.slow
def test_without_an_index_the_tests_are_left_out(check: Check, commands: Path) -> None:
    (commands / f"python{THIS}").symlink_to(Path(sys.executable).resolve())
    done = check(THIS)
    assert (done.returncode, done.stderr) == (0, "")
    *_, compiled, last = done.stdout.splitlines()
    assert compiled == ".ci/with-python: compiling every file, warnings are errors"
    assert last.startswith(
        ".ci/with-python: left out: the tests did not run: pip could not install"
    )
    assert "ERROR: " in last


@pytest.mark.slow
def test_a_warning_of_the_compiler_fails(check: Check, commands: Path, tmp_path: Path) -> None:
    (commands / f"python{THIS}").symlink_to(Path(sys.executable).resolve())
    (tmp_path / "project" / "module.py").write_text(WARNED)
    done = check(THIS)
    assert done.returncode == 1
    assert "module.py" in done.stdout
    assert "left out" not in done.stdout


def test_one_version_is_asked_for(environment: Environment, tmp_path: Path) -> None:
    done = environment.run(SCRIPT, cwd=tmp_path)
    assert done.returncode == 2
    assert "give one version, for example 3.12" in done.stderr
