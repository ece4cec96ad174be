"""`deepinfer generate`: a file of prompts in, a file of results out, one JSON object a line.

At most `WINDOW` times max_num_seqs requests are in the engine; the input is read as they end, so it
may be of any length. A wrong line costs that line.
"""

from __future__ import annotations

import io
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from deepinfer.checkpoint.progress import progress_bar
from deepinfer.cli.flags import Given, with_engine_flags
from deepinfer.cli.interruption import DEFAULT_GRACE, Interrupted, interruptible
from deepinfer.cli.main import Accelerator, AllowNull, Grace, Mode, Progress, invoke
from deepinfer.cli.notes import note
from deepinfer.cli.records import Line, ResultFile, Stream, digest_of, read_line
from deepinfer.cli.run import sample_record
from deepinfer.cli.selection import choose
from deepinfer.cli.session import note_summary, open_llm
from deepinfer.engine.llm import LLM, RequestHandle
from deepinfer.engine.outputs import RequestMetrics, RequestOutput
from deepinfer.errors import UsageError

STDIO = "-"
WINDOW = 2


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@with_engine_flags
def generate(
    given: Given,
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help='JSON lines of prompts; "-" for stdin.')
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help='File of results; "-" for stdout.')
    ] = STDIO,
    resume: Annotated[bool, typer.Option("--resume", help="Skip what the output has.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Results in the order of the lines.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--model_name",
            "--model-name",
            help="Checkpoint directory or Hub id; default: DEEPINFER_HF_MODEL_DIR, else bundled.",
        ),
    ] = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a Hub id.")] = None,
    grace: Grace = DEFAULT_GRACE,
    allow_null: AllowNull = False,
    progress: Progress = True,
) -> None:
    """Answer a file of prompts: one JSON object a line, in and out.

    A line has one of prompt (a text), prompt_token_ids and messages, and optionally id and sampling
    parameters by name, which win over the flags. A line that is wrong costs that line: its result
    says why, and the status is 1 at the end.
    """
    given.params({})  # refuse wrong flags before anything is loaded
    options = given.options()
    selected = choose(accelerator, mode)
    with interruptible(grace):
        try:
            with (
                open_input(source) as lines,
                closing(open_output(output, resume=resume, overwrite=overwrite)) as results,
                open_llm(
                    model, revision, selected, options, allow_null=allow_null, progress=progress
                ) as llm,
            ):
                batch = Batch(llm, results, given.sampling, ordered)
                status = batch.run(lines, progress)
                note(f"{batch.done} done, {batch.failed} failed, {batch.skipped} done before")
                note_summary(llm)
        except Interrupted as interrupted:
            note(f"{interrupted}: ended before anything ran", "warning")
            status = interrupted.status
    raise typer.Exit(status)


def main(arguments: Sequence[str]) -> int:
    """Run the command on the arguments; returns the exit status."""
    return invoke(app, list(arguments), "deepinfer generate")


