"""`deepinfer backends`: what is installed, what is usable, and why not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deepinfer.backend.hooks import CONTRACT_VERSION
from deepinfer.backend.registry import Installed, discover


def backend_rows(skip: Iterable[str] = ()) -> list[dict[str, Any]]:
    """One plain record per installed backend, by name."""
    return [_row(backend) for backend in discover(skip)]


def _row(backend: Installed) -> dict[str, Any]:
    spec, availability = backend.spec, backend.availability
    return {
        "name": backend.name,
        "distribution": backend.distribution,
        "usable": backend.usable,
        "rank": availability.rank if availability else None,
        "reasons": list(availability.reasons) if availability else [],
        "remedy": availability.remedy if availability else "",
        "error": backend.error,
        "contract_version": list(spec.contract_version) if spec else None,
        "modes": [
            {"name": mode.name, "label": mode.label, "device": mode.device, "timing": mode.timing}
            for mode in (spec.modes if spec else ())
        ],
    }


def render(rows: list[dict[str, Any]]) -> str:
    """The records as text, the usable ones first."""
    version = ".".join(str(part) for part in CONTRACT_VERSION)
    lines = [f"operator contract {version}"]
    for row in sorted(rows, key=lambda row: (not row["usable"], row["name"])):
        state = "usable" if row["usable"] else "error" if row["error"] else "not usable"
        lines.append(f"{row['name']} ({row['distribution']}): {state}")
        for mode in row["modes"]:
            lines.append(f"  mode {mode['name']}: {mode['label']} [{mode['device']}]")
        for reason in row["reasons"]:
            lines.append(f"  - {reason}")
        if row["remedy"] and not row["usable"]:
            lines.append(f"  to use it: {row['remedy']}")
        lines += [f"  {line}" for line in row["error"].rstrip().splitlines()]
        if row["error"]:
            lines.append(f"  to start without it: DEEPINFER_SKIP_BACKENDS={row['name']}")
    if not rows:
        lines.append("no backend is installed")
    return "\n".join(lines)
