"""`deepinfer bench NAME`: measures speed; prints a table, and writes all samples with --json."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepinfer.cli.options import MODEL_NAMES, Accelerator, Mode
from deepinfer.errors import UsageError

if TYPE_CHECKING:
    from deepinfer.backend.registry import Selected
    from deepinfer.bench import Measurements

NULL = "null"

app = typer.Typer(
    help="Measure speed: throughput, host, context, bandwidth, or all of them.",
    no_args_is_help=True,
)


def _writable(json: str | None) -> str | None:
    """UsageError, before anything is measured, for a file that cannot be written."""
    if json not in (None, "-") and not Path(json).parent.is_dir():
        raise UsageError(f"--json is {json}; {Path(json).parent} is no directory, make it first")
    return json


Models = Annotated[
    list[str] | None,
    typer.Option(
        *MODEL_NAMES,
        help="Checkpoint directory or Hub id; may be given again to compare; "
        "default: the random one of the package.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        *MODEL_NAMES, help="Checkpoint directory or Hub id; default: the random one of the package."
    ),
]
Numerics = Annotated[str, typer.Option(help="auto, ref or infer.")]
Compute = Annotated[str, typer.Option(help="bf16; fp32 or fp64 to debug.")]
Rounds = Annotated[
    int, typer.Option(help="Rounds in which the compared cases take turns; 4 or more.")
]
Threads = Annotated[
    int | None, typer.Option(help="Threads of torch on the host; default: torch's own.")
]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", help='File for every sample; "-" for stdout.', callback=_writable),
]


@app.command()
def throughput(
    model: Models = None,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 32,
    batch: Annotated[str, typer.Option(help="Sequences at the same time, such as 1,8.")] = "1,8",
    rounds: Rounds = 4,
    numerics: Numerics = "auto",
    compute: Compute = "bf16",
    threads: Threads = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    json: JsonFile = None,
) -> None:
    """Tokens per second of prompts and answers, by checkpoint and batch size."""
    from deepinfer.bench.rounds import parse_integers
    from deepinfer.bench.throughput import Throughput

    benchmark = Throughput(
        models=tuple(model or [None]),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        batches=parse_integers("--batch", batch),
        rounds=rounds,
        numerics=numerics,
        compute=compute,
    )
    _show([benchmark.run(_select(accelerator, mode, threads))], json)


@app.command()
def host(
    model: Model = None,
    sequences: Annotated[
        str, typer.Option(help="Running sequences, such as 1,64,256.")
    ] = "1,64,256",
    output: Annotated[
        str, typer.Option(help="tokens, text (decoded and sent on), or both.")
    ] = "tokens,text",
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 16,
    steps: Annotated[int, typer.Option(help="Decode steps of each round.")] = 50,
    rounds: Rounds = 4,
    clock: Annotated[
        str, typer.Option(help="wall, or cpu: without waiting for a busy machine.")
    ] = "wall",
    threads: Threads = None,
    accelerator: Annotated[
        str, typer.Option("--accelerator", help="Backend by name; null does no work.")
    ] = NULL,
    mode: Mode = None,
    json: JsonFile = None,
) -> None:
    """Time of a decode step on the host, by phase."""
    from deepinfer.bench.host import Host
    from deepinfer.bench.rounds import parse_integers

    benchmark = Host(
        model=model,
        sequences=parse_integers("--sequences", sequences),
        output=tuple(output.split(",")),
        prompt_tokens=prompt_tokens,
        steps=steps,
        rounds=rounds,
        clock=clock,
    )
    _show([benchmark.run(_select(accelerator, mode, threads))], json)


@app.command()
def context(
    model: Model = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Tokens in the cache, such as 1024,8192; default: up to 100000."),
    ] = None,
    rounds: Rounds = 4,
    numerics: Numerics = "auto",
    compute: Compute = "bf16",
    threads: Threads = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    json: JsonFile = None,
) -> None:
    """Time of a decode step by context length, beside the time of the index operators alone."""
    from deepinfer.bench.context import Context
    from deepinfer.bench.rounds import parse_integers

    benchmark = Context(
        model=model,
        lengths=None if lengths is None else parse_integers("--lengths", lengths),
        rounds=rounds,
        numerics=numerics,
        compute=compute,
    )
    _show([benchmark.run(_select(accelerator, mode, threads))], json)


@app.command()
def bandwidth(
    mib: Annotated[int, typer.Option(help="MiB of each of three arrays.")] = 256,
    threads: Annotated[
        str | None, typer.Option(help="Numbers of threads, such as 1,2; default: 1 and all.")
    ] = None,
    rounds: Rounds = 8,
    probe: Annotated[
        str, typer.Option(help="c (needs a compiler), numpy (an estimate), or auto.")
    ] = "auto",
    json: JsonFile = None,
) -> None:
    """Read and triad bandwidth of this machine's memory."""
    from deepinfer.bench.bandwidth import Bandwidth
    from deepinfer.bench.rounds import parse_integers

    counts = None if threads is None else parse_integers("--threads", threads)
    _show([Bandwidth(mib=mib, threads=counts, rounds=rounds, probe=probe).run()], json)


@app.command(name="all")
def run_all(
    model: Model = None,
    rounds: Rounds = 4,
    threads: Threads = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    json: JsonFile = None,
) -> None:
    """Every benchmark with its defaults: host with the null backend, the others with the chosen
    one.
    """
    from deepinfer.backend.registry import refuse_null
    from deepinfer.bench.bandwidth import Bandwidth
    from deepinfer.bench.context import Context
    from deepinfer.bench.host import Host
    from deepinfer.bench.throughput import Throughput

    measured = Throughput(models=(model,), rounds=rounds)
    beside = Host(model=model, rounds=rounds)
    grown = Context(model=model, rounds=rounds)
    memory = Bandwidth(rounds=rounds)
    selected = _select(accelerator, mode, threads)
    refuse_null(selected, None)  # before the others have run
    reports = [memory.run(), beside.run(_select(NULL, None, threads))]
    _show([*reports, measured.run(selected), grown.run(selected)], json)


def _select(accelerator: str | None, mode: str | None, threads: int | None) -> Selected:
    """Choose the backend and set the number of threads; may start the process again."""
    import torch

    from deepinfer.bench.rounds import check_least
    from deepinfer.cli.selection import choose

    if threads is not None:
        check_least("--threads", threads, 1)
    selected = choose(accelerator, mode)
    if threads is not None:
        torch.set_num_threads(threads)
    return selected


def _show(reports: Sequence[Measurements], json: str | None) -> None:
    """Print the tables and write the JSON, which is a list if there are several measurements.

    Tables go to stderr where the JSON goes to stdout.
    """
    from rich.console import Console

    from deepinfer.bench import render

    documents = [report.to_dict() for report in reports]
    console = Console(stderr=json == "-")
    for report in reports:
        console.print(render(report))
    if json is None:
        return
    text = json_module.dumps(documents[0] if len(documents) == 1 else documents, indent=1)
    if json == "-":
        print(text)
        return
    try:
        Path(json).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json is {json}, which cannot be written: {error.strerror}") from error
