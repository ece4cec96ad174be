"""docs/contract.md says what the docstrings say, about every operator."""

from __future__ import annotations

import pytest

from deepinfer.backend import OPERATORS
from deepinfer.backend.dense import Dense
from scripts.make_contract_page import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/contract.md is stale: python scripts/make_contract_page.py"
    )


def test_every_operator_is_on_it_once() -> None:
    text = page()
    for name, kind in OPERATORS.items():
        assert text.count(f"\n### `{name}` ({kind})\n") == 1


def test_a_changed_docstring_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dense.rms_norm, "__doc__", "Something else.")
    assert "Something else." in page()
    assert PAGE.read_text(encoding="utf-8") != page()
