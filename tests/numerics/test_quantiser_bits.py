"""Bits of the activations that INFER quantises.

Source: model specification, sections 4.9, 5.2, 7.2 and 8.7.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Activation, LinearSource
from deepinfer.backend.memory_source import MemorySource
from deepinfer.backend.resolution import Operators
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import ModelRunner
from deepinfer.formats import Scheme
from tests.numerics import codes, plain
from tests.numerics.codes import Blocks
from tests.numerics.engines import random_prompt, record_step, runner_of
from tests.numerics.mixture import FEW
from tests.numerics.recording import Call, LayerRecord


@pytest.fixture(scope="module")
def runner() -> Iterator[ModelRunner]:
    with runner_of(bundled_checkpoint(), "infer") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def records(runner: ModelRunner) -> list[LayerRecord]:
    return record_step(runner, random_prompt(runner, 64), 48)


def calls(records: list[LayerRecord], operator: str) -> list[Call]:
    return [call for record in records for call in record.recording.of(operator)]


def quantised(operators: Operators, x: Tensor) -> Blocks:
    activation = operators.quantise(x, Scheme.FP8_BLOCK32)
    assert activation.quantised is not None
    assert activation.scheme is Scheme.FP8_BLOCK32
    return Blocks(*activation.quantised)


def test_vector_of_the_specification(operators: Operators) -> None:
    # Appendix B.1: amax 5, e = -6.
    inputs = [0.10009766, -0.20019531, 0.30078125, 1, -2.5, 3.25, 0, 5]
    x = torch.tensor([inputs + [0.0] * 24]).bfloat16()
    got = quantised(operators, x)
    assert got.scales.tolist() == [[121]]
    values = codes.fp8_values(*got)[0, :8].tolist()
    assert values == [0.1015625, -0.203125, 0.3125, 1, -2.5, 3.25, 0, 5]


@pytest.mark.parametrize(
    ("amax", "byte"),
    [
        (448.0, 127),
        (450.0, 128),  # just above 448
        (224.0, 126),
        (3.5, 120),  # 448 / 128
        (0.0, 105),  # the floor 1e-4: ceil(log2(1e-4 / 448)) = -22
        (6.103515625e-05, 105),  # 2^-14, below the floor
        (1.02996826171875e-04, 105),  # bf16 just above the floor, still 2^-22
        (3.3895313892515355e38, 247),  # the largest bf16
    ],
)
def test_scale_of_an_amax(operators: Operators, amax: float, byte: int) -> None:
    x = torch.zeros(1, 32, dtype=torch.bfloat16)
    x[0, 17] = -amax
    assert x[0, 17].item() == -amax
    assert quantised(operators, x).scales.tolist() == [[byte]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_random_rows_equal_the_independent_computation(
    operators: Operators, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    size = torch.exp2(torch.randint(-30, 30, (64, 1, 1), generator=generator).float())
    x = (torch.randn(64, 8, 32, generator=generator) * size).flatten(1).to(dtype)
    got, expected = quantised(operators, x), codes.fp8(x)
    assert torch.equal(got.scales, expected.scales)
    assert torch.equal(got.codes, expected.codes)


@pytest.mark.slow
def test_every_activation_of_the_model(records: list[LayerRecord]) -> None:
    seen = 0
    for call in calls(records, "quantise"):
        x, scheme = call.arguments
        expected = codes.fp8(x) if scheme is Scheme.FP8_BLOCK32 else codes.mxfp4(x)
        assert torch.equal(call.result.quantised.codes, expected.codes)
        assert torch.equal(call.result.quantised.scales, expected.scales)
        seen += scheme is Scheme.FP8_BLOCK32
    assert seen == 8 * 5  # two norms, the latent, the attention output, the middle of it


def test_swiglu_is_quantised_from_float32(records: list[LayerRecord]) -> None:
    """Many codes would differ after a bf16 rounding; none of ours are those."""
    differing = 0
    swiglus = calls(records, "swiglu")
    for record in records:
        swiglus += record.recording.expert_swiglus
    for call in swiglus:
        gate, up, limit, weights, _ = call.arguments
        exact = plain.swiglu(gate.double(), up.double(), limit, weights)
        ours = Blocks(*call.result.quantised)
        from_float32 = [codes.fp8(exact * (1 + side * FEW)) for side in (-1, 1)]
        certain = (from_float32[0].codes == from_float32[1].codes) & (
            from_float32[0].scales == from_float32[1].scales
        ).repeat_interleave(32, -1)
        from_bf16 = codes.fp8(codes.to_bf16(exact))
        assert torch.equal(ours.codes[certain], from_float32[0].codes[certain])
        differing += int((from_bf16.codes != ours.codes)[certain].sum())
    assert differing > 100


def stored_row(scale: list[int]) -> tuple[Tensor, Tensor]:
    """A table row of small codes under large scales: a quantiser would choose other bytes."""
    generator = torch.Generator().manual_seed(1)
    row = torch.randint(0, 0x20, (1, 32 * len(scale)), dtype=torch.uint8, generator=generator)
    return row, torch.tensor([scale], dtype=torch.uint8)


def test_engram_rows_keep_their_bytes(operators: Operators) -> None:
    rows, scales = zip(*(stored_row([120 + n, 140 - n]) for n in range(4)), strict=True)
    weight, scale = torch.cat(rows), torch.cat(scales)
    table = operators.pack_table(
        LinearSource(MemorySource(weight, dtype="F8_E4M3"), MemorySource(scale, dtype="F8_E8M0"))
    )
    wanted = torch.tensor([[3, 0], [2, 2]])
    gathered = operators.gather(table, wanted, torch.bfloat16)
    assert gathered.quantised is not None
    assert torch.equal(gathered.quantised.codes, weight[wanted].flatten(1))
    assert torch.equal(gathered.quantised.scales, scale[wanted].flatten(1))
    again = quantised(operators, gathered.values)
    assert not torch.equal(again.scales, gathered.quantised.scales)
    values = codes.fp8_values(*gathered.quantised)
    assert torch.equal(gathered.values.double(), values)
    assert torch.equal(codes.fp8_values(*again), values)  # as the specification says


def test_engram_projection_consumes_the_stored_rows(
    runner: ModelRunner, records: list[LayerRecord]
) -> None:
    looked = 0
    for record in records:
        if not record.weights.plan.engram:
            continue
        prefix = f"layers.{record.weights.plan.index}.engram.embed"
        stored = runner.checkpoint.linear(prefix)
        assert stored.scale is not None
        rows = record.recording.of("ngram_rows")[0].result
        given: Activation = record.recording.matmul("engram.wkv").arguments[0]
        assert given.quantised is not None
        assert torch.equal(given.quantised.codes, stored.weight.read()[rows].flatten(1))
        assert torch.equal(given.quantised.scales, stored.scale.read()[rows].flatten(1))
        looked += 1
    assert looked == 2
