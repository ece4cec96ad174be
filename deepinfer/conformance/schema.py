"""The published schema of `report.json`; `docs/report.schema.json` is made from it.

A tool that reads reports can rely on these fields: a change of one of them is a new `SCHEMA`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepinfer.conformance.case import Failure, Outcome, Tier

SCHEMA = 2


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TimingRecord(_Record):
    """Times of a case's call in seconds, and the work it is held against."""

    median: float
    low: float = Field(description="10 % of the rounds were faster.")
    high: float = Field(description="10 % of the rounds were slower.")
    rounds: int
    bytes: int = Field(description="Bytes that the call must move.")
    flops: int = Field(description="Floating-point operations of the call.")
    share: float | None = Field(None, description="Part of the nearer ceiling that was reached.")


class CaseRecord(_Record):
    """One case."""

    id: str = Field(description="Names the case and repeats it: --case ID.")
    operator: str
    outcome: Outcome
    failure: Failure = Field(description="What was wrong about a failed case, else empty.")
    provider: str = Field(description="Who ran it: native, composed, fallback or host.")
    message: str
    used: dict[str, float | Literal["inf", "nan"]] = Field(
        description="Share of each limit that was used, by output:metric."
    )
    seconds: float
    timing: TimingRecord | None = Field(description="Where the run timed its cases (--perf).")


class ClaimsRecord(_Record):
    """What the run showed for its profile."""

    works: bool
    native: bool
    native_operators: list[str]
    missing_native: list[str]
    sentence: str


class CeilingsRecord(_Record):
    """Measured limits of the device."""

    bandwidth: float = Field(description="Bytes/s of a copy, both directions counted.")
    flops: dict[str, float] = Field(description="Operations/s of a square matmul, by dtype.")


class EnvironmentRecord(_Record):
    """Where the run took place."""

    contract: str
    packages: dict[str, str]
    python: str
    system: str
    processor: str
    cores: int | None
    threads: str
    commit: str


class ReportRecord(_Record):
    """A report of `deepinfer conformance --report DIR`."""

    schema_: Literal[2] = Field(alias="schema")
    title: str
    accelerator: str
    mode: str
    label: str
    device: str
    profile: str
    tier: Tier
    started: str = Field(description="ISO 8601, UTC.")
    seconds: float
    workers: int
    environment: EnvironmentRecord
    ceilings: CeilingsRecord | None
    native_operators: list[str] = Field(description="Operators that the backend overrides.")
    claims: ClaimsRecord
    counts: dict[Outcome, int]
    cases: list[CaseRecord]


def problem(document: object) -> str:
    """What is wrong with a document that should be a report; "" where nothing is."""
    if not isinstance(document, dict):
        return "it is no report"
    if document.get("schema") != SCHEMA:
        return f"it has schema {document.get('schema')!r} and this version reads {SCHEMA}"
    try:
        ReportRecord.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}"
    ids = Counter(case["id"] for case in document["cases"])
    twice = next((name for name, count in ids.items() if count > 1), None)
    if twice is not None:
        return f"it has {ids[twice]} cases with the id {twice}"
    return ""


def json_schema() -> dict[str, Any]:
    """The schema as a JSON Schema document."""
    document = ReportRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}
