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
from deepinfer.bench.loading import check_length, model_facts, positions_of, random_tokens
from deepinfer.bench.measurements import Measurements, by_round
from deepinfer.bench.rounds import check_least, check_rounds, interleave
from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import Engine, EngineOptions, ModelRunner, SamplingParams, open_engine
from deepinfer.errors import UsageError

DEFAULT_LENGTHS = (1024, 4096, 16384, 65536, 100000)
STEP, INDEX = "decode step", "index operators"
INDEX_OPERATORS = ("index_scores", "top", "best_blocks")
WHOLE_SELECTION = ("select",)
PIECE = 2048
"""Rows in which the cache is reserved."""
WARM_STEPS = 2
"""Steps before the first one that counts: the one whose calls are recorded, and one more."""


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
        steps = WARM_STEPS + self.rounds
        options = EngineOptions(
            numerics=self.numerics,
            compute=self.compute,
            max_model_len=max(lengths) + 1 + steps,
            max_num_seqs=len(lengths),
            max_num_batched_tokens=max(PIECE, len(lengths)),
            num_blocks=sum(-(-(length + steps) // BLOCK_TOKENS) for length in lengths),
        )
        model = self.model or bundled_checkpoint()
        with open_engine(model, selected, options, allow_null=True) as opened:
            report.environment["checkpoints"] = [model_facts(opened.runner)]
            variants: dict[tuple[str, int], Callable[[], float]] = {}
            for length in lengths:
                engine = decoding_engine(opened.runner, length, steps)
                calls = index_calls(engine)
                if not calls:
                    raise UsageError(
                        f"{self.model} has no layer that selects from its context; choose a model "
                        "with compressed layers"
                    )
                step_seconds(engine)
                variants[STEP, length] = partial(step_seconds, engine)
                variants[INDEX, length] = partial(call_seconds, opened.runner, calls)
                named = sorted({call.operator for call in calls})
                report.environment["index_operators"] = named
            results = interleave(variants, self.rounds)
        self._add(report, lengths, results)
        finish(report.environment)
        return report

    def _lengths(self) -> tuple[int, ...]:
        """The lengths to measure; UsageError where the model has too few positions."""
        if self.lengths is not None:
            needed = max(self.lengths) + 1 + WARM_STEPS + self.rounds
            check_length(self.model, needed, "--lengths and --rounds")
            return self.lengths
        limit = positions_of(self.model) - WARM_STEPS - self.rounds
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


def decoding_engine(runner: ModelRunner, length: int, steps: int) -> Engine:
    """An engine whose one sequence has `length` generated tokens in its cache and decodes."""
    engine = Engine(runner)
    tokens = random_tokens(runner, length + 1, seed=length)
    params = SamplingParams(max_tokens=steps, temperature=0, ignore_eos=True)
    engine.add(tokens, params, cache=filled_sequence(runner, length, seed=length))
    return engine


def step_seconds(engine: Engine) -> float:
    """Time of the engine's next decode step, whose context is one token longer."""
    assert engine.has_work, "the sequence has ended: this would time an empty step"
    started = time.perf_counter()
    finished = engine.step()
    engine.runner.operators.synchronise()
    seconds = time.perf_counter() - started
    for request in finished:
        if request.sequences[0].exception is not None:
            raise request.sequences[0].exception
    return seconds


def call_seconds(runner: ModelRunner, calls: list[Call]) -> float:
    """Time of recorded calls, made again with the same arguments."""
    started = time.perf_counter()
    for call in calls:
        getattr(runner.operators, call.operator)(*call.arguments)
    runner.operators.synchronise()
    return time.perf_counter() - started


def index_calls(engine: Engine) -> list[Call]:
    """The index operators of the engine's next step; whole selections where a backend fuses them.

    The step also warms the machine up.
    """
    calls: list[Call] = []
    with engine.tapped(lambda operator, arguments, result: calls.append(Call(operator, arguments))):
        step_seconds(engine)
    inner = [call for call in calls if call.operator in INDEX_OPERATORS]
    if any(call.operator == "index_scores" for call in inner):
        return inner
    return [call for call in calls if call.operator in WHOLE_SELECTION]
