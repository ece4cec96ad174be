"""The structure of the source: who may import whom, and what may not be named where."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "deepinfer"
BACKENDS = sorted(
    {
        package.parent
        for base in ("backends", "plugins")
        for package in ROOT.glob(f"{base}/*/deepinfer_*/")
    }
)

BELOW_BACKEND = {"formats", "config", "settings", "errors"}
BELOW_MODEL = BELOW_BACKEND | {"backend", "checkpoint"}
BELOW_ENGINE = BELOW_MODEL | {
    "arrays",
    "cache",
    "data",
    "logs",
    "model",
    "parallel",
    "structured",
    "text",
}
ENGINE = BELOW_ENGINE | {"engine"}

# Package of the core -> the other packages of the core that it may import.
ARROWS = {
    "arrays": set(),
    "errors": set(),
    "formats": {"errors"},
    "config": {"errors"},
    "settings": {"errors"},
    "logs": {"settings", "errors"},
    "machine": set(),
    "strict_json": set(),
    "text": {"config", "strict_json", "errors"},
    "data": {"errors"},
    "backend": BELOW_BACKEND,
    "checkpoint": BELOW_BACKEND | {"strict_json", "backend"},
    "cache": BELOW_MODEL | {"arrays"},
    "structured": BELOW_MODEL,
    "parallel": BELOW_MODEL,
    "model": BELOW_MODEL | {"cache"},
    "engine": BELOW_ENGINE,
    "conformance": ENGINE | {"machine"},
    "bench": ENGINE | {"machine"},
    "evaluate": ENGINE | {"strict_json"},
    "simulate": ENGINE,
    "kit": BELOW_BACKEND | {"backend"},
    "cli": ENGINE | {"machine", "conformance", "bench", "evaluate", "simulate", "kit"},
}
DOOR = {"deepinfer.backend", "deepinfer.formats", "deepinfer.errors"}

VENDOR_PACKAGES = """
    apex cuda cupy deep_ep deep_gemm flash_attn flashinfer flash_mla habana_frameworks
    intel_extension_for_pytorch pycuda tensorrt tilelang torch_mlu torch_musa torch_npu torch_xla
    transformer_engine triton vllm xformers
"""
# In pieces, so that a search of the tree for them finds no file but the backends' own.
VENDOR_NAMES = [
    "torch." + "cuda",
    "torch." + "npu",
    "is_" + "cuda",
    "tri" + "ton",
    "torch_" + "npu",
]
OUTSIDE = re.compile(
    rb"(?<![\w.-])/(?:work|home|root)(?![\w-])|\.\./" + b"shared" + rb"|/" + b"work/"
)
MAY_LOOK_OUTSIDE = {".ci/run", "tests/test_architecture.py"}


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file, those inside functions too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            assert node.module is not None
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def python_files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    assert files, f"{folder} has no Python files"
    return files


def package_of(file: Path) -> str:
    """The package of the core that a file belongs to: "cli", "errors"; "" for its face."""
    first = file.relative_to(CORE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def core_package(name: str) -> str | None:
    """The package of the core that an import names; None for an import of something else."""
    parts = name.split(".")
    return parts[1] if parts[0] == "deepinfer" and len(parts) > 1 else None


def test_every_package_has_its_arrows() -> None:
    packages = {package_of(file) for file in python_files(CORE)} - {""}
    assert packages <= set(ARROWS)


def test_arrows_have_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(ARROWS):
        ready = {name for name, below in ARROWS.items() if below <= done} - done
        assert ready, f"a cycle among {set(ARROWS) - done}"
        done |= ready


@pytest.mark.parametrize("package", sorted(ARROWS))
def test_core_package_imports_only_what_is_below_it(package: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in python_files(CORE)
        if package_of(file) == package
        for line, name in imports(file)
        if core_package(name) not in {None, package} | ARROWS[package]
    ]
    assert wrong == []


def module_name(file: Path) -> str:
    """The dotted name of a module of the core; of a package for its face."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circles(arrows: dict[str, set[str]]) -> set[str]:
    """The arrows of a graph that lie on a circle, as "from -> to"; nodes without arrows have {}."""

    def reached(start: str) -> set[str]:
        found, waiting = set(), [start]
        while waiting:
            new = arrows[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    below = {name: reached(name) for name in arrows}
    return {
        f"{name} -> {other}"
        for name, others in arrows.items()
        for other in others
        if name in below[other]
    }


def test_circles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "e"}}
    assert circles(arrows) == {"b -> c", "c -> b", "e -> e"}


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions and for type checkers count.

    That Python runs a package before its modules does not.
    """
    files = {module_name(file): file for file in python_files(CORE)}

    def module_of(name: str) -> str:
        """The module that an imported name lies in, or "" for one that is none of the core's."""
        while name and name not in files:
            name = name.rpartition(".")[0]
        return name

    arrows = {
        module: {module_of(name) for _, name in imports(file)} - {""}
        for module, file in files.items()
    }
    assert circles(arrows) == set()


