"""`deepinfer conformance`: checks a backend, compares two reports, or dumps a case as files."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from deepinfer.cli.notes import errors_as_json
from deepinfer.cli.options import Json, Mode
from deepinfer.errors import UsageError
from deepinfer.settings import environment


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
        bool, typer.Option("--perf", help="Time the cases and compare with the device's limits.")
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", help="Compare two reports instead of running cases."),
    ] = None,
    json: Json = False,
) -> None:
    """Prove a backend: compare every operator with the reference, and check side effects."""
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
            flags += ["--limit", str(limit), *["--native"] * native, *["--perf"] * perf]
            flags += ["--operator", operator] if operator is not None else []
            flags += ["--case-file", case_file] if case_file is not None else []
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
