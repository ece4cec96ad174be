"""What run.py and `deepinfer generate` start with, and the summary that they end with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deepinfer.backend.registry import Selected, refuse_null
from deepinfer.backend.resolution import FALLBACK, HOST, NATIVE
from deepinfer.checkpoint import Checkpoint
from deepinfer.cli.notes import in_json, note
from deepinfer.data import about
from deepinfer.engine import Engine, EngineOptions
from deepinfer.engine.llm import LLM, default_checkpoint
from deepinfer.settings import environment
from deepinfer.settings.settings import Settings


@contextmanager
def open_llm(
    model: str | None,
    revision: str | None,
    selected: Selected,
    options: EngineOptions,
    *,
    allow_null: bool | None = False,
    progress: bool = True,
) -> Iterator[LLM]:
    """An engine for the block, its properties noted on stderr; closed at the end."""
    refuse_null(selected, allow_null)
    path = default_checkpoint() if model is None else model
    settings = Settings.from_environment(backends=(selected.spec,))
    with Checkpoint.open(path, revision=revision) as checkpoint:
        options.model_len(checkpoint.config)  # refused before anything is loaded
        note(f"checkpoint {checkpoint.directory}")
        note(str(checkpoint.plan))
        engine = Engine.load(
            checkpoint,
            selected,
            options,
            strict=environment.flag(environment.STRICT_OPERATORS),
            progress=progress and not in_json(),
            settings=settings,
        )
        note(
            f"backend {selected.spec.name}, mode {selected.mode.name} ({selected.mode.label}), "
            f"numerics {engine.numerics.value}, compute {options.compute}; operators: "
            f"{engine.operators.summary()}"
        )
        note(str(engine.packing))
        note(str(engine.sizes))
        known = about(checkpoint.directory)
        if known.is_random:
            note("this checkpoint has random weights: the text below is meaningless")
        elif known.text:
            note(f"by its own account this checkpoint was trained on {known.text!r} alone")
        with LLM.of(engine) as llm:
            yield llm


def summary(llm: LLM) -> dict[str, Any]:
    """The figures of the closing summary."""
    engine, stats = llm.engine, llm.stats()
    return {
        "backend": engine.selected.spec.name,
        "mode": engine.selected.mode.name,
        "timing_meaningful": engine.selected.mode.timing,
        "native_operators": engine.operators.providers(NATIVE),
        "fallback_operators": engine.operators.providers(FALLBACK),
        "host_operators": engine.operators.providers(HOST),
        "calls_by_provider": engine.operators.counts,
        "prefill_tokens_per_second": _rate(stats.prompt_tokens, stats.prefill_seconds),
        "decode_tokens_per_second": _rate(stats.decode_tokens, stats.decode_seconds),
        "prefill_tokens": stats.prompt_tokens,
        "decode_tokens": stats.decode_tokens,
        "requests": stats.request_success,
        "preemptions": stats.num_preemptions,
        "cache_bytes_per_token": engine.layout.bytes_per_token(),
    }


def note_summary(llm: LLM) -> None:
    """The summary as two lines on stderr."""
    figures = summary(llm)
    unmeasured = "" if figures["timing_meaningful"] else " (means nothing in this mode)"
    fallbacks = ", ".join(figures["fallback_operators"]) or "none"
    names = ", ".join(figures["host_operators"])
    host = f"; on the host: {names}" if names else ""
    note(
        f"backend {figures['backend']}, mode {figures['mode']}: operators "
        f"{llm.engine.operators.summary()}; fallbacks: {fallbacks}{host}"
    )
    note(
        f"prefill {figures['prefill_tokens_per_second']:.1f} tokens/s "
        f"({figures['prefill_tokens']}), decode {figures['decode_tokens_per_second']:.1f} "
        f"tokens/s ({figures['decode_tokens']}){unmeasured}, "
        f"cache {figures['cache_bytes_per_token']:g} bytes per token"
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
