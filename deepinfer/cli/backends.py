"""`deepinfer backends`: what is installed, what is usable or why not, and what falls back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deepinfer.backend.hooks import CONTRACT_VERSION
from deepinfer.backend.registry import Installed, Selected, discover, reference_for
from deepinfer.backend.resolution import COMPOSED, FALLBACK, NATIVE, resolve
from deepinfer.errors import BackendError


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
        "origin": backend.origin,
        "contract_version": list(spec.contract_version) if spec else None,
        "modes": [
            {"name": mode.name, "label": mode.label, "device": mode.device, "timing": mode.timing}
            for mode in (spec.modes if spec else ())
        ],
        "operators": _operators(backend),
    }


def _operators(backend: Installed) -> dict[str, list[str]]:
    """Operators by who runs them in the default mode, whatever a model calls.

    Empty where the backend is not usable; "error" where it cannot be created after all.
    """
    if not backend.usable or backend.spec is None or backend.hooks is None:
        return {}
    selected = Selected(
        backend.spec, backend.spec.modes[0], "listed", backend.hooks, backend.origin
    )
    try:
        created = selected.create()
        table = resolve(backend.name, created, reference_for(selected, created), ())
    except BackendError as error:
        return {"error": str(error).splitlines()}
    return {provider: table.providers(provider) for provider in (NATIVE, COMPOSED, FALLBACK)}


def render(rows: list[dict[str, Any]]) -> str:
    """The records as text, the usable ones first."""
    version = ".".join(str(part) for part in CONTRACT_VERSION)
    lines = [f"operator contract {version}"]
    for row in sorted(rows, key=lambda row: (not row["usable"], row["name"])):
        state = "usable" if row["usable"] else "error" if row["error"] else "not usable"
        lines.append(f"{row['name']} ({row['distribution']}): {state}")
        for mode in row["modes"]:
            lines.append(f"  mode {mode['name']}: {mode['label']} [{mode['device']}]")
        lines += _operator_lines(row["operators"])
        for reason in row["reasons"]:
            lines.append(f"  - {reason}")
        if row["remedy"] and not row["usable"]:
            lines.append(f"  to use it: {row['remedy']}")
        lines += [f"  {line}" for line in row["error"].rstrip().splitlines()]
        if row["error"]:
            lines.append(f"  from {row['origin']}")
            lines.append(f"  to start without it: DEEPINFER_SKIP_BACKENDS={row['name']}")
    if not rows:
        lines.append("no backend is installed")
    return "\n".join(lines)


def _operator_lines(operators: dict[str, list[str]]) -> list[str]:
    if not operators or "error" in operators:
        return [f"  {line}" for line in operators.get("error", ())]
    counts = ", ".join(f"{len(names)} {provider}" for provider, names in operators.items())
    fallbacks = operators[FALLBACK]
    named = [f"  run by the reference: {', '.join(fallbacks)}"] if fallbacks else []
    return [f"  operators: {counts}", *named]
