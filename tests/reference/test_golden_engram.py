"""Engram against golden vectors: hashes exact, streams within rounding."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from deepinfer.backend import EngramWeights, LinearSource, NgramHash
from deepinfer.backend.resolution import resolve
from tests.reference.compare import assert_close
from tests.reference.sources import TensorSource

STORED = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0"}


def constants(golden, name: str, layer: int, pad: int) -> NgramHash:
    part = f"engram.{name}"
    heads = golden[f"{part}.primes"].shape[1] // (golden[f"{part}.multipliers"].shape[1] - 1)
    return NgramHash(
        golden[f"{part}.multipliers"][layer],
        golden[f"{part}.primes"][layer],
        golden[f"{part}.offsets"][layer],
        heads,
        pad,
    )


def history(ids: Tensor, orders: int, mask: Tensor | None = None) -> Tensor:
    """Compressed ids [T] to [T, orders], -1 before the start and where mask is false."""
    if mask is not None:
        ids = torch.where(mask, ids, -1)
    padded = torch.cat((ids.new_full((orders - 1,), -1), ids))
    return padded.unfold(0, orders, 1).flip(-1)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_published_hash(reference, golden, row, layer, masked):
    mask = golden["engram.published.token_mask"][row] if masked else None
    past = history(golden["engram.published.compressed_ids"][row], 4, mask)
    rows = reference.ngram_rows(past, constants(golden, "published", layer, 2))
    name = "hash_ids_masked" if masked else "hash_ids"
    assert torch.equal(rows, golden[f"engram.published.{name}"][row, :, layer])


@pytest.mark.parametrize("case", ["1", "2", "3", "4", "9", "masked"])
@pytest.mark.parametrize("layer", [0, 1])
def test_tiny_hash(reference, golden, layer, case):
    masked = case == "masked"
    ids = golden["engram.tiny.masked.ids" if masked else f"engram.tiny.ids{case}"]
    mask = golden["engram.tiny.masked.mask"] if masked else None
    past = history(golden["engram.tiny.token_map"][ids], 4, mask)
    pad = int(golden["engram.tiny.pad_compressed"])
    rows = reference.ngram_rows(past, constants(golden, "tiny", layer, pad))
    name = "masked.hash_ids" if masked else f"hash_ids{case}"
    assert torch.equal(rows, golden[f"engram.tiny.{name}"][:, layer])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("masked", [False, True])
def test_streams(reference, golden, golden_directory, precision, masked):
    layer = int(golden["engram.tiny.layer"])
    order = 0 if layer == 1 else 1
    pad = int(golden["engram.tiny.pad_compressed"])
    tensors = _layer_tensors(golden_directory / "tiny-a" / "checkpoint", layer)
    weights = EngramWeights(
        reference.pack_table(tensors["embed"]),
        constants(golden, "tiny", order, pad),
        reference.pack_linear(tensors["wkv"]),
        reference.pack_vector(tensors["q_weight"].weight),
        reference.pack_vector(tensors["k_weight"].weight),
        1e-20,
    )
    past = history(golden["engram.tiny.token_map"][golden["engram.tiny.masked.ids"]], 4)
    mask = golden["engram.tiny.masked.mask"]
    blocked = ~mask if masked else torch.zeros_like(mask)
    operators = resolve("reference", reference, reference, [])
    streams = operators.engram(
        golden[f"engram.tiny.streams_in.{precision}"], past, weights, blocked
    )
    name = "streams_out_masked" if masked else "streams_out"
    assert_close(streams, golden[f"engram.tiny.{name}.{precision}"])


def _layer_tensors(checkpoint, layer: int) -> dict[str, LinearSource]:
    """Sources of a layer's Engram tensors, by their last name."""
    stored: dict[str, TensorSource] = {}
    prefix = f"layers.{layer}.engram."
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                if name.startswith(prefix):
                    tensor = file.get_tensor(name)
                    kind = STORED.get(tensor.dtype)
                    tensor = tensor.view(torch.uint8) if kind else tensor
                    stored[name.removeprefix(prefix)] = TensorSource(tensor, kind)
    return {
        name: LinearSource(
            stored.get(f"{name}.weight", stored.get(name)), stored.get(f"{name}.scale")
        )
        for name in ("embed", "wkv", "q_weight", "k_weight")
    }
