"""What a checkpoint needs of a backend: the calls of its model, and who would run them."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.backend import CallSpec, Numerics
from deepinfer.backend.registry import Selected, host_reference, reference_for
from deepinfer.backend.resolution import Operators, resolve
from deepinfer.checkpoint import Checkpoint
from deepinfer.cli.inspection import Section
from deepinfer.engine import EngineOptions, call_limits
from deepinfer.errors import BackendError
from deepinfer.model import model_calls, plan_packing


def checkpoint_calls(
    checkpoint: Checkpoint, options: EngineOptions, numerics: Numerics
) -> list[CallSpec]:
    """The operator calls of the checkpoint's text model under the engine options."""
    limits = call_limits(options, checkpoint.config)
    return model_calls(checkpoint.config, numerics, options.compute, limits, options.cache_dtype)


def calls_section(calls: list[CallSpec]) -> Section:
    """The section that lists the calls."""
    rows = [(call.step or "model", str(call)) for call in calls]
    data = [call.to_dict() for call in calls]
    return Section(f"operator calls ({len(calls)})", rows, "calls", data, numbers=False)


def backend_section(selected: Selected, checkpoint: Checkpoint, calls: list[CallSpec]) -> Section:
    """The section on what the backend lacks: operators that others would run, and why."""
    title = f"backend {selected.spec.name}, mode {selected.mode.name}"
    try:
        operators = resolved(selected, calls)
    except BackendError as error:
        row = ("cannot run it", str(error))
        return Section(title, [row], "backend", {"error": str(error)}, numbers=False)
    plan = plan_packing(checkpoint, operators)
    lacking = [binding for binding in operators.bindings.values() if binding.lacks]
    rows = [("operators", operators.summary()), ("memory", str(plan))]
    rows += [(binding.operator, str(binding)) for binding in lacking]
    if not lacking:
        rows.append(("lacks", "nothing"))
    data = {
        "name": selected.spec.name,
        "mode": selected.mode.name,
        "lacks": {binding.operator: binding.to_dict() for binding in lacking},
        "packing": plan.to_dict(),
    }
    return Section(title, rows, "backend", data, numbers=False)


def resolved(selected: Selected, calls: Sequence[CallSpec]) -> Operators:
    """The operators that would run these calls. Errors: those of `create` and `resolve`."""
    backend = selected.create()
    reference = reference_for(selected, backend)
    return resolve(selected.spec.name, backend, reference, calls, host=host_reference)
