"""Weights as the checkpoint stores them: FP8 tiles, FP4 rows, Engram rows, bfloat16.

`stored_value` is what training computes with in its last third (the gradient goes to the exact
masters); `convert.py` writes the same values as bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.checkpoint.kinds import BLOCK, Kind
from deepinfer.formats import Scheme
from examples.nano.optimiser import Optimiser
from examples.nano.rounding import _round, power_of_two_above

FP8_SUFFIXES = (
    "attn.wq_a.weight",
    "attn.wq_b.weight",
    "attn.wkv.weight",
    "attn.wo_a.weight",
    "attn.wo_b.weight",
    "indexer.wq_b.weight",
    "shared_experts.gate_proj.weight",
    "shared_experts.up_proj.weight",
    "shared_experts.down_proj.weight",
    "engram.wkv.weight",
    "main_proj.weight",
)
FP32_PARTS = ("_hc.", "sinks_param", "_bias", "bias_vl")


def kind_of(name: str) -> Kind:
    """How a parameter of NeMo's modules is published."""
    if name.endswith(FP8_SUFFIXES):
        return Kind.FP8
    if name.endswith(("experts.gate_and_up_projs", "experts.down_projs")):
        return Kind.FP4
    if name.endswith("engram.embed.weight"):
        return Kind.TABLE
    return Kind.FP32 if any(part in name for part in FP32_PARTS) else Kind.BF16


def tile_scales(matrix: Tensor) -> Tensor:
    """The power-of-two scale of each 32x32 tile of [o, i], as [o, i]."""
    rows, columns = matrix.shape
    tiles = torch.nn.functional.pad(matrix, (0, -columns % BLOCK, 0, -rows % BLOCK))
    amax = tiles.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).abs().amax((1, 3))
    scales = power_of_two_above(amax.clamp(min=1e-6) * (1 / 448))
    scales = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return scales[:rows, :columns]


@torch.no_grad()
def stored_value(name: str, weight: Tensor) -> Tensor:
    """The value of a parameter after it was stored and read, float32."""
    kind = kind_of(name)
    if kind is Kind.FP8:
        scales = tile_scales(weight)
        return (weight / scales).to(torch.float8_e4m3fn).float() * scales
    if kind is Kind.FP4:  # [E, in, out]; groups of 32 inputs
        return _round(weight.mT.contiguous(), Scheme.MXFP4).mT.contiguous()
    if kind is Kind.TABLE:
        return _round(weight, Scheme.FP8_BLOCK32)
    return weight if kind is Kind.FP32 else weight.bfloat16().float()


@torch.no_grad()
def load_masters(optimiser: Optimiser, *, stored: bool) -> None:
    """Give the model its masters, exact or as stored."""
    for name, parameter in optimiser.parameters.items():
        master = optimiser.masters[name]
        parameter.copy_(stored_value(name, master) if stored else master)
