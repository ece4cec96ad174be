"""`host`: what a decode step costs on the host, by number of running sequences.

With the null backend nothing but the host's work is left: scheduling, building the batch, sampling
parameters, commit, statistics, text. The model's part of it is the calls of its operators, which
is what a graph of a device replaces; it stands apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from deepinfer.backend.registry import Selected
from deepinfer.bench.environment import TIMING_MEANS_NOTHING, describe, finish
from deepinfer.bench.loading import check_length, model_facts, random_tokens
from deepinfer.bench.measurements import Measurements
from deepinfer.bench.phases import MODEL_PHASES, PhaseTimer
from deepinfer.bench.rounds import check_least, check_rounds, interleave
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import Engine, EngineOptions, ModelRunner, SamplingParams, open_engine
from deepinfer.engine.job import Job
from deepinfer.errors import UsageError

MILLI = 1e3
WARM_STEPS = 2
"""Steps before the first one that counts: the prompts, and one decode step."""

TOKENS, TEXT = "tokens", "text"
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


class Round(NamedTuple):
    """Milliseconds of each step of a round, and of each phase in it."""

    steps: list[float]
    phases: dict[str, list[float]]


@dataclass(frozen=True)
class Host:
    """Options. sequences: running at the same time, one variant each. output: what is made of
    every token, "tokens" or "text" (decoded and sent as a delta) or both. clock: "wall", or "cpu"
    for the time in which the thread ran, which leaves out waiting for a busy machine."""

    model: str | None = None
    sequences: tuple[int, ...] = (1, 64, 256)
    output: tuple[str, ...] = (TOKENS, TEXT)
    prompt_tokens: int = 16
    steps: int = 50
    rounds: int = 4
    clock: str = "wall"

    def __post_init__(self) -> None:
        check_least("--sequences", self.sequences, 1)
        check_least("--prompt-tokens", self.prompt_tokens, 1)
        check_least("--steps", self.steps, 1)
        check_rounds(self.rounds)
        if self.clock not in CLOCKS:
            raise UsageError(f"--clock is {self.clock!r}; allowed: {', '.join(CLOCKS)}")
        wrong = [output for output in self.output if output not in (TOKENS, TEXT)]
        if wrong or not self.output:
            raise UsageError(
                f"--output is {','.join(self.output)!r}; allowed: {TOKENS}, {TEXT}, or both "
                "separated by a comma"
            )

    @property
    def length(self) -> int:
        """Positions of one sequence: it never ends while it is measured."""
        return self.prompt_tokens + WARM_STEPS + self.steps * self.rounds + 1

    def run(self, selected: Selected) -> Measurements:
        """Decode steps of every variant in turns; the sequences run on from round to round."""
        report = Measurements("host", asdict(self), describe(selected))
        if selected.spec.computes:
            report.notes.append(
                f"backend {selected.spec.name} computes: the phases "
                f"{', '.join(MODEL_PHASES)} and sample hold its work too"
            )
            if not selected.mode.timing:
                report.notes.append(
                    TIMING_MEANS_NOTHING.format(
                        mode=selected.mode.name,
                        name=selected.spec.name,
                        label=selected.mode.label,
                    )
                )
        check_length(self.model, self.length, "--prompt-tokens, --steps and --rounds")
        running = sum(self.sequences) * len(self.output)
        options = EngineOptions(
            max_model_len=self.length,
            max_num_seqs=running,
            max_num_batched_tokens=max(2048, max(self.sequences) * self.prompt_tokens),
            disable_log_stats=True,
        )
        model = self.model or bundled_checkpoint()
        with open_engine(model, selected, options, allow_null=True) as opened:
            report.environment["checkpoints"] = [model_facts(opened.runner)]
            variants: dict[tuple[str, int], Callable[[], Round]] = {}
            engines = []
            for output in self.output:
                for count in self.sequences:
                    engines.append(self.start(opened.runner, count, output))
                    variants[output, count] = partial(self.measure, engines[-1])
            results = interleave(variants, self.rounds)
            for engine in engines:
                engine.close()
        for (output, count), rounds in results.items():
            self._add(report, rounds, sequences=count, output=output)
        finish(report.environment)
        return report

    def start(self, runner: ModelRunner, count: int, output: str) -> Engine:
        """An engine with `count` decoding sequences, observed as one of an LLM is."""
        engine = Engine(runner, settings=runner.settings)
        params = SamplingParams(max_tokens=self.length, temperature=0, ignore_eos=True)
        for number in range(count):
            prompt = random_tokens(runner, self.prompt_tokens, number).tolist()
            if output == TEXT:
                job = Job(
                    str(number), None, prompt, params, runner.tokenizer, on_delta=lambda delta: None
                )
                engine.add(prompt, params, on_token=job.on_token)
            else:
                engine.add(prompt, params)
        for _ in range(WARM_STEPS):
            engine.step()
        return engine

    def measure(self, engine: Engine) -> Round:
        """One round of decode steps."""
        steps: list[float] = []
        clock = CLOCKS[self.clock]
        with PhaseTimer(engine, clock) as timer:
            phases: dict[str, list[float]] = {phase: [] for phase in timer.phases}
            for _ in range(self.steps):
                started = clock()
                engine.step()
                steps.append((clock() - started) * MILLI)
                for phase, seconds in timer.take().items():
                    phases[phase].append(seconds * MILLI)
        return Round(steps, phases)

    def _add(self, report: Measurements, rounds: list[Round], **where: object) -> None:
        """All steps, the engine's own part of them, and the median of each phase per round."""
        steps = np.array([round_.steps for round_ in rounds])
        model = sum(np.array([r.phases[phase] for r in rounds]) for phase in MODEL_PHASES)
        report.add("step", "ms", steps.ravel().tolist(), **where)
        report.add("engine", "ms", (steps - model).ravel().tolist(), **where)
        for phase in rounds[0].phases:
            medians = [float(np.median(round_.phases[phase])) for round_ in rounds]
            report.add(phase, "ms", medians, **where)
