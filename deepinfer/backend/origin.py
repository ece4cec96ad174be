"""`Origin`: where an installed backend comes from, as its errors name it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """The distribution that registers a backend, its version, and the file of its hooks."""

    distribution: str
    version: str = UNKNOWN
    file: str = UNKNOWN

    @classmethod
    def of(cls, entry: EntryPoint) -> Origin:
        """The origin of an entry point; nothing of the plugin is imported."""
        file = file_of(entry.value.partition(":")[0].strip())
        if entry.dist is None:
            return cls("unknown distribution", file=file)
        return cls(entry.dist.name, entry.dist.version, file)

    def __str__(self) -> str:
        return f"distribution {self.distribution} {self.version}, file {self.file}"


def file_of(module: str) -> str:
    """The file that importing a dotted module would run, found without running any of it."""
    root, *rest = module.split(".")
    missing = f"missing: no module {module!r} can be found"
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return missing
    if not rest:
        return spec.origin or missing
    for folder in spec.submodule_search_locations or ():
        path = Path(folder).joinpath(*rest)
        for candidate in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if candidate.is_file():
                return str(candidate)
    return missing
