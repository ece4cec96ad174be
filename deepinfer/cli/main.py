"""`deepinfer`: the command and its subcommands."""

from __future__ import annotations

import itertools
import json as json_module
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from deepinfer.cli import bench
from deepinfer.cli.notes import errors_as_json, in_json, note
from deepinfer.errors import UsageError
from deepinfer.settings import environment

app = typer.Typer(
    help="Run DeepSeek-V4.1 on any accelerator.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")

Accelerator = Annotated[
    str | None,
    typer.Option("--accelerator", help="Backend by name; default: DEEPINFER_ACCELERATOR."),
]
Mode = Annotated[str | None, typer.Option("--mode", help="Mode of the backend.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Grace = Annotated[
    float, typer.Option("--grace", help="Seconds that a signal leaves for partial results.")
]
AllowNull = Annotated[
    bool,
    typer.Option(
        "--allow_null/--no_allow_null",
        "--allow-null/--no-allow-null",
        help="Accept a backend that computes nothing.",
    ),
]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Bars on a terminal.")]


@app.command()
def backends(
    checkpoint: Annotated[
        str | None, typer.Argument(help="Checkpoint directory or Hub id: who would run its model.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a Hub id.")] = None,
    json: Json = False,
) -> None:
    """List installed backends: usable or why not, modes, contract versions.

    With a checkpoint, of which only headers are read, also who would run each operator of its
    model, in every mode that can be asked here.
    """
    from deepinfer.cli.backends import backend_rows, render

    skip = environment.names(environment.SKIP_BACKENDS)
    if checkpoint is None:
        if revision is not None:
            raise UsageError("--revision names a revision of a Hub id; give the id as CHECKPOINT")
        rows = backend_rows(skip)
    else:
        from deepinfer.checkpoint import Checkpoint

        with Checkpoint.open(checkpoint, revision=revision) as opened:
            rows = backend_rows(skip, opened)
    print(json_module.dumps(rows, indent=2) if json else render(rows))


@app.command()
def env(json: Json = False) -> None:
    """List every environment variable: value, origin, owner, status, effect.

    Ends with status 2 when a run would be refused for some value.
    """
    from deepinfer.cli.env import as_json, list_environment, render

    listing = list_environment()
    print(as_json(listing) if json else render(listing))
    for level, remark in listing.remarks():
        note(remark, level)
    raise typer.Exit(UsageError.exit_code if listing.refused else 0)


@app.command()
def inspect(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint directory or Hub id.")],
    batch: Annotated[int, typer.Option(help="Sequences of the memory plan.")] = 1,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens per sequence of the memory plan; default: 4096, or fewer where the model "
            "has fewer."
        ),
    ] = None,
    calls: Annotated[bool, typer.Option("--calls", help="List the operator calls.")] = False,
    numerics: Annotated[str, typer.Option(help="auto, ref or infer: of the calls.")] = "auto",
    compute: Annotated[str, typer.Option(help="bf16, fp32 or fp64: of the calls.")] = "bf16",
    accelerator: Accelerator = None,
    mode: Mode = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a Hub id.")] = None,
    json: Json = False,
) -> None:
    """What a checkpoint holds and what it takes to run it; reads headers only."""
    from deepinfer.checkpoint import Checkpoint
    from deepinfer.cli.inspect import Section, plan_length, run
    from deepinfer.cli.requirements import backend_section, calls_section, checkpoint_calls
    from deepinfer.cli.selection import choose
    from deepinfer.engine import EngineOptions

    options = EngineOptions(
        numerics=numerics,
        compute=compute,
        max_num_seqs=max(batch, 1),
    )
    selected = choose(accelerator, mode, require=False)

    def extra(opened: Checkpoint) -> list[Section]:
        sized = replace(options, max_model_len=plan_length(opened, length))
        listed = checkpoint_calls(opened, sized, sized.numerics_for(opened.config))
        sections = [backend_section(selected, opened, listed)]
        return [*sections, calls_section(listed)] if calls else sections

    print(run(checkpoint, batch=batch, length=length, revision=revision, json=json, extra=extra))


