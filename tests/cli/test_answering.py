"""`InputRun` and `AnswerPrinter`: windows, order, ids and interruptions.

The text interface is a fake that is told when to answer.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli.generate import InputRun
from deepinfer.cli.input_lines import InputLines, RawLine
from deepinfer.cli.interruption import Interrupted
from deepinfer.cli.results import ResultFile
from deepinfer.cli.run import AnswerPrinter
from deepinfer.engine import SamplingParams
from tests.cli.fakes import FakeHandle, FakeLLM

TERM = Interrupted(signal.SIGTERM)
Answer = Callable[[FakeHandle], None]


class Run:
    """One `InputRun` over some lines: its status, its records, the requests it made."""

    def __init__(
        self,
        folder: Path,
        lines: list[Any],
        on_submit: Callable[[Run, FakeHandle], None],
        room: int = 4,
        ordered: bool = False,
        resume: bool = False,
    ) -> None:
        source, self.out = folder / "in.jsonl", folder / "out.jsonl"
        source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        self.llm = FakeLLM(lambda handle: on_submit(self, handle))
        output = ResultFile(self.out, resume=resume, overwrite=not resume)
        self.input_run = InputRun(self.llm, output, {}, ordered)  # type: ignore[arg-type]
        lines_in = InputLines(str(source))
        self.shown: list[str] = []
        try:
            self.status = self.input_run.run(lines_in, room, self.shown.append)
        finally:
            lines_in.close()
            output.close()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]


def prompts(count: int) -> list[Any]:
    return [{"prompt": f"p{number}"} for number in range(1, count + 1)]


def at_once(run: Run, handle: FakeHandle) -> None:
    handle.end()


def when_full(room: int) -> Callable[[Run, FakeHandle], None]:
    """End the latest of `room` requests as soon as there are so many, and at the end the rest."""

    def answer(run: Run, handle: FakeHandle) -> None:
        running = [one for one in run.llm.handles if not one.ended]
        if len(running) == room or handle.prompt == "end":
            for one in reversed(running):
                one.end(text=one.prompt)

    return answer


def test_a_record_of_a_request(tmp_path: Path) -> None:
    run = Run(tmp_path, [{"id": "a", "prompt": "x"}], at_once)
    (record,) = run.records
    assert run.status == 0
    assert len(record.pop("digest")) == 32
    assert set(record.pop("metrics")) == {
        "queue_time",
        "time_to_first_token",
        "inter_token_latency",
        "total",
    }
    assert record == {
        "index": 1,
        "id": "a",
        "prompt": "x",
        "text": "text",
        "token_ids": [1, 2],
        "finish_reason": "stop",
        "stop_reason": None,
        "prompt_tokens": 1,
    }
    assert run.shown[-1].startswith("1 done, 0 failed, ")


@pytest.mark.parametrize("ordered", [False, True])
def test_no_more_requests_than_there_is_room_for(tmp_path: Path, ordered: bool) -> None:
    lines = [*prompts(20), {"prompt": "end"}]
    run = Run(tmp_path, lines, when_full(3), room=3, ordered=ordered)
    numbers = [record["index"] for record in run.records]
    assert run.llm.most_running == 3
    assert sorted(numbers) == list(range(1, 22))
    assert (numbers == sorted(numbers)) == ordered


class Scripted:
    """An input whose lines are all there; counts how many were dealt with."""

    released = 0

    def start(self, room: int, put: Callable[[RawLine | None], None]) -> None:
        for number in (1, 2, 3):
            put(RawLine(number, json.dumps({"prompt": f"p{number}"}).encode()))
        put(None)

    def release(self) -> None:
        self.released += 1


@pytest.mark.parametrize("ordered", [False, True])
def test_results_take_room_until_they_are_written(tmp_path: Path, ordered: bool) -> None:
    def answer(handle: FakeHandle) -> None:
        if handle.prompt == "p3":
            for one in (handle, llm.handles[1], llm.handles[0]):
                one.end()

    llm, lines, out = FakeLLM(answer), Scripted(), tmp_path / "out"
    output = ResultFile(out, resume=False, overwrite=False)
    seen: list[tuple[int, int]] = []

    def show(counts: str) -> None:
        seen.append((lines.released, out.read_bytes().count(b"\n")))

    input_run = InputRun(llm, output, {}, ordered)  # type: ignore[arg-type]
    assert input_run.run(lines, 3, show) == 0  # type: ignore[arg-type]
    output.close()
    assert all(released == written for released, written in seen)
    assert [written for _, written in seen][-3:] == ([0, 0, 3] if ordered else [1, 2, 3])


def test_a_failed_request_costs_that_line(tmp_path: Path) -> None:
    def answer(run: Run, handle: FakeHandle) -> None:
        handle.end("error", "", "no" if handle.prompt == "p2" else "")

    run = Run(tmp_path, prompts(3), answer)
    assert run.status == 1
    assert (run.input_run.done, run.input_run.failed) == (2, 1)
    assert [record.get("error") for record in run.records] == [None, "no", None]


def test_an_interruption_ends_what_runs_and_begins_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(run: Run, handle: FakeHandle) -> None:
        if handle.prompt == "p1":
            handle.end()
        if handle.prompt == "p3":
            run.input_run.interrupt(TERM)

    run = Run(tmp_path, prompts(9), answer, room=3)
    reasons = [record["finish_reason"] for record in run.records]
    assert run.status == 143
    assert (reasons[0], set(reasons[1:])) == ("stop", {"abort"})
    assert run.records[1]["text"] == "cut"
    assert len(run.llm.handles) < 9
    assert "requests are ended early" in capsys.readouterr().err
    again = Run(tmp_path, prompts(9), at_once, resume=True)
    assert (again.status, again.input_run.skipped) == (0, 1)
    assert sorted(record["index"] for record in again.records) == list(range(1, 10))
    assert {record["finish_reason"] for record in again.records} == {"stop"}


def test_an_interruption_keeps_the_order(tmp_path: Path) -> None:
    def answer(run: Run, handle: FakeHandle) -> None:
        if handle.prompt == "p3":
            handle.end()
            run.input_run.interrupt(TERM)

    run = Run(tmp_path, prompts(3), answer, ordered=True)
    assert [r["finish_reason"] for r in run.records] == ["abort", "abort", "stop"]


def test_an_id_that_occurs_twice_is_refused_in_later_runs_too(tmp_path: Path) -> None:
    lines = [{"id": 1, "prompt": "x"}, {"id": "1", "prompt": "y"}, {"id": 1, "prompt": "z"}]
    first = Run(tmp_path, lines, at_once)
    again = Run(tmp_path, lines, at_once, resume=True)
    for run, requests in ((first, 2), (again, 0)):
        assert (run.status, len(run.llm.handles)) == (1, requests)
        assert [record.get("error") for record in run.records] == [
            None,
            None,
            "id 1 occurred before",
        ]


def test_a_changed_line_is_computed_again(tmp_path: Path) -> None:
    Run(tmp_path, prompts(3), at_once)
    lines = [*prompts(1), {"prompt": "new"}]
    run = Run(tmp_path, lines, at_once, resume=True)
    assert [handle.prompt for handle in run.llm.handles] == ["new"]
    assert [record["prompt"] for record in run.records] == ["p1", "new"]


def printer(llm: FakeLLM, **more: Any) -> AnswerPrinter:
    return AnswerPrinter(llm, SamplingParams(), **more)  # type: ignore[arg-type]


def test_answers_are_printed_in_order_and_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    def talk(handle: FakeHandle) -> None:
        if handle.prompt == "b":
            first, second = llm.handles
            second.say("b1 ")
            first.say("a1 ")
            second.end()
            first.say("a2")
            first.end()
        if handle.prompt == "c":
            printed.append(capsys.readouterr().out)
            handle.say("c1")
            handle.end()

    llm = FakeLLM(talk)
    assert printer(llm).answer(["a", "b", "c"], room=2) == 0
    assert printed == ["> a\na1 a2\n> b\nb1 \n"]
    assert capsys.readouterr().out == "> c\nc1\n"
    assert llm.most_running == 2


def test_an_interruption_prints_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    def talk(handle: FakeHandle) -> None:
        handle.say(f"{handle.prompt}1")
        if handle.prompt == "b":
            running.interrupt(TERM)

    running = printer(FakeLLM(talk))
    assert running.answer(["a", "b", "c", "d"], room=2) == 143
    done = capsys.readouterr()
    assert done.out == "> a\na1\n> b\nb1\n"
    assert "SIGTERM: 2 requests" in done.err


def test_lines_of_json_have_partial_answers_too(capsys: pytest.CaptureFixture[str]) -> None:
    llm = FakeLLM(lambda handle: running.interrupt(TERM))
    running = printer(llm, json=True)
    assert running.answer(["a"], room=2) == 143
    (record,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (record["index"], record["text"], record["finish_reason"]) == (0, "cut", "abort")
