"""A golden directory: checkpoints with numbers of an independent implementation beside them.

Layout: `ops.safetensors`, and per checkpoint a folder with `checkpoint/`, `logits.safetensors`,
`greedy.safetensors`, `ties.json`, `intermediates.*.safetensors`, `dspark.safetensors` and
`vision.safetensors`, each of them optional.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from deepinfer.errors import UsageError


@dataclass
class Tensors:
    """A safetensors file that remembers which of its tensors were compared."""

    path: Path
    keys: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, path: Path) -> Tensors:
        """Read the names; UsageError when the file is not a safetensors file."""
        try:
            with safe_open(path, "pt") as file:
                return cls(path, frozenset(file.keys()))
        except Exception as error:
            raise UsageError(f"{path} cannot be read as a safetensors file: {error}") from error

    def get(self, key: str) -> Tensor:
        """One tensor, marked as compared."""
        self.used.add(key)
        with safe_open(self.path, "pt") as file:
            tensor: Tensor = file.get_tensor(key)
        return tensor

    def mark(self, *keys: str) -> None:
        """Mark tensors that need no comparison of their own (noise figures, runners-up)."""
        self.used.update(keys)

    def prompts(self, suffix: str) -> list[str]:
        """Names NAME of all keys NAME.suffix, shortest prompt first."""
        names = [key.removesuffix(f".{suffix}") for key in self.keys if key.endswith(f".{suffix}")]
        return sorted(names, key=lambda name: (len(name), name))

    def unused(self) -> list[str]:
        """Keys that nothing compared."""
        return sorted(self.keys - self.used)


@dataclass(frozen=True)
class GoldenModel:
    """One checkpoint with its numbers. ties: first tied position by compute and prompt."""

    name: str
    directory: Path
    ties: dict[str, dict[str, int]]

    @property
    def checkpoint(self) -> Path:
        """Directory of the published-format checkpoint."""
        return self.directory / "checkpoint"

    def tensors(self, file: str) -> Tensors | None:
        """A file of numbers, or None when the directory does not have it."""
        path = self.directory / file
        return Tensors.open(path) if path.exists() else None

    def tie(self, compute: str, prompt: str) -> int | None:
        """Position of the prompt's first exact tie, None where there is none."""
        return self.ties.get(compute, {}).get(prompt)


@dataclass(frozen=True)
class GoldenData:
    """A golden directory: operator vectors and models."""

    directory: Path
    models: tuple[GoldenModel, ...]

    @classmethod
    def open(cls, directory: str | Path) -> GoldenData:
        """Find what is there; UsageError when nothing is."""
        root = Path(directory)
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory of golden data")
        folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
        models = tuple(
            GoldenModel(folder.name, folder, _ties(folder))
            for folder in folders
            if (folder / "checkpoint").is_dir()
        )
        data = cls(root, models)
        if not models and data.operators() is None:
            raise UsageError(
                f"{root} holds neither ops.safetensors nor a folder with a checkpoint; expected "
                "a directory laid out like the golden data"
            )
        return data

    def operators(self) -> Tensors | None:
        """The operator vectors, or None."""
        path = self.directory / "ops.safetensors"
        return Tensors.open(path) if path.exists() else None

    def model(self, name: str) -> GoldenModel | None:
        """A model by its folder's name."""
        return next((model for model in self.models if model.name == name), None)


def _ties(folder: Path) -> dict[str, dict[str, int]]:
    path = folder / "ties.json"
    if not path.exists():
        return {}
    try:
        ties: dict[str, dict[str, int]] = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    return ties
