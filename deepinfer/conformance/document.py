"""`SuiteReport`: the result of a run as data, in the form of `docs/report.schema.json`."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from deepinfer.backend import CONTRACT_VERSION
from deepinfer.conformance.case import Case, Failure, Outcome, Tier, Timing, Verdict
from deepinfer.conformance.json_file import read_json
from deepinfer.conformance.perf import Ceilings
from deepinfer.conformance.profiles import Claims
from deepinfer.conformance.schema import SCHEMA, problem
from deepinfer.errors import UsageError
from deepinfer.machine import commit, cpu_name

PACKAGES = ("deepinfer-core", "torch", "numpy", "hypothesis")


@dataclass
class SuiteReport:
    """One run: what was tested, where, and the verdict of every case.

    ceilings: speed limits of the device, if cases were timed.
    """

    accelerator: str
    mode: str
    label: str
    profile: str
    tier: Tier
    native_operators: tuple[str, ...]
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    workers: int = 0
    device: str = "cpu"
    environment: Mapping[str, Any] = field(default_factory=lambda: environment())
    verdicts: list[Verdict] = field(default_factory=list)
    claims: Claims | None = None
    ceilings: Ceilings | None = None

    @property
    def title(self) -> str:
        """What was tested: the backend, or the reference where no operator was native."""
        ran_native = self.claims is None or bool(self.claims.native_operators)
        if not ran_native:
            backend = f"backend {self.accelerator}, mode {self.mode}"
            return f"reference on {self.device} ({backend}: nothing native)"
        return f"backend {self.accelerator}, mode {self.mode} ({self.label})"

    def counts(self) -> Counter[str]:
        """Verdicts by outcome."""
        return Counter(str(verdict.outcome) for verdict in self.verdicts)

    def passed(self, native: bool = False) -> bool:
        """Whether every case passed. native: and whether the key operators were native."""
        assert self.claims is not None, "a report is judged once it is complete"
        return self.claims.works and (self.claims.native or not native)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        assert self.claims is not None, "a report is written once it is complete"
        return {
            "schema": SCHEMA,
            "title": self.title,
            "accelerator": self.accelerator,
            "mode": self.mode,
            "label": self.label,
            "device": self.device,
            "profile": self.profile,
            "tier": str(self.tier),
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "workers": self.workers,
            "environment": dict(self.environment),
            "ceilings": None if self.ceilings is None else self.ceilings.to_dict(),
            "native_operators": list(self.native_operators),
            "claims": {
                "works": self.claims.works,
                "native": self.claims.native,
                "native_operators": list(self.claims.native_operators),
                "missing_native": list(self.claims.missing_native),
                "sentence": self.claims.sentence(),
            },
            "counts": dict(self.counts()),
            "cases": [self._case(verdict) for verdict in self.verdicts],
        }

    def share(self, verdict: Verdict) -> float | None:
        """The share of the device's speed limit that a timed case reached."""
        if verdict.timing is None or self.ceilings is None:
            return None
        return self.ceilings.share(verdict.timing)

    def _case(self, verdict: Verdict) -> dict[str, Any]:
        record, share = verdict_to_dict(verdict), self.share(verdict)
        if share is not None:
            record["timing"]["share"] = round(share, 6)
        return record


def verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    """One case as plain values; an infinite share becomes the text "inf"."""
    used = {
        name: round(value, 6) if math.isfinite(value) else str(value)
        for name, value in verdict.used.items()
    }
    return {
        "id": verdict.case.id,
        "operator": verdict.case.operator,
        "outcome": str(verdict.outcome),
        "failure": str(verdict.failure),
        "provider": verdict.provider,
        "message": verdict.message,
        "used": used,
        "seconds": round(verdict.seconds, 6),
        "timing": None if verdict.timing is None else asdict(verdict.timing),
    }


def verdict_from_dict(record: Mapping[str, Any]) -> Verdict:
    """The verdict of `verdict_to_dict`."""
    return Verdict(
        Case.parse(record["id"]),
        Outcome(record["outcome"]),
        record["provider"],
        Failure(record["failure"]),
        record["message"],
        {name: float(value) for name, value in record["used"].items()},
        record["seconds"],
        Timing(**record["timing"]) if record["timing"] else None,
    )


def read_report(path: str | Path) -> dict[str, Any]:
    """A report that was written before; UsageError where the file is none."""
    document = read_json(path, "report")
    wrong = problem(document)
    if wrong:
        raise UsageError(f"report {str(path)!r} cannot be read: {wrong}")
    assert isinstance(document, dict)
    return document


def environment(distributions: Iterable[str] = ()) -> dict[str, Any]:
    """Versions (also those of further distributions), machine and commit of a run."""
    versions = {}
    for name in dict.fromkeys((*PACKAGES, *distributions)):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "contract": ".".join(str(part) for part in CONTRACT_VERSION),
        "packages": versions,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "commit": commit() or "",
    }


def by_operator(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """Verdicts grouped by operator, in order."""
    grouped: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        grouped.setdefault(verdict.case.operator, []).append(verdict)
    return grouped


def work_of(verdict: Verdict) -> tuple[int, int]:
    """Operations and bytes of a timed case, to sort cases by size."""
    assert verdict.timing is not None
    return verdict.timing.flops, verdict.timing.bytes
