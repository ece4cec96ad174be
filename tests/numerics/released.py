"""Layers of the released sizes: seven layers, one of each kind, in sparse files.

Filled: everything of a layer but most of its experts, and of the Engram table the rows that are
looked up. Layers 0 to 6 stand for 0 (window), 1 (window, Engram), 2 (full r2), 3 (reuse r2), 20
(full r1, candidate source), 24 (reindex) and 21 (reuse r1) of the release.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.backend import Batch, Mix, Numerics, Region, Table
from deepinfer.backend.base import Backend
from deepinfer.backend.resolution import Operators, resolve
from deepinfer.cache import CacheLayout, CachePools
from deepinfer.checkpoint import Checkpoint
from deepinfer.config import TextConfig
from deepinfer.model import Backbone, Residual, Selections, WeightLoader
from deepinfer_reference.backend import ReferenceBackend
from tests.checkpoint.writer import write_checkpoint
from tests.config.released import released_config
from tests.numerics import plain
from tests.numerics.checkpoints import fill
from tests.numerics.memory import AnonymousPeak
from tests.numerics.recording import LayerRecord, record_layer

LAYERS = {
    0: "window",
    1: "window, Engram",
    2: "full r2",
    3: "reuse r2",
    4: "full r1, candidate source",
    5: "reindex r1 among candidates",
    6: "reuse r1",
}
ENGRAM_LAYER = 1
ROWS = 4
START = 16_601  # odd: a pending member; beyond 2048 candidate blocks of 8
PAD = 2
FAVOURED = {3: True, 64: False, 150: True, 151: False, 200: False, 300: True, 383: True}
"""Experts that the router's bias puts above all others, and whether they hold values. Each row
takes six of the seven."""


def config() -> dict[str, Any]:
    """The released configuration with seven layers, without drafts and vision."""
    released = released_config()
    released["text_config"] |= {
        "num_hidden_layers": 7,
        "compress_ratios": [0, 0, 2, 2, 1, 1, 1],
        "kv_source_layer_ids": [2, 4],
        "index_source_layer_ids": [2, 4, 5],
        "candidate_source_layer_id": 4,
        "engram_layer_ids": [ENGRAM_LAYER],
        "engram_num_embeddings": released["text_config"]["engram_num_embeddings"][:1],
        "num_nextn_predict_layers": 0,
        "dspark_target_layer_ids": [],
    }
    released["vision_config"]["num_hidden_layers"] = 0
    return released


def write(directory: Path) -> None:
    """Sparse files without a byte of data."""
    write_checkpoint(directory, config(), shards=8, sparse=True)


def fill_layers(checkpoint: Checkpoint, layers: Iterable[int]) -> None:
    """Write the values that the given layers read."""
    for layer in layers:
        prefix = f"layers.{layer}."
        names = (name for name in checkpoint.names() if name.startswith(prefix))
        fill(checkpoint, filter(_is_read, names))
        bias = np.full(384, -8.0, "<f4")
        bias[list(FAVOURED)] = np.linspace(4.0, 4.2, len(FAVOURED), dtype="<f4")
        _write(checkpoint, f"{prefix}ffn.gate.bias", 0, bias.tobytes())
        if layer == ENGRAM_LAYER:
            _write_table_rows(checkpoint)


def _is_read(name: str) -> bool:
    if "engram.embed" in name or name.endswith("gate.bias"):
        return False
    _, _, expert = name.partition(".experts.")
    return not expert or FAVOURED.get(int(expert.split(".")[0]), False)


def _write(checkpoint: Checkpoint, name: str, row: int, data: bytes) -> None:
    source = checkpoint.source(name)
    row_bytes = source.nbytes // source.shape[0]
    with open(source.file, "r+b") as file:
        file.seek(source.offset + row * row_bytes)
        file.write(data)


def _write_table_rows(checkpoint: Checkpoint) -> None:
    text = checkpoint.config.text
    constants = text.engram_hashes[ENGRAM_LAYER]
    random = np.random.default_rng(1)
    prefix = f"layers.{ENGRAM_LAYER}.engram.embed"
    for ids in history(text).tolist():
        multipliers, primes = list(constants.multipliers), list(constants.primes)
        for row in plain.ngram_rows(ids, multipliers, primes, PAD, text.engram_n_heads):
            codes = random.integers(0, 0x7F, text.engram_head_dim, dtype=np.uint8)
            signs = random.integers(0, 2, text.engram_head_dim, dtype=np.uint8) << 7
            scales = random.integers(118, 122, text.engram_head_dim // 32, dtype=np.uint8)
            _write(checkpoint, f"{prefix}.weight", row, (codes | signs).tobytes())
            _write(checkpoint, f"{prefix}.scale", row, scales.tobytes())


def history(text: TextConfig) -> Tensor:
    """Compressed ids of each row and those before it; one history is blocked in its middle."""
    random = np.random.default_rng(2)
    ids = random.integers(0, text.engram_compressed_vocab_size, ROWS + 3)
    rows = [ids[row : row + 4][::-1] for row in range(ROWS)]
    rows[1] = np.where([False, False, True, False], -1, rows[1])
    return torch.tensor(np.stack(rows))


class Released:
    """Some of the layers on the reference, run once, in order, with everything recorded."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        operators: Operators,
        numerics: Numerics,
        dtype: torch.dtype,
        layers: Iterable[int],
    ) -> None:
        self.checkpoint, self.numerics = checkpoint, numerics
        self.text = text = checkpoint.config.text
        self.pools = _filled_pools(CacheLayout(text))
        self.batch = _batch(self.pools, text)
        loader = WeightLoader(checkpoint, operators, PAD)
        backbone = Backbone(text, None, operators, numerics, dtype)  # type: ignore[arg-type]
        selections = Selections()
        self.records: dict[int, LayerRecord] = {}
        for layer in layers:
            record, _ = record_layer(
                backbone,
                backend,
                loader.layer(layer),
                _residual(layer, text, dtype),
                selections,
                self.batch,
                self.pools,
            )
            self.records[layer] = record


