"""Cases of the services of a device: memory, tensors, copies, scratch, plans, captured work.

A case is a short scenario that uses one service. Its outputs are flags of what must hold at the
end, and values. All of them have one right answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.backend import Backend, Batch, CallSpec, Contract, Plan, Table
from deepinfer.backend.resolution import NATIVE, Operators
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs
from deepinfer.formats.dtypes import COMPUTE_DTYPES

EAGER = "default"
SIZES = {"empty": 0, "one": 1, "odd": 4097, "long": 1 << 20}
DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "fp32": COMPUTE_DTYPES["fp32"],
}


class Device(OperatorSuite):
    """The services of a device, which are the backend's own or the eager defaults."""

    operator = "device"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for service in (
            "memory",
            "pinned",
            "stream",
            "workspace",
            "plan",
            "capture",
            "collectives",
        ):
            yield self._case(service)
        for kind in ("list", "tuple", "nested", "numpy", "empty"):
            for dtype in DTYPES:
                yield self._case("tensor", dtype, source=kind)
        for edge, size in SIZES.items():
            for dtype in ("uint8", "int64", "fp32"):
                for form in ("whole", "strided"):
                    yield self._case("copy_async", dtype, edge=edge, size=size, form=form)

    def _case(self, service: str, dtype: str = "fp32", edge: str = "", **facts: Any) -> Case:
        return Case.of("device", {"service": service, **facts}, dtype=dtype, edge=edge)

    def calls(self, case: Case) -> list[CallSpec]:
        """None: every backend has all services, so no call asks for them."""
        return []

    def provider(self, case: Case, operators: Operators) -> str:
        """native where the backend overrides the service, else the eager default."""
        name = str(case.fact("service"))
        own = getattr(type(operators.backend), name) is not getattr(Backend, name)
        return NATIVE if own else EAGER

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        service, dtype = str(case.fact("service")), DTYPES[case.dtype]
        if service == "tensor":
            return {"scenario": service, "values": _values(case), "dtype": dtype}
        if service == "copy_async":
            values = torch.randint(0, 100, (2 * case.size("size"),), generator=generator).to(dtype)
            return {"scenario": service, "host": Host(values, str(case.fact("form")))}
        if service == "plan":
            return {"scenario": service, "batch": _batch()}
        return {"scenario": service}

    def run(self, operators: Contract, arguments: Arguments) -> Outputs:
        """Run the scenario of a service."""
        rest = {name: value for name, value in arguments.items() if name != "scenario"}
        result: Outputs = SCENARIOS[arguments["scenario"]](operators, **rest)
        return result

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        """Every flag is true, and values are those that were put in."""
        service = str(case.fact("service"))
        expected = {name: torch.tensor(True) for name in CLAIMS[service]}
        if service == "tensor":
            expected["out"] = torch.tensor(_values(case), dtype=arguments["dtype"])
        if service == "copy_async":
            expected["out"] = arguments["host"].source()
        return expected


class Host:
    """Wraps host values so that no `World` moves them to the device.

    form: "whole", or else every second element.
    """

    def __init__(self, values: Tensor, form: str) -> None:
        self.values = values
        self.form = form

    def source(self) -> Tensor:
        """The part of the values that is copied."""
        half = len(self.values) // 2
        return self.values[:half] if self.form == "whole" else self.values[::2]


def _values(case: Case) -> Any:
    kind = case.fact("source")
    if kind == "empty":
        return []
    if kind == "nested":
        return [[0, 1, 1], [1, 0, 7]]
    values = [1, 0, 1, 5, 0]
    if kind == "numpy":
        return np.array(values, dtype=str(DTYPES[case.dtype]).removeprefix("torch."))
    return tuple(values) if kind == "tuple" else values


def _batch() -> Batch:
    """A batch of two sequences, with two rows and one row, and a padding row."""
    return Batch(
        token_ids=torch.tensor([3, 4, 5, 0]),
        positions=torch.tensor([7, 8, 0, 0]),
        sequence=torch.tensor([0, 0, 1, -1]),
        query_start=torch.tensor([0, 2, 3]),
        context_lengths=torch.tensor([9, 1]),
        slots=torch.tensor([1, 2]),
        image_mask=torch.zeros(4, dtype=torch.bool),
        context=Table(torch.tensor([[1], [2]]), torch.tensor([0, 0])),
        window=Table(torch.tensor([[1], [2]]), torch.tensor([0, 0])),
        max_context=9,
    )


