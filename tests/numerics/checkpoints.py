"""Checkpoints for numeric tests: sparse files of the right shape, filled where a test reads.

Values are random and of sizes that keep activations near one. Whatever is not filled is zero bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from deepinfer.checkpoint import Checkpoint
from deepinfer.data import bundled_checkpoint
from tests.checkpoint.writer import tiny_config, write_checkpoint

PERIOD = 1_000_003  # values of a random piece, repeated; prime, so that rows of a matrix differ
BUNDLED_VOCABULARY = {
    "vocab_size": 1536,
    "engram_compressed_vocab_size": 1292,
    "dspark_noise_token_id": 1534,
}
BUNDLED_IMAGE = 1535

Bytes = npt.NDArray[np.uint8]


def small_config(**text: Any) -> dict[str, Any]:
    """Ratio 1 before a window layer before ratio 2; candidates at ratio 2; the bundled tokenizer.

    Layers: full r1 with Engram, reuse r1, window, full r2 (candidate source), reindex r2, reuse r2
    with Engram.
    """
    schedule = {
        "num_hidden_layers": 6,
        "compress_ratios": [1, 1, 0, 2, 2, 2, 0, 0],
        "kv_source_layer_ids": [0, 3],
        "index_source_layer_ids": [0, 3, 4],
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 4,
        "engram_layer_ids": [0, 5],
        "hidden_size": 96,
        "moe_intermediate_size": 64,
        "swiglu_limit": 1.5,
    }
    config = tiny_config(**BUNDLED_VOCABULARY, **{**schedule, **text})
    config["image_token_id"] = BUNDLED_IMAGE
    return config


def write_filled(
    directory: Path,
    config: dict[str, Any],
    wanted: Callable[[str], bool] = lambda name: True,
    shards: int = 3,
) -> None:
    """A checkpoint with the bundled tokenizer whose wanted text tensors hold random values."""
    write_checkpoint(directory, config, shards=shards, sparse=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled_checkpoint() / name, directory)
    with Checkpoint.open(directory, progress=False) as checkpoint:
        names = (name for name in checkpoint.names() if not name.startswith(("mtp.", "vision.")))
        fill(checkpoint, filter(wanted, names))


def fill(checkpoint: Checkpoint, names: Iterable[str]) -> None:
    """Write random values into tensors of the text component, in place."""
    for name in names:
        if name.startswith(("aligner.", "image_")):
            continue
        source = checkpoint.source(name)
        data = _values(name, source.dtype, source.shape)
        with open(source.file, "r+b") as file:
            file.seek(source.offset)
            left = source.nbytes
            while left > 0:
                left -= file.write(data[:left].data)


def _values(name: str, dtype: str, shape: tuple[int, ...]) -> Bytes:
    """Bytes of at most one period of the tensor's values."""
    random = np.random.default_rng(crc32(name.encode()))
    count = min(int(np.prod(shape)), PERIOD)
    if dtype == "F8_E4M3":
        codes = random.integers(0, 256, count, dtype=np.uint8)
        return np.where(codes & 0x7F == 0x7F, codes - 1, codes).astype(np.uint8)
    if dtype == "I8":
        return random.integers(0, 256, count, dtype=np.uint8)
    if dtype == "F8_E8M0":
        return random.integers(-1, 2, count).astype(np.uint8) + np.uint8(_scale_byte(name, shape))
    values = _plain(name, shape, random.standard_normal(count)).astype("<f4")
    if dtype == "F32":
        return values.view(np.uint8)
    rounded = values.view("<u4") + 0x7FFF + ((values.view("<u4") >> 16) & 1)
    return (rounded >> 16).astype("<u2").view(np.uint8)


def _scale_byte(name: str, shape: tuple[int, ...]) -> int:
    """Of a matrix of uniform random codes that keeps the size of its input."""
    if name.endswith("engram.embed.scale"):
        return 127 - 7
    size = 1 if ".experts." in name else 7  # log2 of the codes' root mean square
    return 127 - size - round(np.log2(32 * shape[1]) / 2)


def _plain(name: str, shape: tuple[int, ...], normal: npt.NDArray[np.float64]) -> Any:
    if name == "embed.weight":
        return normal
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return 1 + normal / 8
    if name.endswith("_base"):
        streams = round((shape[0] + 1) ** 0.5) - 1
        return normal / 4 + np.concatenate([np.zeros(2 * streams), np.eye(streams).ravel()])
    if name.endswith("_scale"):
        return 1 + normal / 4
    if name.endswith((".bias", ".bias_vl")):
        return normal / 8
    return normal / (shape[1] if len(shape) == 2 else 1) ** 0.5
