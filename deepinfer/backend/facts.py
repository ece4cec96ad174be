"""Static facts that several families read from the arguments of a call in the same way.

The names are those of `CallSpec`. Each function gives a part of an operator's declared facts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend.batch import Region
from deepinfer.backend.values import Activation, PackedExperts, PackedLinear

QUANTISED = ("fp8", "fp4")


def width_of(x: Tensor) -> dict[str, object]:
    """Channels of a row, or of each of its heads: x [T, ..., K]."""
    return {"width": x.shape[-1], "dtype": x.dtype}


def hidden_of(x: Tensor) -> dict[str, object]:
    """Hidden width of the rows x [T, H]."""
    return {"hidden": x.shape[1], "dtype": x.dtype}


def streams_of(x: Tensor) -> dict[str, object]:
    """Count and width of the residual streams x [T, S, H]."""
    return {"streams": x.shape[1], **width_of(x)}


def vocabulary_of(x: Tensor) -> dict[str, object]:
    """Tokens that the rows of logits or log-probabilities x [M, V] are about."""
    return {"vocabulary": x.shape[1]}


def stored_kind(weights: PackedLinear | PackedExperts) -> str:
    """How the weights are stored: "fp8", "fp4", or "bf16" for unquantised, float32 included."""
    return weights.kind if weights.kind in QUANTISED else "bf16"


def matmul(a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> dict[str, object]:
    """Precisions of a matmul. Unquantised weights consume the values, whatever scheme `a` has."""
    return {
        "weight": stored_kind(w),
        "scheme": a.scheme if w.kind in QUANTISED else None,
        "out": out_dtype,
        "dtype": a.dtype,
    }


def unquantised_cache(region: Region) -> dict[str, object]:
    """The dtype of main or index entries that are kept unquantised; nothing for published ones."""
    kept = region.format.name.partition("-")[2]
    return {"cache": kept} if kept else {}
