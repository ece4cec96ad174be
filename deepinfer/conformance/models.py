"""Whole models: the engine on the tested backend against the engine on the reference.

On the checkpoint of the package, and on golden data where DEEPINFER_GOLDEN_DIR names some. Every
operator that the backend claims as its own must have been called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.backend.resolution import COMPOSED, NATIVE
from deepinfer.conformance.case import Case, Failure, Tier, Verdict
from deepinfer.conformance.golden import run_golden
from deepinfer.conformance.golden.logits import run_prompts
from deepinfer.conformance.golden.metrics import agreement, median, quantile, relative
from deepinfer.conformance.golden.report import FAILED, Item
from deepinfer.conformance.judging import CheckFailed, Found, judge
from deepinfer.conformance.subject import Subject
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import Engine, EngineOptions, ModelRunner, call_limits, open_engine
from deepinfer.model import model_calls
from deepinfer.settings import environment

LIMITS = {"fp32": (1e-4, 0.02, 0.96), "bf16": (0.12, 0.4, 0.78)}
"""Median and 95 % of a row's relative error, and share of equal argmax (the golden data's rules 1
and 2: rounding noise of a model that quantises and selects)."""

GOLDEN = "model.golden"
VECTORS = Path(__file__).parent / "vectors"
OF_A_CHECKPOINT = "ops/engram.tiny"


class ModelSuite(ABC):
    """Cases about whole models.

    `compare` returns the share of each limit that was used, or raises `CheckFailed`.
    """

    operator: ClassVar[str]

    @abstractmethod
    def grid(self, tier: Tier) -> Iterator[Case]:
        """The cases of a tier."""

    @abstractmethod
    def compare(self, case: Case, subject: Subject) -> dict[str, float]:
        """Run the model and compare."""

    def check(self, case: Case, subject: Subject) -> Verdict:
        """The verdict of a case."""

        def work(found: Found) -> None:
            found.used.update(self.compare(case, subject))

        return judge(case, work)


class Bundled(ModelSuite):
    """The checkpoint of the package: prompts in one piece, then token by token."""

    operator = "model.bundled"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for numerics, dtype in (("ref", "fp32"), ("ref", "bf16"), ("infer", "bf16")):
            for length in (7, 40):
                yield Case.of(self.operator, {"length": length}, dtype=dtype, numerics=numerics)
            if tier.includes(Tier.FULL):
                facts = {"length": 160}
                yield Case.of(self.operator, facts, dtype=dtype, numerics=numerics, tier=Tier.FULL)

    def compare(self, case: Case, subject: Subject) -> dict[str, float]:
        length, compute = case.size("length"), case.dtype
        ids = np.random.default_rng(length).integers(3, 1000, length)
        want = _reference_logits(str(case.numerics), compute, length)
        with _engine(subject, str(case.numerics), compute) as engine, _counting(engine) as called:
            got = _logits(engine, ids)
        _all_called(_expected(engine.runner), called)
        return _judged(got.float().cpu(), want, compute)


class Golden(ModelSuite):
    """Numbers of an independent implementation, by the rules that come with them."""

    operator = GOLDEN

    def grid(self, tier: Tier) -> Iterator[Case]:
        if environment.text(environment.GOLDEN_DIRECTORY) is None:
            return
        computes = ("fp32", "bf16") if tier.includes(Tier.FULL) else ("fp32",)
        for compute in computes:
            own = Tier.QUICK if compute == "fp32" else Tier.FULL
            yield Case.of(self.operator, {}, dtype=compute, numerics="ref", tier=own)

    def compare(self, case: Case, subject: Subject) -> dict[str, float]:
        directory = environment.text(environment.GOLDEN_DIRECTORY)
        if directory is None:
            raise CheckFailed(Failure.COUNT, f"{environment.GOLDEN_DIRECTORY} is not set")
        if subject.selected is None:
            raise CheckFailed(Failure.COUNT, "golden data need a backend that is installed")
        called: list[tuple[list[str], dict[str, int]]] = []

        @contextmanager
        def watch(engine: Engine) -> Iterator[None]:
            with _counting(engine) as counts:
                called.append((_expected(engine.runner), counts))
                yield

        report = run_golden(directory, subject.selected, (case.dtype,), on_engine=watch)
        _all_passed(report.items)
        for expected, counts in called:
            _all_called(expected, counts)
        return {}


class Vectors(ModelSuite):
    """Operators against numbers of an independent implementation that come with the package.

    Formats, quantisers, rotations, norms, hashes, routing, selection and attention. Those about
    one checkpoint's n-gram tables need that checkpoint and belong to `model.golden`.
    """

    operator = "model.vectors"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for compute in ("fp32", "bf16"):
            yield Case.of(self.operator, {}, dtype=compute, numerics="ref")

    def compare(self, case: Case, subject: Subject) -> dict[str, float]:
        if subject.selected is None:
            raise CheckFailed(Failure.COUNT, "stored vectors need a backend that is installed")
        report = run_golden(str(VECTORS), subject.selected, (case.dtype,))
        items = [item for item in report.items if not item.name.startswith(OF_A_CHECKPOINT)]
        _all_passed(items)
        return {}


def _all_called(expected: list[str], called: Mapping[str, int]) -> None:
    """Raise CheckFailed where the model did not call an operator that the backend claims."""
    uncalled = [name for name in expected if not called.get(name)]
    if uncalled:
        names = ", ".join(uncalled)
        raise CheckFailed(
            Failure.COUNT, f"claimed as native and never called by the model: {names}"
        )


def _all_passed(items: list[Item]) -> None:
    """Raise CheckFailed where a comparison with independent numbers failed, or none was made."""
    failed = [item for item in items if item.outcome == FAILED]
    if failed or not items:
        first = str(failed[0]) if failed else "nothing was compared"
        raise CheckFailed(Failure.NUMBERS, f"{len(failed)} golden comparisons failed: {first}")


@cache
def _reference_logits(numerics: str, compute: str, length: int) -> Tensor:
    """Logits [T, V] of the reference on the host."""
    ids = np.random.default_rng(length).integers(3, 1000, length)
    with open_engine(
        bundled_checkpoint(), select_backend(REFERENCE), _options(numerics, compute)
    ) as engine:
        return _logits(engine, ids).float().cpu()


def _options(numerics: str, compute: str) -> EngineOptions:
    return EngineOptions(
        numerics=numerics,
        compute=compute,
        max_model_len=256,
        max_num_batched_tokens=256,
        max_num_seqs=1,
    )


def _engine(subject: Subject, numerics: str, compute: str) -> Engine:
    if subject.selected is None:
        raise CheckFailed(Failure.COUNT, "a whole model needs a backend that is installed")
    options = _options(numerics, compute)
    return open_engine(
        bundled_checkpoint(), subject.selected, options, strict=False, allow_null=True
    )


@contextmanager
def _counting(engine: Engine) -> Iterator[dict[str, int]]:
    """For the block, count the calls of the engine's operators."""
    called: dict[str, int] = {}

    def tap(operator: str, arguments: object, result: object) -> None:
        called[operator] = called.get(operator, 0) + 1

    with engine.tapped(tap):
        yield called


