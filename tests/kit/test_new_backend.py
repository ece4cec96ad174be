"""`deepinfer new-backend`: which names and directories it takes, and what it writes."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.backend import CONTRACT_VERSION
from deepinfer.backend.registry import installed_entry_points
from deepinfer.cli.main import main
from deepinfer.errors import UsageError
from deepinfer.kit import new_backend
from deepinfer.kit.project import FILES
from tests.backend.plugins import write_plugin

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write("chip")`: the project of that backend."""

    def write(name: str) -> Path:
        new_backend(name, tmp_path / name)
        return tmp_path / name

    return write


def test_every_file_is_complete(write: Write) -> None:
    project = write("my_chip2")
    files = sorted(path for path in project.rglob("*") if path.is_file())
    assert len(files) == len(FILES)
    assert project / ".github" / "workflows" / "test.yml" in files
    for file in files:
        text = file.read_text()
        for placeholder in ("@name@", "@class@", "@contract@", "@torch@"):
            assert placeholder not in text
        if file.suffix == ".py":
            ast.parse(text)
    assert (
        "class MyChip2Backend(Backend):" in (project / "deepinfer_my_chip2/backend.py").read_text()
    )


def test_distribution_package_and_entry_point_have_the_name(write: Write) -> None:
    project = tomllib.loads((write("chip") / "pyproject.toml").read_text())["project"]
    assert project["name"] == "deepinfer-chip"
    assert project["entry-points"] == {"deepinfer.backends": {"chip": "deepinfer_chip.plugin"}}
    assert project["dependencies"][0].startswith("torch==")


def test_the_contract_version_is_written_as_numbers(write: Write) -> None:
    assert f"contract_version={CONTRACT_VERSION!r}," in (
        (write("chip") / "deepinfer_chip" / "plugin.py").read_text()
    )


@pytest.mark.parametrize(
    "name", ["", "Chip", "my-chip", "1chip", "chip ", "../chip", "class", "é", "chip_", "x" * 51]
)
def test_name_that_is_no_identifier(write: Write, name: str) -> None:
    with pytest.raises(UsageError, match="allowed: a lower-case identifier"):
        write(name)


@pytest.mark.parametrize("name", ["all", "core", "launcher", "null", "reference"])
def test_reserved_name(write: Write, name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is reserved: .*; choose another"):
        write(name)


def test_installed_name(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write_plugin(tmp_path, "beta")
    assert "beta" in installed_entry_points()
    with pytest.raises(UsageError, match=r"'beta' is installed \(distribution dist-beta 1.0, file"):
        write("beta")


def test_name_of_a_package_that_can_be_imported(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "deepinfer_kappa.py").write_text("")
    with pytest.raises(UsageError, match="a package deepinfer_kappa can be imported"):
        write("kappa")


def test_empty_directory_is_filled_and_a_filled_one_refused(tmp_path: Path) -> None:
    tmp_path.joinpath("project").mkdir()
    new_backend("chip", tmp_path / "project")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UsageError, match="is not empty; name one that does not exist or is empty"):
        new_backend("chip", tmp_path / "project")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        new_backend("chip", tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        new_backend("chip", tmp_path / "file" / "project")
    assert (tmp_path / "file").read_text() == "mine"


def test_directory_that_no_system_has(tmp_path: Path) -> None:
    for name in ("a\0b", "x" * 300):
        with pytest.raises(UsageError, match=r"cannot be written: .*; name one that does not"):
            new_backend("chip", tmp_path / name)


def test_command_prints_files_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-backend", "chip", str(tmp_path / "a b")]) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/a b/deepinfer_chip/plugin.py" in printed
    assert f"pip install --no-deps --no-build-isolation -e '{tmp_path}/a b'" in printed
