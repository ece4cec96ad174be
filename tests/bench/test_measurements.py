"""Reports: summaries of samples, the JSON document, the table."""

from __future__ import annotations

import json
from operator import sub

import pytest
from rich.console import Console

from deepinfer.bench.environment import describe, finish
from deepinfer.bench.measurements import Measurements, Series, by_round, render


def report() -> Measurements:
    made = Measurements("host", {"steps": 3}, describe(None), notes=["a note to read"])
    finish(made.environment)
    made.add("step", "ms", [3.0, 1.0, 2.0], sequences=1)
    made.add("step", "ms", [30.0, 10.0], sequences=64)
    made.add("long step", "ms", [12345.6], sequences=64)
    return made


def test_summary_of_samples() -> None:
    series = Series("step", "ms", {}, [float(value) for value in range(10, 0, -1)])
    assert series.median == 5.5
    assert (series.percentile(0.1), series.percentile(0.9)) == (2, 10)


def test_document_has_every_sample_in_order() -> None:
    document = json.loads(json.dumps(report().to_dict()))
    assert document["benchmark"] == "host"
    assert document["settings"] == {"steps": 3}
    assert document["notes"] == ["a note to read"]
    first = document["series"][0]
    assert first["samples"] == [3, 1, 2]
    assert first["conditions"] == {"sequences": 1}
    assert {key: first[key] for key in ("median", "p10", "p90", "min", "max")} == {
        "median": 2, "p10": 1, "p90": 3, "min": 1, "max": 3,
    }  # fmt: skip


def test_environment_says_what_numbers_depend_on() -> None:
    environment = report().to_dict()["environment"]
    assert environment["cpu"]
    assert environment["cpus"] >= 1
    assert environment["threads"] >= 1
    assert environment["torch"]
    assert environment["python"]
    assert environment["deepinfer"]
    assert len(environment["load_average_before"]) == len(environment["load_average_after"]) == 3


def test_series_are_found_by_conditions() -> None:
    assert report().find("step", sequences=64).samples == [30, 10]
    with pytest.raises(KeyError, match="no step for"):
        report().find("step", sequences=2)


def test_table_has_a_row_per_series_and_the_notes() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render(report()))
    text = capture.get()
    assert [line.split()[:2] for line in text.splitlines() if " ms" in line] == [
        ["1", "step"],
        ["64", "step"],
        ["64", "long"],
    ]
    assert "12,346" in text
    assert "a note to read" in text


def test_series_are_combined_round_by_round() -> None:
    assert by_round([5, 7], [1, 2], sub) == [4, 5]
