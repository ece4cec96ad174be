"""Index scores, top entries and candidate blocks: formulas, ties, edges."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Numerics
from deepinfer.formats import Scheme, round_trip
from deepinfer_reference.attention import _lane_score
from tests.reference.compare import assert_close, assert_same_bits
from tests.reference.pools import Sizes, SmallCache

NAN, INF = torch.nan, torch.inf


def top(reference, scores: list[float], k: int, visible: int | None = None, **options):
    row = torch.tensor([scores])
    seen = torch.tensor([len(scores) if visible is None else visible])
    candidates = options.get("candidates")
    if candidates is not None:
        candidates = torch.tensor([candidates], dtype=torch.int32)
    found = reference.top(row, seen, k, candidates, options.get("size", 4))
    assert found.dtype == torch.int32
    return found[0].tolist()


def test_top_is_ascending_and_filled(reference):
    assert top(reference, [1.0, 5, 3, 4, 2], 3) == [1, 2, 3]
    assert top(reference, [1.0, 5, 3], 5) == [0, 1, 2, -1, -1]
    assert top(reference, [], 2) == [-1, -1]


def test_top_keeps_to_visible_entries(reference):
    assert top(reference, [1.0, 5, 3, 9, 9], 2, visible=3) == [1, 2]
    assert top(reference, [1.0, 5], 2, visible=0) == [-1, -1]


def test_equal_scores_keep_the_lower_entry(reference):
    assert top(reference, [0.0, 7, 0, 0, 7, 0], 4) == [0, 1, 2, 4]
    assert top(reference, [2.0] * 300, 5) == [0, 1, 2, 3, 4]


def test_both_zeros_are_equal(reference):
    assert top(reference, [-0.0, 0.0, -0.0, 0.0], 2) == [0, 1]
    assert top(reference, [0.0, -0.0, 0.0, -0.0], 2) == [0, 1]


def test_nan_and_minus_infinity_are_never_selected(reference):
    assert top(reference, [NAN, 1, -INF, NAN, 0], 4) == [1, 4, -1, -1]
    assert top(reference, [NAN, NAN], 1) == [-1]


def test_infinity_is_selected_first(reference):
    assert top(reference, [3.0, INF, 4.0], 1) == [1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_top_agrees_with_a_sorted_list(reference, dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(-3, 4, (40, 133), generator=generator).to(dtype)
    visible = torch.randint(0, 134, (40,), generator=generator)
    found = reference.top(scores, visible, 11, None, 8)
    for row, seen, ours in zip(scores.tolist(), visible.tolist(), found.tolist(), strict=True):
        best = sorted(range(seen), key=lambda i: (-row[i], i))[:11]
        assert ours == sorted(best) + [-1] * (11 - len(best))


def test_candidates_restrict_the_choice(reference):
    scores = [9.0, 9, 9, 9, 1, 2, 3, 4, 8, 8, 8]
    assert top(reference, scores, 3, candidates=[1, -1, -1]) == [5, 6, 7]
    assert top(reference, scores, 5, candidates=[1, 2, -1]) == [6, 7, 8, 9, 10]
    assert top(reference, scores, 2, candidates=[-1, -1]) == [-1, -1]


def blocks(reference, scores: list[float], visible: int, size: int, k: int) -> list[int]:
    found = reference.best_blocks(torch.tensor([scores]), torch.tensor([visible]), size, k)
    assert found.dtype == torch.int32
    return found[0].tolist()


def test_best_blocks_keep_the_last_visible_entry(reference):
    assert blocks(reference, [9.0, 8, 7, 6, 5, 0, -INF], 6, 2, 2) == [0, 2]
    assert blocks(reference, [9.0, 8, 7, 6], 4, 2, 1) == [1]


def test_best_blocks_of_no_entry(reference):
    assert blocks(reference, [-INF, -INF], 0, 2, 3) == [-1, -1, -1]
    assert blocks(reference, [], 0, 2, 2) == [-1, -1]


def test_equal_blocks_keep_the_lower(reference):
    assert blocks(reference, [1.0] * 9, 9, 2, 3) == [0, 1, 4]


def test_an_infinite_score_does_not_displace_the_last_block(reference):
    assert blocks(reference, [INF, 0, INF, 0, 0, 0], 6, 2, 1) == [2]


def test_a_score_above_the_largest_bf16_counts_as_that(reference):
    largest = torch.finfo(torch.bfloat16).max
    assert blocks(reference, [largest, 0, INF, 0, 0, 0], 6, 2, 2) == [0, 2]


def test_nan_does_not_spoil_a_block(reference):
    assert blocks(reference, [NAN, 3, 2, NAN, NAN, NAN, 0, 0], 8, 2, 3) == [0, 1, 3]


def scored(reference, heads: int, dtype: torch.dtype, numerics: Numerics, count: int = 20):
    """Scores of the last 5 rows over `count` entries, and what they are made of."""
    generator = torch.Generator().manual_seed(heads)
    cache = SmallCache(Sizes(length=count, index_width=64))
    batch = cache.batch([(0, 0, count)])
    keys = torch.randn(count, 64, generator=generator).to(dtype)
    reference.store(keys, cache.index, batch.positions, batch)
    batch = cache.batch([(0, count - 5, count)])
    queries = torch.randn(5, heads, 64, generator=generator).to(dtype)
    weights = torch.randn(5, heads, generator=generator).to(dtype)
    activation = reference.quantise(queries, Scheme.MXFP4)
    visible = batch.positions + 1
    scores = reference.index_scores(
        activation, weights, 0.125, cache.index, visible, count, batch, numerics
    )
    queries, keys = (round_trip(x, Scheme.MXFP4).double() for x in (queries, keys))
    seen = torch.arange(count) < visible.unsqueeze(-1)
    return scores, torch.einsum("thi,gi->thg", queries, keys), weights, seen


@pytest.mark.parametrize("heads", [1, 3, 4, 5, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("numerics", "scale"), [(Numerics.REF, 0.125), (Numerics.INFER, 1.0)])
def test_wide_scores_follow_the_formula(reference, heads, dtype, numerics, scale):
    scores, dots, weights, seen = scored(reference, heads, dtype, numerics)
    expected = (dots.relu() * weights.double().unsqueeze(-1)).sum(1) * scale
    assert_close(scores.masked_fill(~seen, 0), expected.masked_fill(~seen, 0).to(dtype))
    assert (scores[~seen] == -INF).all()


@pytest.mark.parametrize("heads", [1, 3, 4, 5, 32])
def test_ref_rounds_dots_terms_and_sum(reference, heads):
    dtype = torch.bfloat16
    scores, dots, weights, seen = scored(reference, heads, dtype, Numerics.REF)
    terms = dots.float().to(dtype).relu() * (weights * 0.125).unsqueeze(-1)
    expected = terms.float().sum(1).to(dtype)
    assert_close(scores[seen], expected[seen])
    assert (scores[~seen] == -INF).all()


@pytest.mark.parametrize("heads", [1, 3, 4, 5, 32])
def test_infer_accumulates_fused_in_four_lanes(reference, heads):
    scores, dots, weights, seen = scored(reference, heads, torch.bfloat16, Numerics.INFER)
    relu = dots.float().relu().bfloat16()
    for row in range(5):
        for column in range(int(seen[row].sum())):
            expected = lanes(relu[row, :, column].tolist(), weights[row].tolist())
            assert float(scores[row, column]) == expected


def test_a_lane_rounds_product_and_sum_once():
    """(1 + 2^-7) + (1 + 2^-7) * (1 - 2^-7) * 2^-8 lies just below a tie of two bf16 values."""
    terms = torch.tensor([1 + 2.0**-7, 0, 0, 0, 1 + 2.0**-7]).bfloat16().view(1, 5, 1)
    weights = torch.tensor([1.0, 0, 0, 0, (1 - 2.0**-7) * 2.0**-8]).bfloat16().view(1, 5, 1)
    assert _lane_score(terms, weights).item() == 1 + 2.0**-7
    rounded_twice = terms[0, 0] + terms[0, 4] * weights[0, 4]
    assert rounded_twice.item() == 1 + 2.0**-6


def lanes(terms: list[float], weights: list[float]) -> float:
    """The INFER sum in exact arithmetic, rounded to bf16 where the rule says so."""
    sums = [Fraction(0)] * 4
    for head, (term, weight) in enumerate(zip(terms, weights, strict=True)):
        exact = Fraction(term) * Fraction(weight) + sums[head % 4]
        sums[head % 4] = Fraction(bf16(exact))
    pairs = Fraction(bf16(sums[0] + sums[2])) + Fraction(bf16(sums[1] + sums[3]))
    return bf16(pairs)


def bf16(exact: Fraction) -> float:
    """Nearest bf16 of a rational, ties to even."""
    if exact == 0:
        return 0.0
    exponent = 0
    size = abs(exact)
    while size >= 2:
        size, exponent = size / 2, exponent + 1
    while size < 1:
        size, exponent = size * 2, exponent - 1
    step = Fraction(2) ** (exponent - 7)
    return float(round(exact / step) * step)


def test_scores_of_ragged_rows_and_padding(reference):
    cache = SmallCache(Sizes(sequences=2, length=40))
    batch = cache.batch([(0, 0, 40), (1, 0, 30)])
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(70, 32, generator=generator).bfloat16()
    reference.store(keys, cache.index, batch.positions, batch)
    queries = reference.quantise(torch.randn(70, 4, 32).bfloat16(), Scheme.MXFP4)
    weights = torch.randn(70, 4).bfloat16()
    together = reference.index_scores(
        queries, weights, 1.0, cache.index, batch.positions + 1, 40, batch, Numerics.REF
    )
    padded = cache.batch([(1, 20, 30)], padding=3)
    rows = torch.arange(60, 73).clamp(max=69)
    alone = reference.index_scores(
        type(queries)(queries.values[rows], _rows(queries.quantised, rows), queries.scheme),
        weights[rows],
        1.0,
        cache.index,
        padded.positions + 1,
        300,
        padded,
        Numerics.REF,
    )
    assert_same_bits(alone[:10, :40], together[60:])
    assert (alone[:, 40:] == -INF).all()
    assert (alone[10:] == -INF).all()


def _rows(quantised, rows: Tensor):
    return type(quantised)(quantised.codes[rows], quantised.scales[rows])
