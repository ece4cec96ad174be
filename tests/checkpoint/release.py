"""The whole release as 48 header-true sparse files: every name, dtype, shape and size, no data.

    python -m tests.checkpoint.release DIRECTORY

Takes a few megabytes of disk. An Engram table and its scales share a shard, as published.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.checkpoint.writer import write_checkpoint
from tests.config.released import released_config

SHARDS = 48
TENSORS = 96_085
STORED_BYTES = 510_286_023_000


def write_release(directory: Path) -> None:
    """Write config.json, the index and 48 sparse shards into `directory`."""
    write_checkpoint(directory, released_config(), shards=SHARDS, sparse=True)


if __name__ == "__main__":
    write_release(Path(sys.argv[1]))