def test_core_never_imports_a_backend() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in [*python_files(CORE), ROOT / "deepinfer_launcher.py", ROOT / "run.py"]
        for line, name in imports(file)
        if name.startswith("deepinfer_") and not name.startswith("deepinfer_launcher")
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", BACKENDS, ids=lambda folder: folder.name)
def test_backend_uses_the_door_alone(folder: Path) -> None:
    """Its package does; its tests may run the conformance suite."""
    packages = [package for package in folder.glob("deepinfer_*/") if package.suffix == ""]
    own = {package.name for package in packages}
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for package in packages
        for file in python_files(package)
        for line, name in imports(file)
        if name.startswith("deepinfer")
        and ".".join(name.split(".")[:2]) not in DOOR
        and name.split(".")[0] not in own
    ]
    assert wrong == []


def test_first_party_backends_are_found() -> None:
    assert {"reference", "nvidia", "ascend", "compiled"} <= {folder.name for folder in BACKENDS}


@pytest.mark.parametrize("vendor", VENDOR_NAMES)
def test_core_names_no_vendor(vendor: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in python_files(CORE)
        if package_of(file) != "conformance"
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if vendor in line
    ]
    assert wrong == []


def files_of_the_repository() -> list[str]:
    """Every file that is or may be committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in os.fsdecode(listed).split("\0") if (ROOT / name).is_file()]


@pytest.mark.slow
def test_no_file_names_a_path_outside_the_repository() -> None:
    wrong = [
        f"{name}: {found.group().decode()}"
        for name in files_of_the_repository()
        if name not in MAY_LOOK_OUTSIDE
        for found in OUTSIDE.finditer((ROOT / name).read_bytes())
    ]
    assert wrong == []


def test_data_in_the_repository_are_small() -> None:
    data = [ROOT / name for name in files_of_the_repository() if name.endswith(".safetensors")]
    assert 0 < sum(path.lstat().st_size for path in data) < 26e6


IMPORT_ALL = """
import importlib, importlib.abc, json, pkgutil, sys

blocked, paths, packages = json.loads(sys.argv[1])

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(f"{name} is blocked", name=name)
        return None

import torch  # a build for a device may import vendor packages itself; ours may not
for name in [name for name in sys.modules if name.split(".")[0] in blocked]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
sys.path[:0] = paths
done = []
def fail(name):
    raise
for package in packages:
    done.append(importlib.import_module(package).__name__)
    for module in pkgutil.walk_packages([f"{p}/{package}" for p in paths], f"{package}.", fail):
        done.append(importlib.import_module(module.name).__name__)
print(json.dumps({"done": done, "loaded": sorted({m.split(".")[0] for m in sys.modules})}))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """Every module of the core and of the backends, imported where no vendor package can be.

    done: modules that were imported. loaded: top-level names in sys.modules afterwards.
    """
    packages = ["deepinfer", *(p.name for b in BACKENDS for p in b.glob("deepinfer_*/"))]
    paths = [str(ROOT), *map(str, BACKENDS)]
    arguments = json.dumps([VENDOR_PACKAGES.split(), paths, [p for p in packages if "." not in p]])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL, arguments],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, list[str]] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_every_module_imports_without_vendor_packages(imported: dict[str, list[str]]) -> None:
    expected = {
        ".".join(file.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
        for base in [ROOT, *BACKENDS]
        for package in base.glob("deepinfer*/")
        if package.is_dir() and package.suffix == ""
        for file in python_files(package)
    }
    assert set(imported["done"]) == expected


@pytest.mark.slow
def test_importing_loads_no_vendor_package_and_no_network_client(
    imported: dict[str, list[str]],
) -> None:
    unwanted = {*VENDOR_PACKAGES.split(), "huggingface_hub", "requests", "httpx"}
    assert unwanted & set(imported["loaded"]) == set()