def _tensor(operators: Contract, values: Any, dtype: torch.dtype) -> Outputs:
    made = operators.tensor(values, dtype)
    operators.synchronise()
    out = made.detach().cpu().clone()
    if isinstance(values, np.ndarray):  # a later change of the array must not change the tensor
        kept = values.copy()
        values[:] = 1 - values.astype(np.int64)
        private = torch.equal(made.detach().cpu(), out)
        values[:] = kept
    else:
        private = True
    return {
        "out": out,
        "placed": torch.tensor(made.device.type == operators.device.type),
        "private": torch.tensor(private),
    }


def _copy(operators: Contract, host: Host) -> Outputs:
    """Copy to the device and back to pinned memory; the source keeps its values."""
    values, size = host.values.clone(), len(host.values) // 2
    source = Host(values, host.form).source()
    there = torch.zeros(size, dtype=values.dtype, device=operators.device)
    operators.copy_async(there, source)
    back = operators.pinned((size,), values.dtype)
    operators.copy_async(back, there)
    operators.synchronise()
    return {"out": back.clone(), "kept": torch.tensor(torch.equal(values, host.values))}


def _memory(operators: Contract) -> Outputs:
    found = operators.memory()
    sane = found is None or (0 <= found.free <= found.total and found.total > 0)
    return {"sane": torch.tensor(sane)}


def _pinned(operators: Contract) -> Outputs:
    buffer = operators.pinned((3, 5), torch.int32)
    buffer.fill_(7)
    other = operators.pinned((3, 5), torch.int32)
    other.fill_(8)
    right = buffer.shape == (3, 5) and buffer.dtype == torch.int32
    return {
        "shaped": torch.tensor(right),
        "on_host": torch.tensor(buffer.device.type == "cpu"),
        "apart": torch.tensor(bool((buffer == 7).all())),
    }


def _stream(operators: Contract) -> Outputs:
    made = torch.zeros(64, device=operators.device)
    operators.synchronise()
    with operators.stream():
        made += 3
    operators.synchronise()
    return {"done": torch.tensor(bool((made == 3).all()))}


def _workspace(operators: Contract) -> Outputs:
    """Scratch memory keeps its values, can grow, and is separate by name and dtype."""
    first = operators.workspace("conformance.a", (2, 3), torch.float32)
    shaped = first.shape == (2, 3) and first.dtype == torch.float32
    first.fill_(1)
    other = operators.workspace("conformance.b", (2, 3), torch.float32)
    integers = operators.workspace("conformance.a", (2, 3), torch.int32)
    other.fill_(2)
    integers.fill_(3)
    apart = bool((first == 1).all()) and bool((other == 2).all()) and bool((integers == 3).all())
    again = operators.workspace("conformance.a", (6,), torch.float32)
    kept = bool((again == 1).all()) and again.shape == (6,)
    grown = operators.workspace("conformance.a", (300, 7), torch.float32)
    grown.fill_(4)
    later = operators.workspace("conformance.a", (300, 7), torch.float32)
    operators.synchronise()
    return {
        "shaped": torch.tensor(shaped),
        "apart": torch.tensor(apart),
        "kept": torch.tensor(kept),
        "grown": torch.tensor(grown.shape == (300, 7) and bool((later == 4).all())),
        "untouched": torch.tensor(bool((other == 2).all())),
    }


def _plan(operators: Contract, batch: Batch) -> Outputs:
    plans = [operators.plan(batch) for _ in range(2)]
    return {"planned": torch.tensor(all(isinstance(plan, Plan) for plan in plans))}


def _capture(operators: Contract) -> Outputs:
    """A replay does the work again, with the values that the tensors have by then."""
    source = torch.ones(8, device=operators.device)
    target = torch.zeros(8, device=operators.device)

    def work() -> None:
        torch.mul(source, 2, out=target)

    replay = operators.capture(work) or work
    operators.synchronise()
    source.fill_(5)
    replay()
    operators.synchronise()
    return {"replayed": torch.tensor(bool((target == 10).all()))}


def _collectives(operators: Contract) -> Outputs:
    name = operators.collectives()
    return {"named": torch.tensor(name is None or bool(name))}


SCENARIOS: dict[str, Any] = {
    "tensor": _tensor,
    "copy_async": _copy,
    "memory": _memory,
    "pinned": _pinned,
    "stream": _stream,
    "workspace": _workspace,
    "plan": _plan,
    "capture": _capture,
    "collectives": _collectives,
}
CLAIMS: dict[str, tuple[str, ...]] = {
    "tensor": ("placed", "private"),
    "copy_async": ("kept",),
    "memory": ("sane",),
    "pinned": ("shaped", "on_host", "apart"),
    "stream": ("done",),
    "workspace": ("shaped", "apart", "kept", "grown", "untouched"),
    "plan": ("planned",),
    "capture": ("replayed",),
    "collectives": ("named",),
}

DEVICE: tuple[OperatorSuite, ...] = (Device(),)
