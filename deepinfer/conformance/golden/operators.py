"""Checks of operator vectors: inputs and outputs of single operators, run on a backend."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from deepinfer.backend import Activation, Contract, LinearSource, Mix, MixSite, Numerics
from deepinfer.backend.memory_source import MemorySource
from deepinfer.backend.registry import Selected, host_reference, reference_for
from deepinfer.backend.resolution import resolve
from deepinfer.config import YarnConfig
from deepinfer.conformance.golden.attention import check_attention
from deepinfer.conformance.golden.comparison import (
    absolute,
    attempt,
    close,
    compared,
    differing,
    equal,
)
from deepinfer.conformance.golden.data import GoldenData, Tensors
from deepinfer.conformance.golden.engram import check_hashes, check_injection
from deepinfer.conformance.golden.report import Item, Measure
from deepinfer.conformance.golden.scratch import codes_apart, dequantised, stored
from deepinfer.conformance.golden.selections import entry_mask, same_sets
from deepinfer.formats import INDEX, MAIN, WINDOW, EntryFormat, Scheme
from deepinfer.model import inverse_frequencies

FP32_ABSOLUTE = 1e-5
DIVISION_SHARE = 0.001
"""The share of NVFP4 elements that may differ.

The data were divided by the scale. The cache multiplies by its reciprocal, which decides some exact
ties differently.
"""
_EPS = 1e-20
_YARN = YarnConfig(16, 32, 1, 65536)
_TINY_YARN = YarnConfig(16, 32, 1, 128)


def check_operators(
    data: GoldenData, vectors: Tensors, selected: Selected, computes: tuple[str, ...]
) -> Iterator[Item]:
    """Check all operator vectors of these compute precisions."""
    backend = selected.create()
    operators = resolve(
        selected.spec.name, backend, reference_for(selected, backend), [], host=host_reference
    )
    vectors.device = operators.device
    for exact in (_dequantisers, _angle_checks, _sinkhorn, _router, _candidates):
        name = f"ops{exact.__name__.replace('_', '/', 1)}"
        yield from attempt(name, "fp32", functools.partial(exact, operators, vectors))
    yield from attempt("ops/engram", "fp32", lambda: check_hashes(data, operators, vectors))
    for compute in computes:
        for check in (_quantisers, _rope, _rms_norm, _hyper_connections):
            name = f"ops{check.__name__.replace('_', '/', 1)}"
            yield from attempt(name, compute, functools.partial(check, operators, vectors, compute))
        injection = functools.partial(check_injection, data, operators, vectors, compute)
        yield from attempt("ops/engram", compute, injection)
        yield from check_attention(operators, vectors, compute)
    if "bf16" in computes:
        yield from attempt("ops/swiglu", "bf16", lambda: _swiglu(operators, vectors))
    else:
        vectors.mark("swiglu.route_weight")  # of bf16 vectors, whose keys have no suffix


def _quantisers(operators: Contract, vectors: Tensors, compute: str) -> Iterator[Item]:
    kinds: tuple[tuple[str, Scheme, EntryFormat], ...] = (
        ("fp8", Scheme.FP8_BLOCK32, WINDOW),
        ("mxfp4", Scheme.MXFP4, INDEX),
        ("nvfp4", Scheme.NVFP4, MAIN),
    )
    for kind, scheme, format in kinds:
        for case in ("", "rand."):
            key = f"quant.{kind}.{case}in.{compute}"
            if key not in vectors.keys:
                continue
            values = vectors.get(key)
            want = vectors.get(f"quant.{kind}.{case}out.{compute}")
            name = f"ops/quant/{kind}.{case or 'edges.'}"
            measure = functools.partial(_code_measures, values, scheme)
            for way, got in (
                ("quantise", dequantised(operators.quantise(values, scheme))),
                ("store", stored(operators, format, values)),
            ):
                yield compared(f"{name}{way}", compute, got, want, measure)


def _code_measures(values: Tensor, scheme: Scheme, got: Tensor, want: Tensor) -> list[Measure]:
    """Measures of dequantised values: equal, but for NVFP4 a few may be off by one code."""
    if scheme is not Scheme.NVFP4:
        return [differing(got, want)]
    apart = codes_apart(values.cpu(), got, want)
    return [differing(got, want, DIVISION_SHARE), Measure("codes apart", apart, "<=", 1)]


def _dequantisers(operators: Contract, vectors: Tensors) -> Iterator[Item]:
    for case in ("fp8_block32", "fp4_packed", "fp4_codes"):
        source, want = _stored_matrix(vectors, case)
        columns = torch.eye(want.shape[1], device=operators.device)
        packed = operators.pack_linear(source)
        got = operators.linear(Activation(columns), packed, torch.float32).T
        yield equal(f"ops/dequant/{case}", "fp32", got, want)
    for case in ("fp8_rowwise32", "fp8_codes"):
        source, want = _stored_matrix(vectors, case)
        table = operators.pack_table(source)
        rows = torch.arange(len(want), device=operators.device)[:, None]
        got = operators.gather(table, rows, torch.float32).values
        yield equal(f"ops/dequant/{case}", "fp32", got, want)


def _stored_matrix(vectors: Tensors, case: str) -> tuple[LinearSource, Tensor]:
    weight = vectors.get(f"dequant.{case}.weight").cpu()
    scale = vectors.get(f"dequant.{case}.scale").cpu()
    if case == "fp8_codes":
        scale = scale.view(torch.uint8).expand(len(weight), -1).contiguous()
        source = LinearSource(MemorySource(weight), MemorySource(scale, dtype="F8_E8M0"))
    else:
        source = LinearSource(MemorySource(weight), MemorySource(scale))
    return source, vectors.get(f"dequant.{case}.out.fp32")


def _rope(operators: Contract, vectors: Tensors, compute: str) -> Iterator[Item]:
    positions = vectors.get("rope.positions")[0]
    kinds = (("plain", 10000.0, None), ("yarn", 160000.0, _YARN))
    for kind, theta, yarn in kinds:
        frequencies = inverse_frequencies(theta, 64, yarn).to(operators.device)
        values = vectors.get(f"rope.{kind}.in.{compute}")[0]
        for output, inverse in (("out", False), ("inverse", True)):
            got = operators.rope(values, positions, frequencies, inverse, Numerics.REF)
            want = vectors.get(f"rope.{kind}.{output}.{compute}")[0]
            yield close(f"ops/rope/{kind}.{output}", compute, got, want)


def _angle_checks(operators: Contract, vectors: Tensors) -> Iterator[Item]:
    """Check angles, which are single float32 products and so show any error of a frequency."""
    positions = vectors.get("rope.positions")[0].cpu()
    for kind, frequencies in (
        ("plain", inverse_frequencies(10000.0, 64)),
        ("yarn", inverse_frequencies(160000.0, 64, _YARN)),
        ("tiny_a_yarn", inverse_frequencies(160000.0, 16, _TINY_YARN)),
    ):
        angles = positions.float()[:, None] * frequencies
        want = vectors.get(f"rope.{kind}.angles")[0]
        yield equal(f"ops/rope/{kind}.angles", "fp32", angles, want)


def _rms_norm(operators: Contract, vectors: Tensors, compute: str) -> Iterator[Item]:
    values, weight = (vectors.get(f"rmsnorm.{key}.{compute}") for key in ("in", "weight"))
    got = operators.rms_norm(values, weight, _EPS)
    yield close("ops/rmsnorm", compute, got, vectors.get(f"rmsnorm.out.{compute}"))


def _hyper_connections(operators: Contract, vectors: Tensors, compute: str) -> Iterator[Item]:
    def get(key: str) -> Tensor:
        return vectors.get(f"mhc.{key}.{compute}")

    fn, base, scale = (vectors.get(f"mhc.{key}") for key in ("fn", "base", "scale"))
    streams = get("streams")
    mix = operators.mix(streams, MixSite(fn, base, scale, 20, 1e-6, _EPS))
    for part in ("pre", "post", "comb"):
        yield absolute(f"ops/mhc/{part}", compute, getattr(mix, part), get(part), FP32_ABSOLUTE)
    wanted = Mix(get("pre"), get("post"), get("comb"))
    collapsed = operators.collapse(streams, get("pre_mix_in"))
    yield close("ops/mhc/collapsed", compute, collapsed, get("collapsed"))
    expanded = operators.expand(get("sublayer_out"), streams, wanted)
    yield close("ops/mhc/expanded", compute, expanded, get("expanded"))


def _sinkhorn(operators: Contract, vectors: Tensors) -> Iterator[Item]:
    """Check Sinkhorn by `mix` with a zero projection, whose base is the matrix to balance."""
    matrices = vectors.get("sinkhorn.in")
    streams = matrices.new_ones((1, 4, 32))
    for key, iterations in (("out", 20), ("out_1_iteration", 1)):
        got = []
        for matrix in matrices:
            base = torch.cat([matrix.new_zeros(8), matrix.flatten()])
            fn, scale = matrix.new_zeros((24, 128)), matrix.new_zeros(3)
            site = MixSite(fn, base, scale, iterations, 1e-6, _EPS)
            got.append(operators.mix(streams, site).comb[0])
        want = vectors.get(f"sinkhorn.{key}")
        yield absolute(f"ops/sinkhorn/{key}", "fp32", torch.stack(got), want, FP32_ABSOLUTE)


def _router(operators: Contract, vectors: Tensors) -> Iterator[Item]:
    for case, k in (("r384", 6), ("r8", 3)):
        prefix = f"router.{case}"
        weight = vectors.get(f"{prefix}.weight").cpu()
        gate = operators.pack_linear(LinearSource(MemorySource(weight)))
        inputs = Activation(vectors.get(f"{prefix}.in"))
        logits = operators.linear(inputs, gate, torch.float32)
        bias, image_bias = (vectors.get(f"{prefix}.{key}") for key in ("bias", "bias_vl"))
        image_mask = vectors.get(f"{prefix}.image_mask")
        for kind, mask in (("text", torch.zeros_like(image_mask)), ("mixed", image_mask)):
            name = f"ops/router/{case}.{kind}"
            routing = operators.route(logits, bias, image_bias, mask, k, 1.5)
            ids = vectors.get(f"{prefix}.{kind}.indices")
            yield same_sets(f"{name}.indices", "fp32", routing.ids, ids, None, ascending=False)
            got = routing.weights.gather(1, routing.ids.long().argsort(1))
            want = vectors.get(f"{prefix}.{kind}.weights").gather(1, ids.argsort(1))
            yield close(f"{name}.weights", "fp32", got, want)


def _swiglu(operators: Contract, vectors: Tensors) -> Iterator[Item]:
    gate, up = vectors.get("swiglu.gate_up.bf16").chunk(2, dim=1)
    weights = vectors.get("swiglu.route_weight")[:, 0]
    for limit in (1, 10):
        got = operators.swiglu(gate, up, float(limit), weights, Numerics.REF).values
        want = vectors.get(f"swiglu.limit{limit}.out.bf16")
        yield close(f"ops/swiglu/limit{limit}", "bf16", got, want)


def _candidates(operators: Contract, vectors: Tensors) -> Iterator[Item]:
    """Check candidate blocks. The data mark whole blocks, with entries that are not visible."""
    scores, visible = vectors.get("candidates.scores"), vectors.get("candidates.visible")
    for size, k in ((4, 1), (8, 3)):
        got = entry_mask(operators.best_blocks(scores, visible, size, k), size, scores.shape[1])
        name = f"candidates.block{size}_top{k}"
        yield equal(f"ops/{name}", "fp32", got, vectors.get(name))