ON_DEMAND = frozenset({"top_logprobs", "copy"})
"""Operators that a step calls for some requests alone: log-probabilities, samples that share."""


def _expected(runner: ModelRunner) -> list[str]:
    """Native operators that a step of this model reaches, by its own list of calls.

    A call inside a step is made only where that step is composed and reached itself.
    """
    options, config, operators = runner.options, runner.config, runner.operators
    calls = model_calls(config, runner.numerics, options.compute, call_limits(options, config))
    composed = set(operators.providers(COMPOSED))
    reached: set[str | None] = {None}
    while True:
        more = {call.operator for call in calls if call.step in reached & {None, *composed}}
        if more <= reached:
            break
        reached |= more
    return sorted(set(operators.providers(NATIVE)) & reached - ON_DEMAND)


def _logits(engine: Engine, ids: np.ndarray) -> Tensor:
    """Logits of every position [T, V]: most of the prompt in one piece, the rest row by row."""
    cut = max(1, len(ids) - 4)
    return run_prompts(engine, [ids[:cut]], [ids[cut:].tolist()])[0]


def _judged(got: Tensor, want: Tensor, compute: str) -> dict[str, float]:
    if got.shape != want.shape:
        raise CheckFailed(
            Failure.SHAPE, f"logits have shape {list(got.shape)}, not {list(want.shape)}"
        )
    limits = LIMITS[compute]
    errors = relative(got, want)
    values = median(errors), quantile(errors, 0.95), agreement(got, want)
    kept = values[0] <= limits[0] and values[1] <= limits[1] and values[2] >= limits[2]
    if not kept:
        raise CheckFailed(
            Failure.NUMBERS,
            f"relative error {values[0]:.3g} (median, limit {limits[0]:g}) and {values[1]:.3g} "
            f"(95 %, limit {limits[1]:g}), equal argmax {values[2]:.2f} (at least {limits[2]:g})",
        )
    return {"logits:median": values[0] / limits[0], "logits:95%": values[1] / limits[1]}


MODELS: Mapping[str, ModelSuite] = {
    suite.operator: suite for suite in (Bundled(), Vectors(), Golden())
}
