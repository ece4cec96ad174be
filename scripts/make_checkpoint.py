#!/usr/bin/env python3
"""Make the bundled checkpoint: `python scripts/make_checkpoint.py OUT [--seed N]`.

A complete small DeepSeek-V4.1 in the published byte format, with every architectural part switched
on and random weights: its text is meaningless. The same seed gives the same bytes on every machine.
`--check` makes it again and compares it with what the package carries (exit status 1 on a
difference). To renew the package data: python scripts/make_checkpoint.py deepinfer/data/tiny
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's deepinfer, whatever else is installed

from bundled_checkpoint.configuration import VOCABULARY_SIZE, build_configuration  # noqa: E402
from bundled_checkpoint.json_file import json_bytes  # noqa: E402
from bundled_checkpoint.shards import shard_files  # noqa: E402
from bundled_checkpoint.vocabulary import build_vocabulary  # noqa: E402
from bundled_checkpoint.weights import build_tensors  # noqa: E402

from deepinfer.config import ModelConfig  # noqa: E402
from deepinfer.data import ABOUT_NAME, bundled_checkpoint  # noqa: E402
from deepinfer.text import compressed_token_map  # noqa: E402

SHARDS = 3


def checkpoint_files(seed: int) -> dict[str, bytes]:
    """Contents of all files of the checkpoint by name."""
    tokens = build_vocabulary(VOCABULARY_SIZE)
    files = tokens.files()
    with tempfile.TemporaryDirectory() as directory:
        tokenizer = Path(directory, "tokenizer.json")
        tokenizer.write_bytes(files[tokenizer.name])
        compressed = int(compressed_token_map(tokenizer, tokens.size).max()) + 1
    config = build_configuration(tokens, compressed)
    about = {
        "model": "DeepSeek-V4.1 architecture at small sizes",
        "weights": "random",
        "text": "meaningless",
        "made_by": "scripts/make_checkpoint.py",
        "seed": seed,
    }
    tensors = list(build_tensors(ModelConfig.from_dict(config), tokens, seed))
    return {
        **files,
        "config.json": json_bytes(config),
        ABOUT_NAME: json_bytes(about),
        **shard_files(tensors, SHARDS),
    }


def differences(made: dict[str, bytes], directory: Path) -> list[str]:
    """What differs between the files made and a directory, one line per file."""
    found = {path.name: path for path in directory.iterdir()} if directory.is_dir() else {}
    lines = [f"{name}: not in {directory}" for name in made if name not in found]
    lines += [f"{name}: not made by this script" for name in found if name not in made]
    for name in sorted(made.keys() & found.keys()):
        stored = found[name].read_bytes()
        if stored != made[name]:
            pairs = enumerate(zip(made[name], stored, strict=False))
            first = next((i for i, (new, old) in pairs if new != old), "the end of one")
            lines.append(
                f"{name}: differs from byte {first} on; made {len(made[name]):,} bytes, "
                f"found {len(stored):,}"
            )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Make or check; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", type=Path, help="directory to write to")
    parser.add_argument("--seed", type=int, default=0, help="another model (default: 0)")
    parser.add_argument("--check", action="store_true", help="compare with the package data")
    options = parser.parse_args(arguments)
    if options.check == (options.out is not None):
        parser.error("give either a directory to write to or --check")
    made = checkpoint_files(options.seed)
    if options.check:
        lines = differences(made, bundled_checkpoint())
        print("\n".join(lines) if lines else f"{bundled_checkpoint()}: every byte is as made")
        return 1 if lines else 0
    options.out.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (options.out / name).write_bytes(data)
    print(f"{options.out}: {len(made)} files, {sum(map(len, made.values())):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
