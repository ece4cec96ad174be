"""Ways to break a checkpoint: edits of shards that keep everything else consistent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.checkpoint.writer import Stored, write_index, write_shard

INDEX = "model.safetensors.index.json"


@dataclass
class CheckpointFiles:
    """The files of one checkpoint, editable."""

    directory: Path

    def shards(self) -> dict[str, list[Stored]]:
        """What each shard holds, by its header."""
        return {
            path.name: read_table(path) for path in sorted(self.directory.glob("*.safetensors"))
        }

    def shard_of(self, name: str) -> Path:
        """The shard that holds `name`."""
        return self.directory / self.index()["weight_map"][name]

    def rewrite(self, change: Callable[[Stored], list[Stored]], *, index: bool = True) -> None:
        """Replace every tensor by what `change` returns for it; rewrite the index if `index`."""
        shards = {
            name: [new for tensor in tensors for new in change(tensor)]
            for name, tensors in self.shards().items()
        }
        for name, tensors in shards.items():
            write_shard(self.directory / name, tensors)
        if index:
            write_index(self.directory, shards)

    def drop(self, *names: str, index: bool = True) -> None:
        """Remove tensors from the shards, and from the index if `index`."""
        self.rewrite(lambda t: [] if t[0] in names else [t], index=index)

    def add(self, tensor: Stored, *, beside: str = "norm.weight", index: bool = True) -> None:
        """Store one more tensor in the shard of `beside`."""
        self.rewrite(lambda t: [t, tensor] if t[0] == beside else [t], index=index)

    def replace(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Store `name` with another dtype or shape."""
        self.rewrite(lambda t: [(name, dtype, shape)] if t[0] == name else [t])

    def index(self) -> dict[str, Any]:
        """The index, parsed."""
        result: dict[str, Any] = json.loads((self.directory / INDEX).read_text())
        return result

    def write_index(self, index: Any) -> None:
        """Overwrite the index."""
        (self.directory / INDEX).write_text(json.dumps(index))


def read_table(path: Path) -> list[Stored]:
    """Names, dtypes and shapes of a shard, in file order."""
    data = path.read_bytes()
    table = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    table.pop("__metadata__", None)
    return [(name, entry["dtype"], tuple(entry["shape"])) for name, entry in table.items()]
