"""The published schema of reports: true of what is written, and read by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.backend.registry import select_backend
from deepinfer.conformance.case import Tier
from deepinfer.conformance.command import write_report
from deepinfer.conformance.document import read_report
from deepinfer.conformance.profiles import PROFILES
from deepinfer.conformance.run import run_suite
from deepinfer.conformance.schema import json_schema
from deepinfer.errors import UsageError

PUBLISHED = Path(__file__).parents[2] / "docs" / "report.schema.json"
CASE = "rms_norm[rows=1,width=64,eps=1e-20,dtype=bf16,values=normal,edge=one,seed=0]"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = run_suite(select_backend("reference"), PROFILES["core"], Tier.QUICK, ids=[CASE])
    directory = tmp_path_factory.mktemp("report")
    write_report(report, directory)
    return directory / "report.json"


def test_the_published_schema_is_the_codes() -> None:
    assert json.loads(PUBLISHED.read_text()) == json_schema(), (
        "run scripts/make_report_schema.py again"
    )


def test_a_written_report_has_every_field_and_no_other(written: Path) -> None:
    document = read_report(written)
    assert set(document) == set(json_schema()["properties"])
    assert set(document["cases"][0]) == set(json_schema()["$defs"]["CaseRecord"]["properties"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 1}, "it has schema 1 and this version reads"),
        ({"tier": "fast"}, "tier: Input should be"),
        ({"more": 1}, "more: Extra inputs"),
        ({"cases": [{"id": "x"}]}, "cases.0.operator: Field required"),
    ],
)
def test_a_report_of_another_form_is_refused(
    written: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**json.loads(written.read_text()), **change}))
    with pytest.raises(UsageError, match=r"report .*other.json' cannot be read") as raised:
        read_report(path)
    assert said in str(raised.value)
