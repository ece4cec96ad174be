"""Definitions that the format tests compare with, written without the code under test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

Oracle = Callable[[torch.Tensor, str], torch.Tensor]

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = [
    float(torch.tensor(code, dtype=torch.uint8).view(torch.float8_e4m3fn)) for code in range(127)
]


def brute_force(x: torch.Tensor, element: str) -> torch.Tensor:
    """The code whose value is nearest to each element of 1-D x; of two, the even one."""
    grid = np.array({"e2m1": E2M1, "e4m3": E4M3}[element])
    sign_bit = {"e2m1": 8, "e4m3": 128}[element]
    nan_code = {"e2m1": 7, "e4m3": 127}[element]
    codes = []
    for chunk in np.array_split(x.double().numpy(), max(1, x.numel() // 8192)):
        magnitude = np.minimum(np.where(np.isnan(chunk), 0, np.abs(chunk)), grid[-1])
        distance = np.abs(magnitude[:, None] - grid[None, :])
        nearest = distance == distance.min(axis=1, keepdims=True)
        even_first = nearest * (2 - np.arange(len(grid)) % 2)
        code = np.where(np.isnan(chunk), nan_code, even_first.argmax(axis=1))
        codes.append(code + sign_bit * np.signbit(chunk))
    return torch.from_numpy(np.concatenate(codes)).to(torch.uint8)


@pytest.fixture
def nearest() -> Oracle:
    return brute_force


@pytest.fixture
def every_bf16() -> torch.Tensor:
    """All 65,536 bit patterns, infinities, NaN and both zeros among them."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


@pytest.fixture
def index_borders() -> Callable[[torch.dtype], torch.Tensor]:
    """The first and the last value of every run of values that agree in sign, exponent and the
    top five mantissa bits: a look-up table that is right for all of these is right for all values.
    """

    def borders(dtype: torch.dtype) -> torch.Tensor:
        bits, low, size = {
            torch.float32: (torch.int32, 18, 2**14),
            torch.float64: (torch.int64, 47, 2**17),
        }[dtype]
        first = torch.arange(-size // 2, size // 2) << low
        second, last = first + 1, first + (1 << low) - 1
        return torch.cat((first, second, last)).to(bits).view(dtype)

    return borders
