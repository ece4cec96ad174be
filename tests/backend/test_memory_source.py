"""`MemorySource`: a published tensor that is already in memory."""

from __future__ import annotations

import pytest
import torch

from deepinfer.backend import LinearSource
from deepinfer.backend.memory_source import MemorySource


@pytest.mark.parametrize(
    ("stored", "name", "given"),
    [
        (torch.bfloat16, "BF16", torch.bfloat16),
        (torch.float32, "F32", torch.float32),
        (torch.float8_e4m3fn, "F8_E4M3", torch.uint8),
        (torch.float8_e8m0fnu, "F8_E8M0", torch.uint8),
        (torch.int8, "I8", torch.uint8),
    ],
)
def test_every_published_dtype(stored: torch.dtype, name: str, given: torch.dtype) -> None:
    values = torch.ones(4, 2).to(stored)
    source = MemorySource(values)
    assert (source.dtype, source.shape, source.nbytes) == (name, (4, 2), values.nbytes)
    assert source.read().dtype == source.map().dtype == given


def test_bytes_with_the_name_of_what_they_hold() -> None:
    source = MemorySource(torch.zeros(4, 2, dtype=torch.uint8), dtype="F8_E4M3")
    assert source.dtype == "F8_E4M3"
    assert LinearSource(source).kind == "fp8"


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        (torch.uint8, None),
        (torch.float16, None),
        (torch.float32, "BF16"),
        (torch.uint8, "BF16"),
        (torch.float8_e4m3fn, "F8_E8M0"),
    ],
)
def test_values_that_are_no_published_tensor(stored: torch.dtype, dtype: str | None) -> None:
    with pytest.raises(ValueError, match=r"source 'gate': values are .* allowed: bfloat16"):
        MemorySource(torch.zeros(2).to(stored), "gate", dtype)


def test_read_is_a_copy_and_map_is_not() -> None:
    values = torch.zeros(2)
    source = MemorySource(values)
    copy = source.read()
    values[0] = 1
    assert copy.tolist() == [0, 0]
    assert source.map().tolist() == [1, 0]


def test_rows_are_a_slice_of_the_same_kind() -> None:
    source = MemorySource(torch.arange(6, dtype=torch.int8).view(3, 2), "w")
    part = source.rows(1, 3)
    assert (part.name, part.dtype, part.shape, part.nbytes) == ("w", "I8", (2, 2), 4)
    assert part.read().tolist() == [[2, 3], [4, 5]]
    assert source.rows(1, 1).shape == (0, 2)


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (-1, 2), (2, 1)])
def test_rows_outside_the_tensor(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=rf"rows \[{start}, {stop}\) leave the shape \[3, 2\]"):
        MemorySource(torch.zeros(3, 2), "w").rows(start, stop)


def test_fp4_matrix_has_two_columns_a_byte() -> None:
    weight = MemorySource(torch.zeros(4, 16, dtype=torch.int8))
    scale = MemorySource(torch.zeros(4, 1, dtype=torch.uint8), dtype="F8_E8M0")
    source = LinearSource(weight, scale)
    assert (source.kind, source.shape, source.nbytes) == ("fp4", (4, 32), 68)
