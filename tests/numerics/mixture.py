"""Mixture of experts in float64 (model specification, section 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Activation, Numerics
from tests.numerics import codes, plain
from tests.numerics.bounds import HALF_STEP, UNIT, summed
from tests.numerics.codes import Blocks
from tests.numerics.recording import Call
from tests.numerics.teacher import Teacher, same

FEW = 8 * UNIT  # relative error of a handful of float32 operations


def recompute_mixture(t: Teacher, b: Tensor, blocks: Blocks | None) -> None:
    """Router, routed experts, shared expert, sum."""
    logits = t.matmul("ffn.gate", b, None)
    assert logits.dtype == torch.float32
    routed = t.next("route")
    same("router logits", routed.arguments[0], logits)
    ids, weights = routed.result
    exact = plain.route(
        logits.double(),
        t.stored.vector("ffn.gate.bias"),
        t.text.num_experts_per_tok,
        t.text.routed_scaling_factor,
    )
    clear = exact.margin > 1e-6  # float32 tells the scores apart
    assert bool(clear.any()), "no row has clear experts"
    assert torch.equal(ids[clear].long(), exact.ids[clear]), "experts"
    bound = summed(exact.weights[clear], torch.float32, 16)
    t.close("routing weights", weights[clear], exact.weights[clear], bound)
    same("input of the experts", t.next("dispatch").arguments[0].values, b)
    outputs = experts(t, b, blocks, ids, weights)
    gate = t.matmul("ffn.shared_experts.w1", b, blocks)
    up = t.matmul("ffn.shared_experts.w3", b, blocks)
    call = t.next("swiglu")
    same("shared gate", call.arguments[0], gate)
    same("shared up", call.arguments[1], up)
    assert call.arguments[3] is None
    swiglu(t, "shared SwiGLU", call)
    hidden: Activation = call.result
    shared_blocks = Blocks(*hidden.quantised) if hidden.quantised is not None else None
    shared = t.matmul("ffn.shared_experts.w2", hidden.values, shared_blocks)
    combined = t.next("combine")
    same("shared output", combined.arguments[1], shared)
    total = outputs.double().sum(1)
    size = outputs.double().abs().sum(1) + shared.double().abs()
    rounded = HALF_STEP[t.dtype] * total.abs() if t.numerics is Numerics.REF else 0.0
    total = total + shared.double()
    bound = HALF_STEP[t.dtype] * total.abs() * 1.01 + rounded + FEW * size
    t.close("mixture", combined.result, total, bound)


def experts(t: Teacher, b: Tensor, blocks: Blocks | None, ids: Tensor, weights: Tensor) -> Tensor:
    """Each expert's three matmuls on the rows that chose it: outputs [T, k, H] of the engine."""
    quantised = blocks is not None and t.stored.quantised("ffn.experts.0.w1")
    inputs = codes.fp8_values(*blocks) if blocks is not None and quantised else b.double()
    outputs: Tensor = t.next("expert_mlp").result.outputs
    products = iter(t.record.recording.expert_products)
    swiglus = iter(t.record.recording.expert_swiglus)
    names = t.record.recording.names
    for expert in sorted(set(ids.flatten().tolist())):
        rows, places = (ids == expert).nonzero(as_tuple=True)
        found = {}
        for part in ("w1", "w3", "w2"):
            product = next(products)
            name = f"ffn.experts.{expert}.{part}"
            assert names[id(product.weight)] == name
            found[part] = product
            operand = product.operand[: len(rows)].double()
            if part != "w2":
                assert torch.equal(operand, inputs[rows]), f"input of {name}"
            else:
                call = next(swiglus)
                same(f"gate of expert {expert}", call.arguments[0], found["w1"].result)
                same(f"up of expert {expert}", call.arguments[1], found["w3"].result)
                chosen = weights[rows, places]
                same(f"weights of expert {expert}", call.arguments[3][: len(rows)], chosen)
                swiglu(t, "routed SwiGLU", call)
                assert torch.equal(operand, consumed(t, call.result)[: len(rows)]), name
            t.products(name, operand, product.result[: len(rows)])
        same(f"outputs of expert {expert}", outputs[rows, places], found["w2"].result[: len(rows)])
    assert next(products, None) is None
    assert next(swiglus, None) is None
    t.used["routed experts"] = max(
        t.used.pop(name) for name in list(t.used) if name.startswith("ffn.experts.")
    )
    return outputs


def consumed(t: Teacher, hidden: Activation) -> Tensor:
    """What a down projection multiplies by."""
    if hidden.quantised is not None and t.stored.quantised("ffn.experts.0.w2"):
        return codes.fp8_values(*hidden.quantised)
    return hidden.values.double()


def swiglu(t: Teacher, what: str, call: Call) -> None:
    """REF rounds the float32 result; INFER quantises it, and no bf16 value stands between."""
    gate, up, limit, weights, numerics = call.arguments
    exact = plain.swiglu(gate.double(), up.double(), limit, weights)
    hidden: Activation = call.result
    assert numerics is t.numerics
    assert limit == t.text.swiglu_limit
    bound = HALF_STEP[t.dtype] * exact.abs() * 1.01 + FEW * exact.abs() + 1e-37
    t.close(what, hidden.values, exact, bound)
    if numerics is Numerics.REF:
        assert hidden.quantised is None
        return
    assert hidden.quantised is not None
    got = Blocks(*hidden.quantised)
    near = [codes.fp8(exact * (1 + side * FEW)) for side in (-1, 0, 1)]
    right = torch.zeros_like(exact, dtype=torch.bool)
    for one in near:
        scales = (got.scales == one.scales).repeat_interleave(32, -1)
        right |= (got.codes == one.codes) & scales
    assert bool(right.all()), f"{what}: {int((~right).sum())} codes are not those of the result"
