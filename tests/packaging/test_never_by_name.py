"""Our distributions are never fetched by name: the public registry's `deepinfer` is not ours."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"""["'`]?deepinfer([-_]\w+)*(\[[\w,]*\])?([=<>~!]=?[\w.*]+)?["'`.,;:)]*$""")
TEXT = (".sh", ".md", ".py", ".toml", ".yml", ".yaml", ".txt", ".cfg", "")


def fetched_by_name(line: str) -> bool:
    """Does a line tell pip to install a distribution of ours from an index?

    `NAME @ ADDRESS` takes it from that address.
    """
    _, found, arguments = line.partition("pip install ")
    words = [*arguments.split(), ""]
    named = [after for word, after in pairwise(words) if NAME.match(word)]
    return bool(found) and "--no-index" not in arguments and any(after != "@" for after in named)


def project_files() -> list[Path]:
    folders = ("deepinfer", "backends", "plugins", "bench", "examples", "docs", ".ci")
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix in TEXT and "__pycache__" not in path.parts]


def test_no_file_installs_us_by_name() -> None:
    files = project_files()
    assert ROOT / "build.sh" in files
    assert ROOT / "README.md" in files
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if fetched_by_name(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "by_name"),
    [
        ("pip install deepinfer-core", True),
        ("pip install -U 'deepinfer-nvidia==0.1.0'", True),
        ("Run `python -m pip install deepinfer`.", True),
        ("pip install deepinfer-core[dev]", True),
        ("pip install -e .", False),
        ("pip install --no-deps ./backends/nvidia", False),
        ("pip install dist/deepinfer_core-0.1.0-py3-none-any.whl", False),
        ("pip install --no-index --find-links dist deepinfer-core", False),
        ("pip uninstall -y deepinfer", False),
        ('pip install "deepinfer-core @ git+https://host/path"', False),
        ('pip install "deepinfer-core @ git+https://host/path" deepinfer-nvidia', True),
    ],
)
def test_what_counts_as_by_name(line: str, by_name: bool) -> None:
    assert fetched_by_name(line) is by_name


def test_no_distribution_depends_on_another_of_ours() -> None:
    projects = [ROOT / "pyproject.toml", *(ROOT / "backends").glob("*/pyproject.toml")]
    assert len(projects) >= 3
    for path in projects:
        project = tomllib.loads(path.read_text())["project"]
        extras = project.get("optional-dependencies", {}).values()
        for requirement in [*project["dependencies"], *(r for extra in extras for r in extra)]:
            assert not requirement.startswith("deepinfer"), path
