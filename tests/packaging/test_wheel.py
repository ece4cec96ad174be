"""The wheel of deepinfer-core: what is in it, and the main job from it far from any checkout."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environments import Environment

pytestmark = pytest.mark.slow

REPORT_IMPORTED_FILES = """
import atexit, json, runpy, sys

def report():
    files = {
        name: module.__file__
        for name, module in list(sys.modules.items())
        if name.startswith("deepinfer") and getattr(module, "__file__", None)
    }
    with open("imported.json", "w") as file:
        json.dump(files, file)

atexit.register(report)
sys.argv = ["run.py"]
runpy.run_path("run.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def installed(new_environment: Callable[..., Environment], core_wheel: Path) -> Environment:
    environment = new_environment()
    environment.install(core_wheel)
    return environment


def test_contents(core_wheel: Path) -> None:
    with zipfile.ZipFile(core_wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"deepinfer", "deepinfer_launcher.py", "deepinfer_reference", "deepinfer_null"}
    typed = {"deepinfer/py.typed", "deepinfer_reference/py.typed", "deepinfer_null/py.typed"}
    assert typed <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_source_file_is_in_the_wheel(core_wheel: Path, checkout: Path) -> None:
    with zipfile.ZipFile(core_wheel) as archive:
        names = set(archive.namelist())
    sources = {
        str(path.relative_to(folder))
        for folder, package in (
            (checkout, "deepinfer"),
            (checkout / "backends" / "reference", "deepinfer_reference"),
            (checkout / "backends" / "null", "deepinfer_null"),
        )
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - names == set()


def test_lone_run_file_runs_from_the_wheel(installed: Environment, lone_run: Path) -> None:
    done = installed.run(
        installed.python, "-c", REPORT_IMPORTED_FILES, cwd=lone_run.parent,
        DEEPINFER_ACCELERATOR="reference",
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    files = json.loads((lone_run.parent / "imported.json").read_text())
    assert {"deepinfer_launcher", "deepinfer.cli.run", "deepinfer_reference.plugin"} <= set(files)
    outside = [f for f in files.values() if not Path(f).is_relative_to(installed.site_packages)]
    assert outside == []


def test_console_script_shows_its_help(installed: Environment, tmp_path: Path) -> None:
    done = installed.run(installed.bin / "deepinfer", "--help", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "backends" in done.stdout


def test_run_file_without_any_installation(environment: Environment, lone_run: Path) -> None:
    done = environment.run(environment.python, "run.py", cwd=lone_run.parent)

    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "run ./build.sh" in done.stderr


def test_missing_dependency_is_one_line(
    new_environment: Callable[..., Environment], core_wheel: Path, lone_run: Path
) -> None:
    environment = new_environment(without=("torch",))
    environment.install(core_wheel)

    done = environment.run(environment.python, "run.py", cwd=lone_run.parent)

    assert done.returncode == 3
    assert done.stderr.count("\n") == 1, done.stderr
    assert "`torch` is not installed: run ./build.sh" in done.stderr


def test_torch_extension_that_breaks_import(
    environment: Environment, core_wheel: Path, breaking_torch_extension: Path, tmp_path: Path
) -> None:
    environment.install(core_wheel, breaking_torch_extension)
    through_launcher = (
        "import deepinfer_launcher as launcher\n"
        "def command():\n"
        "    import torch\n"
        "    print(torch.ones(2).sum().item())\n"
        "raise SystemExit(launcher._launch(command))\n"
    )

    bare = environment.run(environment.python, "-c", "import torch", cwd=tmp_path)
    done = environment.run(environment.python, "-c", through_launcher, cwd=tmp_path)

    assert bare.returncode != 0
    assert "libchip.so" in bare.stderr
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr
