"""Published tensors that live in memory, and random matrices of every stored kind."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import ExpertSource, LinearSource, Source

_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}


class TensorSource(Source):
    """A tensor as a source. stored: its safetensors dtype; uint8 tensors must name it."""

    def __init__(self, tensor: Tensor, stored: str | None = None) -> None:
        self.tensor = tensor
        self.name = "test"
        self.dtype = stored or _NAMES[tensor.dtype]
        self.shape = tuple(tensor.shape)
        self.nbytes = tensor.nbytes
        self.file = "memory"
        self.offset = 0

    def read(self) -> Tensor:
        return self.tensor.clone()

    def map(self) -> Tensor:
        return self.tensor

    def rows(self, start: int, stop: int) -> Source:
        return TensorSource(self.tensor[start:stop], self.dtype)


def plain(tensor: Tensor) -> LinearSource:
    """An unquantised matrix, bf16 or fp32."""
    return LinearSource(TensorSource(tensor))


def random_matrix(
    rows: int, columns: int, kind: str, seed: int = 0, scale_rows: bool = False
) -> LinearSource:
    """A matrix of kind fp8, fp4, bf16 or fp32; scale_rows: fp8 scales per row (Engram tables)."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "fp8":
        codes = torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=generator)
        codes[(codes & 0x7F) == 0x7F] = 0
        tall = rows if scale_rows else -(-rows // 32)
        scale = torch.randint(117, 121, (tall, -(-columns // 32)), generator=generator)
        return LinearSource(
            TensorSource(codes, "F8_E4M3"), TensorSource(scale.to(torch.uint8), "F8_E8M0")
        )
    if kind == "fp4":
        codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
        scale = torch.randint(122, 127, (rows, columns // 32), generator=generator)
        return LinearSource(
            TensorSource(codes, "I8"), TensorSource(scale.to(torch.uint8), "F8_E8M0")
        )
    values = torch.randn(rows, columns, generator=generator) * columns**-0.5
    return plain(values.bfloat16() if kind == "bf16" else values)


def random_experts(
    count: int, hidden: int, intermediate: int, kind: str, seed: int = 0
) -> list[ExpertSource]:
    """Experts with different random matrices."""
    return [
        ExpertSource(
            random_matrix(intermediate, hidden, kind, seed + 3 * number),
            random_matrix(hidden, intermediate, kind, seed + 3 * number + 1),
            random_matrix(intermediate, hidden, kind, seed + 3 * number + 2),
        )
        for number in range(count)
    ]