@app.command()
def golden(
    directory: Annotated[
        str | None,
        typer.Argument(help="Directory laid out like the golden data; or DEEPINFER_GOLDEN_DIR."),
    ] = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    compute: Annotated[
        str | None, typer.Option("--compute", help="fp32 or bf16; default: both.")
    ] = None,
    require: Annotated[
        str | None, typer.Option("--require", help='"all": uncovered items count as failed.')
    ] = None,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Compare a backend with stored numbers of an independent implementation."""
    from deepinfer.cli.progress import counting
    from deepinfer.cli.selection import choose
    from deepinfer.conformance.golden import COMPUTES, Item, run_golden

    if require not in (None, "all"):
        raise UsageError(f'--require is {require!r}; allowed: "all"')
    directory = directory or environment.text(environment.GOLDEN_DIRECTORY)
    if directory is None:
        raise UsageError(f"no directory; give DIR or set {environment.GOLDEN_DIRECTORY}")
    selected = choose(accelerator, mode)
    watched = progress and (json or not sys.stdout.isatty())  # else the comparisons are printed
    with counting("golden", enabled=watched) as show:
        ended = itertools.count(1)

        def on_item(item: Item) -> None:
            show(f"{next(ended)} comparisons")
            if not json:
                print(item, flush=True)

        report = run_golden(
            directory,
            selected,
            (compute,) if compute else COMPUTES,
            require_all=require == "all",
            strict=environment.flag(environment.STRICT_OPERATORS),
            on_item=on_item,
        )
    if json:
        document = {
            "accelerator": selected.spec.name,
            "mode": selected.mode.name,
            "items": [item.to_dict() for item in report.items],
            "summary": dict(
                zip(("covered", "failed", "not_covered"), report.counts(), strict=True)
            ),
        }
        print(json_module.dumps(document, indent=2))
    else:
        print(report.summary())
    raise typer.Exit(report.exit_code)


@app.command()
def conformance(
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator", help='Backend by name, or "all"; default: DEEPINFER_ACCELERATOR.'
        ),
    ] = None,
    mode: Mode = None,
    profile: Annotated[str, typer.Option(help="Which operators: core, full, ...")] = "core",
    tier: Annotated[str, typer.Option(help="quick, full or soak.")] = "quick",
    native: Annotated[
        bool, typer.Option("--native", help="The profile's key operators must be native too.")
    ] = False,
    operator: Annotated[
        str | None, typer.Option("--operator", help="Only operators whose name fits a pattern.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Only this case, by id; repeatable.")
    ] = None,
    case_file: Annotated[
        str | None,
        typer.Option(
            "--case-file", help="The calls of a model: a file of `inspect --calls --json`."
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", help="Directory for report.json and report.html.")
    ] = None,
    dump: Annotated[
        str | None, typer.Option("--dump", help="Write the inputs and outputs of --case there.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", help="Processes; 0 runs without isolation.")
    ] = 1,
    limit: Annotated[float, typer.Option("--limit", help="Seconds that a case may take.")] = 120.0,
    perf: Annotated[
        bool, typer.Option("--perf", help="Time the cases; hold them against the device's limits.")
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", help="Two reports: say what changed, run nothing."),
    ] = None,
    json: Json = False,
) -> None:
    """Prove a backend: every operator against the reference, with all that must hold beside."""
    from deepinfer.checkpoint.progress import progress_bar
    from deepinfer.cli.selection import choose
    from deepinfer.conformance import command

    with errors_as_json(json):
        ids = tuple(case or ())
        every = (accelerator or environment.text(environment.ACCELERATOR)) == command.ALL
        command.refuse_together(
            {
                "--accelerator": accelerator is not None,
                "--mode": mode is not None,
                "--case": bool(ids) and compare is not None,
                "--case-file": case_file is not None,
                "--operator": operator is not None,
                "--native": native,
                "--perf": perf,
                "--report": report is not None,
                "--dump": dump is not None,
                "--compare": compare is not None,
            }
        )
        if compare is not None:
            text, same = command.compare(*compare)
            document = {"same": same, "lines": text.splitlines()}
            print(json_module.dumps(document, indent=1) if json else text)
            raise typer.Exit(0 if same else 1)
        if not limit > 0:
            raise UsageError(f"limit is {limit:g}; allowed: seconds above 0")
        command.tier_named(tier)
        command.profile_named(profile)
        if every:
            if mode is not None or dump is not None:
                given = "--mode" if mode is not None else "--dump"
                raise UsageError(f"{given} is of one backend; with --accelerator all name none")
            flags = ["--profile", profile, "--tier", tier, "--workers", str(workers)]
            flags += ["--limit", str(limit), *(["--native"] if native else [])]
            flags += ["--operator", operator] if operator is not None else []
            flags += ["--case-file", case_file] if case_file is not None else []
            flags += ["--perf"] if perf else []
            flags += [part for one in ids for part in ("--case", one)]
            skip = environment.names(environment.SKIP_BACKENDS)
            rows, text = command.run_all(flags, skip, report)
            print(json_module.dumps(rows, indent=2) if json else text)
            raise typer.Exit(1 if any(row["result"] in ("failed", "error") for row in rows) else 0)
        chosen = choose(accelerator, mode)
        if dump is not None:
            folders = [str(folder) for folder in command.dump(chosen, ids, dump)]
            print(json_module.dumps(folders, indent=1) if json else "\n".join(folders))
            return
        with progress_bar("cases", None, enabled=not json) as advance:
            result = command.run(
                chosen,
                profile=profile,
                tier=tier,
                pattern=operator,
                ids=ids,
                case_file=case_file,
                workers=workers,
                limit=limit,
                perf=perf,
                directory=report,
                on_verdict=lambda verdict: advance(1),
            )
        print(
            json_module.dumps(result.to_dict(), indent=1) if json else command.terminal_text(result)
        )
        raise typer.Exit(0 if result.passed(native) else 1)


@app.command("new-backend")
def new_backend(
    name: Annotated[str, typer.Argument(help="Of the backend: a lower-case identifier.")],
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="For its project; absent or empty.")
    ],
) -> None:
    """Write the project of a new backend: installs as it is, one operator of its own."""
    from deepinfer.cli.new_backend import run as new_backend_run

    print(new_backend_run(name, directory))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def run(context: typer.Context) -> None:
    """Answer prompts; the same as run.py, with the same flags (--help lists them)."""
    from deepinfer.cli.run import main as run_main

    raise typer.Exit(run_main(context.args))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def generate(context: typer.Context) -> None:
    """Answer a file of prompts, one JSON object a line, in and out (--help lists the flags)."""
    from deepinfer.cli.generate import main as generate_main

    raise typer.Exit(generate_main(context.args))


@app.command(
    "eval",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def evaluate(context: typer.Context) -> None:
    """Measure what a checkpoint knows: accuracy and perplexity on held-out data."""
    from deepinfer.cli.evaluate import main as evaluate_main

    raise typer.Exit(evaluate_main(context.args))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status. DeepInferError is left to the launcher."""
    return invoke(app, arguments, "deepinfer")


def invoke(application: typer.Typer, arguments: list[str] | None, name: str) -> int:
    """Run a typer application without letting it end the process: the exit status.

    Usage errors are printed by typer, or noted where notes are JSON; a DeepInferError and a closed
    pipe are left to the launcher.
    """
    status: object = 0
    command = typer.main.get_command(application)
    try:
        if in_json():
            status = _noted(command, arguments, name)
        else:
            command.main(args=arguments, prog_name=name)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        status = stop.code
    sys.stdout.flush()
    return status if isinstance(status, int) else int(status is not None)


def _noted(command: Any, arguments: list[str] | None, name: str) -> object:
    """Run a command whose usage errors are notes; the exit status."""
    try:
        return command.main(args=arguments, prog_name=name, standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's usage errors have one
            raise
        note(error.format_message(), "error")
        return getattr(error, "exit_code", UsageError.exit_code)
