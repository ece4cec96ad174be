"""pytest plugin: `pytest --pyargs deepinfer.conformance --accelerator NAME`, one item per case.

Registered as a `pytest11` entry point, so it is imported by every pytest of the environment: it
imports neither torch nor a backend until its own items are collected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deepinfer.backend.registry import Selected
    from deepinfer.conformance.case import Verdict
    from deepinfer.conformance.registry import Check

GROUP = "deepinfer conformance"
SUITE = "deepinfer.conformance.test_suite"
TIME_LIMIT = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `deepinfer conformance`, with the same meaning."""
    add = parser.getgroup(GROUP).addoption
    add("--accelerator", default=None, help="backend by name")
    add("--mode", dest="deepinfer_mode", default=None, help="mode of the backend")
    add("--profile", dest="deepinfer_profile", default="core", help="which operators")
    add("--tier", dest="deepinfer_tier", default="quick", help="quick, full or soak")
    add("--operator", dest="deepinfer_operator", default=None, help="name pattern")
    add("--case", dest="deepinfer_cases", action="append", default=[], help="by id")
    add("--case-file", dest="deepinfer_case_file", default=None, help="calls of a model")
    add("--limit", dest="deepinfer_limit", type=float, default=TIME_LIMIT, help="seconds per case")
    add("--report", dest="deepinfer_report", default=None, help="directory for the report")
    add("--perf", dest="deepinfer_perf", action="store_true", help="time the cases")
    add(
        "--native",
        dest="deepinfer_native",
        action="store_true",
        help="the profile's key operators must be native too",
    )
    add(
        "--workers",
        dest="deepinfer_workers",
        type=int,
        default=1,
        help="1 runs every case in a worker process, 0 in pytest's own, for a debugger; "
        "for more at a time use -n of pytest-xdist",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the verdicts of the run, unless this process only runs a share of it."""
    option = config.option
    if option.deepinfer_workers not in (0, 1):
        raise pytest.UsageError(
            f"--workers is {option.deepinfer_workers}; allowed: 1 (a worker process), 0 (pytest's "
            "own); -n of pytest-xdist runs more at a time"
        )
    if not option.deepinfer_limit > 0:
        raise pytest.UsageError(f"--limit is {option.deepinfer_limit:g}; allowed: above 0")
    if not hasattr(config, "workerinput"):
        from deepinfer.conformance.pytest_report import Collector

        config.pluginmanager.register(Collector(config), "deepinfer-conformance-report")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per case, for the suite's own test function, wherever it is imported."""
    if metafunc.function.__module__ != SUITE:
        return
    from deepinfer.conformance.command import chosen_ids, tier_named
    from deepinfer.conformance.profiles import profile_named
    from deepinfer.conformance.run import planned
    from deepinfer.conformance.subject import Subject

    option = metafunc.config.option
    chosen = chosen_backend(metafunc.config)
    _restart_for(chosen)
    names = option.deepinfer_profile, option.deepinfer_tier, option.deepinfer_operator
    ids = chosen_ids(option.deepinfer_cases, option.deepinfer_case_file, *names)
    checks = planned(
        Subject.load(chosen),
        chosen,
        profile_named(option.deepinfer_profile),
        tier_named(option.deepinfer_tier),
        pattern=option.deepinfer_operator,
        ids=ids,
    )
    metafunc.parametrize("check", checks, ids=[check.id for check in checks])


def chosen_backend(config: pytest.Config) -> Selected:
    """The backend and mode that --accelerator, else DEEPINFER_ACCELERATOR, names."""
    from deepinfer.backend.registry import select
    from deepinfer.config import environment

    name = config.option.accelerator or environment.text(environment.ACCELERATOR)
    skip = environment.names(environment.SKIP_BACKENDS)
    return select(name, config.option.deepinfer_mode, skip)


def _restart_for(chosen: Selected) -> None:
    """Start this process again where the backend's mode needs other variables.

    A process of pytest-xdist cannot: its cases run in worker processes that have the variables.
    """
    wanted = chosen.mode.environment
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if any(os.environ.get(key) != value for key, value in wanted.items()):
        sys.stdout.flush()
        arguments = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **wanted})


@pytest.fixture(scope="session")
def run_check(request: pytest.FixtureRequest) -> Iterator[Callable[[Check], Verdict]]:
    """Runs a check of the suite on the chosen backend: in a worker process, or in this one."""
    from deepinfer.conformance.subject import Subject
    from deepinfer.conformance.workers import Isolated, Target

    option = request.config.option
    chosen = chosen_backend(request.config)
    if option.deepinfer_workers == 0:
        subject = Subject.load(chosen)
        yield lambda check: check.run(subject, option.deepinfer_perf)
        return
    mode = chosen.mode
    target = Target(chosen.spec.name, mode.name, mode.environment, option.deepinfer_perf)
    with Isolated(target, option.deepinfer_limit) as isolated:
        yield isolated.run
