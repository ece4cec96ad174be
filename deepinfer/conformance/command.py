"""The body of `deepinfer conformance`: run the suite, write reports, compare them, dump cases."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from deepinfer.backend.registry import Selected, discover
from deepinfer.conformance.call_cases import cases_of_file
from deepinfer.conformance.case import Tier, Verdict
from deepinfer.conformance.document import SuiteReport, read_report
from deepinfer.conformance.dump import dump_case
from deepinfer.conformance.profiles import profile_named
from deepinfer.conformance.registry import asked
from deepinfer.conformance.report import compare_reports, page, terminal_text
from deepinfer.conformance.run import run_suite
from deepinfer.conformance.subject import Subject
from deepinfer.errors import UsageError

ALL = "all"
REPORT_JSON, REPORT_HTML = "report.json", "report.html"


def tier_named(name: str) -> Tier:
    """The tier; UsageError for a name that is none."""
    if name not in list(Tier):
        raise UsageError(f"tier is {name!r}; allowed: {', '.join(Tier)}")
    return Tier(name)


def run(
    chosen: Selected,
    *,
    profile: str = "core",
    tier: str = "quick",
    pattern: str | None = None,
    ids: tuple[str, ...] = (),
    case_file: str | None = None,
    workers: int = 1,
    limit: float,
    perf: bool = False,
    directory: str | None = None,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
) -> SuiteReport:
    """Run the suite on one backend in one mode; writes the report where a directory is named.

    The directory is made before anything runs, so that a long run does not end without a report.
    """
    if directory is not None:
        prepare_directory(directory, "report")
    ids = chosen_ids(ids, case_file, profile, tier, pattern)
    report = run_suite(
        chosen,
        profile_named(profile),
        tier_named(tier),
        pattern=pattern,
        ids=ids,
        workers=workers,
        limit=limit,
        perf=perf,
        on_verdict=on_verdict,
    )
    if directory is not None:
        write_report(report, Path(directory))
    return report


def chosen_ids(
    ids: Iterable[str], case_file: str | None, profile: str, tier: str, pattern: str | None
) -> tuple[str, ...]:
    """Ids of the cases that were named, or of those of a file of calls; () where neither was given.

    UsageError for named cases together with a pattern of operators, which would leave none of them.
    """
    ids = tuple(ids)
    if case_file is not None:
        return (*ids, *chosen_from(case_file, profile, tier, pattern))
    if ids and pattern is not None:
        raise UsageError("--case names cases and --operator chooses operators; use one of the two")
    return ids


def chosen_from(
    case_file: str, profile: str, tier: str, pattern: str | None = None
) -> tuple[str, ...]:
    """Ids of the cases of a file of calls, of the operators of a profile and of a pattern.

    UsageError where none is left.
    """
    wanted = profile_named(profile).operators
    ids = tuple(
        case.id
        for case in cases_of_file(case_file, tier_named(tier))
        if case.operator in wanted and fnmatch.fnmatch(case.operator, pattern or "*")
    )
    if not ids:
        raise UsageError(
            f"case file {case_file!r} has no call of an operator of profile {profile}"
            + (f" named like {pattern!r}" if pattern else "")
        )
    return ids


def prepare_directory(directory: str, what: str) -> None:
    """Make a directory; UsageError where it cannot be made or written.

    what: what the directory is for, in the message.
    """
    wrong = f"{what} directory {directory!r} cannot be written: "
    if not directory:
        raise UsageError(f"{wrong}the name is empty; name one that exists or can be made")
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except FileExistsError:
        raise UsageError(f"{wrong}it is a file; name another") from None
    except OSError as error:
        raise UsageError(f"{wrong}{error.strerror}; name another") from None
    except ValueError as error:
        raise UsageError(f"{wrong}{error}; name another") from None


def write_report(report: SuiteReport, directory: Path) -> None:
    """Write report.json and report.html into a directory, which is made if it is not there.

    UsageError where they cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / REPORT_JSON).write_text(json.dumps(report.to_dict(), indent=1) + "\n")
        html = page(report).encode("utf-8", "backslashreplace")
        (directory / REPORT_HTML).write_bytes(html)
    except OSError as error:
        raise UsageError(
            f"report directory {str(directory)!r} cannot be written: {error.strerror}"
        ) from error


