"""Hyper-connections against golden vectors."""

from __future__ import annotations

import pytest
import torch

from deepinfer.backend import Mix, MixSite
from deepinfer_reference.hyper import sinkhorn
from tests.reference.compare import assert_close

PRECISIONS = ["fp32", "bf16"]


def site(golden) -> MixSite:
    return MixSite(golden["mhc.fn"], golden["mhc.base"], golden["mhc.scale"], 20, 1e-6, 1e-20)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_mix(reference, golden, precision):
    mix = reference.mix(golden[f"mhc.streams.{precision}"], site(golden))
    for name, value in mix._asdict().items():
        expected = golden[f"mhc.{name}.{precision}"]
        assert value.dtype == torch.float32
        assert (value - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("precision", PRECISIONS)
def test_collapse(reference, golden, precision):
    streams, pre = golden[f"mhc.streams.{precision}"], golden[f"mhc.pre_mix_in.{precision}"]
    assert_close(reference.collapse(streams, pre), golden[f"mhc.collapsed.{precision}"])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_expand(reference, golden, precision):
    mix = Mix(*(golden[f"mhc.{name}.{precision}"] for name in ("pre", "post", "comb")))
    out, streams = golden[f"mhc.sublayer_out.{precision}"], golden[f"mhc.streams.{precision}"]
    assert_close(reference.expand(out, streams, mix), golden[f"mhc.expanded.{precision}"])


@pytest.mark.parametrize("iterations, name", [(20, "out"), (1, "out_1_iteration")])
def test_sinkhorn(golden, iterations, name):
    comb = sinkhorn(golden["sinkhorn.in"], iterations, 1e-6)
    assert (comb - golden[f"sinkhorn.{name}"]).abs().max() <= 1e-5


def test_sinkhorn_of_the_specification():
    logits = torch.tensor([[0.0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0]])
    expected = torch.tensor(
        [
            [0.023780, 0.120209, 0.248867, 0.607143],
            [0.515696, 0.352811, 0.098853, 0.032639],
            [0.180269, 0.335244, 0.255330, 0.229156],
            [0.280255, 0.191735, 0.396949, 0.131061],
        ]
    )
    assert (sinkhorn(logits[None], 20, 1e-6)[0] - expected).abs().max() <= 1e-6
