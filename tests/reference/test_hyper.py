"""Hyper-connections: formulas on small cases, and edges."""

from __future__ import annotations

import pytest
import torch

from deepinfer.backend import Mix, MixSite
from deepinfer_reference.hyper import sinkhorn
from tests.reference.compare import assert_close, assert_same_bits

SITE = MixSite(
    torch.randn(24, 32, generator=torch.Generator().manual_seed(0)),
    torch.linspace(-2, 2, 24),
    torch.tensor([0.5, 1.0, 2.0]),
    20,
    1e-6,
    1e-20,
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_mixes_are_wide(reference, dtype):
    mix = reference.mix(torch.randn(3, 4, 8).to(dtype), SITE)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert [part.dtype for part in mix] == [wide] * 3
    assert [tuple(part.shape) for part in mix] == [(3, 4), (3, 4), (3, 4, 4)]


def test_mix_follows_the_formula(reference):
    streams = torch.randn(3, 4, 8)
    flat = streams.double().flatten(1)
    mixed = flat @ SITE.fn.double().T / flat.square().mean(-1, keepdim=True).sqrt()
    scale = torch.cat([SITE.scale[i].repeat(n) for i, n in enumerate((4, 4, 16))]).double()
    affine = SITE.base.double() + mixed * scale
    mix = reference.mix(streams, SITE)
    assert_close(mix.pre, (affine[:, :4].sigmoid() + 1e-6).float())
    assert_close(mix.post, (2 * affine[:, 4:8].sigmoid()).float())
    comb = sinkhorn(affine[:, 8:].view(-1, 4, 4), 20, 1e-6)
    assert (mix.comb - comb).abs().max() < 1e-5


def test_mix_of_zero_streams_is_that_of_the_base(reference):
    mix = reference.mix(torch.zeros(1, 4, 8), SITE)
    assert_close(mix.post[0], 2 * SITE.base[4:8].sigmoid())


def test_rows_and_columns_of_a_combination_sum_to_one(reference):
    comb = reference.mix(torch.randn(50, 4, 8) * 10, SITE).comb
    assert (comb.sum(-2) - 1).abs().max() < 1e-4
    assert (comb >= 0).all()


def test_collapse_with_one_hot_reads_that_stream(reference):
    streams = torch.randn(5, 4, 8).bfloat16()
    pre = torch.zeros(5, 4)
    pre[:, 2] = 1
    assert_same_bits(reference.collapse(streams, pre), streams[:, 2])


def test_collapse_rounds_once(reference):
    streams = torch.tensor([1.0, 2.0**-9, 2.0**-9, 0]).bfloat16().view(1, 4, 1)
    assert reference.collapse(streams, torch.ones(1, 4)).item() == 1
    streams = torch.tensor([1.0, 2.0**-8, 2.0**-16, 0]).bfloat16().view(1, 4, 1)
    assert reference.collapse(streams, torch.ones(1, 4)).item() == 1 + 2.0**-7


def test_expand_moves_stream_m_to_stream_n(reference):
    streams = torch.randn(2, 4, 8)
    comb = torch.zeros(2, 4, 4)
    comb[:, 1, 3] = 1
    out, post = torch.randn(2, 8), torch.tensor([[0.0, 0, 2, 0]]).repeat(2, 1)
    expanded = reference.expand(out, streams, Mix(post, post, comb))
    assert torch.equal(expanded[:, 3], streams[:, 1])
    assert torch.equal(expanded[:, 2], 2 * out)
    assert torch.equal(expanded[:, :2], torch.zeros(2, 2, 8))


def test_no_rows(reference):
    streams = torch.zeros(0, 4, 8)
    mix = reference.mix(streams, SITE)
    assert [tuple(part.shape) for part in mix] == [(0, 4), (0, 4), (0, 4, 4)]
    assert reference.collapse(streams, mix.pre).shape == (0, 8)
    assert reference.expand(torch.zeros(0, 8), streams, mix).shape == (0, 4, 8)


def test_nan_stays_in_its_row(reference):
    streams = torch.randn(5, 4, 8)
    clean = reference.mix(streams, SITE)
    streams[3, 0, 0] = torch.nan
    spoiled = reference.mix(streams, SITE)
    assert spoiled.comb[3].isnan().all()
    others = torch.tensor([0, 1, 2, 4])
    for ours, theirs in zip(spoiled, clean, strict=True):
        assert_same_bits(ours[others], theirs[others])


@pytest.mark.parametrize("size", [80.0, 1e4, 1e30])
def test_sinkhorn_of_large_logits_is_finite(size):
    comb = sinkhorn(torch.randn(7, 4, 4) * size, 20, 1e-6)
    assert comb.isfinite().all()
