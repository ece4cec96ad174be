"""The memory plan: what stays mapped, what is copied, in words and in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.checkpoint import Checkpoint
from deepinfer.checkpoint.plan import copied_by_default, human_bytes
from tests.checkpoint.broken import CheckpointFiles


def test_every_byte_of_the_components_in_use_is_mapped_or_copied(tiny_checkpoint: Path) -> None:
    with Checkpoint.open(tiny_checkpoint, ("text",)) as checkpoint:
        total = sum(
            checkpoint.stored_bytes(name)
            for name in checkpoint.names()
            if not name.startswith(("mtp.", "vision.", "aligner.", "image_"))
        )
        assert checkpoint.plan.mapped_bytes + checkpoint.plan.copied_bytes == total


def test_copied_values_are_what_the_rule_says(tiny_checkpoint: Path) -> None:
    with Checkpoint.open(tiny_checkpoint, None) as checkpoint:
        copied = [item for item in checkpoint.expected() if copied_by_default(item)]
        sizes = [checkpoint.stored_bytes(item.name) for item in copied]
        assert checkpoint.plan.copied_bytes == sum(sizes)
        assert checkpoint.plan.temporary_bytes == max(sizes)
        nothing = checkpoint.plan_memory(lambda item: False)
        assert (nothing.copied_bytes, nothing.temporary_bytes) == (0, 0)


def test_unaligned_matrices_count_as_copied(files: CheckpointFiles) -> None:
    with Checkpoint.open(files.directory) as checkpoint:
        before = checkpoint.plan
    shard = files.shard_of("embed.weight")
    data = shard.read_bytes()
    length = int.from_bytes(data[:8], "little")
    one_longer = (length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" "
    shard.write_bytes(one_longer + data[8 + length :])
    with Checkpoint.open(files.directory) as checkpoint:
        assert not checkpoint.source("embed.weight").aligned
        assert checkpoint.plan.copied_bytes > before.copied_bytes
        total = before.mapped_bytes + before.copied_bytes
        assert checkpoint.plan.mapped_bytes + checkpoint.plan.copied_bytes == total


def test_the_printed_line_names_both_kinds_of_memory(tiny_checkpoint: Path) -> None:
    with Checkpoint.open(tiny_checkpoint) as checkpoint:
        line = str(checkpoint.plan)
    assert line.startswith("weights (text): ")
    assert "stay mapped" in line
    assert "copied" in line


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (890, "890 B"), (113_920, "114 kB"), (9_990, "9.99 kB"), (999_999, "1.00 MB"),
     (12_345_678, "12.3 MB"), (510_286_023_000, "510 GB"), (10**16, "10,000 TB")],
)  # fmt: skip
def test_human_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text
