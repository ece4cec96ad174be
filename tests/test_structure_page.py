"""The diagrams of docs/structure.md are those that the imports draw."""

from __future__ import annotations

import pytest

from scripts.make_structure_diagrams import COMMAND, PAGE, diagram, page, reduced


@pytest.mark.slow
def test_the_diagrams_are_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"docs/structure.md is stale: {COMMAND}"


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    arrows = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": set()}
    assert reduced(arrows) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": set()}
    assert diagram(arrows).splitlines()[2:-1] == [
        "    a --> b",
        "    b --> c",
        "    c --> d",
        "    e",
    ]


def test_a_circle_is_an_error() -> None:
    with pytest.raises(ValueError, match="a circle: a -> b -> a"):
        reduced({"a": {"b"}, "b": {"a"}})
