"""`throughput`: tokens per second of prompts and of answers, by checkpoint and batch size."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

from deepinfer.backend.registry import Selected
from deepinfer.bench.environment import describe, finish, warnings_about
from deepinfer.bench.loading import check_length, model_facts, random_tokens
from deepinfer.bench.measurements import Measurements
from deepinfer.bench.rounds import check_least, check_rounds, interleave
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import Engine, EngineOptions, SamplingParams, open_engine


class Pass(NamedTuple):
    """Seconds until every sequence had its first token, and from there to the last one."""

    prefill: float
    decode: float


@dataclass(frozen=True)
class Throughput:
    """Options. models: checkpoints to compare, None is the random one of the package. batches:
    sequences that run at the same time, one variant each."""

    models: tuple[str | None, ...] = (None,)
    prompt_tokens: int = 128
    output_tokens: int = 32
    batches: tuple[int, ...] = (1, 8)
    rounds: int = 4
    numerics: str = "auto"
    compute: str = "bf16"

    def __post_init__(self) -> None:
        check_least("--prompt-tokens", self.prompt_tokens, 1)
        check_least("--output-tokens", self.output_tokens, 2)
        check_least("--batch", self.batches, 1)
        check_rounds(self.rounds)

    @property
    def length(self) -> int:
        """Positions of one sequence."""
        return self.prompt_tokens + self.output_tokens

    def run(self, selected: Selected) -> Measurements:
        """Measure every checkpoint with every batch size in turns.

        Prefill: prompt tokens over the seconds until all sequences had a token. Decode: the
        further tokens over the seconds after that.
        """
        report = Measurements("throughput", asdict(self), describe(selected))
        report.notes += warnings_about(selected)
        for model in self.models:
            check_length(model, self.length, "--prompt-tokens and --output-tokens")
        variants: dict[tuple[str, int], Callable[[], Pass]] = {}
        with ExitStack() as stack:
            facts = []
            for place, model in enumerate(self.models):
                engine = stack.enter_context(
                    open_engine(
                        model or bundled_checkpoint(), selected, self._options(), allow_null=True
                    )
                )
                facts.append(model_facts(engine.runner))
                name = facts[-1]["name"]
                if name in {model for model, _ in variants}:
                    name = f"{name} ({place})"
                for batch in self.batches:
                    variants[name, batch] = partial(self.measure, engine, batch)
            report.environment["checkpoints"] = facts
            for variant in variants.values():
                variant()  # the first pass reads pages of the file and fills caches
            results = interleave(variants, self.rounds)
        for (name, batch), passes in results.items():
            prompts, further = batch * self.prompt_tokens, batch * (self.output_tokens - 1)
            where = {"model": name, "batch": batch}
            report.add("prefill", "tokens/s", [prompts / p.prefill for p in passes], **where)
            report.add("decode", "tokens/s", [further / p.decode for p in passes], **where)
        finish(report.environment)
        return report

    def _options(self) -> EngineOptions:
        most = max(self.batches)
        return EngineOptions(
            numerics=self.numerics,
            compute=self.compute,
            max_model_len=self.length,
            max_num_seqs=most,
            max_num_batched_tokens=max(2048, most),
        )

    def measure(self, engine: Engine, batch: int) -> Pass:
        """One pass of `batch` prompts from nothing to their last token."""
        params = SamplingParams(max_tokens=self.output_tokens, temperature=0, ignore_eos=True)
        requests = [
            engine.add(random_tokens(engine.runner, self.prompt_tokens, seed), params)
            for seed in range(batch)
        ]
        sequences = [request.sequences[0] for request in requests]
        started = time.perf_counter()
        while any(sequence.output_length == 0 for sequence in sequences) and engine.has_work:
            engine.step()
        prompted = time.perf_counter()
        while engine.has_work:
            engine.step()
        ended = time.perf_counter()
        for sequence in sequences:
            if sequence.exception is not None:
                raise sequence.exception
        return Pass(prompted - started, ended - prompted)
