"""Copy a part of a golden directory: the operator vectors, one model, and the named prompts.

    python scripts/select_golden.py GOLDEN_DIR tests/golden

The result is laid out like its source, so that `deepinfer golden tests/golden` reads it. It is what
tests use where the whole of the data is not at hand; it must stay below 20 MB. The vectors are part
of the package, for the conformance suite, and the directory links to them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1]
VECTORS = ROOT / "deepinfer" / "conformance" / "vectors" / "ops.safetensors"
MODEL = "tiny-a"
PROMPTS = ("p1", "p2", "p7", "p33", "p140")
LAYER_PROMPTS = ("p7", "p33")


def copy_prompts(source: Path, target: Path, prompts: tuple[str, ...]) -> None:
    """Copy the tensors of some prompts of a safetensors file."""
    with safe_open(source, "pt") as file:
        kept = {key: file.get_tensor(key) for key in file.keys() if key.split(".")[0] in prompts}
    save_file(kept, target)


def select(source: Path, target: Path) -> None:
    """Fill `target`, which may exist already."""
    model, chosen = source / MODEL, target / MODEL
    chosen.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "ops.safetensors", VECTORS)
    link = target / "ops.safetensors"
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(VECTORS, target))
    (chosen / "checkpoint").mkdir(exist_ok=True)
    for path in sorted((model / "checkpoint").iterdir()):
        shutil.copyfile(path, chosen / "checkpoint" / path.name)
    for name in ("logits", "greedy"):
        copy_prompts(model / f"{name}.safetensors", chosen / f"{name}.safetensors", PROMPTS)
    for compute in ("fp32", "bf16"):
        name = f"intermediates.{compute}.safetensors"
        copy_prompts(model / name, chosen / name, LAYER_PROMPTS)
    ties = json.loads((model / "ties.json").read_text())
    kept = {
        compute: {key: place for key, place in known.items() if key.split(".")[-1] in PROMPTS}
        for compute, known in ties.items()
    }
    (chosen / "ties.json").write_text(json.dumps(kept, indent=1) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    select(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
