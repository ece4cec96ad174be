"""pytest plugin: `pytest --pyargs deepinfer.conformance --accelerator NAME`, one item per case.

Registered as a `pytest11` entry point, so it is imported by every pytest of the environment: it
imports neither torch nor a backend until its own items are collected.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deepinfer.backend.registry import Selected
    from deepinfer.conformance.subject import Subject

GROUP = "deepinfer conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `deepinfer conformance`, those that a run of items has a use for."""
    group = parser.getgroup(GROUP)
    group.addoption("--accelerator", default=None, help="backend by name")
    group.addoption("--mode", dest="deepinfer_mode", default=None, help="mode of the backend")
    group.addoption("--profile", dest="deepinfer_profile", default="core")
    group.addoption("--tier", dest="deepinfer_tier", default="quick", help="quick, full or soak")
    group.addoption("--operator", dest="deepinfer_operator", default=None, help="name pattern")
    group.addoption("--case", dest="deepinfer_cases", action="append", default=[], help="by id")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per case, for the suite's own test function, wherever it is imported."""
    if metafunc.function.__module__ != "deepinfer.conformance.test_suite":
        return
    from deepinfer.conformance.command import tier_named
    from deepinfer.conformance.profiles import profile_named
    from deepinfer.conformance.registry import selected

    option = metafunc.config.option
    chosen = _selected_for_mode(metafunc.config)
    operators = profile_named(option.deepinfer_profile).operators
    checks = selected(
        tier_named(option.deepinfer_tier),
        operators,
        option.deepinfer_operator,
        option.deepinfer_cases,
        chosen,
    )
    metafunc.parametrize("check", checks, ids=[check.id for check in checks])


def _selected_for_mode(config: pytest.Config) -> Selected:
    """The backend; starts this process again where its mode needs other variables."""
    from deepinfer.backend.registry import select
    from deepinfer.config import environment

    name = config.option.accelerator or environment.text(environment.ACCELERATOR)
    chosen = select(
        name, config.option.deepinfer_mode, environment.names(environment.SKIP_BACKENDS)
    )
    wanted = chosen.mode.environment
    if any(os.environ.get(key) != value for key, value in wanted.items()):
        sys.stdout.flush()
        arguments = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **wanted})
    return chosen


@pytest.fixture(scope="session")
def conformance_subject(request: pytest.FixtureRequest) -> Subject:
    """The backend that --accelerator, else DEEPINFER_ACCELERATOR, names."""
    from deepinfer.backend.registry import select
    from deepinfer.config import environment
    from deepinfer.conformance.subject import Subject

    option = request.config.option
    name = option.accelerator or environment.text(environment.ACCELERATOR)
    skip = environment.names(environment.SKIP_BACKENDS)
    return Subject.load(select(name, option.deepinfer_mode, skip))
