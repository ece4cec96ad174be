"""Prints where a model's time goes: the share of each operator, in a prompt and in decoding.

    python scripts/operator_shares.py [--accelerator NAME] [--prompt 64] [--tokens 8]

Measured by torch.profiler on the bundled checkpoint. Composed steps are counted as the operators
that they call. The device's own time is counted where the profiler has it, else the host's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from torch.profiler import profile, record_function

from deepinfer.backend.registry import select_backend
from deepinfer.backend.resolution import COMPOSED, Operators
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import Engine, SamplingParams, open_engine

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


def measure(engine: Engine, count: int) -> dict[str, float]:
    """Share of the operators' time by name, of the engine's next steps."""
    with profile() as profiler:
        for _ in range(count):
            engine.step()
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
    accelerator = select_backend(arguments.accelerator)
    with open_engine(bundled_checkpoint(), accelerator, allow_null=True) as engine:
        mark(engine.runner.operators)
        engine.add([3, 4, 5], SamplingParams(max_tokens=2, ignore_eos=True))
        engine.drain()  # what is slow the first time only
        engine.add(prompt, params)
        first = measure(engine, 1)
        later = measure(engine, arguments.tokens)
    print(f"{'operator':<18}{'prompt':>8}{'decoding':>10}")
    for name in sorted(first.keys() | later.keys(), key=lambda name: -later.get(name, 0.0)):
        print(f"{name:<18}{first.get(name, 0.0):>8.1%}{later.get(name, 0.0):>10.1%}")


if __name__ == "__main__":
    main()
