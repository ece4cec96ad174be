"""The `LLM` of run.py and `deepinfer generate`, and the summary that they print at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deepinfer.backend.registry import Selected
from deepinfer.backend.resolution import FALLBACK, HOST, NATIVE
from deepinfer.checkpoint import Checkpoint
from deepinfer.cli.notes import in_json, note
from deepinfer.data import about
from deepinfer.engine import EngineOptions, open_engine
from deepinfer.engine.llm import LLM


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
    """An `LLM` for the block, closed at its end. Its properties are printed on stderr."""

    def announce(checkpoint: Checkpoint) -> None:
        note(f"checkpoint {checkpoint.directory}")
        note(str(checkpoint.plan))

    engine = open_engine(
        model,
        selected,
        options,
        revision=revision,
        allow_null=allow_null,
        observed=True,
        progress=progress and not in_json(),
        on_checkpoint=announce,
    )
    with LLM.of(engine) as llm:
        runner = engine.runner
        note(
            f"backend {selected.spec.name}, mode {selected.mode.name} ({selected.mode.label}), "
            f"numerics {runner.numerics.value}, compute {options.compute}; operators: "
            f"{runner.operators.summary()}"
        )
        note(str(runner.packing))
        note(str(runner.sizes))
        known = about(runner.checkpoint.directory)
        if known.is_random:
            note("this checkpoint has random weights: the text below is meaningless")
        elif known.text:
            note(f"by its own account this checkpoint was trained on {known.text!r} alone")
        yield llm


def summary(llm: LLM) -> dict[str, Any]:
    """The numbers of the summary as plain values."""
    runner, stats = llm.engine.runner, llm.stats()
    return {
        "backend": runner.selected.spec.name,
        "mode": runner.selected.mode.name,
        "timing_meaningful": runner.selected.mode.timing,
        "native_operators": runner.operators.providers(NATIVE),
        "fallback_operators": runner.operators.providers(FALLBACK),
        "host_operators": runner.operators.providers(HOST),
        "calls_by_provider": runner.operators.counts,
        "prefill_tokens_per_second": _rate(stats.prompt_tokens, stats.prefill_seconds),
        "decode_tokens_per_second": _rate(stats.decode_tokens, stats.decode_seconds),
        "prefill_tokens": stats.prompt_tokens,
        "decode_tokens": stats.decode_tokens,
        "requests": stats.request_success,
        "preemptions": stats.num_preemptions,
        "cache_bytes_per_token": runner.layout.bytes_per_token(),
    }


def note_summary(llm: LLM) -> None:
    """Print the summary on stderr."""
    figures = summary(llm)
    unmeasured = "" if figures["timing_meaningful"] else " (means nothing in this mode)"
    fallbacks = ", ".join(figures["fallback_operators"]) or "none"
    names = ", ".join(figures["host_operators"])
    host = f"; on the host: {names}" if names else ""
    note(
        f"backend {figures['backend']}, mode {figures['mode']}: operators "
        f"{llm.engine.runner.operators.summary()}; fallbacks: {fallbacks}{host}"
    )
    note(
        f"prefill {figures['prefill_tokens_per_second']:.1f} tokens/s "
        f"({figures['prefill_tokens']}), decode {figures['decode_tokens_per_second']:.1f} "
        f"tokens/s ({figures['decode_tokens']}){unmeasured}, "
        f"cache {figures['cache_bytes_per_token']:g} bytes per token"
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
