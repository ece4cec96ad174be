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

MIX = Tolerance(
    Metric.SCALED,
    5e-5,
    "a float32 sum of streams * width products in any order, which a site's scale enlarges about "
    "tenfold in front of exp; Sinkhorn's divisions add a few units of 2^-24 each",
    wide=True,
)
MIX_OF_ROUNDED = Tolerance(
    Metric.SCALED,
    4e-3,
    "the mix of streams that were rounded to bf16 behind float32 sums: where one element in a "
    "hundred is the next bf16 number, the projection moves by 2^-8 / 10 of its size, and scales "
    "of about 1 (8 at most) carry that into the exponents",
)
TWICE_ROUNDED = Tolerance(
    Metric.ULP,
    2.0,
    "rounded to bf16 twice, one rounding behind the other: a sum near the middle of two bf16 "
    "numbers moves the first by one, and what is computed from it by one more",
)

GATED = Tolerance(
    Metric.SCALED,
    1e-4,
    "a float32 sum behind a square root whose slope is 500 at its lower end of 1e-6: an error of "
    "2^-23 of the match moves the gate by up to 1.5e-5 of it, and the value with it",
    wide=True,
)

BF16_CHAIN = Tolerance(
    Metric.NORMALISED,
    2e-3,
    "matmul, norm and matmul with a rounding to bf16 behind each: one element in a hundred of each "
    "is the next bf16 number, by 2^-8 of it, which adds up to some 5e-4 of a row's RMS",
)


def float_tolerance(dtype: str, *, elementwise: bool = False) -> Tolerance:
    """The usual limit of a float output whose operator sums in float32 and rounds once."""
    if dtype == "bf16":
        return BF16_ROUNDING
    if dtype == "fp32":
        return FP32_ELEMENT if elementwise else FP32_SUM
    return FP64_ELEMENT if elementwise else FP64_SUM
