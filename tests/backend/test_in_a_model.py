"""Backends of one operator in a whole model: who ran what how often, and what a fault ends."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Activation, Backend, Entered
from deepinfer.backend.resolution import COMPOSED, NATIVE
from deepinfer.engine import ModelRunner, SamplingParams
from deepinfer.errors import BackendContractError, UnsupportedOperatorError
from deepinfer_reference.backend import ReferenceBackend
from tests.backend.engines import PROMPT, logits, runner_on
from tests.engine.runs import generate

GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
LAYERS, STEPS = 6, 2


class Counting(Backend):
    """Counts what it runs; its numbers are the reference's."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.inner = ReferenceBackend("cpu")
        self.ran: Counter[str] = Counter()

    def run(self, operator: str, *arguments: Any) -> Any:
        self.ran[operator] += 1
        return getattr(self.inner, operator)(*arguments)


class OnePrimitive(Counting):
    def attend(self, *arguments: Any) -> Tensor:
        result: Tensor = self.run("attend", *arguments)
        return result


class OneStep(Counting):
    def norm_quantise(self, *arguments: Any) -> Activation:
        result: Activation = self.run("norm_quantise", *arguments)
        return result


class InsideAStep(Counting):
    """A step that calls the table, and a primitive inside the steps of the table."""

    def enter(self, *arguments: Any) -> Entered:
        self.ran["enter"] += 1
        streams, pre, sub_layer, scheme = arguments
        collapsed = self.operators.collapse(streams, pre)
        mix = self.operators.mix(streams, sub_layer.site)
        a = self.operators.norm_quantise(collapsed, sub_layer.norm, sub_layer.norm_eps, scheme)
        return Entered(mix, a)

    def mix(self, *arguments: Any) -> Any:
        return self.run("mix", *arguments)


@pytest.mark.parametrize(
    ("backend", "ran"),
    [
        (OnePrimitive, {"attend": LAYERS}),
        # two sub-layers a layer, and the query latent
        (OneStep, {"norm_quantise": 3 * LAYERS}),
        (InsideAStep, {"enter": 2 * LAYERS, "mix": 2 * LAYERS}),
    ],
)
def test_overrides_run_as_often_as_the_model_calls_them_and_give_the_references_bits(
    backend: type[Counting], ran: dict[str, int], small_runner: ModelRunner, expected_logits: Tensor
) -> None:
    chip = backend()
    runner = runner_on(chip, small_runner.checkpoint)
    assert torch.equal(logits(runner), expected_logits)
    assert chip.ran == {name: STEPS * count for name, count in ran.items()}
    assert runner.operators.providers(NATIVE) == sorted(ran)


class Moody(Counting):
    """Says yes to attention and raises while it is told to."""

    broken = True

    def attend(self, *arguments: Any) -> Tensor:
        if self.broken:
            raise RuntimeError("kernel launch failed")
        result: Tensor = self.run("attend", *arguments)
        return result


@pytest.mark.slow
def test_operator_that_raises_ends_the_step_with_its_name_and_the_engine_goes_on(
    small_runner: ModelRunner,
) -> None:
    chip = Moody()
    runner = runner_on(chip, small_runner.checkpoint)
    prompt = PROMPT[:3].tolist()
    with pytest.raises(
        BackendContractError, match=r"'chip' accepted operator 'attend' .* kernel launch failed"
    ):
        list(generate(runner, prompt, GREEDY))
    chip.broken = False
    assert list(generate(runner, prompt, GREEDY)) == list(generate(small_runner, prompt, GREEDY))


def test_strict_lists_all_that_a_model_lacks_before_weights_are_read(
    small_runner: ModelRunner,
) -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        runner_on(OnePrimitive(), small_runner.checkpoint, strict=True)
    lines = str(caught.value).splitlines()
    lacking = {line.split("'")[1] for line in lines[1:]}
    assert {"linear", "store", "expert_mlp", "sample"} <= lacking
    assert not {"attend", "attend_output", "pack_linear"} & lacking
    assert f"backend 'chip' has {len(lacking)}" in lines[0]


def test_composed_steps_are_called_too(small_runner: ModelRunner) -> None:
    table = runner_on(OneStep(), small_runner.checkpoint).operators
    assert {"enter", "project"} <= {
        name for name in table.providers(COMPOSED) if table.bindings[name].is_called
    }
    assert not table.bindings["verify"].is_called
