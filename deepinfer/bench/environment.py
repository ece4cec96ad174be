"""What a measured number depends on beside the code: machine, versions, load, backend and mode."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from deepinfer.backend.registry import Selected
from deepinfer.machine import commit, cpu_name

COMPUTES_NOTHING = (
    "backend {name} computes nothing: these are costs of the engine on the host, not the speed of "
    "a model"
)
TIMING_MEANS_NOTHING = "mode {mode} of backend {name} ({label}): its timing means nothing"


def describe(selected: Selected | None) -> dict[str, Any]:
    """The environment before a run; `finish` adds the load after it."""
    return {
        "command": shlex.join(["deepinfer", *sys.argv[1:]]),
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "deepinfer": _own_version(),
        "commit": commit(),
        "load_average_before": _load_average(),
        "load_average_after": None,
        "backend": None
        if selected is None
        else {
            "name": selected.spec.name,
            "distribution": selected.spec.distribution,
            "mode": selected.mode.name,
            "label": selected.mode.label,
            "device": selected.mode.device,
            "timing_means_something": selected.mode.timing,
        },
    }


def finish(environment: dict[str, Any]) -> None:
    environment["load_average_after"] = _load_average()


def warnings_about(selected: Selected) -> list[str]:
    """Notes for a backend whose timing is not that of the model on a device."""
    spec, mode = selected.spec, selected.mode
    if not spec.computes:
        return [COMPUTES_NOTHING.format(name=spec.name)]
    if not mode.timing:
        return [TIMING_MEANS_NOTHING.format(mode=mode.name, name=spec.name, label=mode.label)]
    return []


def _own_version() -> str | None:
    try:
        return version("deepinfer-core")
    except PackageNotFoundError:
        return None


def _load_average() -> list[float]:
    return [round(load, 2) for load in os.getloadavg()]
