"""Flags of the engine's and the sampling options: one for every field, in both spellings."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from deepinfer.cli.flags import Given, with_engine_flags
from deepinfer.engine import EngineOptions, SamplingParams
from deepinfer.errors import UsageError

app = typer.Typer()
seen: list[Given] = []


@app.command()
@with_engine_flags
def command(given: Given, own: Annotated[int, typer.Option("--own")] = 3) -> None:
    """A command with a flag of its own."""
    seen.append(given)
    typer.echo(own)


def given(*arguments: str) -> Given:
    seen.clear()
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_nothing_given_leaves_every_default() -> None:
    got = given()
    assert (got.engine, got.sampling) == ({}, {})
    assert got.options() == EngineOptions()
    assert got.params({}) == SamplingParams()


VALUES: dict[str, tuple[list[str], Any]] = {
    "logit_bias": (["--logit_bias", "5=-2.5", "--logit-bias", "7=1"], {5: -2.5, 7: 1.0}),
    "stop": (["--stop", "a", "--stop", "b"], ("a", "b")),
}


def arguments_for(name: str, default: Any, dashes: bool) -> tuple[list[str], Any]:
    """A value of a field that is not its default, as flags."""
    if name in VALUES:
        return VALUES[name]
    flag = f"--{name.replace('_', '-') if dashes else name}"
    if isinstance(default, bool):
        off = f"--no-{name.replace('_', '-')}" if dashes else f"--no_{name}"
        return ([off], False) if default else ([flag], True)
    if name.endswith("_ids"):
        return [flag, "3", flag, "9"], (3, 9)
    if isinstance(default, str):
        text = {"numerics": "ref", "compute": "fp32"}.get(name, default)
        return [flag, text], text
    if isinstance(default, float):
        return [flag, "0.5"], 0.5
    least = {"tokens_per_block": 128}.get(name, 1 if name.endswith("_size") else 2)
    zero = name in ("steps_in_flight", "engine_rank", "engine_group_rank")
    return [flag, "0" if zero else str(least)], 0 if zero else least


@pytest.mark.parametrize("dashes", [False, True])
@pytest.mark.parametrize("field", dataclasses.fields(SamplingParams), ids=lambda f: f.name)
def test_sampling(field: Any, dashes: bool) -> None:
    if field.name in ("so_args", "eos_id", "seq_seed"):
        return
    default = field.default if field.default is not dataclasses.MISSING else {}
    arguments, want = arguments_for(field.name, default, dashes)
    assert getattr(given(*arguments).params({}), field.name) == want


@pytest.mark.parametrize("dashes", [False, True])
@pytest.mark.parametrize("field", dataclasses.fields(EngineOptions), ids=lambda f: f.name)
def test_engine(field: Any, dashes: bool) -> None:
    arguments, want = arguments_for(field.name, field.default, dashes)
    if field.name == "seed":
        arguments = ["--engine-seed" if dashes else "--engine_seed", "2"]
    assert getattr(given(*arguments).options(), field.name) == want


def test_the_seeds_are_apart() -> None:
    got = given("--seed", "1", "--engine_seed", "2")
    assert (got.sampling, got.engine) == ({"seed": 1}, {"seed": 2})


def test_wrong_values_are_usage_errors() -> None:
    with pytest.raises(UsageError, match=r"top_p is 2.0"):
        given("--top_p", "2").params({})
    with pytest.raises(UsageError, match="logit_bias is '5:1'; allowed: ID=BIAS"):
        given("--logit_bias", "5:1")
    assert given("--ep", "1").engine == {"expert_parallel_size": 1}


def test_defaults_of_a_command_give_way() -> None:
    defaults = {"temperature": 0.0, "max_tokens": 48}
    params = given("--max_tokens", "3").params(defaults)
    assert (params.temperature, params.max_tokens) == (0.0, 3)
