"""Spaces of the operators that keep nothing between calls: packers, rows, experts, sampling.

A space draws facts, precision and values of one case; the suite of the operator builds it. What is
drawn stays inside of what the contract allows, so that every drawn case has a right answer.
Rows of sums have at least 8 elements: limits are shares of a row's largest element, and a row of
few sums now and then holds nothing but terms that cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from deepinfer.backend import Fact
from deepinfer.backend.sampling import Purpose
from deepinfer.conformance.case import Case
from deepinfer.conformance.cases.device import DTYPES as DEVICE_DTYPES
from deepinfer.conformance.cases.experts import SCALE
from deepinfer.conformance.cases.hyper import WEIGHTS
from deepinfer.conformance.cases.sampling import PARAMETERS
from deepinfer.conformance.cases.specs import EPS, FP8
from deepinfer.formats import Scheme

if TYPE_CHECKING:
    from deepinfer.conformance.properties.draws import Draws

FEWEST = 8
KINDS = ("bf16", "fp32", "fp8", "fp4")
GATE_EDGES = ("", "none-blocked", "all-blocked", "opposed", "small")


def pack_linear(d: Draws) -> Case:
    kind, dtype = d.pick(*KINDS), d.pick("fp32", "bf16", "fp64")
    inputs = d.multiple(32, 128) if kind == "fp4" else d.integer(1, 80)
    values = d.pick("normal", "powers", "saturated", "zeros") if dtype == "fp32" else "normal"
    facts: dict[str, Fact] = {"rows": inputs, "inputs": inputs, "weight": kind}
    facts["outputs"] = d.integer(1, 70)
    return d.case("pack_linear", facts, dtype=dtype, values=values)


def pack_table(d: Draws) -> Case:
    vocabulary, kind = d.integer(1, 70), d.pick("bf16", "fp32", "fp8")
    facts: dict[str, Fact] = {"rows": vocabulary, "vocabulary": vocabulary, "weight": kind}
    facts["width"] = d.multiple(32, 128)
    return d.case("pack_table", facts, dtype=d.pick("bf16", "fp32"))


def pack_vector(d: Draws) -> Case:
    shape = d.pick(str(d.integer(1, 200)), f"{d.integer(1, 20)}x{d.integer(1, 40)}")
    facts: dict[str, Fact] = {"shape": int(shape) if shape.isdigit() else shape}
    values = d.pick("normal", "large", "subnormal", "zeros")
    return d.case("pack_vector", facts, dtype=d.pick("bf16", "fp32"), values=values)


def pack_experts(d: Draws) -> Case:
    kind = d.pick("bf16", "fp32", "fp4")
    values = d.pick("normal", "powers", "saturated") if kind == "fp4" else "normal"
    facts: dict[str, Fact] = {"experts": d.integer(1, 6), "weight": kind}
    facts |= {name: d.multiple(32, 96) for name in ("hidden", "intermediate")}
    return d.case("pack_experts", facts, dtype=d.pick("bf16", "fp32"), values=values)


def rms_norm(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "width": d.integer(1, 160)}
    facts["eps"] = d.pick(EPS, 1e-6)
    values = d.pick("normal", "large", "extreme", "subnormal", "zeros", "nan_row")
    return d.case("rms_norm", facts, dtype=d.dtype(), values=values)


def linear(d: Draws) -> Case:
    facts, dtype = _product(d)
    values = d.pick("normal", "large", "ties", "zeros")
    return d.case("linear", facts, dtype=dtype, values=values)


def grouped_linear(d: Draws) -> Case:
    facts, dtype = _product(d)
    facts["groups"] = d.integer(1, 5)
    return d.case("grouped_linear", facts, dtype=dtype, values=d.pick("normal", "large", "ties"))


def _product(d: Draws) -> tuple[dict[str, Fact], str]:
    kind, dtype = d.pick(*KINDS), d.dtype()
    scheme = d.pick(FP8, None) if kind in ("fp8", "fp4") else None
    whole = kind == "fp4" or scheme is not None
    facts: dict[str, Fact] = {
        "rows": d.rows(),
        "inputs": d.multiple(32, 160) if whole else d.integer(1, 100),
        "outputs": d.integer(FEWEST, 70),
        "weight": kind,
        "scheme": scheme,
        "out": d.pick("bf16", "fp32") if dtype == "bf16" else dtype,
    }
    return facts, dtype


def embed(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "vocabulary": d.integer(1, 90)}
    facts |= {"width": d.integer(1, 60), "kind": d.pick("bf16", "fp32")}
    return d.case("embed", facts, dtype=d.dtype())


def quantise(d: Draws) -> Case:
    scheme = d.pick(*Scheme, None)
    group = 1 if scheme is None else scheme.group_size
    facts: dict[str, Fact] = {"rows": d.rows(), "width": group * d.integer(1, 6)}
    facts["scheme"] = None if scheme is None else scheme.value
    heads = d.integer(0, 4)
    if heads:
        facts["heads"] = heads
    edge = d.pick("", "midpoints")
    values = d.pick(
        "normal", "large", "extreme", "saturated", "subnormal", "ties", "zeros", "nan_row",
        "infinite",
    ) if not edge else "normal"  # fmt: skip
    return d.case("quantise", facts, dtype=d.dtype(), values=values, edge=edge)


def norm_quantise(d: Draws) -> Case:
    scheme = d.pick(FP8, None)
    facts: dict[str, Fact] = {"rows": d.rows(), "scheme": scheme}
    facts["width"] = d.multiple(32, 160) if scheme else d.integer(1, 160)
    values = d.pick("normal", "large", "extreme", "subnormal", "ties", "zeros", "nan_row")
    return d.case("norm_quantise", facts, dtype=d.dtype(), values=values)


def rope(d: Draws) -> Case:
    rotated = 2 * d.integer(1, 32)
    facts: dict[str, Fact] = {
        "rows": d.rows(),
        "heads": d.integer(1, 5),
        "width": rotated + 2 * d.integer(0, 20),
        "rotated": rotated,
        "inverse": d.pick(False, True),
        "theta": d.pick(160000.0, 10000.0),
    }
    values = d.pick("normal", "large", "extreme", "zeros", "nan_row")
    return d.case("rope", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def project(d: Draws) -> Case:
    head_dim = d.multiple(16, 64)
    facts: dict[str, Fact] = {
        "rows": d.rows(),
        "heads": d.integer(1, 4),
        "head_dim": head_dim,
        "rank": d.multiple(32, 96),
        "hidden": d.multiple(32, 128),
        "rotated": 2 * d.integer(1, head_dim // 2),
        "weight": d.pick("fp8", "bf16", "fp32"),
    }
    values = d.pick("normal", "large", "ties", "zeros")
    return d.case("project", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def logits(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "hidden": d.integer(1, 130)}
    facts |= {"vocabulary": d.integer(FEWEST, 90), "weight": d.pick("bf16", "fp32")}
    values = d.pick("normal", "large", "extreme", "zeros", "nan_row")
    return d.case("logits", facts, dtype=d.dtype(), values=values)


def _streams(d: Draws, of: int = 1) -> dict[str, Fact]:
    width = d.multiple(of, 96) if of > 1 else d.integer(FEWEST, 96)
    return {"rows": d.rows(), "streams": d.integer(1, 4), "width": width}


def mix(d: Draws) -> Case:
    facts = {**_streams(d), "iterations": d.integer(1, 20), "weights": d.pick("mild", *WEIGHTS)}
    edge = d.pick("", "small")
    classes = ("normal", "large", "subnormal", "ties", "zeros", "nan_row")
    values = "normal" if edge else d.pick(*classes)
    return d.case("mix", facts, dtype=d.dtype(), values=values, edge=edge)


def _streamed(operator: str) -> Callable[[Draws], Case]:
    def drawn(d: Draws) -> Case:
        values = d.pick("normal", "large", "extreme", "ties", "zeros", "nan_row")
        return d.case(operator, _streams(d), dtype=d.dtype(), values=values)

    return drawn


def _entered(operator: str) -> Callable[[Draws], Case]:
    def drawn(d: Draws) -> Case:
        scheme = d.pick(FP8, None)
        weights = d.pick("mild", "even", "steep")
        facts = {**_streams(d, 32), "scheme": scheme, "weights": weights}
        values = d.pick("normal", "large", "ties", "zeros", "nan_row")
        return d.case(operator, facts, dtype=d.dtype(), values=values)

    return drawn


def ngram_rows(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "orders": d.integer(2, 5)}
    facts |= {"heads": d.integer(1, 8), "modulus": d.integer(20, 400), "ids": d.integer(3, 600)}
    return d.case("ngram_rows", facts, edge=d.pick("", "history"))


def gather(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "columns": d.integer(1, 12)}
    facts |= {"width": d.multiple(32, 96), "table_rows": d.integer(1, 120)}
    facts["weight"] = d.pick("fp8", "bf16", "fp32")
    return d.case("gather", facts, dtype=d.dtype())


def inject(d: Draws) -> Case:
    edge = d.pick(*GATE_EDGES)
    classes = ("normal", "large", "subnormal", "ties", "zeros", "nan_row")
    values = "normal" if edge else d.pick(*classes)
    return d.case("inject", _streams(d), dtype=d.dtype(), values=values, edge=edge)


def engram(d: Draws) -> Case:
    facts = _streams(d, 32)
    facts |= {"table_width": d.multiple(32, 64), "weight": d.pick("fp8", "bf16")}
    facts |= {"orders": d.integer(2, 4), "heads": d.integer(1, 4), "modulus": d.integer(20, 60)}
    values = d.pick("normal", "large", "zeros", "nan_row")
    return d.case("engram", facts, dtype=d.dtype(), values=values)


def _experts(d: Draws, most: int) -> dict[str, Fact]:
    experts = d.integer(1, most)
    return {"rows": d.rows(), "experts": experts, "top_k": d.integer(1, min(6, experts))}


def route(d: Draws) -> Case:
    facts = {**_experts(d, 48), "scale": SCALE}
    values = d.pick("normal", "large", "ties", "zeros", "low")
    return d.case("route", facts, dtype=d.dtype(), values=values)


def dispatch(d: Draws) -> Case:
    facts = {**_experts(d, 12), "hidden": d.integer(1, 130)}
    return d.case("dispatch", facts, dtype=d.pick("bf16", "fp32"))


def combine(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "top_k": d.integer(1, 8)}
    facts["hidden"] = d.integer(1, 130)
    values = d.pick("normal", "large", "ties", "zeros", "extreme", "cancelling")
    if facts["top_k"] == 1 and values == "cancelling":
        values = "normal"
    return d.case("combine", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def swiglu(d: Draws) -> Case:
    numerics = d.numerics()
    facts: dict[str, Fact] = {
        "rows": d.rows(),
        "intermediate": d.multiple(32, 128) if numerics == "infer" else d.integer(1, 130),
        "limit": d.pick(10.0, 1.5, 0.0),
        "weighted": d.pick(False, True),
    }
    values = d.pick("normal", "large", "subnormal", "ties", "zeros", "nan_row")
    return d.case("swiglu", facts, dtype=d.dtype(), numerics=numerics, values=values)


def _inner(d: Draws, kind: str) -> dict[str, Fact]:
    facts: dict[str, Fact] = {name: d.multiple(32, 96) for name in ("hidden", "intermediate")}
    return {**facts, "weight": kind, "limit": d.pick(10.0, 1.5, 0.0)}


def expert_mlp(d: Draws) -> Case:
    kind = d.pick("bf16", "fp32", "fp4")
    facts = {**_experts(d, 6), **_inner(d, kind)}
    k, experts = facts["top_k"], facts["experts"]
    assert isinstance(k, int)
    assert isinstance(experts, int)
    patterns = ["spread", "all", *(["one", "last"] if k == 1 else [])]
    patterns += ["few"] if 2 * k <= experts else []
    facts["pattern"] = d.pick(*patterns)
    values = d.pick("normal", "ties", "zeros", "nan_row", *(["powers"] if kind == "fp4" else []))
    return d.case("expert_mlp", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def shared_mlp(d: Draws) -> Case:
    kind = d.pick("bf16", "fp32", "fp8")
    facts = {"rows": d.rows(), **_inner(d, kind)}
    values = d.pick("normal", "ties", "zeros", "nan_row", *(["powers"] if kind == "fp8" else []))
    return d.case("shared_mlp", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def mixture(d: Draws) -> Case:
    kind = d.pick("bf16", "fp4")
    facts = {**_experts(d, 6), **_inner(d, kind)}
    values = d.pick("normal", "nan_row")
    return d.case("mixture", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def mask(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "vocabulary": d.integer(1, 140)}
    values = d.pick("normal", "large", "zeros", "nan_row", "infinite")
    return d.case("mask", facts, dtype="fp32", values=values)


def process(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "vocabulary": d.integer(1, 80)}
    facts["parameters"] = d.pick(*PARAMETERS)
    values = d.pick("normal", "ties", "zeros", "large", "extreme", "nan_row", "infinite", "masked")
    return d.case("process", facts, dtype="fp32", values=values)


def sample(d: Draws) -> Case:
    facts: dict[str, Fact] = {"rows": d.rows(), "vocabulary": d.integer(1, 80)}
    facts["purpose"] = int(d.pick(*Purpose))
    values = d.pick("normal", "ties", "zeros", "masked", "peaked", "faint", "nan_row")
    return d.case("sample", facts, dtype="fp32", values=values)


def top_logprobs(d: Draws) -> Case:
    vocabulary = d.integer(1, 80)
    facts: dict[str, Fact] = {"rows": d.rows(), "vocabulary": vocabulary}
    facts["k"] = d.integer(0, min(20, vocabulary))
    values = d.pick("normal", "ties", "zeros", "masked", "large")
    return d.case("top_logprobs", facts, dtype="fp32", values=values)


def device(d: Draws) -> Case:
    facts: dict[str, Fact]
    if d.pick(False, True):
        facts = {"service": "tensor", "source": d.pick("list", "tuple", "nested", "numpy", "empty")}
        return d.case("device", facts, dtype=d.pick(*DEVICE_DTYPES))
    facts = {"service": "copy_async", "size": d.integer(0, 9000)}
    facts["form"] = d.pick("whole", "strided")
    return d.case("device", facts, dtype=d.pick("uint8", "int64", "fp32"))


PLAIN: Mapping[str, Callable[[Draws], Case]] = {
    **{
        space.__name__: space
        for space in (
            pack_linear, pack_table, pack_vector, pack_experts, rms_norm, linear, grouped_linear,
            embed, quantise, norm_quantise, rope, project, logits, mix, ngram_rows, gather, inject,
            engram, route, dispatch, combine, swiglu, expert_mlp, shared_mlp, mixture, mask,
            process, sample, top_logprobs, device,
        )
    },
    **{name: _streamed(name) for name in ("collapse", "expand")},
    **{name: _entered(name) for name in ("enter", "advance")},
}  # fmt: skip
"""How a case of each operator is drawn."""
