"""Installed backends: which are usable, why others are not, and who runs which operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deepinfer.backend import CallSpec
from deepinfer.backend.bindings import COMPOSED, FALLBACK, NATIVE, PROVIDERS, Binding, described
from deepinfer.backend.hooks import CONTRACT_VERSION
from deepinfer.backend.registry import (
    Installed,
    Selected,
    discover,
    installed_entry_points,
    load,
    reference_for,
)
from deepinfer.backend.resolution import resolve
from deepinfer.checkpoint import Checkpoint
from deepinfer.cli.requirements import checkpoint_calls, resolved
from deepinfer.cli.selection import missing_variables
from deepinfer.engine import EngineOptions
from deepinfer.errors import BackendError
from deepinfer.model import plan_packing


def backend_rows(
    skip: Iterable[str] = (), checkpoint: Checkpoint | None = None
) -> list[dict[str, Any]]:
    """One record of plain values per installed backend, by name.

    checkpoint: also ask every mode that this process can ask about the calls of its model.
    """
    skip = tuple(skip)
    rows = [_row(backend) for backend in discover(skip)]
    if checkpoint is None:
        return rows
    options = EngineOptions()
    calls = checkpoint_calls(checkpoint, options, options.numerics_for(checkpoint.config))
    found = installed_entry_points(skip)
    for row in rows:
        for mode in row["modes"]:
            installed = load(row["name"], found[row["name"]], mode["name"])
            mode["checkpoint"] = _answer(installed, mode["name"], checkpoint, calls)
    return rows


def _row(backend: Installed) -> dict[str, Any]:
    spec, availability = backend.spec, backend.availability
    return {
        "name": backend.name,
        "distribution": backend.distribution,
        "usable": backend.usable,
        "computes": spec.computes if spec else None,
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
    """Names of operators by provider in the default mode, without regard to any model.

    Empty where the backend is not usable. Under "error" the reason why it cannot be created.
    """
    if not backend.usable or backend.spec is None or backend.hooks is None:
        return {}
    selected = Selected(
        backend.spec, backend.spec.modes[0], "listed", backend.hooks, backend.origin
    )
    try:
        created = selected.create()
        operators = resolve(backend.name, created, reference_for(selected, created), ())
    except BackendError as error:
        return {"error": str(error).splitlines()}
    return {provider: operators.providers(provider) for provider in (NATIVE, COMPOSED, FALLBACK)}


def _answer(
    backend: Installed, mode_name: str, checkpoint: Checkpoint, calls: list[CallSpec]
) -> dict[str, Any]:
    """Who runs each operator that a model calls in one mode, and the memory of its weights.

    Instead, "not_asked" with the reason where this process cannot ask, or "error" with what is
    missing.
    """
    mode = backend.spec.mode(mode_name) if backend.spec is not None else None
    if backend.spec is None or mode is None or backend.hooks is None or not backend.usable:
        return {"not_asked": f"not usable on this machine: {backend.reasons()}"}
    if missing := missing_variables(mode):
        wanted = " ".join(f"{name}={value}" for name, value in missing.items())
        return {"not_asked": f"a process of this mode starts with {wanted}"}
    selected = Selected(backend.spec, mode, "listed", backend.hooks)
    try:
        operators = resolved(selected, calls)
    except BackendError as error:
        return {"error": str(error)}
    called = {name: one for name, one in operators.bindings.items() if one.is_called}
    return {
        "operators": {name: one.to_dict() for name, one in called.items()},
        "summary": _counts(called.values()),
        "packing": plan_packing(checkpoint, operators).to_dict(),
    }


def _counts(bindings: Iterable[Binding]) -> str:
    providers = [binding.provider for binding in bindings]
    return ", ".join(f"{providers.count(provider)} {provider}" for provider in PROVIDERS)


def render(rows: list[dict[str, Any]]) -> str:
    """The records as text, usable backends first."""
    version = ".".join(str(part) for part in CONTRACT_VERSION)
    lines = [f"operator contract {version}"]
    for row in sorted(rows, key=lambda row: (not row["usable"], row["name"])):
        state = "usable" if row["usable"] else "error" if row["error"] else "not usable"
        lines.append(f"{row['name']} ({row['distribution']}): {state}")
        for mode in row["modes"]:
            lines.append(f"  mode {mode['name']}: {mode['label']} [{mode['device']}]")
            lines += [f"    {line}" for line in _answer_lines(mode.get("checkpoint", {}))]
        if not any("checkpoint" in mode for mode in row["modes"]):
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


def _answer_lines(answer: dict[str, Any]) -> list[str]:
    """The lines on a checkpoint; none where none was given."""
    if not answer:
        return []
    if "not_asked" in answer:
        return [f"not asked: {answer['not_asked']}"]
    if "error" in answer:
        return [f"cannot run it: {answer['error']}"]
    width = max((len(name) for name in answer["operators"]), default=0)
    lines = [f"operators that the model calls: {answer['summary']}"]
    for name, record in answer["operators"].items():
        lines.append(f"  {name.ljust(width)}  {described(record)}")
    return lines


def _operator_lines(operators: dict[str, list[str]]) -> list[str]:
    if not operators or "error" in operators:
        return [f"  {line}" for line in operators.get("error", ())]
    counts = ", ".join(f"{len(names)} {provider}" for provider, names in operators.items())
    fallbacks = operators[FALLBACK]
    named = [f"  run by the reference: {', '.join(fallbacks)}"] if fallbacks else []
    return [f"  operators: {counts}", *named]
