"""Checks of Engram vectors: hash constants, table rows, and the injection of a whole layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.backend import Contract, NgramHash
from deepinfer.checkpoint import Checkpoint
from deepinfer.config import EngramHash, engram_hashes
from deepinfer.conformance.golden.comparison import close, equal
from deepinfer.conformance.golden.data import GoldenData, GoldenModel, Tensors
from deepinfer.conformance.golden.report import Item
from deepinfer.formats.dtypes import COMPUTE_DTYPES
from deepinfer.model import WeightLoader
from deepinfer.text import Tokenizer, compressed_token_map

TINY_MODEL = "tiny-a"
"""The model that the `engram.tiny` vectors were made with: its tokenizer and tables."""


@dataclass(frozen=True)
class _Settings:
    engram_layer_ids: tuple[int, ...] = (1, 14)
    engram_max_ngram_size: int = 4
    engram_vocab_size: int = 16_000_000
    engram_n_heads: int = 8
    engram_compressed_vocab_size: int = 99092


def check_hashes(data: GoldenData, operators: Contract, vectors: Tensors) -> Iterator[Item]:
    """Check hash constants and table rows; of the tiny model only if its checkpoint is there."""
    yield from _published(operators, vectors)
    tiny = data.model(TINY_MODEL)
    if tiny is not None:
        with Checkpoint.open(tiny.checkpoint, progress=False) as checkpoint:
            token_map, pad = _token_map(tiny, checkpoint)
            yield from _tiny_hashes(operators, vectors, checkpoint, token_map, pad)


def check_injection(
    data: GoldenData, operators: Contract, vectors: Tensors, compute: str
) -> Iterator[Item]:
    """Check look-up, projection and gate of the tiny model's layer, if its checkpoint is there."""
    tiny = data.model(TINY_MODEL)
    if tiny is not None:
        yield from _injection(tiny, operators, vectors, compute)


def history(compressed: Tensor, order: int) -> Tensor:
    """The history [T, order] of compressed ids [T]; -1 before the start.

    Blocked tokens are -1 in both.
    """
    padded = torch.nn.functional.pad(compressed, (order - 1, 0), value=-1)
    return padded.unfold(0, order, 1).flip(1)


def device_hash(operators: Contract, constants: EngramHash, heads: int, pad: int) -> NgramHash:
    """The hash constants as tensors on the device."""
    tensor = operators.tensor
    return NgramHash(
        tensor(constants.multipliers, torch.int64),
        tensor(constants.primes, torch.int64),
        tensor(constants.offsets, torch.int64),
        heads,
        pad,
    )


def _constants(vectors: Tensors, kind: str, hashes: dict[int, EngramHash]) -> Iterator[Item]:
    for key in ("primes", "offsets", "multipliers"):
        got = torch.tensor([getattr(constants, key) for constants in hashes.values()])
        want = vectors.get(f"engram.{kind}.{key}")
        yield equal(f"ops/engram/{kind}.{key}", "fp32", got, want)


def _published(operators: Contract, vectors: Tensors) -> Iterator[Item]:
    settings = _Settings()
    hashes = engram_hashes(settings)
    yield from _constants(vectors, "published", hashes)
    rows = torch.tensor([constants.rows for constants in hashes.values()])
    for key in ("rows", "rows_config"):
        want = vectors.get(f"engram.published.{key}")
        yield equal(f"ops/engram/published.{key}", "fp32", rows, want)
    compressed = vectors.get("engram.published.compressed_ids")
    mask = vectors.get("engram.published.token_mask")
    blocked = torch.where(mask, compressed, torch.full_like(compressed, -1))
    for key, ids in (("hash_ids", compressed), ("hash_ids_masked", blocked)):
        want = vectors.get(f"engram.published.{key}")
        heads, pad = settings.engram_n_heads, 2
        got = torch.stack([_rows(operators, hashes, row, heads, pad) for row in ids])
        yield equal(f"ops/engram/published.{key}", "fp32", got, want)


def _rows(
    operators: Contract, hashes: dict[int, EngramHash], compressed: Tensor, heads: int, pad: int
) -> Tensor:
    """The table rows of every layer [T, layers, columns]."""
    order = len(next(iter(hashes.values())).multipliers)
    past = history(compressed, order).to(operators.device)
    return torch.stack(
        [
            operators.ngram_rows(past, device_hash(operators, constants, heads, pad))
            for constants in hashes.values()
        ],
        dim=1,
    )


def _token_map(model: GoldenModel, checkpoint: Checkpoint) -> tuple[Tensor, int]:
    text = checkpoint.config.text
    tokenizer = Tokenizer.from_directory(model.checkpoint, checkpoint.config)
    token_map = torch.from_numpy(compressed_token_map(tokenizer, text.vocab_size)).long()
    return token_map, int(token_map[text.engram_pad_token_id])


def _injection(
    model: GoldenModel, operators: Contract, vectors: Tensors, compute: str
) -> Iterator[Item]:
    layer = int(vectors.get("engram.tiny.layer")[0])
    with Checkpoint.open(model.checkpoint, progress=False) as checkpoint:
        token_map, pad = _token_map(model, checkpoint)
        order = checkpoint.config.text.engram_max_ngram_size
        weights = WeightLoader(checkpoint, operators, pad).layer(layer).engram
    if weights is None:
        raise ValueError(f"engram.tiny.layer is {layer}, which has no Engram in {model.name}")
    ids, mask = vectors.get("engram.tiny.masked.ids"), vectors.get("engram.tiny.masked.mask")
    past = history(token_map.to(ids.device)[ids], order)
    streams = vectors.get(f"engram.tiny.streams_in.{compute}").to(COMPUTE_DTYPES[compute])
    for key, blocked in (("streams_out", torch.zeros_like(mask)), ("streams_out_masked", ~mask)):
        got = operators.engram(streams, past, weights, blocked)
        want = vectors.get(f"engram.tiny.{key}.{compute}")
        yield close(f"ops/engram/tiny.{key}", compute, got, want)


def _tiny_hashes(
    operators: Contract, vectors: Tensors, checkpoint: Checkpoint, token_map: Tensor, pad: int
) -> Iterator[Item]:
    text = checkpoint.config.text
    hashes = text.engram_hashes
    yield from _constants(vectors, "tiny", hashes)
    name = "ops/engram/tiny"
    yield equal(f"{name}.token_map", "fp32", token_map, vectors.get("engram.tiny.token_map"))
    want = vectors.get("engram.tiny.pad_compressed")
    yield equal(f"{name}.pad_compressed", "fp32", torch.tensor([pad]), want)
    token_map = token_map.to(operators.device)
    for length in (1, 2, 3, 4, 9):
        ids = token_map[vectors.get(f"engram.tiny.ids{length}")]
        got = _rows(operators, hashes, ids, text.engram_n_heads, pad)
        want = vectors.get(f"engram.tiny.hash_ids{length}")
        yield equal(f"{name}.hash_ids{length}", "fp32", got, want)
    ids, mask = vectors.get("engram.tiny.masked.ids"), vectors.get("engram.tiny.masked.mask")
    compressed = torch.where(mask, token_map[ids], torch.full_like(ids, -1))
    got = _rows(operators, hashes, compressed, text.engram_n_heads, pad)
    want = vectors.get("engram.tiny.masked.hash_ids")
    yield equal(f"{name}.masked.hash_ids", "fp32", got, want)
