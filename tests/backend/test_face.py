"""The face of `deepinfer.backend`: all that the author of a backend needs, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deepinfer.backend as face
from deepinfer.backend import hooks
from deepinfer.backend.base import FAMILIES, Backend

ROOT = Path(__file__).resolve().parents[2]

DATACLASSES = {name for name, value in vars(hooks).items() if dataclasses.is_dataclass(value)}
HOOKS = {"CONTRACT_VERSION", "hookimpl"} | DATACLASSES
ALIASES = {"Fact", "Weights"}
"""Names of unions: signatures show their members."""
HELPERS = {"OPERATORS", "accumulation_dtype", "block_of", "stored_bytes"}


def classes(hint: Any) -> Iterator[type]:
    """The classes that a type hint is made of."""
    if inspect.isclass(hint) and typing.get_origin(hint) is None:
        yield hint
    for part in typing.get_args(hint):
        for inner in part if isinstance(part, list) else [part]:
            yield from classes(inner)


def hints_of(cls: type) -> Iterator[Any]:
    """Types of the fields, parameters and results of a class and of those that it derives from."""
    for base in cls.__mro__:
        if not base.__module__.startswith("deepinfer."):
            continue
        yield from typing.get_type_hints(base).values()
        for name, member in vars(base).items():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if inspect.isfunction(function) and not name.startswith("_"):
                yield from typing.get_type_hints(function).values()


def types_in_signatures() -> set[str]:
    """Every class of `deepinfer.backend` that an operator, a service or one of their values has."""
    found: set[type] = set()
    todo: list[type] = [Backend]
    while todo:
        cls = todo.pop()
        if cls.__module__.startswith("deepinfer.backend.") and cls not in found:
            found.add(cls)
            todo += [other for hint in hints_of(cls) for other in classes(hint)]
    return {cls.__name__ for cls in found}


def names_of(code: str) -> set[str]:
    """What Python code imports from the face."""
    return {
        alias.name
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module == "deepinfer.backend"
        for alias in node.names
    }


def test_the_face_is_what_an_author_needs() -> None:
    families = {cls.__name__ for cls in FAMILIES.values()}
    assert set(face.__all__) == types_in_signatures() | families | HOOKS | ALIASES | HELPERS
    assert len(face.__all__) == len(set(face.__all__))


@pytest.mark.parametrize("name", sorted(HELPERS | ALIASES))
def test_what_no_signature_has_is_used_by_a_backend(name: str) -> None:
    used = set()
    for base in ("backends", "plugins"):
        for file in (ROOT / base).glob("*/deepinfer_*/*.py"):
            used |= names_of(file.read_text(encoding="utf-8"))
    assert name in used


def test_templates_of_the_kit_use_the_face_alone() -> None:
    used = set()
    for file in (ROOT / "deepinfer" / "kit" / "template").glob("*.py.in"):
        code = file.read_text(encoding="utf-8")
        used |= names_of(re.sub(r"@\w+@", "name", code))
    assert {"Backend", "BackendSpec", "hookimpl"} <= used <= set(face.__all__)


def test_the_docs_import_from_the_face_alone() -> None:
    lines = re.findall(
        r"from deepinfer\.backend import ([\w, ]+)",
        "".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs").glob("*.md")),
    )
    used = {name for line in lines for name in line.split(", ")}
    assert "Backend" in used
    assert used <= set(face.__all__)


def test_the_docs_list_the_face() -> None:
    """The page about backends names everything but the types that the signatures show."""
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    door = page.split("## The door")[1].split("\n## ")[0]
    rows = "".join(re.findall(r"^\|.*\|$", door, re.MULTILINE))
    listed = set(re.findall(r"`(\w+)`", rows))
    assert listed - types_in_signatures() == set(face.__all__) - types_in_signatures()
    assert listed <= set(face.__all__)
