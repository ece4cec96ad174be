"""Throwaway environments, a wheel of ours and a fake of the vendor's; nothing is downloaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, link_dependencies, write_wheel

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = (
    "LICENSE",
    "README.md",
    "backends",
    "build.sh",
    "deepinfer",
    "deepinfer_launcher.py",
    "examples",
    "pyproject.toml",
    "run.py",
)


@pytest.fixture(scope="session")
def new_environment(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Environment]:
    """Makes environments: `new_environment()`, or `new_environment(without=("torch",))`."""
    links: dict[tuple[str, ...], Path] = {}

    def make(without: tuple[str, ...] = ()) -> Environment:
        if without not in links:
            links[without] = tmp_path_factory.mktemp("dependencies") / "site-packages"
            link_dependencies(links[without], without)
        environment = Environment(tmp_path_factory.mktemp("environment") / "with space")
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", environment.folder], check=True
        )
        (environment.site_packages / "dependencies.pth").write_text(f"{links[without]}\n")
        return environment

    return make


@pytest.fixture
def environment(new_environment: Callable[..., Environment]) -> Environment:
    """One fresh environment."""
    return new_environment()


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a checkout has for its users, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("checkout") / "deep infer"
    folder.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in CHECKOUT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def core_wheel(
    checkout: Path,
    new_environment: Callable[..., Environment],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The wheel of deepinfer-core, built without network."""
    source = tmp_path_factory.mktemp("source") / "core"
    shutil.copytree(checkout, source)
    wheels = tmp_path_factory.mktemp("our wheels")
    new_environment().pip(
        "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", wheels, source
    )
    (wheel,) = wheels.glob("deepinfer_core-*.whl")
    return wheel


@pytest.fixture(scope="session")
def vendor_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for the vendor's engine: same import package, fails when it is executed."""
    fails = "raise RuntimeError('the foreign package was executed')\n"
    return write_wheel(
        tmp_path_factory.mktemp("vendor"),
        "deepinfer",
        {
            "deepinfer/__init__.py": fails,
            "deepinfer/_C/__init__.py": fails,
            "deepinfer/engine/__init__.py": fails,
        },
    )


@pytest.fixture(scope="session")
def breaking_torch_extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that torch loads by itself and that cannot be imported, as torch_npu without CANN."""
    return write_wheel(
        tmp_path_factory.mktemp("extension"),
        "torch_chip",
        {"torch_chip/__init__.py": "raise ImportError('libchip.so: cannot open')\n"},
        entry_points="[torch.backends]\ntorch_chip = torch_chip:autoload\n",
    )


@pytest.fixture
def lone_run(tmp_path: Path) -> Path:
    """A copy of run.py alone in an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return Path(shutil.copy2(ROOT / "run.py", folder / "run.py"))