def compare(first: str, second: str) -> tuple[str, bool]:
    """Two reports compared: the text, and whether nothing got worse."""
    return compare_reports(read_report(first), read_report(second))


def dump(chosen: Selected, ids: tuple[str, ...], directory: str) -> list[Path]:
    """Write inputs, expected and got of cases, with a script that replays each."""
    if not ids:
        raise UsageError("--dump needs the cases that are written: name them with --case")
    prepare_directory(directory, "dump")
    subject = Subject.load(chosen)
    return [dump_case(asked(text), subject, Path(directory)) for text in ids]


def run_all(
    arguments: list[str], skip: Iterable[str], directory: str | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Run the suite on every usable backend and mode, each in a process of its own.

    arguments: flags of the command for each run. directory: for reports, each in a folder
    ACCELERATOR-MODE. Returns one record per backend and mode, and the matrix as text. A backend
    that computes nothing is left out, and the text says so.
    """
    if directory is not None:
        prepare_directory(directory, "report")
    rows: list[dict[str, Any]] = []
    for backend in discover(skip):
        if backend.spec is None or not backend.usable:
            rows.append(_row(backend.name, "", "not usable", backend.reasons()))
        elif not backend.spec.computes:
            rows.append(_row(backend.name, "", "left out", "computes nothing"))
        else:
            for mode in backend.spec.modes:
                rows.append(_run_one(backend.name, mode.name, arguments, directory))
    width = max(len(f"{row['accelerator']} {row['mode']}") for row in rows) if rows else 0
    lines = [
        f"{row['accelerator'] + ' ' + row['mode']:<{width}}  {row['result']:<12} {row['detail']}"
        for row in rows
    ]
    return rows, "\n".join(lines)


def _run_one(
    accelerator: str, mode: str, arguments: list[str], directory: str | None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        kept = None if directory is None else Path(directory) / f"{accelerator}-{mode}"
        folder = Path(temporary) if kept is None else kept
        (folder / REPORT_JSON).unlink(missing_ok=True)  # one of an earlier run is not this run's
        command = [sys.executable, "-c", "import sys, deepinfer_launcher as d; sys.exit(d.main())"]
        done = subprocess.run(
            [
                *command,
                "conformance",
                "--accelerator",
                accelerator,
                "--mode",
                mode,
                "--report",
                str(folder),
                *arguments,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        path = folder / REPORT_JSON
        if not path.exists():
            lines = done.stderr.strip().splitlines()
            return _row(accelerator, mode, "error", lines[-1] if lines else f"{done.returncode}")
        document = read_report(path)
    result = "passed" if done.returncode == 0 else "failed"
    row = _row(accelerator, mode, result, document["claims"]["sentence"])
    return {**row, "counts": document["counts"]}


def _row(accelerator: str, mode: str, result: str, detail: str) -> dict[str, Any]:
    return {"accelerator": accelerator, "mode": mode, "result": result, "detail": detail}


def refuse_together(given: Mapping[str, bool]) -> None:
    """UsageError for flags that exclude each other. given: which flags were given.

    A flag that would have no effect is refused, not ignored.
    """
    others = {
        "--compare": set(given),
        "--dump": {"--report", "--case-file", "--operator", "--perf", "--native"},
    }
    for flag, excluded in others.items():
        wrong = [name for name in given if given[name] and name in excluded - {flag}]
        if given[flag] and wrong:
            raise UsageError(f"{flag} and {', '.join(wrong)} exclude each other; drop one")


__all__ = [
    "ALL",
    "compare",
    "dump",
    "profile_named",
    "refuse_together",
    "run",
    "run_all",
    "terminal_text",
    "tier_named",
]
