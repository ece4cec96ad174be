"""The main job, body of run.py: load a checkpoint, answer prompts, print a summary.

stdout carries answers only (or JSON lines with --json); everything else goes to stderr.
"""

from __future__ import annotations

import json as json_module
import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from deepinfer.cli.flags import Given, with_engine_flags
from deepinfer.cli.interruption import DEFAULT_GRACE, Interrupted, interruptible
from deepinfer.cli.main import Accelerator, AllowNull, Grace, Json, Mode, Progress, invoke
from deepinfer.cli.notes import note
from deepinfer.cli.prompts import read_prompts
from deepinfer.cli.selection import choose
from deepinfer.cli.session import note_summary, open_llm, summary
from deepinfer.engine import SamplingParams
from deepinfer.engine.llm import LLM, RequestHandle
from deepinfer.engine.outputs import CompletionOutput, RequestDelta, RequestOutput

DEFAULT_PROMPT = "Once upon a time there was a small chip that wanted to"
DEFAULTS = {"temperature": 0.0, "max_tokens": 48}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@with_engine_flags
def run(
    given: Given,
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
    accelerator: Accelerator = None,
    mode: Mode = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a Hub id.")] = None,
    grace: Grace = DEFAULT_GRACE,
    allow_null: AllowNull = False,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Answer prompts from arguments, a file or stdin; without any, a default prompt.

    All of them run together; answers come in the order of the prompts.
    """
    params, options = given.params(DEFAULTS), given.options()
    selected = choose(accelerator, mode)  # may re-execute the process: before stdin is read
    with interruptible(grace):
        try:
            texts = list(read_prompts(prompts or [], prompt_file))
            if not prompts and prompt_file is None:
                texts = [DEFAULT_PROMPT]
            elif not texts:
                note("there is no prompt: what was to be read is empty")
            with open_llm(
                model_name, revision, selected, options, allow_null=allow_null, progress=progress
            ) as llm:
                job = _Job(llm, params, chat, json)
                status = job.answer(texts)
                job.summarise()
        except Interrupted as interrupted:
            note(f"{interrupted}: ended before anything ran", "warning")
            status = interrupted.status
    raise typer.Exit(status)


def _print_json(record: dict[str, Any]) -> None:
    """One line in ASCII: whole in every encoding of stdout, and for every notion of a line."""
    print(json_module.dumps(record), flush=True)


@dataclass
class _Answer:
    """A prompt whose answer is under way. deltas end with None."""

    place: int
    text: str
    deltas: queue.SimpleQueue[RequestDelta | None] = field(default_factory=queue.SimpleQueue)
    handle: RequestHandle | None = None


@dataclass
class _Job:
    llm: LLM
    params: SamplingParams
    chat: bool
    json: bool

    def answer(self, texts: list[str]) -> int:
        """Print the answers in order: 0, 1 where a request failed, or 128 + a signal."""
        answers = [_Answer(place, text) for place, text in enumerate(texts)]
        failed = done = 0
        try:
            for answer in answers:
                self._submit(answer)
            for answer in answers:
                failed += not self._print(answer)
                done += 1
        except Interrupted as interrupted:
            note(f"{interrupted}: {len(answers) - done} requests are ended early", "warning")
            self._print_partial(answers[done:])
            return interrupted.status
        return 1 if failed else 0

    def _submit(self, answer: _Answer) -> None:
        prompt: Any = answer.text
        if self.chat:
            prompt = [{"role": "user", "content": answer.text}]
        deltas = answer.deltas
        streamed = not self.json and self.params.n == 1
        answer.handle = self.llm.submit(
            prompt,
            self.params,
            on_delta=deltas.put if streamed else None,
            on_done=lambda output: deltas.put(None),
        )

    def _print(self, answer: _Answer) -> bool:
        """Print one answer as it comes; False when the request failed."""
        assert answer.handle is not None
        if not self.json:
            print(f"> {answer.text}", flush=True)
        while (delta := answer.deltas.get()) is not None:
            print(delta.text, end="", flush=True)
        return self._complete(answer, answer.handle.result())

    def _print_partial(self, answers: list[_Answer]) -> None:
        """Print what there is of the answers that a signal cut short."""
        for answer in answers:
            if answer.handle is not None:
                answer.handle.abort()
        for place, answer in enumerate(answers):
            if answer.handle is None:
                continue
            output = answer.handle.result()
            if not self.json and place:
                print(f"> {answer.text}", flush=True)
            while (delta := answer.deltas.get()) is not None:
                print(delta.text, end="", flush=True)
            self._complete(answer, output)

    def _complete(self, answer: _Answer, output: RequestOutput) -> bool:
        if output.error:
            if self.json:
                record = {"index": answer.place, "prompt": answer.text, "error": output.error}
                _print_json(record)
            note(f"request {answer.place} failed: {output.error}", "error")
        elif self.json:
            _print_json(_record(answer, output))
        elif self.params.n > 1:
            for one in output.outputs:
                print(f"[{one.index}] {one.text}", flush=True)
        else:
            print(flush=True)
        return not output.error

    def summarise(self) -> None:
        """Print the summary: one JSON line, or text on stderr."""
        if self.json:
            _print_json({"summary": summary(self.llm)})
        else:
            note_summary(self.llm)


def _record(answer: _Answer, output: RequestOutput) -> dict[str, Any]:
    """One answer as a JSON record; further samples in `outputs`."""
    record = {
        "index": answer.place,
        "prompt": answer.text,
        **sample_record(output.outputs[0]),
        "prompt_tokens": output.metrics.num_prompt_tokens,
    }
    if len(output.outputs) > 1:
        record["outputs"] = [sample_record(one) for one in output.outputs]
    return record


def sample_record(output: CompletionOutput) -> dict[str, Any]:
    """One sample as plain values; log-probabilities where they were asked for."""
    record: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if output.logprobs is not None:
        record["logprobs"] = [
            {
                "raw": one.raw,
                "processed": one.processed,
                "top": {str(token): value for token, value in one.top.items()},
                **({"sum_smaller_probs": one.sum_smaller_probs} if one.sum_smaller_probs else {}),
            }
            for one in output.logprobs
        ]
    return record


def main(arguments: Sequence[str]) -> int:
    """Run the main job on the arguments; returns the exit status."""
    return invoke(app, list(arguments), "run.py")
