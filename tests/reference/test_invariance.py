"""A row has the same bits in every batch: any place, company, row count and thread count."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Activation, Group, Mix, MixSite, Numerics, Routing
from deepinfer.formats import Scheme
from tests.reference.compare import assert_same_bits
from tests.reference.sources import plain, random_experts, random_matrix

ROWS = 37
WIDTHS = [1, 3, 4, 5, 37]
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
pytestmark = pytest.mark.usefixtures("restore_threads")

Function = Callable[..., Tensor | tuple[Tensor, ...]]


def subsets(threads: int) -> Iterator[Tensor]:
    """Row selections: a permutation, other row counts, one row many times; fewer for 2 threads."""
    generator = torch.Generator().manual_seed(1)
    yield torch.randperm(ROWS, generator=generator)
    if threads != 2:
        yield torch.arange(3, 3 + 17)
        yield torch.tensor([ROWS - 1])
        yield torch.tensor([20] * 15 + [7])


def assert_invariant(function: Function, *inputs: Tensor) -> None:
    """function(inputs)[rows] == function(inputs[rows]) for all of the above and 1 to 3 threads."""
    torch.set_num_threads(1)
    expected = _tuple(function(*inputs))
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in subsets(threads):
            actual = _tuple(function(*(x[rows] for x in inputs)))
            for ours, theirs in zip(actual, expected, strict=True):
                assert_same_bits(ours, theirs[rows])


def _tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random rows [ROWS, *shape] of sizes from small to large."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(ROWS, *shape, generator=generator, dtype=torch.float64)
    size = torch.exp2(torch.randint(-8, 8, (ROWS, *[1] * len(shape)), generator=generator))
    return (values * size).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [1, 37, 300])
@pytest.mark.parametrize("inputs", WIDTHS)
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_linear(reference, kind, inputs, outputs, dtype):
    weight = reference.pack_linear(random_matrix(outputs, inputs, kind))
    assert_invariant(
        lambda x: reference.linear(Activation(x), weight, dtype), rows(inputs, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", [None, Scheme.FP8_BLOCK32])
@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_quantised_linear(reference, kind, scheme, dtype):
    """As many inputs as make a BLAS split a float64 product between threads."""
    weight = reference.pack_linear(random_matrix(37, 640, kind))
    assert_invariant(
        lambda x: reference.linear(reference.quantise(x, scheme), weight, dtype),
        rows(640, dtype=dtype),
    )


@pytest.mark.parametrize("width", [32, 37])
def test_grouped_linear(reference, width):
    weight = reference.pack_linear(random_matrix(3 * 5, width, "bf16"))
    assert_invariant(
        lambda x: reference.grouped_linear(Activation(x), weight, torch.bfloat16),
        rows(3, width, dtype=torch.bfloat16),
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [*WIDTHS, 128, 1283, 33000])
def test_rms_norm(reference, width, dtype):
    weight = torch.randn(width).bfloat16()
    assert_invariant(lambda x: reference.rms_norm(x, weight, 1e-20), rows(width, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numerics", Numerics)
@pytest.mark.parametrize("heads", WIDTHS)
def test_rope(reference, heads, numerics, dtype):
    frequencies = 10000 ** -(torch.arange(5) / 5)
    positions = torch.arange(ROWS) * 28411
    assert_invariant(
        lambda x, p: reference.rope(x, p, frequencies, False, numerics),
        rows(heads, 13, dtype=dtype),
        positions,
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("streams", [1, 3, 4, 5])
@pytest.mark.parametrize("width", WIDTHS)
def test_mix_collapse_expand(reference, width, streams, dtype):
    count = 2 * streams + streams * streams
    site = MixSite(
        torch.randn(count, streams * width), torch.randn(count), torch.randn(3), 20, 1e-6, 1e-20
    )
    x = rows(streams, width, dtype=dtype)
    assert_invariant(lambda x: tuple(reference.mix(x, site)), x)
    mix = reference.mix(x, site)
    assert_invariant(lambda x, pre: reference.collapse(x, pre), x, mix.pre)
    assert_invariant(
        lambda out, x, *mix: reference.expand(out, x, Mix(*mix)), rows(width, dtype=dtype), x, *mix
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [*WIDTHS, 1283])
def test_inject(reference, width, dtype):
    q, k = torch.randn(4, width).bfloat16(), torch.randn(4, width).bfloat16()
    assert_invariant(
        lambda x, memory, blocked: reference.inject(x, memory, q, k, 1e-20, blocked),
        rows(4, width, dtype=dtype),
        rows(5 * width, dtype=dtype, seed=1),
        torch.arange(ROWS) % 3 == 0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("experts", [3, 4, 5, 37, 384])
def test_route(reference, experts, dtype):
    bias, image_bias = torch.randn(experts), torch.randn(experts)
    assert_invariant(
        lambda x, image: tuple(reference.route(x, bias, image_bias, image, 3, 1.5)),
        rows(experts, dtype=dtype),
        torch.arange(ROWS) % 2 == 0,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_swiglu(reference, width, dtype):
    assert_invariant(
        lambda gate, up, w: reference.swiglu(gate, up, 1.5, w, Numerics.REF).values,
        rows(width, dtype=dtype),
        rows(width, dtype=dtype, seed=1),
        torch.rand(ROWS),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fp4", "bf16"])
@pytest.mark.parametrize("numerics", Numerics)
@pytest.mark.parametrize("dtype", DTYPES)
def test_experts(reference, dtype, numerics, kind):
    """Other rows change an expert's tiles, its number of tiles, and which experts run at all."""
    packed = reference.pack_experts(random_experts(5, 64, 96, kind))
    order = torch.rand(ROWS, 5).argsort(-1)
    ids = torch.where(torch.arange(ROWS)[:, None] % 4 == 0, torch.tensor([1, 0, 3]), order[:, :3])

    def run(x: Tensor, ids: Tensor, weights: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        a = reference.quantise(x, numerics.activation_scheme)
        routed = reference.dispatch(a, Routing(ids, weights), Group())
        routed = reference.expert_mlp(routed, packed, 10.0, numerics)
        return routed.outputs, reference.combine(routed, shared, numerics)

    assert_invariant(
        run,
        rows(64, dtype=dtype),
        ids.int(),
        torch.rand(ROWS, 3),
        rows(64, dtype=dtype, seed=1),
    )


def test_a_row_of_nan_stays_in_its_row(reference):
    weight = reference.pack_linear(plain(torch.randn(37, 32)))
    x = rows(32)
    expected = reference.linear(Activation(x), weight, torch.float32)
    x[18] = torch.nan
    actual = reference.linear(Activation(x), weight, torch.float32)
    assert actual[18].isnan().all()
    others = torch.arange(ROWS) != 18
    assert_same_bits(actual[others], expected[others])
