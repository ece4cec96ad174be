"""Engram: hashing and blocking, gathered rows, the gate."""

from __future__ import annotations

import math

import pytest
import torch

from deepinfer.backend import Activation, NgramHash
from deepinfer.formats import Scheme, fp8_rows
from tests.reference.compare import assert_close, assert_same_bits
from tests.reference.sources import random_matrix

HASH = NgramHash(
    torch.tensor([7, 11, 13]), torch.tensor([5, 17, 19, 23]), torch.tensor([0, 5, 22, 41]), 2, 9
)


def rows_of(ids: list[int]) -> list[int]:
    """Columns of one token by hand: orders 2 and 3, two heads each."""
    two = ids[0] * 7 ^ ids[1] * 11
    three = two ^ ids[2] * 13
    return [two % 5, two % 17 + 5, three % 19 + 22, three % 23 + 41]


@pytest.mark.parametrize(
    ("history", "effective"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, -1], [1, 2, 9]),
        ([1, -1, 3], [1, 9, 9]),
        ([-1, 2, 3], [9, 9, 9]),
        ([4, -1, -1], [4, 9, 9]),
    ],
)
def test_the_first_gap_blocks_itself_and_all_that_is_older(reference, history, effective):
    rows = reference.ngram_rows(torch.tensor([history, [1, 2, 3]]), HASH)
    assert rows.tolist() == [rows_of(effective), rows_of([1, 2, 3])]


def test_products_of_the_largest_ids_do_not_overflow(reference):
    largest = 2 * 46539438283890 + 1
    hash = NgramHash(
        torch.tensor([largest] * 4), torch.tensor([16000057] * 3), torch.tensor([0, 0, 0]), 1, 2
    )
    rows = reference.ngram_rows(torch.tensor([[99091, 99091, 99091, 99091]]), hash)
    one = 99091 * largest
    assert one < 2**63
    assert rows[0].tolist() == [0, one % 16000057, 0]


def test_no_rows(reference):
    assert reference.ngram_rows(torch.zeros(0, 3, dtype=torch.int64), HASH).shape == (0, 4)
    table = reference.pack_table(random_matrix(20, 32, "fp8", scale_rows=True))
    gathered = reference.gather(table, torch.zeros(0, 4, dtype=torch.int64), torch.float32)
    assert gathered.values.shape == (0, 128)
    empty = torch.zeros(0, 2, 8)
    weight = torch.ones(2, 8)
    blocked = torch.zeros(0, dtype=torch.bool)
    out = reference.inject(empty, torch.zeros(0, 24), weight, weight, 1e-20, blocked)
    assert out.shape == (0, 2, 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_gather_gives_values_and_the_stored_bytes(reference, dtype):
    source = random_matrix(20, 64, "fp8", scale_rows=True)
    rows = torch.tensor([[3, 19], [0, 3]])
    gathered = reference.gather(reference.pack_table(source), rows, dtype)
    codes, scales = source.weight.read()[rows.flatten()], source.scale.read()[rows.flatten()]
    assert gathered.scheme is Scheme.FP8_BLOCK32
    assert_same_bits(gathered.quantised.codes, codes.view(2, 128))
    assert_same_bits(gathered.quantised.scales, scales.view(2, 4))
    assert_same_bits(gathered.values, fp8_rows(codes, scales, dtype).view(2, 128))


def test_a_matmul_reads_stored_rows_as_their_values(reference):
    table = reference.pack_table(random_matrix(20, 64, "fp8", scale_rows=True))
    weight = reference.pack_linear(random_matrix(48, 128, "fp8"))
    gathered = reference.gather(table, torch.tensor([[3, 19], [0, 3]]), torch.bfloat16)
    from_bytes = reference.linear(gathered, weight, torch.bfloat16)
    from_values = reference.linear(Activation(gathered.values), weight, torch.bfloat16)
    assert_same_bits(from_bytes, from_values)


def test_an_unquantised_table_has_no_stored_bytes(reference):
    source = random_matrix(20, 64, "bf16")
    gathered = reference.gather(
        reference.pack_table(source), torch.tensor([[3, 19]]), torch.float32
    )
    assert gathered.quantised is None
    expected = source.weight.read()[[3, 19]].float().view(1, 128)
    assert_same_bits(gathered.values, expected)


@pytest.mark.parametrize("row", [-1, 20])
def test_rows_outside_the_table_are_errors(reference, row):
    table = reference.pack_table(random_matrix(20, 32, "fp8", scale_rows=True))
    with pytest.raises(IndexError, match=r"Engram row outside 0\.\.19"):
        reference.gather(table, torch.tensor([[0, row]]), torch.float32)


def gate(reference, match: float, dtype: torch.dtype = torch.float64) -> float:
    """The gate of a stream of ones whose weighted match with its key is `match`.

    Streams and keys have RMS 1, width 4: match = sum of weights / sqrt(width).
    """
    streams, memory = torch.ones(1, 1, 4, dtype=dtype), torch.ones(1, 8, dtype=dtype)
    weight = torch.full((1, 4), match / 2, dtype=dtype)
    out = reference.inject(
        streams, memory, weight, torch.ones(1, 4), 1e-20, torch.zeros(1, dtype=torch.bool)
    )
    return float(out[0, 0, 0]) - 1


@pytest.mark.parametrize(
    ("match", "expected"),
    [(0.0, 0.50025), (-1e-300, 0.49975), (4.0, 0.880797), (-4.0, 0.119203)],
)
def test_gates_of_the_specification(reference, match, expected):
    assert math.isclose(gate(reference, match), expected, abs_tol=1e-6)


def test_a_tiny_match_counts_as_the_smallest(reference):
    assert gate(reference, 1e-9) == gate(reference, 1e-6)


def test_a_blocked_row_stays_as_it_is(reference):
    streams, memory = torch.randn(3, 2, 8), torch.randn(3, 24)
    memory[1] = torch.nan
    weight = torch.ones(2, 8)
    blocked = torch.tensor([False, True, False])
    out = reference.inject(streams, memory, weight, weight, 1e-20, blocked)
    assert_same_bits(out[1], streams[1])
    assert out.isfinite().all()
    assert not torch.equal(out[0], streams[0])


def test_inject_follows_the_formula(reference):
    streams, memory = torch.randn(5, 2, 8).bfloat16(), torch.randn(5, 24).bfloat16()
    q, k = torch.randn(2, 8).bfloat16(), torch.randn(2, 8).bfloat16()
    blocked = torch.zeros(5, dtype=torch.bool)
    out = reference.inject(streams, memory, q, k, 1e-20, blocked)
    x, keys = streams.double(), memory[:, :16].double().view(5, 2, 8)
    match = (x * q.double() * k.double() * keys).sum(-1)
    for part in (x, keys):
        match = match / part.square().mean(-1).sqrt()
    match = match * 8**-0.5
    gates = torch.sigmoid(match.sign() * match.abs().clamp(min=1e-6).sqrt())
    expected = x + gates.unsqueeze(-1) * memory[:, None, 16:].double()
    assert_close(out, expected.bfloat16())