def peak_of_a_layer(directory: str, layer: int) -> int:
    """Growth of anonymous memory while one layer is loaded and run, in INFER and bf16, unwatched.

    For a process of its own, with nothing else in it.
    """
    backend = ReferenceBackend("cpu")
    operators = resolve("reference", backend, backend, [])
    with Checkpoint.open(directory, progress=False) as checkpoint:
        text = checkpoint.config.text
        pools = _filled_pools(CacheLayout(text))
        batch = _batch(pools, text)
        numerics, dtype = Numerics.INFER, torch.bfloat16
        backbone = Backbone(text, None, operators, numerics, dtype)  # type: ignore[arg-type]
        residual = _residual(layer, text, dtype)
        with AnonymousPeak() as peak:
            weights = WeightLoader(checkpoint, operators, PAD).layer(layer)
            backbone.layer(weights, residual, Selections(), batch, pools)
    return peak.growth


def _residual(layer: int, text: TextConfig, dtype: torch.dtype) -> Residual:
    """Random streams, with a pending output from layer 1 on."""
    generator = torch.Generator().manual_seed(layer)
    count = text.hc_mult
    streams = torch.randn(ROWS, count, text.hidden_size, generator=generator).to(dtype)
    pre = torch.rand(ROWS, count, generator=generator)
    if layer == 0:
        return Residual(streams, pre)
    out = torch.randn(ROWS, text.hidden_size, generator=generator).to(dtype)
    post = 2 * torch.rand(ROWS, count, generator=generator)
    comb = torch.rand(ROWS, count, count, generator=generator).softmax(-1)
    return Residual(streams, pre, out, Mix(pre, post, comb))


def _filled_pools(layout: CacheLayout) -> CachePools:
    """Pools as a context of START tokens would have left them, with random entries."""
    blocks = layout.blocks_for(START + ROWS)
    pools = CachePools(layout, blocks, layout.window_pages_for(ROWS), 1, torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    for pool in (pools.context, pools.window):
        pool.data.random_(0, 256, generator=generator)
    for layer in layout.context_layers:
        _scales(pools.index(layer)).random_(120, 124, generator=generator)
        _scales(pools.main(layer)).random_(0x28, 0x38, generator=generator)
        state = pools.compressor(layer)
        if state is not None:
            state.members.normal_(generator=generator)
    for layer in LAYERS:
        region = pools.window_region(layer)
        _scales(region).random_(118, 122, generator=generator)
        size = region.entries * region.format.entry_bytes(region.width)
        codes = region.pool.data[:, region.offset : region.offset + size]
        codes[codes & 0x7F == 0x7F] = 0
    return pools


def _scales(region: Region) -> Tensor:
    """The scale bytes of every entry of a region, a view."""
    data, scales = region.format.data_bytes(region.width), region.format.scale_bytes(region.width)
    whole = region.pool.data[:, region.offset :][:, : region.entries * (data + scales)]
    if region.format.layout == "sectioned":
        return whole[:, region.entries * data :]
    return torch.unflatten(whole, 1, (region.entries, data + scales))[..., data:]


def _batch(pools: CachePools, text: TextConfig) -> Batch:
    layout, stop = pools.layout, START + ROWS
    generator = torch.Generator().manual_seed(4)
    blocks = torch.randperm(layout.blocks_for(stop), generator=generator) + 1
    first_page = (START - text.sliding_window + 1) // layout.page_tokens
    pages = torch.randperm(-(-stop // layout.page_tokens) - first_page, generator=generator) + 1
    return Batch(
        token_ids=torch.zeros(ROWS, dtype=torch.int64),
        positions=torch.arange(START, stop),
        sequence=torch.zeros(ROWS, dtype=torch.int64),
        query_start=torch.tensor([0, ROWS]),
        context_lengths=torch.tensor([stop]),
        slots=torch.tensor([1]),
        image_mask=torch.zeros(ROWS, dtype=torch.bool),
        context=Table(blocks.unsqueeze(0), torch.tensor([0])),
        window=Table(pages.unsqueeze(0), torch.tensor([first_page])),
        max_context=stop,
        history=history(text),
    )
