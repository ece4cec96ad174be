"""Weights, matmuls, norm, rotation: formulas, rounding rules, edges."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Activation, Numerics
from deepinfer.formats import Scheme, dequantise, fp4_weight, fp8_weight
from deepinfer_reference import packed
from tests.reference.compare import assert_close, assert_same_bits
from tests.reference.sources import TensorSource, plain, random_matrix

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


def exact(source) -> Tensor:
    """A stored matrix in float64."""
    codes = source.weight.read()
    if source.kind == "fp8":
        return fp8_weight(codes, source.scale.read(), FP64)
    if source.kind == "fp4":
        return fp4_weight(codes, source.scale.read(), FP64)
    return codes.double()


@pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
@pytest.mark.parametrize("kind", ["fp8", "fp4", "bf16", "fp32"])
@pytest.mark.parametrize(("rows", "outputs"), [(1, 1), (3, 7), (16, 256), (17, 257), (40, 520)])
def test_linear_follows_the_formula(reference, kind, rows, outputs, dtype):
    source = random_matrix(outputs, 64, kind)
    x = torch.randn(rows, 64).to(dtype)
    weight = exact(source)
    if kind == "fp32" and dtype == BF16:
        weight = weight.bfloat16().double()
    out = reference.linear(Activation(x), reference.pack_linear(source), dtype)
    assert out.is_contiguous()
    assert_close(out, (x.double() @ weight.T).to(dtype))


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_quantised_weights_consume_the_quantised_half(reference, kind):
    source = random_matrix(40, 64, kind)
    a = reference.quantise(torch.randn(5, 64).bfloat16(), Scheme.FP8_BLOCK32)
    expected = dequantise(*a.quantised, a.scheme, FP64) @ exact(source).T
    out = reference.linear(a, reference.pack_linear(source), BF16)
    assert_close(out, expected.bfloat16())


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_other_weights_consume_the_values(reference, kind):
    source = random_matrix(40, 64, kind)
    x = torch.randn(5, 64).bfloat16()
    weight = reference.pack_linear(source)
    with_both = reference.linear(reference.quantise(x, Scheme.FP8_BLOCK32), weight, BF16)
    assert_same_bits(with_both, reference.linear(Activation(x), weight, BF16))


def test_a_stored_fp32_weight_is_rounded_for_bf16_output_only(reference):
    weight = torch.full((1, 16), 1 + 2.0**-10)
    packed_weight = reference.pack_linear(plain(weight))
    x = Activation(torch.eye(16)[:1].bfloat16())
    assert reference.linear(x, packed_weight, BF16).item() == 1
    assert reference.linear(x, packed_weight, FP32).item() == 1 + 2.0**-10


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
@pytest.mark.parametrize("outputs", [5, 32, 300])
def test_grouped_linear_is_a_linear_per_group(reference, kind, outputs):
    source = random_matrix(2 * outputs, 64, kind)
    x = torch.randn(7, 2, 64).bfloat16()
    out = reference.grouped_linear(Activation(x), reference.pack_linear(source), BF16)
    weight = exact(source).view(2, outputs, 64)
    assert_close(out, torch.einsum("tgk,gmk->tgm", x.double(), weight).bfloat16())


@pytest.mark.parametrize("kind", ["fp8", "fp4", "bf16", "fp32"])
def test_no_rows(reference, kind):
    weight = reference.pack_linear(random_matrix(40, 64, kind))
    assert reference.linear(Activation(torch.zeros(0, 64)), weight, FP32).shape == (0, 40)
    grouped = reference.grouped_linear(Activation(torch.zeros(0, 2, 64)), weight, FP32)
    assert grouped.shape == (0, 2, 20)
    assert reference.rms_norm(torch.zeros(0, 64), torch.ones(64), 1e-20).shape == (0, 64)
    positions = torch.zeros(0, dtype=torch.int64)
    rotated = reference.rope(torch.zeros(0, 2, 8), positions, torch.ones(2), False, Numerics.REF)
    assert rotated.shape == (0, 2, 8)


def test_packing_copies_nothing(reference):
    for kind in ("fp8", "fp4", "bf16", "fp32"):
        source = random_matrix(40, 64, kind)
        weight = reference.pack_linear(source)
        assert weight.weight.data_ptr() == source.weight.map().data_ptr()
        assert (weight.shape, weight.kind) == ((40, 64), kind)
        assert (weight.nbytes, weight.mapped_bytes) == (0, source.nbytes)


def test_a_matrix_is_decoded_in_slices_and_once(reference, monkeypatch):
    weight = reference.pack_linear(random_matrix(600, 64, "fp8"))
    decoded: list[int] = []

    def counting(codes, scale, dtype, first_row):
        decoded.append(codes.shape[0])
        return fp8_weight(codes, scale, dtype, first_row)

    monkeypatch.setattr(packed, "fp8_weight", counting)
    reference.linear(Activation(torch.randn(50, 64)), weight, FP32)
    assert decoded == [256, 256, 88]


@pytest.mark.parametrize("ids", [[-1], [40], [3, -40]])
def test_ids_outside_the_table_are_errors(reference, ids):
    table = reference.pack_table(random_matrix(40, 16, "bf16"))
    with pytest.raises(IndexError, match=r"outside 0\.\.39"):
        reference.embed(table, torch.tensor(ids), BF16)


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
def test_embed(reference, kind, dtype):
    source = random_matrix(40, 16, kind)
    ids = torch.tensor([39, 0, 0])
    rows = reference.embed(reference.pack_table(source), ids, dtype)
    assert_same_bits(rows, source.weight.read()[ids].to(dtype))


def test_pack_vector_is_private(reference):
    tensor = torch.randn(5)
    vector = reference.pack_vector(TensorSource(tensor))
    assert_same_bits(vector, tensor)
    assert vector.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
def test_norm_of_zeros_is_zeros(reference, dtype):
    out = reference.rms_norm(torch.zeros(3, 8, dtype=dtype), torch.ones(8), 1e-20)
    assert torch.equal(out, torch.zeros(3, 8, dtype=dtype))


@pytest.mark.parametrize("size", [1e-9, 1e9, 1e15])
def test_norm_of_extreme_rows(reference, size):
    x = torch.randn(3, 64, dtype=FP64) * size
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-20).sqrt()
    assert_close(reference.rms_norm(x.float(), torch.ones(64), 1e-20), expected.float())


def test_nan_stays_in_its_row(reference):
    x = torch.randn(20, 8)
    clean = reference.rms_norm(x, torch.ones(8), 1e-20)
    x[7, 3] = torch.nan
    out = reference.rms_norm(x, torch.ones(8), 1e-20)
    assert out[7].isnan().all()
    others = torch.arange(20) != 7
    assert_same_bits(out[others], clean[others])


FREQUENCIES = 10000 ** -(torch.arange(4) / 4)


@pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
@pytest.mark.parametrize("numerics", Numerics)
def test_rope_keeps_leading_channels_and_shape(reference, numerics, dtype):
    x = torch.randn(5, 3, 12).to(dtype)
    out = reference.rope(x, torch.arange(5), FREQUENCIES, False, numerics)
    assert out.shape == x.shape
    assert_same_bits(out[..., :4], x[..., :4])
    assert_same_bits(out[0], x[0])


@pytest.mark.parametrize("numerics", Numerics)
def test_the_inverse_undoes_the_rotation(reference, numerics):
    x = torch.randn(5, 8, dtype=FP64)
    positions = torch.tensor([0, 1, 1000, 65536, 1048575])
    turned = reference.rope(x, positions, FREQUENCIES, False, numerics)
    back = reference.rope(turned, positions, FREQUENCIES, True, numerics)
    assert (back - x).abs().max() < 1e-14


def test_the_angle_is_a_float32_product_in_float64_compute_too(reference):
    frequency = torch.tensor([0.1])
    position = torch.tensor([1048575])
    x = torch.tensor([[1.0, 0.0]], dtype=FP64)
    out = reference.rope(x, position, frequency, False, Numerics.REF)
    angle = (position.float() * frequency).double()
    assert out[0].tolist() == [angle.cos().item(), angle.sin().item()]


@pytest.mark.parametrize("numerics", Numerics)
def test_rope_rounds_as_its_numerics_say(reference, numerics):
    """REF rounds both products and the sum; INFER rounds the second product, then the fused sum."""
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(40) * 977
    angle = positions.float()[:, None] * FREQUENCIES
    cos, sin = angle.cos(), angle.sin()
    x0, x1 = x[:, 0::2], x[:, 1::2]
    out = reference.rope(x, positions, FREQUENCIES, False, numerics)
    if numerics is Numerics.REF:
        assert_same_bits(out[:, 0::2], x0 * cos - x1 * sin)
        assert_same_bits(out[:, 1::2], x0 * sin + x1 * cos)
        return
    for first, factor, rest, found in (
        (x0, cos, -(x1 * sin), out[:, 0::2]),
        (x0, sin, x1 * cos, out[:, 1::2]),
    ):
        columns = (t.flatten().tolist() for t in (first, factor, rest, found))
        for a, b, c, y in zip(*columns, strict=True):
            assert y == nearest_float32(Fraction(a) * Fraction(b) + Fraction(c))


def nearest_float32(value: Fraction) -> float:
    """The float32 nearest to a rational; no ties occur in these tests."""
    close = torch.tensor(float(value), dtype=FP64).float()
    around = [close, *(torch.nextafter(close, torch.tensor(end)) for end in (-9e9, 9e9))]
    return min((float(one) for one in around), key=lambda one: abs(Fraction(one) - value))
