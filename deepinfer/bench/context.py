"""`context`: how the time of a decode step grows with the context, beside what must grow.

Index scores and the selection from them read every entry of the context; everything else in a step
reads a bounded number. So a step should grow by what these operators alone grow by.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from operator import sub, truediv
from typing import Any, NamedTuple

from deepinfer.backend.registry import Selected, refuse_null
from deepinfer.bench.cache_fill import filled_sequence
from deepinfer.bench.environment import describe, finish, warnings_about
from deepinfer.bench.loading import (
    check_length,
    model_facts,
    open_engine,
    positions_of,
    random_tokens,
)
from deepinfer.bench.measurements import Measurements, by_round
from deepinfer.bench.rounds import check_least, check_rounds, interleave
from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.engine import Chunk, Engine, EngineOptions
from deepinfer.errors import UsageError

DEFAULT_LENGTHS = (1024, 4096, 16384, 65536, 100000)
STEP, INDEX = "decode step", "index operators"
INDEX_OPERATORS = ("index_scores", "top", "best_blocks")
WHOLE_SELECTION = ("select",)
PIECE = 2048
"""Rows in which the cache is reserved."""


class Call(NamedTuple):
    """One operator call of a step, to be made again."""

    operator: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Context:
    """Options. lengths: tokens in the cache; None: 1k to 100k, as far as the model goes."""

    model: str | None = None
    lengths: tuple[int, ...] | None = None
    rounds: int = 4
    numerics: str = "auto"
    compute: str = "bf16"

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        if self.lengths is not None:
            check_least("--lengths", self.lengths, 1)
            if len(self.lengths) < 2:
                raise UsageError(
                    f"--lengths is {self.lengths[0]}; allowed: at least two lengths, since growth "
                    "is what is measured"
                )

    def run(self, selected: Selected) -> Measurements:
        """Decode steps and their index operators alone, at every length in turns."""
        refuse_null(selected, None)
        lengths = self._lengths()
        report = Measurements("context", asdict(self) | {"lengths": lengths}, describe(selected))
        report.notes += warnings_about(selected)
        options = EngineOptions(
            numerics=self.numerics,
            compute=self.compute,
            max_model_len=max(lengths) + 1,
            max_num_seqs=len(lengths),
            max_num_batched_tokens=max(PIECE, len(lengths)),
            num_blocks=sum(-(-(length + 1) // BLOCK_TOKENS) for length in lengths),
        )
        with open_engine(self.model, selected, options) as engine:
            report.environment["checkpoints"] = [model_facts(engine)]
            variants: dict[tuple[str, int], Callable[[], float]] = {}
            for length in lengths:
                chunk = decode_row(engine, length)
                calls = index_calls(engine, chunk)
                if not calls:
                    raise UsageError(
                        f"{self.model} has no layer that selects from its context; choose a model "
                        "with compressed layers"
                    )
                variants[STEP, length] = partial(step_seconds, engine, chunk)
                variants[INDEX, length] = partial(call_seconds, engine, calls)
                named = sorted({call.operator for call in calls})
                report.environment["index_operators"] = named
            results = interleave(variants, self.rounds)
        self._add(report, lengths, results)
        finish(report.environment)
        return report

    def _lengths(self) -> tuple[int, ...]:
        """The lengths to measure; UsageError where the model has too few positions."""
        if self.lengths is not None:
            check_length(self.model, max(self.lengths) + 1, "--lengths")
            return self.lengths
        limit = positions_of(self.model)
        fitting = [length for length in DEFAULT_LENGTHS if length < limit]
        longest = min(limit - 1, DEFAULT_LENGTHS[-1])
        lengths = tuple(sorted({*fitting, longest}))
        if len(lengths) < 2:
            raise UsageError(
                f"the model has {limit} positions and the default lengths begin at "
                f"{DEFAULT_LENGTHS[0]}; name --lengths"
            )
        return lengths

    def _add(
        self,
        report: Measurements,
        lengths: tuple[int, ...],
        results: dict[tuple[str, int], list[float]],
    ) -> None:
        """Both curves in milliseconds, and how they grow from the shortest length on."""
        for (quantity, length), seconds in results.items():
            report.add(quantity, "ms", [s * 1e3 for s in seconds], context=length)
        shortest = lengths[0]
        for length in lengths[1:]:
            for quantity in (STEP, INDEX):
                pair = results[quantity, length], results[quantity, shortest]
                report.add(f"{quantity}, times", "ratio", by_round(*pair, truediv), context=length)
            growth = {
                quantity: by_round(results[quantity, length], results[quantity, shortest], sub)
                for quantity in (STEP, INDEX)
            }
            ratio = by_round(growth[STEP], growth[INDEX], truediv)
            report.add("growth, step : index", "ratio", ratio, context=length)


def decode_row(engine: Engine, length: int) -> Chunk:
    """The row behind `length` generated tokens of a sequence of its own."""
    tokens = random_tokens(engine, length + 1, seed=length)
    return Chunk(tokens, length, length + 1, filled_sequence(engine, length, seed=length))


def step_seconds(engine: Engine, chunk: Chunk) -> float:
    """Time of the row's step; nothing is committed, so the next call computes the same row."""
    started = time.perf_counter()
    engine.launch([chunk])
    engine.operators.synchronise()
    return time.perf_counter() - started


def call_seconds(engine: Engine, calls: list[Call]) -> float:
    """Time of recorded calls, made again with the same arguments."""
    started = time.perf_counter()
    for call in calls:
        getattr(engine.operators, call.operator)(*call.arguments)
    engine.operators.synchronise()
    return time.perf_counter() - started


def index_calls(engine: Engine, chunk: Chunk) -> list[Call]:
    """The index operators that the row's step calls; whole selections where a backend fuses them.

    The step runs once for it, which also warms the machine up.
    """
    calls: list[Call] = []
    backbone = engine.backbone
    backbone.operators = engine.operators.tapped(
        lambda operator, arguments, result: calls.append(Call(operator, arguments))
    )
    try:
        engine.launch([chunk])
    finally:
        backbone.operators = engine.operators
    inner = [call for call in calls if call.operator in INDEX_OPERATORS]
    if any(call.operator == "index_scores" for call in inner):
        return inner
    return [call for call in calls if call.operator in WHOLE_SELECTION]
