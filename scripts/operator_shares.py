"""Prints where a model's time goes: the share of each operator, in a prompt and in decoding.

    python scripts/operator_shares.py [--accelerator NAME] [--prompt 64] [--tokens 8]

Measured by torch.profiler on the bundled checkpoint. Composed steps are counted as the operators
that they call. The device's own time is counted where the profiler has it, else the host's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from torch.profiler import profile, record_function

from deepinfer.backend.registry import select_backend
from deepinfer.backend.resolution import COMPOSED, Operators
from deepinfer.checkpoint import Checkpoint
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import Engine, EngineOptions, SamplingParams

PREFIX = "operator "


def mark(operators: Operators) -> None:
    """Give every operator that is not composed a range of its own in a profile."""
    for name, binding in operators.bindings.items():
        if binding.provider != COMPOSED:
            setattr(operators, name, _marked(name, getattr(operators, name)))


def _marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with record_function(f"{PREFIX}{name}"):
            return function(*args, **kwargs)

    return call


def measure(tokens: Iterator[object], count: int) -> dict[str, float]:
    """Share of the operators' time by name, of the next tokens of a request."""
    with profile() as profiler:
        for _ in range(count):
            next(tokens)
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        if event.key.startswith(PREFIX):
            name = event.key.removeprefix(PREFIX)
            time = event.device_time_total or event.cpu_time_total
            times[name] = times.get(name, 0.0) + time
    total = sum(times.values())
    return {name: time / total for name, time in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Share of each operator in a model's time.")
    parser.add_argument("--accelerator", default="reference")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=8, help="tokens that are decoded")
    arguments = parser.parse_args()
    prompt = [3 + i * 7 % 500 for i in range(arguments.prompt)]
    params = SamplingParams(max_tokens=arguments.tokens + 4, ignore_eos=True)
    with Checkpoint.open(bundled_checkpoint(), progress=False) as checkpoint:
        engine = Engine.load(checkpoint, select_backend(arguments.accelerator), EngineOptions())
        mark(engine.operators)
        for _ in engine.generate([3, 4, 5], SamplingParams(max_tokens=2, ignore_eos=True)):
            pass  # what is slow the first time only
        tokens = engine.generate(prompt, params)
        first = measure(tokens, 1)
        later = measure(tokens, arguments.tokens)
    print(f"{'operator':<18}{'prompt':>8}{'decoding':>10}")
    for name in sorted(first.keys() | later.keys(), key=lambda name: -later.get(name, 0.0)):
        print(f"{name:<18}{first.get(name, 0.0):>8.1%}{later.get(name, 0.0):>10.1%}")


if __name__ == "__main__":
    main()
