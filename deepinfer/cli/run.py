"""The main job, body of run.py: load a checkpoint, answer prompts, print a summary.

stdout carries answers only (or JSON lines with --json); everything else goes to stderr.
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from deepinfer.backend.resolution import FALLBACK, NATIVE
from deepinfer.checkpoint import Checkpoint
from deepinfer.cli.main import Accelerator, Json, Mode, invoke
from deepinfer.cli.prompts import read_prompts
from deepinfer.cli.selection import choose
from deepinfer.config import environment
from deepinfer.data import bundled_checkpoint, is_random
from deepinfer.engine import Engine, EngineOptions, SamplingParams
from deepinfer.errors import RequestError, UsageError
from deepinfer.text import StreamDecoder, encode_chat

DEFAULT_PROMPT = "Once upon a time there was a small chip that wanted to"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run(
    prompts: Annotated[
        list[str] | None, typer.Argument(help='Prompts; "-" reads one prompt a line from stdin.')
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option(
            "--model_name",
            "--model-name",
            "--model",
            help="Checkpoint directory or Hub id; default: DEEPINFER_HF_MODEL_DIR, else bundled.",
        ),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option("--prompt_file", "--prompt-file", help="A file with one prompt a line."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap each prompt as a user message.")
    ] = False,
    ep: Annotated[int, typer.Option("--ep", help="Devices for expert parallelism.")] = 1,
    accelerator: Accelerator = None,
    mode: Mode = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a Hub id.")] = None,
    numerics: Annotated[str, typer.Option(help="auto, ref or infer.")] = "auto",
    compute: Annotated[str, typer.Option(help="bf16; fp32 or fp64 to debug.")] = "bf16",
    temperature: Annotated[float, typer.Option(help="0 takes the most probable token.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top_p", "--top-p")] = 1.0,
    top_k: Annotated[int, typer.Option("--top_k", "--top-k", help="-1: no limit.")] = -1,
    min_p: Annotated[float, typer.Option("--min_p", "--min-p")] = 0.0,
    max_tokens: Annotated[int, typer.Option("--max_tokens", "--max-tokens")] = 48,
    seed: Annotated[int | None, typer.Option(help="64-bit seed; default: drawn.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore_eos", "--ignore-eos")] = False,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max_model_len",
            "--max-model-len",
            help="Tokens per sequence; default: the model's limit, or what the memory holds.",
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option("--max_num_batched_tokens", "--max-num-batched-tokens", help="Rows per step."),
    ] = None,
    json: Json = False,
) -> None:
    """Answer prompts from arguments, a file or stdin; without any, a default prompt."""
    try:
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            max_tokens=max_tokens,
            seed=seed,
            ignore_eos=ignore_eos,
        )
    except RequestError as error:  # here it is the call that is wrong, for every prompt
        raise UsageError(str(error)) from error
    options = EngineOptions(
        numerics=numerics,
        compute=compute,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        expert_parallel_size=ep,
    )
    selected = choose(accelerator, mode)  # may re-execute the process: before stdin is read
    texts = list(read_prompts(prompts or [], prompt_file))
    if not prompts and prompt_file is None:
        texts = [DEFAULT_PROMPT]
    elif not texts:
        _note("there is no prompt: what was to be read is empty")
    path: str | Path | None = model_name
    if path is None:
        path = environment.text(environment.MODEL_DIRECTORY) or bundled_checkpoint()
    with Checkpoint.open(path, revision=revision) as checkpoint:
        _note(f"checkpoint {checkpoint.directory}")
        _note(str(checkpoint.plan))
        engine = Engine.load(
            checkpoint,
            selected,
            options,
            strict=environment.flag(environment.STRICT_OPERATORS),
            progress=True,
        )
        _note(
            f"backend {selected.spec.name}, mode {selected.mode.name} ({selected.mode.label}), "
            f"numerics {engine.numerics.value}, compute {compute}; operators: "
            f"{engine.operators.summary()}"
        )
        _note(str(engine.sizes))
        if is_random(checkpoint.directory):
            _note("this checkpoint has random weights: the text below is meaningless")
        job = _Job(engine, params, chat, json)
        failed = sum(not job.answer(place, text) for place, text in enumerate(texts))
        job.summarise()
    raise typer.Exit(1 if failed else 0)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_json(record: dict[str, Any]) -> None:
    """One line in ASCII: whole in every encoding of stdout, and for every notion of a line."""
    print(json_module.dumps(record), flush=True)


@dataclass
class _Job:
    engine: Engine
    params: SamplingParams
    chat: bool
    json: bool

    def answer(self, place: int, text: str) -> bool:
        """Print the answer to one prompt; False when the request failed."""
        try:
            self._answer(place, text)
        except RequestError as error:
            if self.json:
                _print_json({"index": place, "prompt": text, "error": str(error)})
            _note(f"request {place} failed: {error}")
            return False
        return True

    def _encode(self, text: str) -> list[int]:
        tokenizer = self.engine.tokenizer
        if self.chat:
            return encode_chat(tokenizer, [{"role": "user", "content": text}])
        return tokenizer.encode(text, add_bos=True)

    def _answer(self, place: int, text: str) -> None:
        prompt = self._encode(text)
        decoder = StreamDecoder(self.engine.tokenizer, prompt)
        ids: list[int] = []
        parts: list[str] = []
        reason = ""
        if not self.json:
            print(f"> {text}", flush=True)
        for token in self.engine.generate(prompt, self.params):
            ids.append(token.token_id)
            reason = token.finish_reason
            self._emit(parts, decoder.push(token.token_id))
        self._emit(parts, decoder.finish())
        if self.json:
            record = {
                "index": place,
                "prompt": text,
                "text": "".join(parts),
                "token_ids": ids,
                "prompt_tokens": len(prompt),
                "finish_reason": reason,
            }
            _print_json(record)
        else:
            print(flush=True)

    def _emit(self, parts: list[str], delta: str) -> None:
        parts.append(delta)
        if not self.json:
            print(delta, end="", flush=True)

    def summary(self) -> dict[str, Any]:
        """The figures of the closing summary."""
        engine = self.engine
        prefill, decode = engine.timing.rates()
        return {
            "backend": engine.selected.spec.name,
            "mode": engine.selected.mode.name,
            "timing_meaningful": engine.selected.mode.timing,
            "native_operators": engine.operators.providers(NATIVE),
            "fallback_operators": engine.operators.providers(FALLBACK),
            "prefill_tokens_per_second": prefill,
            "decode_tokens_per_second": decode,
            "cache_bytes_per_token": engine.layout.bytes_per_token(),
        }

    def summarise(self) -> None:
        """Print the summary: one JSON line, or text on stderr."""
        summary = self.summary()
        if self.json:
            _print_json({"summary": summary})
            return
        timing = self.engine.timing
        unmeasured = "" if summary["timing_meaningful"] else " (means nothing in this mode)"
        fallbacks = ", ".join(summary["fallback_operators"]) or "none"
        _note(
            f"backend {summary['backend']}, mode {summary['mode']}: operators "
            f"{self.engine.operators.summary()}; fallbacks: {fallbacks}"
        )
        _note(
            f"prefill {summary['prefill_tokens_per_second']:.1f} tokens/s "
            f"({timing.prefill_tokens}), decode {summary['decode_tokens_per_second']:.1f} "
            f"tokens/s ({timing.decode_tokens}){unmeasured}, "
            f"cache {summary['cache_bytes_per_token']:g} bytes per token"
        )


def main(arguments: Sequence[str]) -> int:
    """Run the main job on the arguments; returns the exit status."""
    return invoke(app, list(arguments), "run.py")
