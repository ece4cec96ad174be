"""pytest plugin: `pytest --pyargs deepinfer.conformance --accelerator NAME`, one item per case.

Registered as a `pytest11` entry point, so it is imported by every pytest of the environment: it
imports neither torch nor a backend until its own items are collected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from deepinfer.backend.registry import Selected
    from deepinfer.conformance.case import Verdict
    from deepinfer.conformance.registry import Check

GROUP = "deepinfer conformance"
SUITE = "deepinfer.conformance.test_suite"
TIME_LIMIT = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `deepinfer conformance`, with the same meaning.

    Every pytest of the environment gets them, so one that another plugin has keeps its meaning
    there: ours then has its long name alone, as in `--deepinfer-report`.
    """
    group, taken = parser.getgroup(GROUP), _taken(parser)

    def add(name: str, **more: Any) -> None:
        names = [f"--deepinfer-{name}", *([f"--{name}"] if f"--{name}" not in taken else [])]
        group.addoption(*names, dest=f"deepinfer_{name.replace('-', '_')}", **more)

    add("accelerator", default=None, help="backend by name")
    add("mode", default=None, help="mode of the backend")
    add("profile", default="core", help="which operators")
    add("tier", default="quick", help="quick, full or soak")
    add("operator", default=None, help="name pattern")
    add("case", action="append", default=[], help="by id")
    add("case-file", default=None, help="calls of a model")
    add("limit", type=float, default=TIME_LIMIT, help="seconds per case")
    add("report", default=None, help="directory for the report")
    add("perf", action="store_true", help="time the cases")
    add(
        "native",
        action="store_true",
        help="the profile's key operators must be native too",
    )
    add(
        "workers",
        type=int,
        default=1,
        help="1 runs every case in a worker process, 0 in pytest's own, for a debugger; "
        "for more at a time use -n of pytest-xdist",
    )


def _taken(parser: pytest.Parser) -> set[str]:
    """Options that plugins before this one have; pytest has no public way to ask."""
    groups = [getattr(parser, "_anonymous", None), *getattr(parser, "_groups", [])]
    options = [option for group in groups for option in getattr(group, "options", [])]
    return {name for option in options for name in option.names()}


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

        config.pluginmanager.register(
            Collector(config, chosen_backend), "deepinfer-conformance-report"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per case, for the suite's own test function, wherever it is imported."""
    if metafunc.function.__module__ != SUITE:
        return
    from deepinfer.errors import DeepInferError

    try:
        checks = _checks(metafunc.config)
    except DeepInferError as error:  # what was asked is wrong: no trace of it
        raise pytest.Collector.CollectError(str(error)) from None
    metafunc.parametrize("check", checks, ids=[check.id for check in checks])


def _checks(config: pytest.Config) -> list[Check]:
    from deepinfer.conformance.command import chosen_ids, tier_named
    from deepinfer.conformance.profiles import profile_named
    from deepinfer.conformance.run import planned
    from deepinfer.conformance.subject import Subject

    option = config.option
    chosen = chosen_backend(config)
    _restart_for(chosen)
    names = option.deepinfer_profile, option.deepinfer_tier, option.deepinfer_operator
    ids = chosen_ids(option.deepinfer_case, option.deepinfer_case_file, *names)
    return planned(
        Subject.load(chosen),
        chosen,
        profile_named(option.deepinfer_profile),
        tier_named(option.deepinfer_tier),
        pattern=option.deepinfer_operator,
        ids=ids,
    )


def chosen_backend(config: pytest.Config) -> Selected:
    """The backend and mode that --accelerator, else DEEPINFER_ACCELERATOR, names."""
    from deepinfer.backend.registry import select_backend
    from deepinfer.settings import environment

    name = config.option.deepinfer_accelerator or environment.text(environment.ACCELERATOR)
    skip = environment.names(environment.SKIP_BACKENDS)
    return select_backend(name, config.option.deepinfer_mode, skip)


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
