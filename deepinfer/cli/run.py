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
from deepinfer.cli.invocation import application, invoke
from deepinfer.cli.notes import note
from deepinfer.cli.options import (
    Accelerator,
    AllowNull,
    Grace,
    Json,
    Mode,
    ModelName,
    Progress,
    Revision,
)
from deepinfer.cli.prompts import read_prompts
from deepinfer.cli.records import outcome
from deepinfer.cli.selection import choose
from deepinfer.cli.session import note_summary, open_llm, summary
from deepinfer.engine import SamplingParams
from deepinfer.engine.llm import LLM, RequestHandle
from deepinfer.engine.outputs import RequestOutput
from deepinfer.errors import UsageError

DEFAULT_QUESTION = (
    "Here is a story. The lamp is in the kitchen. The dog runs to the lake. "
    "Today Anna has the rope. The box holds seven coins. Where is the lamp?"
)
"""The user message that is sent without prompts; anybody can tell whether the answer is right."""
WINDOW = 2
DEFAULTS = {"temperature": 0.0, "max_tokens": 48}

app = application()


@app.command()
@with_engine_flags
def run(
    given: Given,
    prompts: Annotated[
        list[str] | None, typer.Argument(help='Prompts; "-" reads one prompt a line from stdin.')
    ] = None,
    model_name: ModelName = None,
    prompt_file: Annotated[
        str | None,
        typer.Option("--prompt_file", "--prompt-file", help="A file with one prompt a line."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap each prompt as a user message.")
    ] = False,
    accelerator: Accelerator = None,
    mode: Mode = None,
    revision: Revision = None,
    grace: Grace = DEFAULT_GRACE,
    allow_null: AllowNull = False,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Answer prompts from arguments, a file or stdin, or else a question about a story.

    All of them run together; answers come in the order of the prompts.
    """
    params, options = given.params(DEFAULTS), given.options()
    if not json and (params.wants_logprobs or params.prompt_logprobs):
        raise UsageError("log-probabilities are shown in JSON lines only; add --json")
    # Before stdin is read, since it may execute the process again.
    selected = choose(accelerator, mode)
    with interruptible(grace) as interruption:
        try:
            texts = list(read_prompts(prompts or [], prompt_file))
            if not prompts and prompt_file is None:
                texts, chat = [DEFAULT_QUESTION], True
            elif not texts:
                note("there is no prompt: what was to be read is empty")
            with open_llm(
                model_name, revision, selected, options, allow_null=allow_null, progress=progress
            ) as llm:
                printer = AnswerPrinter(llm, params, chat, json)
                interruption.defer(printer.interrupt)
                status = printer.answer(texts, llm.engine.limits.max_num_seqs * WINDOW)
                printer.summarise()
        except Interrupted as interrupted:
            note(f"{interrupted}: ended before anything ran", "warning")
            status = interrupted.status
    raise typer.Exit(status)


@dataclass
class _Answer:
    """The part of an answer that has come before its turn to be printed."""

    handle: RequestHandle
    text: str = ""
    output: RequestOutput | None = None


@dataclass
class AnswerPrinter:
    """Answers prompts, which run together, and prints the answers in the order of the prompts.

    The first incomplete answer is printed as it grows, except with JSON or with n above 1.
    """

    llm: LLM
    params: SamplingParams
    chat: bool = False
    json: bool = False
    _events: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    _answers: dict[int, _Answer] = field(default_factory=dict)

    def interrupt(self, interrupted: Interrupted) -> None:
        """Start no more requests and end the running ones; may be called in a signal handler."""
        self._events.put(interrupted)

    def answer(self, texts: Sequence[str], room: int) -> int:
        """Print the answers; returns the exit status.

        It is 0, 1 where a request failed, or 128 + the number of the signal that ended the run
        early. room: how many requests may be in the engine, or wait to be printed, at a time.
        """
        failed = submitted = 0
        ended: Interrupted | None = None
        printed, last = 0, len(texts)
        while printed < last:
            while submitted < last and submitted - printed < room:
                self._submit(submitted, texts[submitted])
                if submitted == printed:
                    self._begin(texts[printed])
                submitted += 1
            event = self._events.get()
            if isinstance(event, Interrupted):
                ended, last = event, submitted
                note(f"{event}: {last - printed} requests are ended early", "warning")
                for one in self._answers.values():
                    one.handle.abort()
                continue
            place, new = event
            answer = self._answers[place]
            if isinstance(new, RequestOutput):
                answer.output = new
            elif place == printed:
                print(new.text, end="", flush=True)
            else:
                answer.text += new.text
            while (first := self._answers.get(printed)) is not None and first.output is not None:
                failed += not self._complete(printed, texts[printed], first.output)
                del self._answers[printed]
                printed += 1
                if (following := self._answers.get(printed)) is not None:
                    self._begin(texts[printed], following.text)
        if ended is not None:
            return ended.status
        return 1 if failed else 0

    def _submit(self, place: int, text: str) -> None:
        prompt: Any = [{"role": "user", "content": text}] if self.chat else text
        events = self._events
        streamed = not self.json and self.params.n == 1
        self._answers[place] = _Answer(
            self.llm.submit(
                prompt,
                self.params,
                on_delta=(lambda delta: events.put((place, delta))) if streamed else None,
                on_done=lambda output: events.put((place, output)),
            )
        )

    def _begin(self, prompt: str, text: str = "") -> None:
        """Print a prompt whose turn it is, and what has come of its answer."""
        if not self.json:
            print(f"> {prompt}\n{text}", end="", flush=True)

    def _complete(self, place: int, prompt: str, output: RequestOutput) -> bool:
        """Print the rest of an answer; returns False if the request failed."""
        error = {"error": output.error} if output.error else {}
        if output.error:
            note(f"request {place} failed: {output.error}", "error")
        if self.json:
            _print_json({"index": place, "prompt": prompt, **outcome(output), **error})
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


def _print_json(record: dict[str, Any]) -> None:
    """Print a line of JSON in ASCII: valid in every encoding, without characters that end lines."""
    print(json_module.dumps(record), flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the main job on the arguments; returns the exit status."""
    return invoke(app, arguments, "run.py")
