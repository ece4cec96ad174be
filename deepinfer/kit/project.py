"""`new_backend`: the files of a new backend's project, from the templates beside this module."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import Path

from deepinfer.backend.hooks import CONTRACT_VERSION
from deepinfer.errors import UsageError
from deepinfer.kit.names import check_name

FILES = {
    "pyproject.toml": "pyproject.toml.in",
    "README.md": "readme.md.in",
    ".gitignore": "gitignore.in",
    ".github/workflows/test.yml": "test.yml.in",
    "deepinfer_@name@/__init__.py": "init.py.in",
    "deepinfer_@name@/plugin.py": "plugin.py.in",
    "deepinfer_@name@/probe.py": "probe.py.in",
    "deepinfer_@name@/backend.py": "backend.py.in",
    "deepinfer_@name@/py.typed": "py.typed.in",
    "tests/test_conformance.py": "test_conformance.py.in",
    "tests/test_plugin.py": "test_plugin.py.in",
}
"""The files of a project and their templates. @NAMES@ are replaced in both."""


def new_backend(name: str, directory: Path) -> list[Path]:
    """Write the project of a backend into a directory that is absent or empty.

    Returns the files that were written. UsageError for a name that `check_name` refuses, and for a
    directory that is not empty or cannot be written.
    """
    check_name(name)
    values = _values(name)
    texts = {
        directory / _filled(file, values): _filled(_template(template), values)
        for file, template in FILES.items()
    }
    try:
        _check_empty(directory)
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"directory {str(directory)!r} cannot be written: {reason}; name one "
            "that does not exist or is empty"
        ) from error
    return list(texts)


def _check_empty(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise UsageError(
            f"{str(directory)!r} is a file; name a directory that does not exist or is empty"
        )
    if directory.is_dir() and any(directory.iterdir()):
        raise UsageError(
            f"directory {str(directory)!r} is not empty; name one that does not exist or is empty"
        )


def _values(name: str) -> dict[str, str]:
    requirements = metadata.requires("deepinfer-core") or []
    torch = next((text for text in requirements if text.startswith("torch==")), "torch")
    return {
        "name": name,
        "class": "".join(part.capitalize() for part in name.split("_")) + "Backend",
        "contract": repr(CONTRACT_VERSION),
        "torch": torch,
    }


def _template(file: str) -> str:
    return (resources.files("deepinfer.kit") / "template" / file).read_text(encoding="utf-8")


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
