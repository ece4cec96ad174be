"""Memory of packed weights: by provider, before anything is read, and refused when short."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from deepinfer.backend import (
    Backend,
    ExpertSource,
    Memory,
    PackedExperts,
    PackedLinear,
    Packing,
    Weights,
    stored_bytes,
)
from deepinfer.backend.memory_source import MemorySource
from deepinfer.backend.registry import host_reference
from deepinfer.backend.resolution import FALLBACK, HOST, NATIVE, resolve
from deepinfer.backend.values import LinearSource
from deepinfer.checkpoint.source import FileSource
from deepinfer.engine import ModelRunner
from deepinfer.errors import DeviceMemoryError
from deepinfer.model import PackingPlan, plan_packing
from deepinfer_reference.backend import ReferenceBackend
from tests.backend.engines import runner_on
from tests.backend.test_host import OwnLinear
from tests.reference.sources import random_experts, random_matrix

SMALL_MEMORY = Memory(free=1000, total=4000)


class Bare(Backend):
    """No operator; a device of little memory."""

    def memory(self) -> Memory:
        return SMALL_MEMORY


class Says(Backend):
    """Packs experts itself and says what that takes."""

    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        raise AssertionError("nothing is packed here")

    def packing(self, operator: str, weights: Weights) -> Packing:
        return Packing(resident=10, temporary=3)


def plan(chip: Backend, runner: ModelRunner) -> PackingPlan:
    reference = ReferenceBackend(chip.device)
    table = resolve("chip", chip, reference, [], host=host_reference)
    return plan_packing(runner.checkpoint, table)


def loaded_bytes(runner: ModelRunner) -> tuple[int, int]:
    """Own and mapped bytes of what an engine packed, but for vectors."""
    weights = runner.backbone.weights
    packed: list[PackedLinear | PackedExperts] = [weights.embedding, weights.head]
    for layer in weights.layers:
        for part in vars(layer).values():
            held = [part, *vars(part).values()] if hasattr(part, "__dict__") else [part]
            packed += [one for one in held if isinstance(one, PackedLinear | PackedExperts)]
    unique = {id(one): one for one in packed}.values()
    return sum(one.nbytes for one in unique), sum(one.mapped_bytes for one in unique)


def test_plan_is_what_loading_takes(small_runner: ModelRunner) -> None:
    share = small_runner.packing.shares[NATIVE]
    assert (0, share.mapped) == loaded_bytes(small_runner)
    assert share.resident > 0  # vectors are copied


def test_fallbacks_copy_to_a_device_that_is_not_the_host(small_runner: ModelRunner) -> None:
    here, there = plan(Backend("cpu"), small_runner), plan(Backend("meta"), small_runner)
    assert there.shares[FALLBACK].mapped == 0
    assert there.shares[FALLBACK].resident == sum(here.shares[FALLBACK][::2])
    assert there.shares[FALLBACK].temporary > 0  # experts are stacked
    assert there.device_bytes == sum(there.shares[FALLBACK][:2])


def test_shares_are_by_provider(small_runner: ModelRunner) -> None:
    both = plan(Says("meta"), small_runner)
    assert both.shares[NATIVE] == Packing(60, 3, 0)  # six layers of experts, one after the other
    assert both.shares[FALLBACK].resident > 0
    assert str(both).startswith("packed weights: ")
    assert "native 60 B stay, 3 B temporary, 0 B mapped" in str(both)


def test_backend_that_does_not_say_is_named(small_runner: ModelRunner) -> None:
    silent = plan(OwnLinear(), small_runner)
    assert silent.silent == {NATIVE}
    assert str(silent).endswith("; native does not say")
    assert silent.to_dict()[NATIVE] is None


def test_what_the_host_packs_takes_nothing_of_the_device(small_runner: ModelRunner) -> None:
    runner = runner_on(OwnLinear(), small_runner.checkpoint)
    share = runner.packing.shares[HOST]
    assert (share.resident, share.temporary) == (0, 0)
    assert share.mapped > 0
    assert PackingPlan({HOST: Packing(5, 5, 5)}).device_bytes == 0


def test_too_little_memory_is_said_before_weights_are_read(
    small_runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(source: FileSource) -> torch.Tensor:
        raise AssertionError(f"{source.name} is read")

    monkeypatch.setattr(FileSource, "read", read)
    monkeypatch.setattr(FileSource, "map", read)
    with pytest.raises(
        DeviceMemoryError,
        match=r"need .* kB on the device of backend 'chip', which has 1.00 kB free of 4.00 kB. "
        r"packed weights: fallback ",
    ):
        runner_on(Bare("cpu"), small_runner.checkpoint)


def test_plan_of_known_memory() -> None:
    share = PackingPlan({NATIVE: Packing(600, 400), FALLBACK: Packing(0, 300)})
    assert share.device_bytes == 1000
    share.check("chip", SMALL_MEMORY)
    share.check("chip", None)
    with pytest.raises(DeviceMemoryError):
        share.check("chip", SMALL_MEMORY._replace(free=999))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_reference_says_what_it_then_takes(device: str) -> None:
    reference = ReferenceBackend(device)
    matrix, experts = random_matrix(40, 64, "fp8"), random_experts(3, 64, 96, "fp4")
    cases: list[tuple[str, Weights, PackedLinear | PackedExperts]] = [
        ("pack_linear", matrix, reference.pack_linear(matrix)),
        ("pack_table", matrix, reference.pack_table(matrix)),
        ("pack_experts", experts, reference.pack_experts(experts)),
    ]
    for operator, weights, packed in cases:
        said = reference.packing(operator, weights)
        assert (said.resident, said.mapped) == (packed.nbytes, packed.mapped_bytes)
        assert stored_bytes(weights) == packed.nbytes + packed.mapped_bytes


def test_a_vector_is_always_copied() -> None:
    vector = MemorySource(torch.ones(7))
    assert ReferenceBackend("cpu").packing("pack_vector", vector) == Packing(resident=28)
    assert stored_bytes(LinearSource(vector)) == 28
