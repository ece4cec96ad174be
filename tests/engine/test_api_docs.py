"""The pages about the Python interface name what there is, and their example runs."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.engine import EngineOptions
from deepinfer.engine.options import _HINTS
from deepinfer.engine.outputs import CompletionOutput, RequestDelta, RequestMetrics, RequestOutput

DOCS = Path(__file__).resolve().parents[2] / "docs"


def named(page: str) -> set[str]:
    """Words in code marks of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}


@pytest.mark.slow
def test_the_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEEPINFER_ACCELERATOR", "reference")
    monkeypatch.delenv("DEEPINFER_HF_MODEL_DIR", raising=False)
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "api.md").read_text(), re.DOTALL)
    exec(compile(example, "docs/api.md", "exec"), {})
    first, second, streamed = capsys.readouterr().out.splitlines()
    assert first == "stop ' red.'"
    assert second.startswith("length '")
    assert streamed == "The drum belongs to Anna."


@pytest.mark.parametrize("kind", [EngineOptions, SamplingParams])
def test_every_option_is_in_the_table_of_names(kind: Any) -> None:
    assert {field.name for field in fields(kind)} - named("migrating.md") == set()


@pytest.mark.parametrize("kind", [RequestOutput, CompletionOutput, RequestMetrics, RequestDelta])
def test_every_field_of_results_is_described(kind: Any) -> None:
    assert {field.name for field in fields(kind)} - named("api.md") == set()


def test_every_method_is_described() -> None:
    methods = {name for name in vars(LLM) if not name.startswith("_")}
    assert methods - named("api.md") == set()


def test_refused_vendor_names_have_a_hint() -> None:
    refused = {"trust_remote_code", "tokenizer_revision", "decode_sequence", "served_model_name"}
    assert refused | {"ignore_len", "offline_inference"} <= set(_HINTS) & named("migrating.md")
