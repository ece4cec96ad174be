"""Cases of the n-gram memory: `ngram_rows`, `gather` and `inject`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import CallSpec, Fact, NgramHash
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.hyper import SMALL
from deepinfer.conformance.cases.matrices import lookup_table
from deepinfer.conformance.cases.specs import EPS, FEW_ROWS, ROWS, read
from deepinfer.conformance.oracles.engram import hashed, injected
from deepinfer.conformance.oracles.stored import stored_matrix
from deepinfer.conformance.suite import (
    Arguments,
    Invalid,
    OperatorSuite,
    Outputs,
    generator_of,
)
from deepinfer.conformance.tolerances import EXACT, GATED, Tolerance, float_tolerance
from deepinfer.conformance.values import make
from deepinfer.conformance.world import TableSource
from deepinfer.formats.dtypes import COMPUTE_DTYPES

RELEASED_MODULUS = 16_000_000
RELEASED_IDS = 99092


def ngram_hash(
    orders: int, heads: int, modulus: int, ids: int, generator: torch.Generator
) -> NgramHash:
    """Constants of a hash: consecutive primes above `modulus`, odd multipliers below 2^63 / ids."""
    count = (orders - 1) * heads
    primes: list[int] = []
    candidate = modulus
    while len(primes) < count:
        candidate += 1
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            primes.append(candidate)
    offsets = [sum(primes[:column]) for column in range(count)]
    largest = (2**63 - 1) // ids // 2
    drawn = torch.randint(0, largest, (orders,), generator=generator)
    return NgramHash(
        multipliers=2 * drawn + 1,
        primes=torch.tensor(primes),
        offsets=torch.tensor(offsets),
        heads=heads,
        pad=min(7, ids - 1),
    )


def heads_of(call: CallSpec, orders: Fact) -> Fact:
    """Heads per n-gram order of a call, by its columns; 0 where these are no multiple."""
    columns = call.fact("columns")
    assert isinstance(columns, int)
    assert isinstance(orders, int)
    return columns // (orders - 1) if columns % (orders - 1) == 0 else 0


def histories(rows: int, orders: int, ids: int, generator: torch.Generator) -> Tensor:
    """The histories [T, n] of the rows of two sequences, one after the other.

    A sequence starts without history, every seventh token is an image, and some ids are repeated,
    so that equal n-grams occur.
    """
    tokens = torch.randint(0, ids, (rows,), generator=generator)
    tokens[1::5] = tokens[: tokens[1::5].numel()]
    tokens[6::7] = -1
    if rows > 1:
        tokens[1], tokens[-1] = 0, ids - 1
    found = torch.full((rows, orders), -1, dtype=torch.int64)
    for start, stop in ((0, rows // 3), (rows // 3, rows)):
        for place in range(orders):
            found[start + place : stop, place] = tokens[start : max(start, stop - place)]
    return found


class NgramRows(OperatorSuite):
    """`ngram_rows`: hashes of n-grams, which are exact integers."""

    operator = "ngram_rows"
    row_arguments = ("history",)

    def grid(self, tier: Tier) -> Iterator[Case]:
        for edge, rows in ROWS.items():
            yield self._case(rows, 4, 4, 300, 518, edge=edge)
        for orders, heads in ((2, 1), (3, 2), (4, 8), (5, 3)):
            yield self._case(40, orders, heads, 300, 518, edge="orders")
        for seed in range(3):
            yield self._case(24, 4, 4, 300, 518, edge="history", seed=seed)
        for rows in (1, 40):
            yield self._case(rows, 4, 8, RELEASED_MODULUS, RELEASED_IDS, edge="released")
        if tier.includes(Tier.FULL):
            for seed in range(1, 4):
                more: dict[str, Any] = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                yield self._case(400, 4, 8, RELEASED_MODULUS, RELEASED_IDS, **more)

    def _case(
        self, rows: int, orders: int, heads: int, modulus: int, ids: int, **more: Any
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "orders": orders,
            "heads": heads,
            "modulus": modulus,
            "ids": ids,
        }
        return Case.of("ngram_rows", facts, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, orders, heads = (case.size(name) for name in ("rows", "orders", "heads"))
        ids = case.size("ids")
        hash = ngram_hash(orders, heads, case.size("modulus"), ids, generator)
        if case.edge == "history":  # the first -1 at any place, with ids behind it
            history = torch.randint(0, ids, (rows, orders), generator=generator)
            cut = torch.randint(0, orders + 1, (rows,), generator=generator)
            here = cut < orders
            history[here, cut[here]] = -1
        else:
            history = histories(rows, orders, ids, generator)
        return {"history": history, "hash": hash}

    def facts_of(self, case: Case, call: CallSpec) -> dict[str, Fact]:
        return {"orders": call.fact("orders"), "heads": heads_of(call, call.fact("orders"))}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": hashed(arguments["history"], arguments["hash"])}


class Gather(OperatorSuite):
    """`gather`: rows of a table side by side, with their stored bytes."""

    operator = "gather"
    row_arguments = ("rows",)
    row_outputs = ("values", "quantised.codes", "quantised.scales", "read")

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in ("fp8", "bf16", "fp32"):
            for dtype in COMPUTE_DTYPES:
                for edge, rows in ROWS.items():
                    yield self._case(rows, 3, 32, 211, kind, dtype, edge=edge)
            for columns, width in ((1, 64), (12, 64), (24, 32)):
                yield self._case(5, columns, width, 67, kind, "bf16", edge="columns")
        yield self._case(3, 24, 256, 97, "fp8", "bf16", edge="released")
        if tier.includes(Tier.FULL):
            more: dict[str, Any] = {"edge": "released", "tier": Tier.FULL}
            yield self._case(64, 24, 256, 20011, "fp8", "bf16", **more)

    def _case(
        self, rows: int, columns: int, width: int, size: int, kind: str, dtype: str, **more: Any
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "columns": columns,
            "width": width,
            "table_rows": size,
            "weight": kind,
        }
        return Case.of("gather", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        size, columns = case.size("table_rows"), case.size("columns")
        kind = str(case.fact("weight"))
        rows = torch.randint(0, size, (case.size("rows"), columns), generator=generator)
        if rows.numel():
            rows[0, 0], rows[-1, -1] = size - 1, 0
        if rows.shape[0] > 2:
            rows[1] = rows[-1]
        return {
            "table": TableSource(lookup_table(size, case.size("width"), kind, generator)),
            "rows": rows,
            "dtype": COMPUTE_DTYPES[case.dtype],
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {**super().outputs(case, result, arguments), "read": read(result)}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        wanted = stored_matrix(arguments["table"].source, per_row=True)[arguments["rows"]]
        values = wanted.flatten(1).to(arguments["dtype"])
        if case.fact("weight") != "fp8":
            return {"values": values}
        wide = torch.float64 if case.dtype == "fp64" else torch.float32
        return {"values": values, "read": wanted.flatten(1).to(wide)}

    def invalid(self) -> Iterator[Invalid]:
        for kind in ("fp8", "bf16"):
            case = self._case(2, 3, 32, 61, kind, "bf16")
            for wrong in (-1, 61, 2**40):
                arguments = self.inputs(case, generator_of(case))
                arguments["rows"][1, 1] = wrong
                facts = {**dict(case.facts), "row": wrong}
                yield Invalid(Case.of("gather", facts, edge="invalid"), arguments, IndexError)


class Inject(OperatorSuite):
    """`inject`: the memory is added to each stream through a gate."""

    operator = "inject"
    row_arguments = ("streams", "memory", "blocked")
    nan_argument = "streams"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for dtype in COMPUTE_DTYPES:
            for values in ("large", "subnormal", "ties", "zeros", "nan_row"):
                yield self._case(5, 4, 32, dtype, values=values)
            for streams, width in ((1, 32), (2, 48), (3, 17), (4, 128)):
                for edge, rows in FEW_ROWS.items():
                    yield self._case(rows, streams, width, dtype, edge=f"width-{edge}")
            for edge, rows in ROWS.items():
                yield self._case(rows, 4, 32, dtype, edge=edge)
            for edge in ("none-blocked", "all-blocked", "opposed", "small"):
                yield self._case(7, 4, 32, dtype, edge=edge)
        yield self._case(3, 4, 5120, "bf16", edge="released")
        if tier.includes(Tier.FULL):
            for seed in range(1, 4):
                more: dict[str, Any] = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                yield self._case(65, 4, 5120, "bf16", **more)

    def _case(self, rows: int, streams: int, width: int, dtype: str, **more: Any) -> Case:
        facts: dict[str, Fact] = {"rows": rows, "streams": streams, "width": width}
        return Case.of("inject", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, count, width = (case.size(name) for name in ("rows", "streams", "width"))
        dtype = COMPUTE_DTYPES[case.dtype]
        streams = make(case.values, (rows, count, width), generator, dtype)
        other = "normal" if case.values in ("zeros", "nan_row", "subnormal") else case.values
        memory = make(other, (rows, (count + 1) * width), generator, dtype)
        if case.edge == "small":
            streams, memory = streams * SMALL, memory * SMALL
        if case.edge == "opposed":  # so that the gate's root gets large matches of both signs
            keys = streams.flatten(1) * torch.where(torch.arange(rows) % 2 == 0, 1, -1)[:, None]
            memory[:, : count * width] = keys
        blocked = torch.rand(rows, generator=generator) < 0.3
        if case.edge.endswith("blocked"):
            blocked[:] = case.edge == "all-blocked"
        return {
            "streams": streams,
            "memory": memory,
            "q_weight": gate_weight(count, width, generator),
            "k_weight": gate_weight(count, width, generator),
            "eps": EPS,
            "blocked": blocked,
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if case.edge == "all-blocked":
            return EXACT
        return GATED if case.dtype == "fp32" else float_tolerance(case.dtype)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        names = ("streams", "memory", "q_weight", "k_weight", "eps", "blocked")
        return {"out": injected(**{name: arguments[name] for name in names})}


def gate_weight(streams: int, width: int, generator: torch.Generator) -> Tensor:
    """A weight [S, H] bf16 of the gate."""
    return (1 + 0.2 * torch.randn(streams, width, generator=generator)).bfloat16()


ENGRAM: tuple[OperatorSuite, ...] = (NgramRows(), Gather(), Inject())
