"""Cases of `mask`, `process`, `sample` and `top_logprobs`, with parameters for each row.

Logits are float32, as the contract says. `verify` and `residual` have no cases yet, because the
reference does not have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Fact, SamplingParameters
from deepinfer.backend.sampling import Purpose
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.oracles import sampling as oracle
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs
from deepinfer.conformance.tolerances import EXACT, LOGPROBS, Tolerance
from deepinfer.conformance.values import make

ROWS = {"empty": 0, "one": 1, "tile-1": 15, "tile": 16, "tile+1": 17}
WIDTHS = (1, 2, 31, 32, 33, 64, 65, 640, 1023, 1024, 1025)
RELEASED = 129280
MARGIN = 1e-7
"""The least distance of a threshold from a cumulative mass: nearer, the bits of exp decide."""
ORACLE_ELEMENTS = 3000

# temperature, top_p, top_k, min_p, which the rows of a case take in turn
PARAMETERS: dict[str, tuple[tuple[float, float, int, float], ...]] = {
    "plain": ((1.0, 1.0, 0, 0.0),),
    "greedy": ((0.0, 1.0, 0, 0.0), (0.0, 0.5, 2, 0.3), (1e-39, 1.0, 0, 0.0)),
    "temperature": tuple((t, 1.0, 0, 0.0) for t in (0.7, 1.3, 1e-5, 100.0)),
    "top_p": ((1.0, 0.5, 0, 0.0), (1.0, 0.9, 0, 0.0), (1.0, 1e-12, 0, 0.0), (1.0, 0.25, 0, 0.0)),
    "top_k": ((1.0, 1.0, 1, 0.0), (1.0, 1.0, 2, 0.0), (1.0, 1.0, 5, 0.0), (1.0, 1.0, 2**40, 0.0)),
    "min_p": ((1.0, 1.0, 0, 0.05), (1.0, 1.0, 0, 0.5), (1.0, 1.0, 0, 0.999)),
    "mixed": (
        (0.7, 0.9, 20, 0.02),
        (0.0, 1.0, 0, 0.0),
        (1.3, 0.95, 3, 0.0),
        (1.0, 1.0, 0, 0.0),
        (0.5, 0.6, 0, 0.2),
        (2.0, 0.99, 7, 0.01),
    ),
}  # fmt: skip


class Mask(OperatorSuite):
    """`mask`: bits of allowed tokens, 32 in a word."""

    operator = "mask"
    row_arguments = ("logits", "bits")
    nan_argument = "logits"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for edge, rows in ROWS.items():
            yield self._case(rows, 65, edge=edge)
        for width in WIDTHS:
            yield self._case(3, width, edge="width")
        for values in ("large", "zeros", "nan_row", "infinite"):
            yield self._case(4, 70, values=values)
        yield self._case(2, RELEASED, edge="width")

    def _case(self, rows: int, vocabulary: int, **more: Any) -> Case:
        return Case.of("mask", {"rows": rows, "vocabulary": vocabulary}, dtype="fp32", **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, vocabulary = case.size("rows"), case.size("vocabulary")
        shape = rows, -(-vocabulary // 32)
        bits = torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)
        if rows > 2:
            bits[0], bits[1] = -1, 0  # a row where everything is allowed, and one where nothing is
        return {
            "logits": make(case.values, (rows, vocabulary), generator, torch.float32),
            "bits": bits,
        }

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        rows = zip(arguments["logits"].tolist(), arguments["bits"].tolist(), strict=True)
        return {"out": _rows([oracle.mask(*row) for row in rows], arguments["logits"])}


class Process(OperatorSuite):
    """`process`: temperature, top-p, top-k, min-p and normalisation."""

    operator = "process"
    row_arguments = ("logits", "parameters")
    row_outputs = ("kept", "out")
    nan_argument = "logits"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for edge, rows in ROWS.items():
            yield self._case(rows, 40, "mixed", edge=edge)
        for name in PARAMETERS:
            for values in ("normal", "ties", "zeros"):
                yield self._case(8, 24, name, values=values, edge=name)
        for values in ("large", "extreme", "nan_row", "infinite", "masked"):
            yield self._case(8, 40, "mixed", values=values)
        for width in WIDTHS:
            yield self._case(2, width, "mixed", edge="width")
        yield self._case(4, RELEASED, "mixed", edge="width")
        if tier.includes(Tier.FULL):
            for name in PARAMETERS:
                yield self._case(8, RELEASED, name, edge="released", tier=Tier.FULL)
            for seed in range(1, 60):
                yield self._case(16, 17, "mixed", values="ties", seed=seed, tier=Tier.FULL)

    def _case(self, rows: int, vocabulary: int, parameters: str, **more: Any) -> Case:
        facts: dict[str, Fact] = {"rows": rows, "vocabulary": vocabulary, "parameters": parameters}
        return Case.of("process", facts, dtype="fp32", **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        shape = rows, vocabulary = case.size("rows"), case.size("vocabulary")
        choices = PARAMETERS[str(case.fact("parameters"))]
        chosen = [choices[row % len(choices)] for row in range(rows)]
        columns = [[row[place] for row in chosen] for place in range(4)]
        parameters = SamplingParameters(
            torch.tensor(columns[0], dtype=torch.float32),
            torch.tensor(columns[1], dtype=torch.float32),
            torch.tensor(columns[2], dtype=torch.int64),
            torch.tensor(columns[3], dtype=torch.float32),
        )
        spread = 1.0 if case.values == "extreme" else 2.0
        logits = make(case.values, shape, generator, torch.float32) * spread
        while vocabulary > 1 and not bool((good := _settled(logits, parameters)).all()):
            again = make(case.values, shape, generator, torch.float32) * spread
            logits = torch.where(good[:, None], logits, again)
        return {"logits": logits, "parameters": parameters}

    def outputs(self, case: Case, result: Tensor, arguments: Arguments) -> Outputs:
        """Which tokens remain is an output of its own, since it must be equal."""
        return {"kept": result > -math.inf, "out": result}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return EXACT if output == "kept" else LOGPROBS

    def oracle(self, case: Case, arguments: Arguments) -> Outputs | None:
        logits, given = arguments["logits"], arguments["parameters"]
        if logits.numel() > ORACLE_ELEMENTS:
            return None
        columns = (given.temperature, given.top_p, given.top_k, given.min_p)
        rows = zip(logits.tolist(), *(column.tolist() for column in columns), strict=True)
        out = _rows([oracle.process(*row) for row in rows], logits)
        return {"kept": out > -math.inf, "out": out}


def _settled(logits: Tensor, given: SamplingParameters) -> Tensor:
    """Which rows [M] keep the same tokens, whatever the rounding.

    Their thresholds are not near a cumulative mass, or all their logits are equal. The most
    probable token always remains, and top_p 1 keeps all tokens, so these need no distance.
    """
    usable = torch.isfinite(logits.amax(-1)) & (given.temperature > 1e-30)
    inverse = 1 / given.temperature
    z = (torch.where(usable[:, None], logits, 0.0) * inverse[:, None]).double()
    z = torch.where(usable[:, None], z, 0.0)
    ordered = torch.softmax(z, -1).sort(-1, descending=True).values
    before = ordered.cumsum(-1)[:, :-1]
    top_p = given.top_p.double()[:, None]
    near = ((before - top_p).abs() < MARGIN) & (top_p < 1)
    ratio = torch.exp(z - z.amax(-1, keepdim=True)) / given.min_p.double()[:, None]
    near_ratio = ((ratio - 1).abs() < 10 * MARGIN).any(-1)
    finite = z > -math.inf
    equal = (z == z.amax(-1, keepdim=True)) | ~finite
    return ~usable | equal.all(-1) | ~(near.any(-1) | near_ratio)


class Sample(OperatorSuite):
    """`sample`: draws by integer masses, with random numbers of seed, position and purpose."""

    operator = "sample"
    row_arguments = ("logprobs", "seeds", "positions")
    nan_argument = "logprobs"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for edge, rows in ROWS.items():
            yield self._case(rows, 40, edge=edge)
        for purpose in Purpose:
            yield self._case(16, 24, purpose, edge="purpose")
        for values in ("ties", "zeros", "masked", "peaked", "faint", "nan_row"):
            yield self._case(16, 24, values=values)
        for width in WIDTHS:
            yield self._case(3, width, edge="width")
        yield self._case(4, RELEASED, edge="width")
        if tier.includes(Tier.FULL):
            for seed in range(1, 30):
                yield self._case(130, 20, seed=seed, tier=Tier.FULL)
            yield self._case(16, RELEASED, edge="released", seed=1, tier=Tier.FULL)

    def _case(self, rows: int, vocabulary: int, purpose: int = 0, **more: Any) -> Case:
        facts = {"rows": rows, "vocabulary": vocabulary, "purpose": int(purpose)}
        return Case.of("sample", facts, dtype="fp32", **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        """Seeds and positions include some with only a high or only a low 32-bit word."""
        rows, vocabulary = case.size("rows"), case.size("vocabulary")
        seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
        positions = torch.randint(0, 2**20, (rows,), generator=generator)
        edges = torch.tensor([0, -1, 2**63 - 1, -(2**63), 2**32, 1])[:rows]
        seeds[: len(edges)] = edges
        far = torch.tensor([0, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 1])[:rows]
        positions[: len(far)] = far
        if rows > 10:  # the same seed at positions that differ, and at the same one
            seeds[6:11], positions[6:11] = 77, torch.tensor([5, 6, 5, 2**32 + 5, 7])
        return {
            "logprobs": self._logprobs(case, rows, vocabulary, generator),
            "seeds": seeds,
            "positions": positions,
            "purpose": case.size("purpose"),
        }

    @staticmethod
    def _logprobs(case: Case, rows: int, vocabulary: int, generator: torch.Generator) -> Tensor:
        """Log-probabilities of a value class.

        peaked: one token has nearly all of the mass, the others less than one unit. faint: tokens
        have masses of about one unit.
        """
        shape = rows, vocabulary
        if case.values == "peaked":
            faint = torch.where(torch.rand(shape, generator=generator) < 0.5, -25.0, -math.inf)
            best = torch.randint(0, vocabulary, (rows, 1), generator=generator)
            return faint.scatter(1, best, 0.0)
        if case.values == "faint":
            return -21.5 + torch.rand(shape, generator=generator)
        if case.values == "nan_row" and rows:
            logits = make("normal", shape, generator, torch.float32)
            logits[rows // 2] = math.nan
            return torch.log_softmax(logits.double(), -1).float()
        logits = make(case.values, shape, generator, torch.float32) * 2
        logits[:, 0] = torch.where(logits.amax(-1) == -math.inf, 0.0, logits[:, 0])
        return torch.log_softmax(logits.double(), -1).float()

    def oracle(self, case: Case, arguments: Arguments) -> Outputs | None:
        logprobs = arguments["logprobs"]
        if logprobs.numel() > ORACLE_ELEMENTS:
            return None
        seeds = (seed % 2**64 for seed in arguments["seeds"].tolist())
        rows = zip(logprobs.tolist(), seeds, arguments["positions"].tolist(), strict=True)
        ids = [oracle.sample(*row, arguments["purpose"]) for row in rows]
        return {"out": torch.tensor(ids, dtype=torch.int64)}


class TopLogprobs(OperatorSuite):
    """`top_logprobs`: the best tokens of each row, with copies of their log-probabilities."""

    operator = "top_logprobs"
    row_arguments = ("logprobs",)
    row_outputs = ("ids", "logprobs")
    nan_argument = "logprobs"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for edge, rows in ROWS.items():
            yield self._case(rows, 40, 5, edge=edge)
        for k in (0, 1, 20, 40):
            yield self._case(5, 40, k, edge="count")
        for values in ("ties", "zeros", "masked", "large", "infinite"):
            for k in (1, 20):
                yield self._case(6, 40, k, values=values)
        for width in WIDTHS:
            yield self._case(3, width, min(width, 20), edge="width")
        yield self._case(2, RELEASED, 20, edge="width")
        if tier.includes(Tier.FULL):
            yield self._case(33, RELEASED, 20, values="ties", tier=Tier.FULL)

    def _case(self, rows: int, vocabulary: int, k: int, **more: Any) -> Case:
        facts = {"rows": rows, "vocabulary": vocabulary, "k": k}
        return Case.of("top_logprobs", facts, dtype="fp32", **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        shape = case.size("rows"), case.size("vocabulary")
        return {
            "logprobs": -make(case.values, shape, generator, torch.float32).abs(),
            "k": case.size("k"),
        }

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        logprobs, k = arguments["logprobs"], arguments["k"]
        rows = [oracle.top(row, k) for row in logprobs.tolist()]
        ids = torch.tensor(rows, dtype=torch.int64).reshape(len(logprobs), k)
        return {"ids": ids, "logprobs": logprobs.gather(1, ids)}


def _rows(rows: list[list[float]], like: Tensor) -> Tensor:
    """Lists of floats as a tensor with shape and dtype of another."""
    return torch.tensor(rows, dtype=like.dtype).reshape(like.shape)


SAMPLING: tuple[OperatorSuite, ...] = (Mask(), Process(), Sample(), TopLogprobs())
