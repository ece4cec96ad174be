"""mask and top_logprobs of the reference: every bit, ties, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer_reference.sampling import ReferenceSampling

SAMPLING = ReferenceSampling()
INF = math.inf


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 70])
def test_mask_follows_every_bit(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    bits = torch.randint(-(2**31), 2**31, (17, -(-size // 32)), generator=generator).int()
    logits = torch.randn(17, size, generator=generator)
    got = SAMPLING.mask(logits, bits)
    for row in range(17):
        for token in range(size):
            allowed = (int(bits[row, token // 32]) & 0xFFFFFFFF) >> token % 32 & 1
            assert got[row, token] == (logits[row, token] if allowed else -INF), (row, token)


def test_bit_31_is_the_sign() -> None:
    bits = torch.tensor([[-(2**31)]], dtype=torch.int32)
    got = SAMPLING.mask(torch.zeros(1, 32), bits)
    assert got[0].isfinite().nonzero().flatten().tolist() == [31]


def test_mask_drops_nan_and_keeps_the_dtype_and_its_input() -> None:
    logits = torch.tensor([[math.nan, 1.0]], dtype=torch.bfloat16)
    got = SAMPLING.mask(logits, torch.tensor([[2]], dtype=torch.int32))
    assert (got.dtype, got.tolist()) == (torch.bfloat16, [[-INF, 1.0]])
    assert logits[0, 0].isnan()


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (torch.zeros(2, 1, dtype=torch.int32), r"\[2, 1\]; 33 tokens need torch.int32 \[2, 2\]"),
        (torch.zeros(2, 2, dtype=torch.int64), "bits are torch.int64"),
        (torch.zeros(3, 2, dtype=torch.int32), "bits has 3 rows, expected 2"),
    ],
)
def test_mask_refuses_other_shapes(bits: Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SAMPLING.mask(torch.zeros(2, 33), bits)


def test_top_logprobs_are_stable() -> None:
    row = torch.tensor([[-2.0, -1.0, -1.0, -INF, -2.0, -INF]])
    got = SAMPLING.top_logprobs(row, 6)
    assert (got.ids.tolist(), got.ids.dtype) == ([[1, 2, 0, 4, 3, 5]], torch.int64)
    assert got.logprobs.tolist() == [[-1.0, -1.0, -2.0, -2.0, -INF, -INF]]


def test_top_logprobs_of_many_rows_equal_each_row() -> None:
    values = torch.randint(-9, 0, (21, 50), generator=torch.Generator().manual_seed(3)).float()
    got = SAMPLING.top_logprobs(values, 7)
    for row in range(21):
        ids = sorted(range(50), key=lambda t: (-float(values[row, t]), t))[:7]
        assert got.ids[row].tolist() == ids
        assert got.logprobs[row].tolist() == values[row, ids].tolist()


def test_top_logprobs_of_nothing() -> None:
    assert SAMPLING.top_logprobs(torch.zeros(3, 4), 0).ids.shape == (3, 0)
    assert SAMPLING.top_logprobs(torch.zeros(0, 4), 2).logprobs.shape == (0, 2)


@pytest.mark.parametrize("k", [5, -1])
def test_top_logprobs_refuses_k_outside_the_vocabulary(k: int) -> None:
    with pytest.raises(ValueError, match=f"k = {k} of a vocabulary of 4"):
        SAMPLING.top_logprobs(torch.zeros(1, 4), k)
