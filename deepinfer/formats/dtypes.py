"""Names of tensor data types: compute precisions, and types of published tensors."""

from __future__ import annotations

from typing import Final

import torch

COMPUTE_DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
"""Precisions that activations are computed in, by the names of options, calls and cases."""

PUBLISHED_DTYPES: Final = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}
"""Types of the tensors of a published checkpoint, by their safetensors names."""

BYTE_DTYPES: Final = tuple(name for name, dtype in PUBLISHED_DTYPES.items() if dtype.itemsize == 1)
"""Names of published types whose values are codes of one byte."""

READ_DTYPES: Final = {
    name: torch.uint8 if name in BYTE_DTYPES else dtype for name, dtype in PUBLISHED_DTYPES.items()
}
"""What a tensor of each published type is read as: codes are uint8, other values are themselves."""
