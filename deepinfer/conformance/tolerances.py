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
    differ. SETS: largest gap between the scores of members that a row exchanged for others, in
    units of the row's largest score; members are ascending and then -1, and as many.
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
STORED_ROW = Tolerance(
    Metric.NORMALISED,
    0.25,
    "a code of 1 mantissa bit that lies at a midpoint moves by up to a third of the group's "
    "largest value, and a power-of-two scale by 2: one of either in a row of 32 channels",
)
STORED_CODES = Tolerance(
    Metric.MATCHED,
    0.05,
    "stored entries differ where a value that another order of sums moved by a last bit lies at "
    "the midpoint of two codes, one in thousands; one code of 32 channels is 0.03",
)
INDEX_SUM = Tolerance(
    Metric.ULP,
    1.0,
    "dot products of FP4 values are exact in float32 and their terms are rounded to bf16 as the "
    "contract says, so only the float32 sum over heads has an order; it is rounded to bf16 once",
)
INDEX_SPREAD = Tolerance(
    Metric.ULP,
    2.0,
    "where the scales of a row's groups differ by 2^20 the dot products are rounded too, and the "
    "next bf16 number of one term of the sum is at most a unit of it",
)
SELECTED_BF16 = Tolerance(
    Metric.SETS,
    2.0**-5,
    "bf16 scores have 8 bits; a query channel that another order of sums moved over a midpoint of "
    "FP4 moves a head's dot product by some hundredths, and a score of all heads by less",
)
SELECTED_WIDE = Tolerance(
    Metric.SETS,
    2.0**-10,
    "scores in float32 differ by some units of 2^-24; no query channel of the grid lies so near a "
    "midpoint of FP4 that this moves its code",
)
ATTENDED = Tolerance(
    Metric.ULP,
    3.0,
    "kernels may round probabilities to bf16 before the second product (model specification, "
    "4.7): with 8 to 640 keys that moved elements by up to 2 units; a key of 128 too many, by 12",
    wide=True,
)
PROJECTED = Tolerance(
    Metric.NORMALISED,
    0.01,
    "bf16 values between attention, rotation and two products: each may be the next bf16 number, "
    "2^-8 of it, and the sums average over a hundred of them and more",
)
PROJECTED_FP8 = Tolerance(
    Metric.NORMALISED,
    0.08,
    "inputs of both products are FP8: where a value moves by a last bit, one code in twenty moves "
    "by 2^-3; with 64 inputs and bf16 probabilities a row moved by up to 0.055",
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


BF16_MLP = Tolerance(
    Metric.NORMALISED,
    1e-3,
    "sums in float32 in any order move a bf16 rounding in one element of some thousands, by 2^-8; "
    "a rounding more or less on the way moves all of them, by 2^-9.8 each and 1.2e-3 in all",
)


WIDE_QUANTISED = Tolerance(
    Metric.NORMALISED,
    4e-3,
    "one moved code among 8192 or more elements is at most 2^-3 of one that is three times the "
    "RMS, 0.4 % of the row; codes that were quantised behind a bf16 rounding move the row by 1 %",
)


def mlp_tolerance(dtype: str, quantised: bool, terms: int) -> Tolerance:
    """The limit of one matmul after another.

    quantised: a quantiser stands between them. terms: elements of a row between them.
    """
    if dtype == "fp64":
        return FP64_SUM
    if quantised:
        return WIDE_QUANTISED if terms >= 8192 else BF16_QUANTISED
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
