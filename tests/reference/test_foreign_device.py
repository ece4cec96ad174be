"""The operators on a device that holds no data: nothing waits for values, no shape depends on them.

Torch's meta device has shapes only; reading a value there raises.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deepinfer.backend import (
    Activation,
    AttentionWeights,
    Batch,
    CompressorState,
    CompressorWeights,
    EngramWeights,
    Group,
    IndexerWeights,
    MixSite,
    MlpWeights,
    NgramHash,
    Numerics,
    OutputWeights,
    Pool,
    Region,
    RouterWeights,
    SubLayer,
    Table,
    WindowSpan,
)
from deepinfer.backend.resolution import Operators, resolve
from deepinfer_reference.backend import ReferenceBackend
from tests.reference.pools import Sizes, SmallCache
from tests.reference.sources import random_experts, random_matrix

META = torch.device("meta")
ROWS, HIDDEN, FREQUENCIES = 20, 64, torch.ones(8, device="meta")


@pytest.fixture
def operators() -> Operators:
    backend = ReferenceBackend(META)
    return resolve("reference", backend, backend, [])


@pytest.fixture(params=Numerics)
def numerics(request) -> Numerics:
    return request.param


@pytest.fixture(params=[torch.bfloat16, torch.float32])
def dtype(request) -> torch.dtype:
    return request.param


def rows(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(ROWS, *shape, dtype=dtype, device=META)


def moved(batch: Batch) -> Batch:
    """The batch with all its tensors on the meta device."""
    tensors = {
        name: value.to(META)
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor)
    }
    tables = {
        name: Table(table.blocks.to(META), table.first.to(META))
        for name, table in (("context", batch.context), ("window", batch.window))
    }
    return replace(batch, **tensors, **tables)


def moved_region(region: Region) -> Region:
    return replace(region, pool=Pool(region.pool.data.to(META), region.pool.image_bytes))


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1, 2])
def test_attention_layer(operators, numerics, dtype, ratio):
    cache = SmallCache(Sizes(length=ROWS, ratio=ratio))
    batch = moved(cache.batch([(0, 0, ROWS - 1)], padding=1))
    main, index, window = map(moved_region, (cache.main, cache.index, cache.window))

    def matrix(outputs: int, inputs: int, kind: str = "fp8"):
        return operators.pack_linear(random_matrix(outputs, inputs, kind))

    ones = torch.ones(64, device=META)
    a = operators.quantise(rows(HIDDEN, dtype=dtype), numerics.activation_scheme)
    projected = operators.project(
        a,
        AttentionWeights(
            matrix(64, HIDDEN),
            ones,
            matrix(128, 64),
            matrix(64, HIDDEN),
            ones,
            FREQUENCIES,
            num_heads=2,
            head_dim=64,
            eps=1e-20,
        ),
        batch.positions,
        numerics,
    )
    operators.store(projected.window, window, batch.positions, batch)
    operators.update_context(
        a,
        CompressorWeights(
            matrix(64, HIDDEN, "bf16"),
            matrix(64, HIDDEN, "bf16") if ratio > 1 else None,
            ones,
            matrix(32, 64, "bf16"),
            ones[:32],
            FREQUENCIES,
            ratio,
            1e-20,
        ),
        CompressorState(cache.state.members.to(META)),
        main,
        index,
        batch,
        numerics,
    )
    selection = operators.select(
        projected.latent,
        a,
        IndexerWeights(
            matrix(128, 64), matrix(4, HIDDEN, "bf16"), FREQUENCIES, 4, 32, 8, ratio, 4, 4
        ),
        index,
        None,
        batch,
        numerics,
    )
    span = WindowSpan((batch.positions - 7).clamp(min=0), batch.positions, 8)
    out = operators.attend_output(
        projected.queries,
        window,
        span,
        main,
        selection,
        torch.ones(2, device=META),
        0.125,
        batch,
        OutputWeights(matrix(64, 64), matrix(HIDDEN, 64), FREQUENCIES, 2),
        numerics,
    )
    assert (out.shape, out.dtype, out.device.type) == ((ROWS, HIDDEN), dtype, "meta")
    assert selection.candidates.shape == (ROWS, 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fp4", "bf16"])
def test_mixture(operators, numerics, dtype, kind):
    def matrix(outputs: int, inputs: int, stored: str = "fp8"):
        return operators.pack_linear(random_matrix(outputs, inputs, stored))

    bias = torch.zeros(5, device=META)
    out = operators.mixture(
        operators.quantise(rows(HIDDEN, dtype=dtype), numerics.activation_scheme),
        RouterWeights(matrix(5, HIDDEN, "bf16"), bias, bias, 2, 1.5),
        operators.pack_experts(random_experts(5, HIDDEN, 96, kind)),
        MlpWeights(matrix(96, HIDDEN), matrix(HIDDEN, 96), matrix(96, HIDDEN)),
        torch.zeros(ROWS, dtype=torch.bool, device=META),
        10.0,
        Group(),
        numerics,
    )
    assert (out.shape, out.dtype) == ((ROWS, HIDDEN), dtype)


@pytest.mark.slow
def test_streams_engram_and_logits(operators, numerics, dtype):
    site = MixSite(
        torch.ones(24, 4 * HIDDEN, device=META),
        torch.ones(24, device=META),
        torch.ones(3, device=META),
        20,
        1e-6,
        1e-20,
    )
    norm = torch.ones(HIDDEN, device=META)
    streams = rows(4, HIDDEN, dtype=dtype)
    constants = torch.ones(12, dtype=torch.int64, device=META)
    weights = EngramWeights(
        operators.pack_table(random_matrix(50, 32, "fp8", scale_rows=True)),
        NgramHash(constants[:4], constants, constants, 4, 2),
        operators.pack_linear(random_matrix(5 * HIDDEN, 12 * 32, "fp8")),
        torch.ones(4, HIDDEN, device=META),
        torch.ones(4, HIDDEN, device=META),
        1e-20,
    )
    history = torch.ones(ROWS, 4, dtype=torch.int64, device=META)
    blocked = torch.zeros(ROWS, dtype=torch.bool, device=META)
    streams = operators.engram(streams, history, weights, blocked)
    sub_layer = SubLayer(site, norm, 1e-20)
    pre = rows(4, dtype=torch.float32)
    entered = operators.enter(streams, pre, sub_layer, numerics.activation_scheme)
    advanced = operators.advance(
        entered.activation.values, streams, entered.mix, sub_layer, numerics.activation_scheme
    )
    head = operators.pack_linear(random_matrix(100, HIDDEN, "bf16"))
    collapsed = operators.collapse(advanced.streams, advanced.mix.pre)
    logits = operators.logits(collapsed, norm, 1e-20, head)
    assert (logits.shape, logits.dtype) == ((ROWS, 100), torch.float32)


def test_weights_stay_stored_bytes(operators):
    weight = operators.pack_linear(random_matrix(40, 64, "fp8"))
    assert weight.weight.device.type == "meta"
    assert (weight.nbytes, weight.mapped_bytes) == (40 * 64 + 2 * 2, 0)
    vector = operators.linear(Activation(rows(64, dtype=torch.float32)), weight, torch.float32)
    assert vector.shape == (ROWS, 40)
