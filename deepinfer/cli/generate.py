"""`deepinfer generate`: answers a file of prompts; each line of input and output is a JSON object.

At most `WINDOW` times max_num_seqs requests are in the engine at a time, and the input is read as
they end. So the input may be of any length: only a digest of each id is kept, and with --resume a
digest of each line that has a result. A line that is wrong fails alone.
"""

from __future__ import annotations

import queue
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

from deepinfer.cli.flags import Given, with_engine_flags
from deepinfer.cli.input_lines import InputLines, RawLine
from deepinfer.cli.interruption import DEFAULT_GRACE, Interrupted, interruptible
from deepinfer.cli.invocation import application, invoke
from deepinfer.cli.notes import note
from deepinfer.cli.options import Accelerator, AllowNull, Grace, Mode, Model, Progress, Revision
from deepinfer.cli.progress import Rate, Show, counting
from deepinfer.cli.records import Line, digest_of, metrics_of, outcome, read_line
from deepinfer.cli.results import STDOUT, ResultFile, ResultStream, open_results
from deepinfer.cli.selection import choose
from deepinfer.cli.session import note_summary, open_llm
from deepinfer.engine.llm import LLM, RequestHandle
from deepinfer.engine.outputs import RequestOutput
from deepinfer.errors import UsageError

WINDOW = 2

app = application()


@app.command()
@with_engine_flags
def generate(
    given: Given,
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help='JSON lines of prompts; "-" for stdin.')
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help='File of results; "-" for stdout.')
    ] = STDOUT,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Skip lines that the output answers; failed and changed ones run again.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Results in the order of the lines.")
    ] = False,
    model: Model = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    revision: Revision = None,
    grace: Grace = DEFAULT_GRACE,
    allow_null: AllowNull = False,
    progress: Progress = True,
) -> None:
    """Answer a file of prompts: one JSON object a line, in and out.

    A line has one of prompt (a text), prompt_token_ids and messages, and optionally id and sampling
    parameters by name, which win over the flags. A line that is wrong fails alone: its result says
    why, and the exit status is 1 at the end.
    """
    given.params({})  # refuse wrong flags before anything is loaded
    options = given.options()
    selected = choose(accelerator, mode)
    with interruptible(grace) as interruption:
        try:
            with (
                closing(InputLines(source)) as lines,
                closing(
                    open_results(output, source, sys.stdout, resume=resume, overwrite=overwrite)
                ) as results,
                open_llm(
                    model, revision, selected, options, allow_null=allow_null, progress=progress
                ) as llm,
            ):
                input_run = InputRun(llm, results, given.sampling, ordered)
                interruption.defer(input_run.interrupt)
                with counting("generate", enabled=progress) as show:
                    status = input_run.run(lines, llm.engine.limits.max_num_seqs * WINDOW, show)
                note(input_run.counts())
                note_summary(llm)
        except Interrupted as interrupted:
            note(f"{interrupted}: ended before anything ran", "warning")
            status = interrupted.status
    raise typer.Exit(status)


def main(arguments: Sequence[str]) -> int:
    """Run the command on the arguments; returns the exit status."""
    return invoke(app, arguments, "deepinfer generate")


@dataclass
class InputRun:
    """The answers to the lines of one input, written as they come.

    ordered: write them in the order of the lines.
    """

    llm: LLM
    output: ResultFile | ResultStream
    defaults: Mapping[str, Any]
    ordered: bool = False
    done: int = 0
    failed: int = 0
    skipped: int = 0
    _rate: Rate = field(default_factory=Rate)
    _events: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    _running: dict[int, tuple[Line, RequestHandle]] = field(default_factory=dict)
    _results: dict[int, dict[str, Any]] = field(default_factory=dict)
    _order: deque[int] = field(default_factory=deque)
    _ids: set[int] = field(default_factory=set)

    def counts(self) -> str:
        """How many lines were answered, failed, and had their result from an earlier run."""
        return f"{self.done} done, {self.failed} failed, {self.skipped} done before"

    def interrupt(self, interrupted: Interrupted) -> None:
        """Start no more requests and end the running ones; may be called in a signal handler."""
        self._events.put(interrupted)

    def run(self, lines: InputLines, room: int, show: Show = lambda counts: None) -> int:
        """Answer every line; returns the exit status.

        It is 0, 1 where a line failed, or 128 + the number of the signal that ended the run early.
        room: how many lines may be in the engine, or wait to be written, at a time.
        """
        self.output.begin()
        lines.start(room, self._events.put)
        ended: Interrupted | None = None
        reading = True
        while reading or self._running:
            event = self._events.get()
            if isinstance(event, Interrupted):
                ended, reading = event, False
                note(f"{event}: {len(self._running)} requests are ended early", "warning")
                for _, handle in self._running.values():
                    handle.abort()
            elif isinstance(event, Exception):
                raise UsageError(f"the input cannot be read: {event}") from event
            elif isinstance(event, RawLine):
                if ended is None:
                    self._release(lines, self._start(event))
            elif event is None:
                reading = False
            else:
                number, output = event
                line, _ = self._running.pop(number)
                self._release(lines, self._write(line, _answer(line, output)))
                self._rate.add(output.metrics.num_generation_tokens)
            show(f"{self.done} done, {self.failed} failed, {self._rate.per_second:.1f} tokens/s")
        if ended is not None:
            return ended.status
        self.output.finish()
        return 1 if self.failed else 0

    def _release(self, lines: InputLines, count: int) -> None:
        for _ in range(count):
            lines.release()

    def _start(self, raw: RawLine) -> int:
        """Submit a line to the engine, or finish it; returns how many lines are finished now."""
        line = self._new_id(read_line(raw.number, raw.data, self.defaults))
        if self.output.is_done(line.number, line.digest):
            self.skipped += 1
            return 1
        if self.ordered:
            self._order.append(line.number)
        if line.error:
            return self._write(line, {"error": line.error})
        number, events = line.number, self._events
        handle = self.llm.submit(
            line.prompt, line.params, on_done=lambda output: events.put((number, output))
        )
        self._running[number] = line, handle
        return 0

    def _new_id(self, line: Line) -> Line:
        """The line itself, or one with an error if its id occurred before."""
        if line.id is None:
            return line
        key = int(digest_of(repr(line.id).encode())[:16], 16)
        if key in self._ids and not line.error:
            return replace(line, prompt=None, params=None, error=f"id {line.id!r} occurred before")
        self._ids.add(key)
        return line

    def _write(self, line: Line, record: dict[str, Any]) -> int:
        """Write a result, or keep it for its turn; returns how many results were written."""
        if "error" in record:
            self.failed += 1
            note(f"line {line.number} failed: {record['error']}", "error")
        else:
            self.done += 1
        own = {} if line.id is None else {"id": line.id}
        result = {"index": line.number, "digest": line.digest, **own, **record}
        if not self.ordered:
            self.output.write(result)
            return 1
        self._results[line.number] = result
        written = 0
        while self._order and self._order[0] in self._results:
            self.output.write(self._results.pop(self._order.popleft()))
            written += 1
        return written


def _answer(line: Line, output: RequestOutput) -> dict[str, Any]:
    """The record of a request that has ended."""
    prompt = {"prompt": line.prompt} if isinstance(line.prompt, str) else {}
    error = {"error": output.error} if output.error else {}
    return {**prompt, **outcome(output), "metrics": metrics_of(output), **error}
