"""`deepinfer bench`: options reach the benchmarks; table and JSON go where they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Ended, Launch, install, launch, site

__all__ = ["install", "launch", "site"]

NULL_THROUGHPUT = (
    *("bench", "throughput", "--accelerator", "null", "--prompt-tokens", "3"),
    *("--output-tokens", "2", "--batch", "2,1"),
)


def test_json_on_stdout_and_the_table_on_stderr(launch: Launch, small_directory: Path) -> None:
    done = launch(*NULL_THROUGHPUT, "--model", str(small_directory), "--json", "-")
    document = json.loads(done.stdout)
    assert document["benchmark"] == "throughput"
    assert document["environment"]["command"].startswith("deepinfer bench throughput")
    assert document["settings"]["batches"] == [1, 2]
    assert document["environment"]["backend"]["name"] == "null"
    assert "deepinfer bench throughput" in done.stderr
    assert "tokens/s" in done.stderr


def test_json_file_and_the_table_on_stdout(
    launch: Launch, small_directory: Path, tmp_path: Path
) -> None:
    file = tmp_path / "host.json"
    done = launch(
        *("bench", "host", "--model", str(small_directory), "--sequences", "2", "--steps", "1"),
        *("--output", "tokens", "--prompt-tokens", "4", "--json", str(file)),
    )
    assert "schedule" in done.stdout
    settings = json.loads(file.read_text())["settings"]
    assert (settings["sequences"], settings["output"]) == ([2], ["tokens"])
    assert (settings["steps"], settings["prompt_tokens"], settings["rounds"]) == (1, 4, 4)


def test_models_given_twice_are_compared(launch: Launch, small_directory: Path) -> None:
    model = ("--model", str(small_directory))
    done = launch(*NULL_THROUGHPUT, *model, *model, "--json", "-")
    assert len(json.loads(done.stdout)["environment"]["checkpoints"]) == 2


def test_threads_are_set(launch: Launch, small_directory: Path) -> None:
    before = torch.get_num_threads()
    try:
        done = launch(
            *NULL_THROUGHPUT, "--model", str(small_directory), "--threads", "2", "--json", "-"
        )
    finally:
        torch.set_num_threads(before)
    assert json.loads(done.stdout)["environment"]["threads"] == 2


def test_bandwidth_options(launch: Launch) -> None:
    done = launch(
        *("bench", "bandwidth", "--mib", "1", "--rounds", "5", "--probe", "numpy"),
        *("--threads", "1", "--json", "-"),
    )
    document = json.loads(done.stdout)
    assert document["settings"] == {"mib": 1, "threads": [1], "rounds": 5, "probe": "numpy"}
    assert document["environment"]["backend"] is None


def refused(done: Ended, message: str) -> bool:
    return done.returncode == 2 and done.stdout == "" and message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("throughput", "--batch", "x"), "--batch is 'x'"),
        (("throughput", "--threads", "0"), "--threads is 0"),
        (("host", "--output", "sound"), "--output is 'sound'"),
        (("context", "--lengths", "0"), "--lengths is 0"),
        (("context", "--lengths", "8,9", "--accelerator", "null"), "computes nothing"),
        (("context", "--mode", "none"), "has no mode 'none'"),
        (("bandwidth", "--probe", "asm"), "--probe is 'asm'"),
        (("all", "--rounds", "1"), "--rounds is 1"),
        (("all", "--accelerator", "null"), "computes nothing"),
        (("bandwidth", "--json", "/no/such/file"), "/no/such is no directory"),
    ],
)
def test_wrong_options_end_with_status_2(
    launch: Launch, arguments: tuple[str, ...], message: str
) -> None:
    assert refused(launch("bench", *arguments), message)


def test_all_runs_every_benchmark(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.bench import Measurements
    from deepinfer.bench.bandwidth import Bandwidth
    from deepinfer.bench.context import Context
    from deepinfer.bench.environment import describe, finish
    from deepinfer.bench.host import Host
    from deepinfer.bench.throughput import Throughput

    for kind in (Throughput, Host, Context, Bandwidth):

        def run(
            benchmark: object, selected: object = None, name: str = kind.__name__
        ) -> Measurements:
            backend = getattr(getattr(selected, "spec", None), "name", "")
            report = Measurements(
                name, {"backend": backend, "rounds": benchmark.rounds}, describe(None)
            )  # type: ignore[attr-defined]
            finish(report.environment)
            return report

        monkeypatch.setattr(kind, "run", run)
    done = launch("bench", "all", "--rounds", "6", "--json", "-")
    documents = json.loads(done.stdout)
    assert [(d["benchmark"], d["settings"]["backend"]) for d in documents] == [
        ("Bandwidth", ""),
        ("Host", "null"),
        ("Throughput", "reference"),
        ("Context", "reference"),
    ]
    assert {document["settings"]["rounds"] for document in documents} == {6}
