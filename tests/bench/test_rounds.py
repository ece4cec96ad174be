"""Turns of what is compared, and the checks of options."""

from __future__ import annotations

from functools import partial

import pytest

from deepinfer.bench.rounds import check_rounds, interleave, parse_integers
from deepinfer.errors import UsageError


def test_variants_take_turns_and_change_sides() -> None:
    order: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return len(order)

    results = interleave({name: partial(run, name) for name in "ab"}, 4)
    assert "".join(order) == "abbaabba"
    assert results == {"a": [1, 4, 5, 8], "b": [2, 3, 6, 7]}


def test_fewer_than_four_rounds_are_refused() -> None:
    check_rounds(4)
    with pytest.raises(UsageError, match="--rounds is 3; allowed: 4 or more"):
        check_rounds(3)


def test_integers_are_sorted_and_each_once() -> None:
    assert parse_integers("--batch", "8, 1,8") == (1, 8)


@pytest.mark.parametrize("text", ["", "1,", "a", "1;2", "0", "1,-2"])
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--batch is"):
        parse_integers("--batch", text)
