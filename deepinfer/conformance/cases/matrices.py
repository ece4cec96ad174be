"""Makes published matrices with values of a class: FP8, FP4, bf16 or float32."""

from __future__ import annotations

import torch

from deepinfer.backend import ExpertSource, LinearSource
from deepinfer.backend.memory_source import MemorySource
from deepinfer.backend.shapes import ShapeSource
from deepinfer.conformance.values import ShapesOnly, make

FP8_GROUP = 32


def matrix(
    rows: int, columns: int, kind: str, generator: torch.Generator, values: str = "normal"
) -> LinearSource:
    """A matrix [rows, columns] of a stored kind: fp8, fp4, bf16 or fp32.

    values: "normal" and "ties": elements of about columns^-0.5. "powers": block scales from 2^-20
    to 2^20. "saturated": the largest codes with the largest scales whose products are finite.
    "zeros": zeros.
    """
    if isinstance(generator, ShapesOnly):
        return _shape_of_matrix(rows, columns, kind)
    if kind in ("bf16", "fp32"):
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        name = {"powers": "large", "saturated": "large"}.get(values, values)
        x = make(name, (rows, columns), generator, torch.float32) * columns**-0.5
        return LinearSource(MemorySource(x.to(dtype)))
    wide = columns if kind == "fp8" else columns // 2
    codes = torch.randint(0, 256, (rows, wide), dtype=torch.uint8, generator=generator)
    if kind == "fp8":
        codes[(codes & 0x7F) == 0x7F] = 0x38  # published matrices have no NaN
    if values == "zeros":
        codes = torch.where(codes > 127, 128, 0).to(torch.uint8) if kind == "fp8" else codes & 0x88
    if values == "saturated":
        largest = 0x7E if kind == "fp8" else 0x77
        codes = (codes & (0x80 if kind == "fp8" else 0x88)) | largest
    return LinearSource(
        MemorySource(codes, dtype="F8_E4M3" if kind == "fp8" else "I8"),
        MemorySource(_scales(rows, columns, kind, generator, values), dtype="F8_E8M0"),
    )


def _shape_of_matrix(rows: int, columns: int, kind: str) -> LinearSource:
    """A matrix without values. It has no block scales, as nothing asks for their shape."""
    dtype = {"fp8": "F8_E4M3", "fp4": "I8", "bf16": "BF16", "fp32": "F32"}[kind]
    shape = rows, columns // 2 if kind == "fp4" else columns
    return LinearSource(ShapeSource("matrix", dtype, shape))


def _scales(
    rows: int, columns: int, kind: str, generator: torch.Generator, values: str
) -> torch.Tensor:
    """Scales as E8M0 bytes: one per 32 x 32 block for fp8, one per row and 32 columns for fp4."""
    tall = -(-rows // FP8_GROUP) if kind == "fp8" else rows
    shape = (tall, -(-columns // FP8_GROUP))
    base = 127 - (8 if kind == "fp8" else 3) - max(0, columns.bit_length() // 2 - 1)
    spread = 20 if values == "powers" else 1
    scales = torch.randint(base - spread, base + spread + 1, shape, generator=generator)
    return scales.to(torch.uint8)


def lookup_table(
    rows: int, columns: int, kind: str, generator: torch.Generator, values: str = "normal"
) -> LinearSource:
    """A table whose rows are looked up. fp8 tables have a scale per row and 32 columns."""
    if kind != "fp8" or isinstance(generator, ShapesOnly):
        return matrix(rows, columns, kind, generator, values)
    source = matrix(rows, columns, kind, generator, values)
    scales = torch.randint(117, 128, (rows, -(-columns // FP8_GROUP)), generator=generator)
    return LinearSource(source.weight, MemorySource(scales.to(torch.uint8), dtype="F8_E8M0"))


def expert(
    hidden: int, inner: int, kind: str, generator: torch.Generator, values: str = "normal"
) -> ExpertSource:
    """The three matrices of one expert."""
    return ExpertSource(
        matrix(inner, hidden, kind, generator, values),
        matrix(hidden, inner, kind, generator, values),
        matrix(inner, hidden, kind, generator, values),
    )
