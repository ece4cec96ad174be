"""Checks the name of a new backend."""

from __future__ import annotations

import importlib.util
import keyword
import re

from deepinfer.backend.origin import Origin
from deepinfer.backend.registry import installed_entry_points
from deepinfer.errors import UsageError

RESERVED = {
    "all": "it stands for every backend in `deepinfer conformance --accelerator all`",
    "core": "deepinfer-core is the distribution of DeepInfer itself",
    "launcher": "deepinfer_launcher is a module of DeepInfer itself",
    "null": "it is a backend of deepinfer-core",
    "reference": "it is a backend of deepinfer-core",
}
_NAME = re.compile(r"[a-z](?:[a-z0-9_]{0,48}[a-z0-9])?")


def check_name(name: str) -> None:
    """UsageError unless `name` may name a new backend in this environment.

    It becomes the value of DEEPINFER_ACCELERATOR, the distribution deepinfer-NAME and the import
    package deepinfer_NAME.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"backend name is {name!r}; allowed: a lower-case identifier that is no keyword of "
            "Python (letters a-z, digits and underscores, a letter first, no underscore "
            "last, at most 50 characters), such as mychip"
        )
    if name in RESERVED:
        raise UsageError(f"backend name {name!r} is reserved: {RESERVED[name]}; choose another")
    entries = installed_entry_points().get(name, [])
    if entries:
        raise UsageError(
            f"a backend named {name!r} is installed ({Origin.of(entries[0])}); choose another "
            f"name, or uninstall it first"
        )
    if importlib.util.find_spec(f"deepinfer_{name}") is not None:
        raise UsageError(
            f"a package deepinfer_{name} can be imported here already; choose another name, or "
            "uninstall it first"
        )