def open_input(name: str) -> IO[bytes]:
    """The input file, or stdin for "-"; UsageError where it cannot be read."""
    try:
        if name == STDIO:
            return sys.stdin.buffer if hasattr(sys.stdin, "buffer") else io.BytesIO()
        return open(name, "rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"input {name!r} cannot be read: {reason}") from error


def open_output(name: str, *, resume: bool, overwrite: bool) -> ResultFile | Stream:
    """The file of results, or stdout for "-"."""
    if name != STDIO:
        return ResultFile(Path(name), resume=resume, overwrite=overwrite)
    if resume or overwrite:
        raise UsageError("--resume and --overwrite need a file of results; name one with --output")
    return Stream(sys.stdout)


@dataclass
class Batch:
    """One run over an input. ordered: results in the order of the lines."""

    llm: LLM
    output: ResultFile | Stream
    defaults: Mapping[str, Any]
    ordered: bool = False
    done: int = 0
    failed: int = 0
    skipped: int = 0
    _events: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    _running: dict[int, tuple[Line, RequestHandle]] = field(default_factory=dict)
    _waiting: dict[int, dict[str, Any]] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    _ids: set[Any] = field(default_factory=set)

    def run(self, source: IO[bytes], progress: bool = True) -> int:
        """Answer every line: 0, 1 where one failed, or 128 + a signal that ended it early."""
        room = threading.Semaphore(WINDOW * self.llm.engine.limits.max_num_seqs)
        reader = threading.Thread(
            target=self._read, args=(source, room), name="deepinfer-input", daemon=True
        )
        with progress_bar("lines", None, enabled=progress) as advance:
            try:
                reader.start()
                self._work(room, advance)
            except Interrupted as interrupted:
                note(f"{interrupted}: {len(self._running)} requests are ended early", "warning")
                self._end_early()
                return interrupted.status
        return 1 if self.failed else 0

    def _read(self, source: IO[bytes], room: threading.Semaphore) -> None:
        """Put the input's lines into the queue, as many as there is room for."""
        try:
            for number, data in enumerate(source, 1):
                if data.strip():
                    room.acquire()
                    self._events.put((number, data))
            self._events.put(None)
        except Exception as error:
            self._events.put(error)

    def _work(self, room: threading.Semaphore, advance: Any) -> None:
        reading = True
        while reading or self._running:
            event = self._events.get()
            if event is None:
                reading = False
            elif isinstance(event, Exception):
                raise UsageError(f"the input cannot be read: {event}") from event
            elif isinstance(event[1], bytes):
                if not self._start(*event):
                    room.release()
                    advance(1)
            else:
                line, _ = self._running.pop(event[0])
                self._finish(line, event[1])
                room.release()
                advance(1)

    def _start(self, number: int, data: bytes) -> bool:
        """Submit a line; False when it needs no request: done before, or wrong."""
        if self.output.is_done(number, digest_of(data)):
            self.skipped += 1
            return False
        line = read_line(number, data, self.defaults)
        if not line.error and line.id is not None and line.id in self._ids:
            line = Line(number, line.digest, line.id, error=f"id {line.id!r} occurred before")
        self._ids.add(line.id)
        if self.ordered:
            self._order.append(number)
        if line.error:
            self._write(line, {"error": line.error})
            return False
        events = self._events
        handle = self.llm.submit(
            line.prompt, line.params, on_done=lambda output: events.put((number, output))
        )
        self._running[number] = line, handle
        return True

    def _finish(self, line: Line, output: RequestOutput) -> None:
        if output.error:
            self._write(line, {"error": output.error, **_outcome(output)})
        else:
            self._write(line, _outcome(output))

    def _write(self, line: Line, record: dict[str, Any]) -> None:
        """Write a result, or keep it until those before it are there."""
        if "error" in record:
            self.failed += 1
            note(f"line {line.number} failed: {record['error']}", "error")
        else:
            self.done += 1
        own = {} if line.id is None else {"id": line.id}
        result = {"line": line.number, "input": line.digest, **own, **record}
        if not self.ordered:
            self.output.write(result)
            return
        self._waiting[line.number] = result
        while self._order and self._order[0] in self._waiting:
            self.output.write(self._waiting.pop(self._order.pop(0)))

    def _end_early(self) -> None:
        """Abort what runs and write what there is of it."""
        running, self._running = self._running, {}
        for _, handle in running.values():
            handle.abort()
        for line, handle in running.values():
            self._finish(line, handle.result())


def _outcome(output: RequestOutput) -> dict[str, Any]:
    """A finished request as plain values."""
    record = sample_record(output.outputs[0])
    if len(output.outputs) > 1:
        record["outputs"] = [sample_record(one) for one in output.outputs]
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [one and one.raw for one in output.prompt_logprobs]
    metrics: RequestMetrics = output.metrics
    record["prompt_tokens"] = metrics.num_prompt_tokens
    record["metrics"] = {
        "queue_time": metrics.queue_time,
        "time_to_first_token": metrics.time_to_first_token,
        "inter_token_latency": metrics.inter_token_latency,
        "total": metrics.total,
    }
    return record
