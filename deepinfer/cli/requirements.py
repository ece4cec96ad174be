"""What a checkpoint asks of a backend: the calls of its model, and who would run them."""

from __future__ import annotations

from deepinfer.backend import CallSpec, Numerics
from deepinfer.backend.registry import Selected, reference_for
from deepinfer.backend.resolution import FALLBACK, Operators, resolve
from deepinfer.checkpoint import Checkpoint
from deepinfer.cli.inspect import Section
from deepinfer.engine import EngineOptions, call_limits
from deepinfer.errors import BackendError
from deepinfer.model import model_calls


def checkpoint_calls(
    checkpoint: Checkpoint, options: EngineOptions, numerics: Numerics
) -> list[CallSpec]:
    """The operator calls of the checkpoint's text model under the engine options."""
    limits = call_limits(options, checkpoint.config)
    return model_calls(checkpoint.config, numerics, options.compute, limits)


def calls_section(calls: list[CallSpec]) -> Section:
    """Every call, one a line."""
    rows = [(call.step or "model", str(call)) for call in calls]
    data = [call.to_dict() for call in calls]
    return Section(f"operator calls ({len(calls)})", rows, "calls", data, numbers=False)


def backend_section(selected: Selected, calls: list[CallSpec]) -> Section:
    """What the backend lacks for these calls: operators that others would run, and why."""
    name = selected.spec.name
    title = f"backend {name}, mode {selected.mode.name}"
    try:
        backend = selected.create()
        table = resolve(name, backend, reference_for(selected, backend), calls)
    except BackendError as error:
        row = ("cannot run it", str(error))
        return Section(title, [row], "backend", {"error": str(error)}, numbers=False)
    needed = {call.operator for call in calls}
    lacking = _lacking(table, needed)
    rows = [("operators", table.summary())]
    rows += [(operator, f"run by the reference: {reason}") for operator, reason in lacking]
    if not lacking:
        rows.append(("lacks", "nothing"))
    data = {"name": name, "mode": selected.mode.name, "lacks": dict(lacking)}
    return Section(title, rows, "backend", data, numbers=False)


def _lacking(table: Operators, needed: set[str]) -> list[tuple[str, str]]:
    return [
        (operator, table.bindings[operator].reason)
        for operator in table.providers(FALLBACK)
        if operator in needed
    ]
