"""The registry of tolerances: how far a backend's answer may be from the reference's, and why.

Byte formats, indices and counts are equal. Every other entry has a metric, a number and a reason;
a report shows how much of each limit was used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Metric(StrEnum):
    """How a difference is measured.

    EQUAL: no difference, bit for bit (zeros of either sign and any NaN are equal). SCALED: largest
    difference of a row in units of the row's largest magnitude. NORMALISED: RMS of a row's
    difference over its RMS. ULP: largest difference in units in the last place of the output's
    dtype, at the magnitude of the element or of its row's RMS. MATCHED: share of elements that
    differ. SETS: share of a row's members that are not in the other set although their scores
    differ by more than rounding.
    """

    EQUAL = "equal"
    SCALED = "scaled"
    NORMALISED = "normalised"
    ULP = "ulp"
    MATCHED = "matched"
    SETS = "sets"


@dataclass(frozen=True)
class Tolerance:
    """A limit: a value of the metric above it fails. reason: why this number and no smaller one.

    wide: the wanted answer is computed in float64 from the same inputs, rounded once to the
    output's dtype; otherwise it is the reference's answer in the case's own precision.
    """

    metric: Metric
    limit: float
    reason: str
    wide: bool = False


EXACT = Tolerance(Metric.EQUAL, 0.0, "bytes, indices, counts and copies have one right answer")

BF16_ROUNDING = Tolerance(
    Metric.ULP,
    1.0,
    "summed in float32 in any order and rounded to bf16 once: at most the next bf16 number where "
    "the sum lies near the middle of two",
    wide=True,
)
FP32_SUM = Tolerance(
    Metric.SCALED,
    2e-5,
    "float32 sums of up to 16384 products in any order differ by a few hundred units of 2^-24 of "
    "the largest partial sum",
    wide=True,
)
FP64_SUM = Tolerance(
    Metric.SCALED,
    1e-11,
    "float64 sums in any order; functions that are evaluated in float32 tables are not used there",
)
FP32_ELEMENT = Tolerance(
    Metric.SCALED,
    2e-6,
    "a few float32 operations per element: 8 to 16 units of 2^-24, exp and log included",
    wide=True,
)
FP64_ELEMENT = Tolerance(
    Metric.SCALED, 1e-13, "a few float64 operations per element: some hundred units of 2^-53"
)
BF16_QUANTISED = Tolerance(
    Metric.NORMALISED,
    0.02,
    "values that were quantised behind a float32 sum: a last-bit difference of the sum moves a "
    "code of 3 mantissa bits now and then (one in some hundred elements), each by 2^-3",
)


def float_tolerance(dtype: str, *, elementwise: bool = False) -> Tolerance:
    """The usual limit of a float output whose operator sums in float32 and rounds once."""
    if dtype == "bf16":
        return BF16_ROUNDING
    if dtype == "fp32":
        return FP32_ELEMENT if elementwise else FP32_SUM
    return FP64_ELEMENT if elementwise else FP64_SUM


BF16_MLP = Tolerance(
    Metric.NORMALISED,
    1e-3,
    "sums in float32 in any order move a bf16 rounding in one element of some thousands, by 2^-8; "
    "a rounding more or less on the way moves all of them, by 2^-9.8 each and 1.2e-3 in all",
)


def mlp_tolerance(dtype: str, quantised: bool) -> Tolerance:
    """The limit of matmuls behind each other. quantised: with a quantiser between them."""
    if dtype == "fp64":
        return FP64_SUM
    if quantised:
        return BF16_QUANTISED
    return BF16_MLP if dtype == "bf16" else FP32_SUM


def code_tolerance(width: int) -> Tolerance:
    """The limit of codes of a row of `width` elements that a quantiser got from float32."""
    return Tolerance(
        Metric.MATCHED,
        max(0.005, 1.01 / width),
        "exp in float32 is right to some units of 2^-24, which moves one code in ten thousand: one "
        "in a row, or 1 in 200 of a long one; a rounding to bf16 in front of it moves 1 in 50",
    )


LOGPROBS = Tolerance(
    Metric.SCALED,
    1e-6,
    "a difference of float32 numbers and the logarithm of their sum, at the magnitude of the row's "
    "least probable token: a sum over 2^17 tokens in float32 is right to 2^-20",
)
