"""Timing of cases (`--perf`): how long the subject takes, as a share of what the device can do.

Two limits are measured on the same device in the same run: the bandwidth of a copy, for the bytes
that a call must move, and the speed of a large matmul, for its floating-point operations. Bytes are
those of arguments and results once each, weights included; of a pool only the entries that the call
reads or writes. Operations are those of matmuls, scores and attention.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Batch,
    Contract,
    PackedExperts,
    PackedLinear,
    PackedTable,
    Pool,
    Region,
    Routed,
)
from deepinfer.conformance.case import Case, Timing
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import OperatorSuite, generator_of
from deepinfer.conformance.trees import tensors
from deepinfer.conformance.world import World
from deepinfer.formats.dtypes import COMPUTE_DTYPES

LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 5, 200, 0.2
COPY_BYTES = 128 * 2**20
MATMUL = 1024


@dataclass(frozen=True)
class Ceilings:
    """The measured speed of a device.

    bandwidth: bytes/s of a copy, both directions counted. flops: floating-point operations per
    second of a square matmul, by dtype. Cases are compared with the fastest one, whatever their own
    precision, because a kernel may compute in another.
    """

    bandwidth: float
    flops: Mapping[str, float]

    @classmethod
    def measure(cls, backend: Contract) -> Ceilings:
        """The best of some rounds on the backend's device."""
        source = torch.zeros(COPY_BYTES // 4, device=backend.device)
        target = torch.empty_like(source)
        moved = 2 * COPY_BYTES / min(_rounds(lambda: target.copy_(source), backend))
        flops = {}
        for name, dtype in COMPUTE_DTYPES.items():
            a = torch.ones(MATMUL, MATMUL, device=backend.device, dtype=dtype)
            least = min(_rounds(lambda a=a: a @ a, backend))  # type: ignore[misc]
            flops[name] = 2 * MATMUL**3 / least
        return cls(moved, flops)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: bytes/s and operations/s."""
        return {
            "bandwidth": float(f"{self.bandwidth:.4g}"),
            "flops": {name: float(f"{value:.4g}") for name, value in self.flops.items()},
        }

    def share(self, timing: Timing) -> float:
        """The share of the nearer limit that a call reached; above 1 where caches serve it."""
        most = max(timing.bytes / self.bandwidth, timing.flops / max(self.flops.values()))
        return most / timing.median if timing.median else 0.0


def timed(case: Case, suite: OperatorSuite, subject: Subject) -> Timing:
    """Time the case's call, repeated with the same arguments."""
    operators = subject.operators(suite.calls(case))
    placed = World(operators).place(suite.inputs(case, generator_of(case)))
    samples = sorted(_rounds(lambda: suite.run(operators, placed), operators))
    work = _Work()
    truth = subject.truth.tapped(work.tap)
    arguments = World(truth).place(suite.inputs(case, generator_of(case)))
    result = suite.run(truth, arguments)
    moved = work.bytes + _argument_bytes(arguments, result)
    return Timing(
        median=samples[len(samples) // 2],
        low=samples[len(samples) // 10],
        high=samples[len(samples) * 9 // 10],
        rounds=len(samples),
        bytes=moved,
        flops=work.flops,
    )


def _rounds(call: Callable[[], Any], backend: Contract) -> list[float]:
    """Seconds of each round, the device idle before and after; the first ones are not counted."""
    call()
    backend.synchronise()
    samples: list[float] = []
    ends = time.perf_counter() + SECONDS
    while len(samples) < LEAST_ROUNDS or (
        len(samples) < MOST_ROUNDS and time.perf_counter() < ends
    ):
        started = time.perf_counter()
        call()
        backend.synchronise()
        samples.append(time.perf_counter() - started)
    return samples


class _Work:
    """Operations and pool bytes of what the reference calls; it composes every step."""

    def __init__(self) -> None:
        self.flops = 0
        self.bytes = 0

    def tap(self, operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        """Count one call."""
        work = getattr(self, f"_{operator}", None)
        if work is not None:
            work(result, *arguments)

    def _linear(self, result: Tensor, a: Any, w: PackedLinear, dtype: Any) -> None:
        self.flops += 2 * a.values.shape[0] * w.shape[0] * w.shape[1]

    _grouped_linear = _linear

    def _index_scores(
        self,
        result: Tensor,
        queries: Any,
        weights: Tensor,
        scale: float,
        keys: Region,
        visible: Tensor,
        width: int,
        batch: Batch,
        *rest: Any,
    ) -> None:
        heads, channels = queries.values.shape[1:]
        seen = visible.clamp(max=width)
        self.flops += 2 * int(seen.sum()) * heads * channels
        for number in range(batch.num_sequences):
            rows = seen[batch.sequence == number]
            self.bytes += int(rows.max()) * _entry(keys) if rows.numel() else 0

    def _attend(
        self,
        result: Tensor,
        queries: Tensor,
        window: Region,
        span: Any,
        main: Region | None,
        selection: Any,
        *rest: Any,
    ) -> None:
        seen = int((span.last - span.first + 1).clamp(min=0).sum())
        self.bytes += seen * _entry(window)
        if main is not None and selection is not None:
            chosen = int((selection.indices >= 0).sum())
            self.bytes += chosen * _entry(main)
            seen += chosen
        self.flops += 4 * seen * queries.shape[1] * queries.shape[2]

    def _expert_mlp(self, result: Routed, routed: Routed, experts: PackedExperts, *_: Any) -> None:
        rows = int((routed.routing.ids >= 0).sum())
        self.flops += 6 * rows * experts.hidden * experts.intermediate
        used = len(set(routed.routing.ids.flatten().tolist()))
        size = experts.nbytes + experts.mapped_bytes
        self.bytes += size * min(used, experts.num_slots) // max(1, experts.num_slots)

    def _store(self, result: Any, values: Tensor, region: Region, entries: Tensor, *_: Any) -> None:
        self.bytes += int((entries >= 0).sum()) * _entry(region)

    def _load(self, result: Tensor, region: Region, *_: Any) -> None:
        self.bytes += result.shape[0] * _entry(region)

    def _copy(self, result: Any, pool: Pool, pairs: Tensor) -> None:
        self.bytes += 2 * pairs.shape[0] * pool.image_bytes

    def _export(self, result: Any, pool: Pool, blocks: Tensor, *_: Any) -> None:
        self.bytes += blocks.shape[0] * pool.image_bytes

    _import_ = _export


def _entry(region: Region) -> int:
    return region.format.region_bytes(1, region.width)


def _argument_bytes(value: Any, result: Any) -> int:
    """Bytes of arguments and results, less pools, tables and experts, of which parts are read."""
    outputs = sum(_size(tensor) for _, tensor in tensors(result))

    def walked(value: Any) -> int:
        if isinstance(value, PackedTable):
            return outputs
        if isinstance(value, PackedLinear):
            return value.nbytes + value.mapped_bytes
        if isinstance(value, Tensor):
            return _size(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, Pool | PackedExperts | type):
            return sum(walked(getattr(value, field.name)) for field in dataclasses.fields(value))
        if isinstance(value, dict):
            return sum(map(walked, value.values()))
        if isinstance(value, list | tuple):
            return sum(map(walked, value))
        return 0

    return walked(value) + outputs


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
