"""Dense family: embedding, matmuls, norms, rotations, and the steps built from them.

T rows, H hidden, A heads, D head width, R rotated channels, K inputs and M outputs of a matmul,
V vocabulary. Compute precision is the dtype of the activations. Source: model specification,
sections 3.1, 4.2, 4.3, 4.9 and 9.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.backend.facts import hidden_of, matmul, stored_kind, width_of
from deepinfer.backend.operators import primitive, step
from deepinfer.backend.values import (
    Activation,
    LinearSource,
    Numerics,
    PackedLinear,
    PackedTable,
    Projection,
    Source,
    accumulation_dtype,
)
from deepinfer.formats import Scheme


@dataclass(frozen=True)
class AttentionWeights:
    """Packed weights of one layer's query and window projections, and its rotation.

    frequencies [R/2] float32: inverse frequencies of the layer (model specification, 4.3).
    """

    wq_a: PackedLinear
    q_norm: Tensor
    wq_b: PackedLinear
    wkv: PackedLinear
    kv_norm: Tensor
    frequencies: Tensor
    num_heads: int
    head_dim: int
    eps: float


class Dense:
    """Operators on rows, without cache and without state."""

    @primitive()
    def pack_vector(self, source: Source) -> Tensor:
        """A small unquantised tensor (norm weight, sink, bias) on the device, as stored."""
        raise NotImplementedError

    @primitive()
    def pack_linear(self, source: LinearSource) -> PackedLinear:
        """Take a matrix [M, K] once. Stored values are never rounded at load."""
        raise NotImplementedError

    @primitive()
    def pack_table(self, source: LinearSource) -> PackedTable:
        """Take a table [rows, width] whose rows are gathered; never dequantised as a whole."""
        raise NotImplementedError

    @primitive(
        rows="ids",
        facts=lambda call: {
            "vocabulary": call.table.shape[0],
            "width": call.table.shape[1],
            "dtype": call.dtype,
        },
    )
    def embed(self, table: PackedTable, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of a bf16 or fp32 table: ids [T] int64 -> [T, H] in `dtype`.

        Raises IndexError for an id outside [0, rows): ids never wrap.
        """
        raise NotImplementedError

    @primitive(rows="x", facts=lambda call: {**width_of(call.x), "scheme": call.scheme})
    def quantise(self, x: Tensor, scheme: Scheme | None) -> Activation:
        """x [T, ..., K] with its block-scaled form; without a scheme just the values.

        K must be a multiple of the scheme's group. NaN stays in its group. Batch-invariant.
        """
        raise NotImplementedError

    @primitive(
        rows="a.values",
        facts=lambda call: {
            "inputs": call.w.shape[1],
            "outputs": call.w.shape[0],
            **matmul(call.a, call.w, call.out_dtype),
        },
    )
    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        """a [T, K] times w^T -> [T, M], accumulated in fp32 (float64 in float64) and rounded once.

        FP8 and FP4 weights consume the quantised half of `a` where there is one; other weights
        consume the values. A matmul with bf16 output rounds a stored fp32 weight to bf16 first; one
        with wider output uses it as stored. Empty T gives an empty result. Batch-invariant where
        the backend declares it.
        """
        raise NotImplementedError

    @primitive(
        rows="a.values",
        facts=lambda call: {
            "groups": call.a.values.shape[1],
            "inputs": call.w.shape[1],
            "outputs": call.w.shape[0] // call.a.values.shape[1],
            **matmul(call.a, call.w, call.out_dtype),
        },
    )
    def grouped_linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        """Block-diagonal matmul: a [T, G, K], w [G*M, K] -> [T, G, M]; rules of `linear`."""
        raise NotImplementedError

    @primitive(rows="x", facts=lambda call: {**width_of(call.x), "eps": call.eps})
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis: [T, K] -> [T, K] in x's dtype.

        Accumulates in fp32, multiplies by the reciprocal root, then by the weight; one rounding at
        the end. A row of zeros gives zeros.
        """
        raise NotImplementedError

    @primitive(
        rows="x",
        facts=lambda call: {
            **width_of(call.x),
            "heads": call.x.shape[1] if call.x.dim() == 3 else 1,
            "rotated": 2 * len(call.frequencies),
            "inverse": call.inverse,
            "numerics": call.numerics,
        },
    )
    def rope(
        self,
        x: Tensor,
        positions: Tensor,
        frequencies: Tensor,
        inverse: bool,
        numerics: Numerics,
    ) -> Tensor:
        """Rotate the last R channels of x [T, ..., D] in adjacent pairs by position * frequency.

        positions [T] int64, frequencies [R/2] float32. The angle is one float32 product; cos, sin
        and the rotation are fp32 (float64 in float64) and the result is rounded once to x's dtype.
        REF rounds both products and their sum, INFER fuses the second product and the sum.
        """
        raise NotImplementedError

    @step(rows="x", facts=lambda call: {**width_of(call.x), "scheme": call.scheme})
    def norm_quantise(
        self, x: Tensor, weight: Tensor, eps: float, scheme: Scheme | None
    ) -> Activation:
        """`rms_norm`, then `quantise` of the rounded result."""
        return self.quantise(self.rms_norm(x, weight, eps), scheme)

    @step(
        rows="a.values",
        facts=lambda call: {
            "heads": call.weights.num_heads,
            "head_dim": call.weights.head_dim,
            "rank": call.weights.wq_a.shape[0],
            "rotated": 2 * len(call.weights.frequencies),
            "weight": stored_kind(call.weights.wq_b),
            "numerics": call.numerics,
            **hidden_of(call.a.values),
        },
    )
    def project(
        self, a: Activation, weights: AttentionWeights, positions: Tensor, numerics: Numerics
    ) -> Projection:
        """Queries, query latent and window key-value of each row (model specification, 4.2).

        a [T, H] -> queries [T, A, D], latent [T, Q], window [T, D], in a's dtype. Matmul outputs
        are rounded before the norms.
        """
        dtype = a.dtype
        latent = self.norm_quantise(
            self.linear(a, weights.wq_a, dtype),
            weights.q_norm,
            weights.eps,
            numerics.activation_scheme,
        )
        queries = self.linear(latent, weights.wq_b, dtype)
        queries = queries.view(queries.shape[0], weights.num_heads, weights.head_dim)
        queries = self.rope(queries, positions, weights.frequencies, False, numerics)
        window = self.rms_norm(self.linear(a, weights.wkv, dtype), weights.kv_norm, weights.eps)
        window = self.rope(window, positions, weights.frequencies, False, numerics)
        return Projection(queries, latent, window)

    @step(
        rows="x",
        per_sequence=True,
        facts=lambda call: {**hidden_of(call.x), "vocabulary": call.head.shape[0]},
    )
    def logits(self, x: Tensor, norm: Tensor, eps: float, head: PackedLinear) -> Tensor:
        """Final norm and head: collapsed rows x [M, H] -> [M, V] fp32 (float64 in float64).

        The norm rounds to x's dtype; the head is not rounded (model specification, 9).
        """
        hidden = self.rms_norm(x, norm, eps)
        return self.linear(Activation(hidden), head, accumulation_dtype(x.dtype))
