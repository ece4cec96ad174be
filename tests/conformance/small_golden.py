"""Small golden directories: links to the repository's golden data, less what a test leaves out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from deepinfer.backend import CONTRACT_VERSION, Backend, BackendSpec, Mode
from deepinfer.backend.registry import Selected
from deepinfer.conformance.golden import GoldenReport, run_golden
from deepinfer_reference.backend import ReferenceBackend

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
MODEL = "tiny-a"
MODE = Mode("hardware", "a chip with one fault", "cpu")

Changes = Mapping[str, Tensor | None]


class Hooks:
    """The hooks of a plugin, as far as the registry calls them."""

    def __init__(self, backend: type[Backend]) -> None:
        self.backend = backend

    def deepinfer_create(self, mode: str, device: str) -> Backend:
        return self.backend(device)


def selected(backend: type[Backend] = ReferenceBackend) -> Selected:
    """A backend as if an entry point had been chosen."""
    spec = BackendSpec("chip", CONTRACT_VERSION, "dist-chip", (MODE,))
    return Selected(spec, MODE, "test", Hooks(backend))  # type: ignore[arg-type]


def failures(report: GoldenReport) -> list[str]:
    """Names of what failed, text that nothing covers included."""
    wrong = ("failed", "not covered")
    return [
        item.name for item in report.items if item.outcome in wrong and item.component == "text"
    ]


@dataclass
class SmallGolden:
    """A golden directory under construction."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / MODEL

    def link(self, name: str) -> Path:
        """A file or folder of the repository's data, by a symbolic link of the same name."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(GOLDEN / name)
        return path

    def part(self, name: str, prompts: Sequence[str], **changes: Tensor | None) -> Path:
        """The tensors of some prompts of a model's file; `changes` replace, add or remove some.

        A key of `changes` has "__" for ".".
        """
        with safe_open(GOLDEN / MODEL / name, "pt") as file:
            kept = {
                key: file.get_tensor(key) for key in file.keys() if key.split(".")[0] in prompts
            }
        for key, value in changes.items():
            key = key.replace("__", ".")
            if value is None:
                del kept[key]
            else:
                kept[key] = value.contiguous()
        return self.write(f"{MODEL}/{name}", kept)

    def write(self, name: str, tensors: Mapping[str, Tensor]) -> Path:
        """A file of these tensors."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), path)
        return path

    def ties(self, ties: object) -> Path:
        """The model's ties.json."""
        path = self.model / "ties.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ties))
        return path

    def run(
        self,
        backend: type[Backend] = ReferenceBackend,
        computes: tuple[str, ...] = ("fp32",),
        require_all: bool = False,
        strict: bool = False,
    ) -> GoldenReport:
        """The golden check of the directory."""
        return run_golden(
            str(self.root), selected(backend), computes, require_all=require_all, strict=strict
        )


def stored(name: str, key: str) -> Tensor:
    """A tensor of the repository's data."""
    with safe_open(GOLDEN / name, "pt") as file:
        tensor: Tensor = file.get_tensor(key)
    return tensor
