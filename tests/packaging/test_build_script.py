"""build.sh: what it refuses and why, devices that are missing, --no-device, a second run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environments import Environment


def build(
    environment: Environment, checkout: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return environment.run(checkout / "build.sh", *arguments, cwd=checkout.parent, **variables)


def installed(environment: Environment) -> set[str]:
    """Names of the distributions of ours in an environment."""
    found = environment.site_packages.glob("deepinfer*.dist-info")
    return {path.name.split("-")[0] for path in found}


@pytest.fixture(scope="module")
def prepared(new_environment: Callable[..., Environment]) -> Environment:
    """An environment that has every dependency, shared by the tests that install into it."""
    return new_environment()


@pytest.fixture(scope="module", params=["nvidia", "ascend"])
def absent(request: pytest.FixtureRequest) -> str:
    """An accelerator whose device is not on this machine."""
    devices = {"nvidia": ("nvidia[0-9]*", "dxg"), "ascend": ("davinci[0-9]*",)}[request.param]
    if any(any(Path("/dev").glob(pattern)) for pattern in devices):
        pytest.skip(f"this machine has the device of accelerator {request.param}")
    return str(request.param)


def test_unknown_argument(environment: Environment, checkout: Path) -> None:
    done = build(environment, checkout, "--fast")
    assert done.returncode == 2
    assert "'--fast'" in done.stderr
    assert "allowed: --no-device, run, test" in done.stderr


@pytest.mark.slow
def test_unknown_accelerator_lists_the_known_ones(environment: Environment, checkout: Path) -> None:
    done = build(environment, checkout, DEEPINFER_ACCELERATOR="mychip")
    assert done.returncode == 2
    assert "'mychip'" in done.stderr
    assert "ascend, null, nvidia, reference" in done.stderr
    assert installed(environment) == set()


@pytest.mark.slow
def test_vendor_distribution_is_refused(
    environment: Environment, checkout: Path, vendor_wheel: Path
) -> None:
    environment.install(vendor_wheel)
    done = build(environment, checkout)
    assert done.returncode == 3
    assert "pip uninstall -y deepinfer" in done.stderr
    assert installed(environment) == {"deepinfer"}


@pytest.mark.slow
def test_pip_without_network_ends_with_the_reason(
    new_environment: Callable[..., Environment], checkout: Path
) -> None:
    done = build(new_environment(without=("torch",)), checkout)
    assert done.returncode == 3
    assert "No matching distribution found for torch==2.13.0" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("build.sh: error: could not install torch")


def test_active_environment_without_interpreter(
    environment: Environment, checkout: Path, tmp_path: Path
) -> None:
    done = build(environment, checkout, VIRTUAL_ENV=str(tmp_path))
    assert done.returncode == 3
    assert f"{tmp_path}/bin/python is not a working Python" in done.stderr


@pytest.mark.slow
def test_missing_device(prepared: Environment, checkout: Path, absent: str) -> None:
    done = build(prepared, checkout, DEEPINFER_ACCELERATOR=absent)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "there is no device file /dev/" in done.stderr
    assert "--no-device" in done.stderr
    assert installed(prepared) >= {"deepinfer_core"}
    assert f"deepinfer_{absent}" not in installed(prepared)


@pytest.mark.slow
def test_no_device_installs_and_compiles(
    new_environment: Callable[..., Environment], checkout: Path, absent: str
) -> None:
    environment = new_environment()
    hook = checkout / "backends" / absent / "compile.sh"
    hook.write_text('echo "compiling with $PYTHON $*"\n')
    try:
        done = build(environment, checkout, "--no-device", DEEPINFER_ACCELERATOR=absent)
    finally:
        hook.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there is no device file /dev/" in done.stderr
    assert f"compiling with {environment.python} --no-device" in done.stdout
    assert installed(environment) == {"deepinfer_core", f"deepinfer_{absent}"}


@pytest.mark.slow
def test_second_run_is_not_fooled_by_pythonpath(
    prepared: Environment, checkout: Path, tmp_path: Path
) -> None:
    decoy = tmp_path / "deepinfer_core-9.9.dist-info"
    decoy.mkdir()
    (decoy / "METADATA").write_text("Metadata-Version: 2.1\nName: deepinfer-core\nVersion: 9.9\n")
    for _ in range(2):
        done = build(prepared, checkout, PYTHONPATH=os.pathsep.join([str(tmp_path), "."]))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ignoring PYTHONPATH" in done.stdout
    assert installed(prepared) == {"deepinfer_core"}


@pytest.mark.slow
def test_run_hands_its_arguments_to_run_py(prepared: Environment, checkout: Path) -> None:
    done = build(prepared, checkout, "run", "--help")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--model_name" in done.stdout


@pytest.mark.parametrize("script", ["build.sh", ".ci/run", ".ci/with-python"])
def test_shell_syntax(script: str) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(["bash", "-n", root / script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
