"""`Measurements`: what one benchmark measured, where, and with which options."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Series:
    """All samples of one quantity under one set of conditions, in the order they were taken."""

    quantity: str
    unit: str
    conditions: dict[str, Any]
    samples: list[float]

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    def percentile(self, share: float) -> float:
        """The sample at or above `share` in [0, 1] of all samples; no interpolation."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def to_dict(self) -> dict[str, Any]:
        """Conditions, summary and samples, samples rounded to what a clock can tell."""
        return {
            "quantity": self.quantity,
            "unit": self.unit,
            "conditions": self.conditions,
            "median": _short(self.median),
            "p10": _short(self.percentile(0.1)),
            "p90": _short(self.percentile(0.9)),
            "min": _short(min(self.samples)),
            "max": _short(max(self.samples)),
            "samples": [_short(sample) for sample in self.samples],
        }


@dataclass
class Measurements:
    """The results of one run of one benchmark.

    settings: its options. environment: see `environment.describe`. notes: what a reader must know
    before using the numbers, such as a mode whose timing means nothing.
    """

    benchmark: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    series: list[Series] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, quantity: str, unit: str, samples: Sequence[float], **conditions: object
    ) -> Series:
        series = Series(quantity, unit, dict(conditions), list(samples))
        self.series.append(series)
        return series

    def find(self, quantity: str, **conditions: object) -> Series:
        """The series of a quantity under these conditions; KeyError when there is none."""
        for series in self.series:
            if series.quantity == quantity and conditions.items() <= series.conditions.items():
                return series
        raise KeyError(f"{self.benchmark} has no {quantity} for {conditions}")

    def to_dict(self) -> dict[str, Any]:
        """The document that --json writes."""
        return {
            "format_version": FORMAT_VERSION,
            "benchmark": self.benchmark,
            "settings": self.settings,
            "environment": self.environment,
            "notes": self.notes,
            "series": [series.to_dict() for series in self.series],
        }


def by_round(
    later: Sequence[float], first: Sequence[float], combine: Callable[[float, float], float]
) -> list[float]:
    """Two series combined round by round, so that a slow round affects both sides alike."""
    return [combine(a, b) for a, b in zip(later, first, strict=True)]


def render(report: Measurements) -> RenderableType:
    """The measurements as a table of medians and spreads, one row per series."""
    names = list(dict.fromkeys(name for series in report.series for name in series.conditions))
    title = f"deepinfer bench {report.benchmark}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name in [*names, "quantity"]:
        table.add_column(name.replace("_", " "), no_wrap=True)
    for name in ("median", "p10", "p90", "samples"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("unit")
    for series in report.series:
        table.add_row(
            *(str(series.conditions.get(name, "")) for name in names),
            series.quantity,
            *map(_shown, (series.median, series.percentile(0.1), series.percentile(0.9))),
            str(len(series.samples)),
            series.unit,
        )
    lines = [*_environment_lines(report.environment), *(f"note: {note}" for note in report.notes)]
    return Group(table, *(Text(line) for line in lines))


def _environment_lines(environment: dict[str, Any]) -> list[str]:
    machine = (
        f"{environment['cpu']}, {environment['cpus']} cpus, {environment['threads']} threads, "
        f"load average {environment['load_average_before']} before and "
        f"{environment['load_average_after']} after"
    )
    backend = environment["backend"]
    if backend is None:
        return [machine]
    return [machine, f"backend {backend['name']}, mode {backend['mode']} ({backend['label']})"]


def _shown(value: float) -> str:
    """Four digits, without an exponent for what benchmarks give."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _short(value: float) -> float:
    return float(f"{value:.6g}")
