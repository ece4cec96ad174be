"""`Checkpoint`: a published checkpoint, checked whole, whose bytes are then read on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from deepinfer.backend.values import ExpertSource, LinearSource
from deepinfer.checkpoint.hub import resolve_directory
from deepinfer.checkpoint.index import read_index
from deepinfer.checkpoint.kinds import Component, ExpectedTensor, component_of
from deepinfer.checkpoint.plan import Copied, MemoryPlan, copied_by_default, plan_memory
from deepinfer.checkpoint.shard import Shard
from deepinfer.checkpoint.source import FileSource
from deepinfer.checkpoint.tensors import expected_tensors
from deepinfer.checkpoint.verify import Located, check, locate, read_shards, required
from deepinfer.config.model import ModelConfig
from deepinfer.errors import MissingTensorError, UsageError


class Checkpoint:
    """An open checkpoint. All components were checked; only those in use can be read.

    config: the configuration; directory: where the files are; components: those in use; plan: the
    memory that loading them takes. Use as a context manager or call `close`; tensors that were
    mapped before stay valid after it.
    """

    def __init__(
        self,
        directory: Path,
        config: ModelConfig,
        components: tuple[Component, ...],
        shards: tuple[Shard, ...],
        found: dict[str, Located],
    ) -> None:
        self.directory = directory
        self.config = config
        self.components = components
        self._shards = shards
        self._found = found
        self.plan = self.plan_memory()

    @classmethod
    def open(
        cls,
        path_or_hub_id: str | Path,
        components: Iterable[str] | None = ("text",),
        *,
        revision: str | None = None,
        token: str | None = None,
        offline: bool | None = None,
        progress: bool = True,
    ) -> Checkpoint:
        """Open a directory or a Hub id and check every tensor of every component by its header.

        components: which of "text", "draft", "vision" will be read; None means all that the
        configuration has. revision, token, offline: see `hub.resolve_directory`. progress: draw
        bars on stderr where it is a terminal.

        Errors: UsageError (an unknown component or one that the configuration lacks), ConfigError,
        and the other subclasses of CheckpointError, each naming file or tensor.
        """
        directory = resolve_directory(
            path_or_hub_id, revision=revision, token=token, offline=offline, progress=progress
        )
        config = ModelConfig.from_file(directory)
        used = _components(config, components)
        index = read_index(directory)
        headers = read_shards(directory, index, progress=progress)
        found = locate(directory, index, headers)
        expected = required(directory, expected_tensors(config), found)
        check(directory, expected, found, quantised=config.quantization is not None)
        shards = tuple(Shard(header.path, header.file_bytes) for header in headers)
        return cls(directory, config, used, shards, found)

    def has(self, name: str) -> bool:
        """Whether the checkpoint stores a tensor of this name, in any component."""
        return name in self._found

    def names(self) -> Iterator[str]:
        """Names of all stored tensors, scales included, without a `model.` prefix."""
        return iter(self._found)

    def source(self, name: str) -> FileSource:
        """The stored tensor `name`.

        Errors: MissingTensorError (no such tensor), UsageError (its component is not in use).
        """
        located = self._found.get(name)
        if located is None:
            raise MissingTensorError(f"{self.directory}: there is no tensor {name!r}")
        component = component_of(name)
        if component not in self.components:
            raise UsageError(
                f"{name} belongs to the component {component.value!r}, which is not in use; "
                f"open the checkpoint with components={(*self._used(), component.value)}"
            )
        stored = located.tensor
        return FileSource(
            stored.name,
            stored.dtype,
            stored.shape,
            stored.offset,
            self._shards[located.shard],
            random_access=".engram.embed." in name,
        )

    def linear(self, prefix: str) -> LinearSource:
        """The matrix or table `prefix`.weight with its scales, where it is stored quantised."""
        scale = f"{prefix}.scale"
        return LinearSource(
            self.source(f"{prefix}.weight"), self.source(scale) if self.has(scale) else None
        )

    def expert(self, prefix: str) -> ExpertSource:
        """The three matrices of the expert `prefix`, for example `layers.3.ffn.experts.17`."""
        return ExpertSource(*(self.linear(f"{prefix}.{name}") for name in ("w1", "w2", "w3")))

    @property
    def shard_count(self) -> int:
        """Number of shard files."""
        return len(self._shards)

    def expected(self) -> Iterator[ExpectedTensor]:
        """What the configuration requires, all components; see `tensors.expected_tensors`."""
        return expected_tensors(self.config)

    def stored_bytes(self, name: str) -> int:
        """Stored bytes of a tensor of any component, without its scales."""
        return self._found[name].tensor.nbytes

    def stored_dtype(self, name: str) -> str:
        """The safetensors dtype of a tensor of any component."""
        return self._found[name].tensor.dtype

    def plan_memory(self, copied: Copied = copied_by_default) -> MemoryPlan:
        """The memory plan of the components in use where `copied` says what is copied."""
        return plan_memory(self.expected(), self._found, self.components, copied=copied)

    def close(self) -> None:
        """Close the files."""
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _used(self) -> tuple[str, ...]:
        return tuple(component.value for component in self.components)


def _components(config: ModelConfig, asked: Iterable[str] | None) -> tuple[Component, ...]:
    present = [Component.TEXT]
    if config.text.num_nextn_predict_layers:
        present.append(Component.DRAFT)
    if config.vision.num_hidden_layers:
        present.append(Component.VISION)
    if asked is None:
        return tuple(present)
    names = {asked} if isinstance(asked, str) else set(asked)
    allowed = [component.value for component in present]
    if not names or not names.issubset(allowed):
        wrong = ", ".join(sorted(str(name) for name in names.difference(allowed))) or "none"
        raise UsageError(f"components: asked for {wrong}; this checkpoint has {', '.join(allowed)}")
    return tuple(component for component in present if component.value in names)
