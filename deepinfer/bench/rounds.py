"""Taking turns: every variant runs once a round, so that a slow phase affects them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from deepinfer.errors import UsageError

LEAST_ROUNDS = 4

Key = TypeVar("Key")
Result = TypeVar("Result")


def interleave(
    variants: Mapping[Key, Callable[[], Result]], rounds: int
) -> dict[Key, list[Result]]:
    """Results of every variant, one a round; every other round runs them in reverse order."""
    results: dict[Key, list[Result]] = {key: [] for key in variants}
    for number in range(rounds):
        order = list(variants) if number % 2 == 0 else list(variants)[::-1]
        for key in order:
            results[key].append(variants[key]())
    return results


def check_rounds(rounds: int) -> None:
    """UsageError for too few rounds to show a spread."""
    if rounds < LEAST_ROUNDS:
        raise UsageError(
            f"--rounds is {rounds}; allowed: {LEAST_ROUNDS} or more, since fewer do not show how "
            "much a number moves"
        )


def check_least(option: str, values: int | Sequence[int], least: int) -> None:
    """UsageError for a value below `least`."""
    for value in [values] if isinstance(values, int) else values:
        if value < least:
            raise UsageError(f"{option} is {value}; allowed: integers of {least} or more")


def parse_integers(option: str, text: str, least: int = 1) -> tuple[int, ...]:
    """Different integers separated by commas, in ascending order; UsageError otherwise."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{option} is {text!r}; allowed: integers separated by commas, such as 1,8"
        ) from None
    check_least(option, values, least)
    return tuple(sorted(set(values)))
