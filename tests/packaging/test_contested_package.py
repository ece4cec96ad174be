"""The vendor's distribution `deepinfer` before, after and over ours: said, and mended as said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environments import Environment

ENVIRONMENT_EXIT_CODE = 3


def refused(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Check that a command refused to run; the commands that it says mend that."""
    assert done.returncode == ENVIRONMENT_EXIT_CODE, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "foreign package was executed" not in done.stderr
    assert done.stdout == ""
    return [line.strip() for line in done.stderr.splitlines() if line.startswith("    ")]


def mend(environment: Environment, commands: list[str], cwd: Path) -> None:
    """Run the commands as a person would, then ask the launcher again."""
    assert commands
    for command in commands:
        done = environment.run("sh", "-c", command, cwd=cwd)
        assert done.returncode == 0, command + done.stdout + done.stderr
    check = environment.run(
        environment.python, environment.site_packages / "deepinfer_launcher.py", cwd=cwd
    )
    assert (check.returncode, check.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        pytest.param(("vendor", "ours"), id="before"),
        pytest.param(("ours", "vendor"), id="after"),
        pytest.param(("vendor", "ours", "vendor"), id="over"),
    ],
)
def test_vendor_installed_too(
    order: tuple[str, ...],
    environment: Environment,
    core_wheel: Path,
    vendor_wheel: Path,
    lone_run: Path,
) -> None:
    for name in order:
        environment.install("--force-reinstall", core_wheel if name == "ours" else vendor_wheel)

    by_script = environment.run(environment.bin / "deepinfer", "backends", cwd=lone_run.parent)
    by_run = environment.run(environment.python, "run.py", cwd=lone_run.parent)

    commands = refused(by_script)
    assert by_run.stderr == by_script.stderr
    assert "the distribution `deepinfer` 0.1.0, which is not this project" in by_run.stderr
    assert str(environment.site_packages) in by_run.stderr
    assert [command.split(" -m ")[1].split("'/")[0] for command in commands] == [
        "pip uninstall -y deepinfer",
        "pip install --force-reinstall --no-deps ",
    ]
    mend(environment, commands, lone_run.parent)


@pytest.mark.slow
def test_uninstalling_the_vendor_took_our_files(
    environment: Environment, core_wheel: Path, vendor_wheel: Path, lone_run: Path
) -> None:
    environment.install(core_wheel)
    environment.install(vendor_wheel)
    environment.pip("uninstall", "-y", "deepinfer")

    done = environment.run(environment.python, "run.py", cwd=lone_run.parent)

    commands = refused(done)
    assert "`import deepinfer` does not find the package" in done.stderr
    mend(environment, commands, lone_run.parent)


@pytest.mark.slow
def test_file_of_ours_overwritten_without_trace(
    environment: Environment, core_wheel: Path, lone_run: Path
) -> None:
    environment.install(core_wheel)
    (environment.site_packages / "deepinfer" / "errors.py").write_text("raise RuntimeError\n")

    done = environment.run(environment.python, "run.py", cwd=lone_run.parent)

    commands = refused(done)
    assert "1 installed files of `deepinfer-core`" in done.stderr
    assert "deepinfer/errors.py" in done.stderr
    mend(environment, commands, lone_run.parent)


@pytest.mark.slow
def test_vendor_alone_beside_a_checkout(
    environment: Environment, vendor_wheel: Path, checkout: Path
) -> None:
    environment.install(vendor_wheel)

    done = environment.run(environment.python, checkout / "run.py", cwd=checkout)

    commands = refused(done)
    assert commands[0].endswith("-m pip uninstall -y deepinfer")
    assert commands[1].endswith(f"--no-deps -e '{checkout}'")


@pytest.mark.slow
def test_vendor_alone_beside_a_lone_run_file(
    environment: Environment, vendor_wheel: Path, lone_run: Path
) -> None:
    environment.install(vendor_wheel)

    done = environment.run(environment.python, "run.py", cwd=lone_run.parent)

    refused(done)
    assert "DeepInfer is not installed" in done.stderr
    assert "`deepinfer` that is installed is another project's" in done.stderr


@pytest.mark.slow
def test_another_package_in_front_of_ours(
    environment: Environment, core_wheel: Path, lone_run: Path, tmp_path: Path
) -> None:
    environment.install(core_wheel)
    foreign = tmp_path / "foreign" / "deepinfer"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("raise RuntimeError('foreign package was executed')\n")

    done = environment.run(
        environment.python, "run.py", cwd=lone_run.parent, PYTHONPATH=str(foreign.parent)
    )

    refused(done)
    assert str(foreign / "__init__.py") in done.stderr


@pytest.mark.slow
def test_checkout_in_an_environment_with_another_copy(
    environment: Environment, core_wheel: Path, checkout: Path
) -> None:
    environment.install(core_wheel)

    done = environment.run(environment.python, "run.py", cwd=checkout)

    commands = refused(done)
    assert "`import deepinfer_reference` does not find the package" in done.stderr
    assert commands[0].endswith(f"-e '{checkout}'")


def test_checkout_without_installation(
    new_environment: Callable[..., Environment], checkout: Path
) -> None:
    environment = new_environment(without=("torch",))

    done = environment.run(environment.python, "run.py", cwd=checkout)

    assert refused(done) == [f"'{checkout / 'build.sh'}'"]
