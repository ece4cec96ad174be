"""`GoldenData`: a directory of checkpoints with the numbers of an independent implementation.

The directory has `ops.safetensors` and a folder for each checkpoint. Such a folder has
`checkpoint/`, `logits.safetensors`, `greedy.safetensors`, `ties.json`,
`intermediates.*.safetensors`, `dspark.safetensors` and `vision.safetensors`. All of it is optional,
and may be symbolic links.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from deepinfer.errors import UsageError

COMPUTES = ("fp32", "bf16")
OPERATORS = "ops.safetensors"
LOGITS = "logits.safetensors"
GREEDY = "greedy.safetensors"
LAYERS = {compute: f"intermediates.{compute}.safetensors" for compute in COMPUTES}
LATER = {"draft": "dspark.safetensors", "vision": "vision.safetensors"}
"""By component, the file of a component that is not built yet."""

_CHECKPOINT = "checkpoint"
_MODEL_FILES = {LOGITS, GREEDY, *LAYERS.values(), *LATER.values()}


@dataclass
class Tensors:
    """An open safetensors file that notes which of its tensors were used.

    used: keys that were read with `get` or marked. device: where read tensors are put.
    """

    path: Path
    file: Any = field(repr=False)
    keys: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def open(cls, path: Path) -> Tensors:
        """Read the header; UsageError when the file is not a whole safetensors file."""
        try:
            file: Any = safe_open(path, "pt")
            return cls(path, file, frozenset(file.keys()))
        except Exception as error:
            raise UsageError(f"{path} cannot be read as a safetensors file: {error}") from error

    def get(self, key: str) -> Tensor:
        """One tensor on the device, marked as used; UsageError when the file lacks it."""
        tensor = self.peek(key)
        self.used.add(key)
        return tensor

    def peek(self, key: str) -> Tensor:
        """Read a tensor without marking it, because it is compared elsewhere."""
        self._require(key)
        tensor: Tensor = self.file.get_tensor(key)
        return tensor.to(self.device)

    def shape(self, key: str) -> list[int]:
        """The shape of a tensor, without reading or marking it."""
        self._require(key)
        shape: list[int] = self.file.get_slice(key).get_shape()
        return shape

    def rows(self, key: str) -> int:
        """The length of a tensor's first axis, without reading or marking it."""
        shape = self.shape(key)
        return shape[0] if shape else 1

    def mark(self, *keys: str) -> None:
        """Mark tensors that need no comparison of their own (noise figures, runners-up)."""
        self.used.update(keys)

    def prompts(self, *suffixes: str) -> list[str]:
        """The prompts NAME that have a key NAME.suffix with one of the suffixes, shortest first."""
        names = {
            key.removesuffix(f".{suffix}")
            for suffix in suffixes
            for key in self.keys
            if key.endswith(f".{suffix}")
        }
        return sorted(names, key=lambda name: (len(name), name))

    def unused(self) -> list[str]:
        """The keys that are not marked, so that nothing has compared them."""
        return sorted(self.keys - self.used)

    def _require(self, key: str) -> None:
        if key not in self.keys:
            raise UsageError(f"{self.path} has no tensor {key!r}")


@dataclass(frozen=True)
class GoldenModel:
    """A checkpoint with its numbers.

    files: the open files by name. ties: by compute precision and prompt, the first position where
    two logits tie exactly; None without `ties.json`.
    """

    name: str
    directory: Path
    files: dict[str, Tensors]
    ties: dict[str, dict[str, int]] | None

    @property
    def checkpoint(self) -> Path:
        """The directory of the checkpoint, in the published format."""
        return self.directory / _CHECKPOINT

    def tensors(self, file: str) -> Tensors | None:
        """A file of numbers; None if the folder does not have it."""
        return self.files.get(file)

    def tie(self, compute: str, *prompts: str) -> int | None:
        """The position of the first exact tie in these prompts; None where no tie is known."""
        known = (self.ties or {}).get(compute, {})
        return min((known[prompt] for prompt in prompts if prompt in known), default=None)


@dataclass(frozen=True)
class GoldenData:
    """A golden directory: operator vectors, models, and other files."""

    directory: Path
    vectors: Tensors | None
    models: tuple[GoldenModel, ...]
    strays: tuple[Tensors, ...]

    @classmethod
    def open(cls, directory: str | Path) -> GoldenData:
        """Open all files; UsageError if there are none, or one of them is broken."""
        root = Path(directory)
        if not os.path.isdir(root):  # also False where a parent folder may not be read
            raise UsageError(f"{root} is not a directory of golden data")
        entries = _entries(root)
        top = {name: Tensors.open(path) for name, path in entries.items() if _is_numbers(path)}
        vectors = top.pop(OPERATORS, None)
        models: list[GoldenModel] = []
        strays: list[Tensors] = []
        if _CHECKPOINT in entries:
            models.append(_model(root, top))
            entries.pop(_CHECKPOINT)
        strays += top.values()
        for path in entries.values():
            if not path.is_dir():
                continue
            inside = _entries(path)
            files = {name: Tensors.open(one) for name, one in inside.items() if _is_numbers(one)}
            if _CHECKPOINT in inside:
                models.append(_model(path, files))
            strays += files.values()
        if not models and not strays and vectors is None:
            raise UsageError(
                f"{root} holds neither {OPERATORS} nor a folder with a checkpoint; expected "
                "a directory laid out like the golden data"
            )
        return cls(root, vectors, tuple(models), tuple(strays))

    def model(self, name: str) -> GoldenModel | None:
        """The model in the folder `name`; None if there is no such folder."""
        return next((model for model in self.models if model.name == name), None)

    def label(self, file: Tensors) -> str:
        """The path of a file, relative to the directory."""
        return file.path.relative_to(self.directory).as_posix()


def _entries(folder: Path) -> dict[str, Path]:
    """The contents of a folder by name. UsageError for a broken link, which is no absent file."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be listed: {error}") from error
    for path in entries:
        if path.is_symlink() and not path.exists():
            raise UsageError(f"{path} is a symbolic link to nothing: {path.readlink()}")
    return {path.name: path for path in entries}


def _is_numbers(path: Path) -> bool:
    return path.suffix == ".safetensors"


def _model(folder: Path, files: dict[str, Tensors]) -> GoldenModel:
    """The model in a folder, whose files are removed from `files`."""
    own = {name: files.pop(name) for name in sorted(_MODEL_FILES & set(files))}
    return GoldenModel(folder.name or folder.resolve().name, folder, own, _ties(folder))


def _ties(folder: Path) -> dict[str, dict[str, int]] | None:
    path = folder / "ties.json"
    if not path.exists():
        return None
    try:
        ties = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(ties, dict):
        ties = {"": ties}
    for compute, prompts in ties.items():
        if compute not in COMPUTES or not isinstance(prompts, dict):
            raise UsageError(
                f"{path}: expected an object of {', '.join(COMPUTES)}, each an object of positions "
                f"by prompt; got {compute!r}: {prompts!r}"
            )
        for prompt, place in prompts.items():
            if not isinstance(place, int) or isinstance(place, bool) or place < 0:
                raise UsageError(
                    f"{path}: the tie of {compute} {prompt!r} is {place!r}; expected a position "
                    "from 0 up"
                )
    return ties
