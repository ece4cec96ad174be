"""Compare an output with the right one, by the metric of its tolerance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.conformance.case import Failure
from deepinfer.conformance.tolerances import Metric, Tolerance

_MANTISSA = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23, torch.float64: 52}


@dataclass(frozen=True)
class Difference:
    """The result of a comparison.

    used: share of the limit. failure and message are empty if the limit is kept.
    """

    used: float
    failure: Failure = Failure.NONE
    message: str = ""

    @property
    def kept(self) -> bool:
        return self.failure is Failure.NONE


def compare(
    name: str, got: object, want: Tensor, tolerance: Tolerance, scores: Tensor | None = None
) -> Difference:
    """Compare an output with the right one: shape and dtype first, then NaN, then numbers.

    scores [T, columns]: by which the members of sets were chosen, for the metric SETS.
    """
    if not isinstance(got, Tensor):
        return Difference(
            float("inf"), Failure.SHAPE, f"{name} is {type(got).__name__}, expected a tensor"
        )
    if got.shape != want.shape:
        return Difference(
            float("inf"),
            Failure.SHAPE,
            f"{name} has shape {list(got.shape)}, expected {list(want.shape)}",
        )
    if got.dtype != want.dtype:
        return Difference(
            float("inf"), Failure.DTYPE, f"{name} is {got.dtype}, expected {want.dtype}"
        )
    got, want = got.detach().cpu(), want.detach().cpu()
    if not want.numel():
        return Difference(0.0)
    if tolerance.metric is Metric.SETS:
        if scores is None:
            raise ValueError(f"{name}: sets are compared where the scores are known")
        return _exchanged(name, got, want, scores.detach().cpu(), tolerance)
    if tolerance.metric is Metric.EQUAL or not want.is_floating_point():
        return _equal(name, got, want)
    nan = _other_nan(name, got, want)
    return nan or _measured(name, got, want, tolerance)


def _equal(name: str, got: Tensor, want: Tensor) -> Difference:
    differs = got != want
    if want.is_floating_point():
        differs &= ~(torch.isnan(got) & torch.isnan(want))
    count = int(differs.sum())
    if not count:
        return Difference(0.0)
    place = torch.nonzero(differs)[0].tolist()
    return Difference(
        float("inf"),
        Failure.NUMBERS,
        f"{name}: {count} of {want.numel()} elements differ, the first at {place}: "
        f"{got[tuple(place)].item()!r}, expected {want[tuple(place)].item()!r}",
    )


def _other_nan(name: str, got: Tensor, want: Tensor) -> Difference | None:
    """Whether NaN or infinities stand at other places, or infinities have other signs."""
    unequal = torch.isnan(got) != torch.isnan(want)
    infinite = torch.isinf(got) | torch.isinf(want)
    unequal |= infinite & (got != want) & ~torch.isnan(got)
    if not bool(unequal.any()):
        return None
    place = torch.nonzero(unequal)[0].tolist()
    return Difference(
        float("inf"),
        Failure.NAN,
        f"{name}: {int(unequal.sum())} elements are NaN or infinite on one side only, the first at "
        f"{place}: {got[tuple(place)].item()!r}, expected {want[tuple(place)].item()!r}",
    )


def _exchanged(
    name: str, got: Tensor, want: Tensor, scores: Tensor, tolerance: Tolerance
) -> Difference:
    """Sets of columns [T, k], ascending and -1 filled, chosen by scores [T, columns]."""
    worst, message = 0.0, ""
    for row, (ours, theirs) in enumerate(zip(got.tolist(), want.tolist(), strict=True)):
        members, wanted = [m for m in ours if m >= 0], [m for m in theirs if m >= 0]
        filled = sorted(set(members)) + [-1] * (len(ours) - len(members))
        if ours != filled or (members and members[-1] >= scores.shape[1]):
            text = f"{name}: row {row} is not ascending columns below {scores.shape[1]}, then -1"
            return Difference(float("inf"), Failure.NUMBERS, f"{text}: {ours}")
        if len(members) != len(wanted):
            text = f"{name}: row {row} has {len(members)} members, expected {len(wanted)}"
            return Difference(float("inf"), Failure.NUMBERS, text)
        extra, lost = sorted(set(members) - set(wanted)), sorted(set(wanted) - set(members))
        if not extra:
            continue
        chosen, missed = scores[row, extra].double().sort()[0], scores[row, lost].double().sort()[0]
        finite = scores[row][torch.isfinite(scores[row])].double()
        unit = float(finite.abs().max()) if len(finite) else 0.0
        gap = float((chosen - missed).abs().nan_to_num(nan=float("inf")).max())
        gap = gap / unit if gap and unit else gap
        if gap > worst:
            worst = gap
            message = f"row {row} has {extra} in place of {lost}"
    if worst <= tolerance.limit:
        return Difference(worst / tolerance.limit)
    return Difference(
        worst / tolerance.limit,
        Failure.NUMBERS,
        f"{name}: {message}; their scores differ by {worst:.3g} of the largest, limit "
        f"{tolerance.limit:.3g} ({tolerance.reason})",
    )


def _measured(name: str, got: Tensor, want: Tensor, tolerance: Tolerance) -> Difference:
    value, place = measure(got, want, tolerance.metric)
    used = value / tolerance.limit if tolerance.limit else (0.0 if value == 0 else float("inf"))
    if used <= 1:
        return Difference(used)
    return Difference(
        used,
        Failure.NUMBERS,
        f"{name}: {tolerance.metric} difference {value:.3g} in row {place}, limit "
        f"{tolerance.limit:.3g} ({tolerance.reason})",
    )


def measure(got: Tensor, want: Tensor, metric: Metric) -> tuple[float, int]:
    """The worst value of a metric over all rows (first axis), and its row.

    Elements that are not finite, which are equal on both sides, count as zeros.
    """
    mantissa = _MANTISSA[want.dtype]
    finite = torch.isfinite(want)
    zero = torch.zeros((), dtype=torch.float64)
    exact = torch.where(finite, want.double(), zero)
    difference = (torch.where(finite, got.double(), zero) - exact).abs()
    rows = want.shape[0] if want.dim() else 1
    exact, difference = exact.reshape(rows, -1), difference.reshape(rows, -1)
    rms = _rms(exact)
    if metric is Metric.MATCHED:
        worst = (difference > 0).double().mean(1)
    elif metric is Metric.SCALED:
        worst = _ratio(difference.amax(1), exact.abs().amax(1))
    elif metric is Metric.NORMALISED:
        worst = _ratio(_rms(difference), rms)
    elif metric is Metric.ULP:
        size = torch.maximum(exact.abs(), rms[:, None])
        exponent = torch.frexp(size).exponent - 1
        unit = torch.ldexp(torch.ones_like(size), exponent - mantissa)
        worst = _ratio(difference, torch.where(size > 0, unit, zero)).amax(1)
    else:
        raise ValueError(f"{metric} is measured where the scores are known")
    row = int(worst.argmax())
    return float(worst[row]), row


def _rms(rows: Tensor) -> Tensor:
    """RMS of each row [T, n], scaled so that squares of large values stay finite."""
    largest = rows.abs().amax(1)
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    return (rows / scale[:, None]).pow(2).mean(1).sqrt() * scale


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, 0 where both are 0."""
    return torch.where(part == 0, torch.zeros_like(part), part / whole)
