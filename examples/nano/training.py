"""What both trainings share: a batch in two halves, files to continue from, and the loop.

The halves are always computed apart, each by one thread, so the result is the same with one worker
or two.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from examples.nano.compilation import prepare
from examples.nano.optimiser import Optimiser

HALVES = 2
SAVE_SECONDS = 300
REPORT_STEPS = 25


class Half(NamedTuple):
    """gradients: one per parameter. loads: tokens per expert of each layer, where they count."""

    gradients: tuple[Tensor | None, ...]
    report: dict[str, float]
    loads: list[Tensor]


class Training:
    """The state of a training.

    settings: a dataclass of everything that decides the result, with steps, muon, adam and decay.
    module: what is trained. belongs: what else a file must agree with to be continued.
    """

    def __init__(self, settings: Any, module: Any, workers: int, **belongs: str) -> None:
        self.settings, self.module, self.belongs = settings, module, belongs
        prepare()
        self.pool = ThreadPoolExecutor(workers, initializer=prepare)
        self._compiled: set[Hashable] = set()
        self.optimiser = Optimiser(
            module.named_parameters(), settings.muon, settings.adam, settings.decay
        )
        self.step_number = 0

    def step(self) -> dict[str, float]:
        """One step; returns what happened."""
        raise NotImplementedError

    def evaluation(self) -> dict[str, float]:
        """What is reported beside a step, after it."""
        return {}

    def compute(self, half: Callable[[int], Half], shape: Hashable) -> list[Half]:
        """Both halves of a batch; their gradients are summed into the parameters. shape: what a
        function is compiled anew for, which is not done in threads."""
        concurrent = shape in self._compiled
        self._compiled.add(shape)
        halves = list((self.pool.map if concurrent else map)(half, range(HALVES)))
        for i, parameter in enumerate(self.optimiser.parameters.values()):
            parts = [part for one in halves if (part := one.gradients[i]) is not None]
            parameter.grad = sum(parts[1:], parts[0]) if parts else None
        return halves

    def save(self, path: Path, seconds: float) -> None:
        """Write everything to continue from; the file is replaced at once."""
        temporary = path.with_suffix(".new")
        torch.save(
            {
                **self.belongs,
                "settings": asdict(self.settings),
                "step": self.step_number,
                "optimiser": self.optimiser.state(),
                "buffers": dict(self.module.named_buffers()),
                "seconds": seconds,
            },
            temporary,
        )
        os.replace(temporary, path)

    def restore(self, path: Path) -> float:
        """Continue from a file; returns the processor seconds it took."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        for name, own in {"settings": asdict(self.settings), **self.belongs}.items():
            if state[name] != own:
                raise SystemExit(
                    f"{path} was made with the {name} {state[name]}, asked for {own}; "
                    "ask for the same, or remove the file to begin again"
                )
        self.optimiser.restore(state["optimiser"])
        for name, buffer in self.module.named_buffers():
            buffer.copy_(state["buffers"][name])
        self.step_number = state["step"]
        return float(state["seconds"])

    def run(self, path: Path) -> None:
        """Train to the end, from `path` where it is there; reports go to stdout and beside it."""
        torch.set_num_threads(1)  # of each worker
        before = self.restore(path) if path.exists() else 0.0
        saved, started = time.monotonic(), time.process_time()
        with path.with_suffix(".log").open("a") as lines:
            while self.step_number < self.settings.steps:
                report = self.step()
                number, seconds = self.step_number, before + time.process_time() - started
                last = number == self.settings.steps
                if number % REPORT_STEPS == 0 or number < 5 or last:
                    if not math.isfinite(report["norm"]):
                        raise SystemExit(f"step {number}: the gradient is not finite")
                    report |= self.evaluation()
                    shown = {name: round(value, 4) for name, value in report.items()}
                    line = json.dumps({"step": number, "seconds": round(seconds), **shown})
                    print(line, flush=True)
                    print(line, file=lines, flush=True)
                if time.monotonic() - saved > SAVE_SECONDS or last:
                    self.save(path, seconds)
                    saved = time.monotonic()


def mean_report(halves: list[Half]) -> dict[str, float]:
    """The mean of the reports of both halves."""
    return {name: sum(one.report[name] for one in halves) / HALVES for name in halves[0].report}
