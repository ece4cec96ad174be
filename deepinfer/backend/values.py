"""The values that travel between the engine, the model and a backend's operators.

Shapes: T rows of the batch, N sequences, H hidden, S residual streams, K inputs of a matmul.
-1 means "none" in every index. Source: the operator contract, "Values that travel".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.formats import Quantised, Scheme


class Numerics(StrEnum):
    """How values are rounded between operators; a static fact of every call.

    REF keeps activations in the compute precision in front of every matmul. INFER quantises them
    dynamically to FP8 in front of FP8 and FP4 matmuls, as the released checkpoint asks for.
    Source: model specification, introduction and table 13.1.
    """

    REF = "ref"
    INFER = "infer"

    @property
    def activation_scheme(self) -> Scheme | None:
        """Block scheme of matmul inputs: None in REF, FP8 per token and 32 channels in INFER."""
        return Scheme.FP8_BLOCK32 if self is Numerics.INFER else None


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which values of `dtype` are summed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Source(ABC):
    """A slice of one published tensor: where its bytes are, not the bytes themselves.

    `dtype` is the safetensors name ("BF16", "F32", "F8_E4M3", "F8_E8M0", "I8"). `read` and `map`
    return bf16 and float32 tensors for the first two and uint8 for the byte formats.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    offset: int

    @abstractmethod
    def read(self) -> Tensor:
        """A private copy of the values, shaped `shape`."""

    @abstractmethod
    def map(self) -> Tensor:
        """A view of the mapped file, shaped `shape`; must not be written to."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Source:
        """The slice [start, stop) along the first dimension."""


_KINDS = {"F8_E4M3": "fp8", "I8": "fp4", "BF16": "bf16", "F32": "fp32"}


@dataclass(frozen=True)
class LinearSource:
    """A matrix as published: its weight and, for FP8 and FP4, the block scales of it.

    resident: it must lie in the device's own memory, neither mapped nor on the host.
    """

    weight: Source
    scale: Source | None = None
    resident: bool = False

    @property
    def kind(self) -> str:
        """ "fp8", "fp4", "bf16" or "fp32", by the stored dtype of the weight."""
        return _KINDS[self.weight.dtype]

    @property
    def shape(self) -> tuple[int, int]:
        """Logical (rows, columns); an FP4 byte holds two columns."""
        rows, columns = self.weight.shape
        return rows, columns * 2 if self.kind == "fp4" else columns

    @property
    def nbytes(self) -> int:
        """Stored bytes, scales included."""
        return self.weight.nbytes + (self.scale.nbytes if self.scale is not None else 0)


@dataclass(frozen=True)
class ExpertSource:
    """The three matrices of one expert: w1 gate [I, H], w2 down [H, I], w3 up [I, H]."""

    w1: LinearSource
    w2: LinearSource
    w3: LinearSource

    @property
    def nbytes(self) -> int:
        """Stored bytes, scales included."""
        return self.w1.nbytes + self.w2.nbytes + self.w3.nbytes


class Packing(NamedTuple):
    """Bytes that packing takes, said before anything is read.

    resident: stay on the packer's device. temporary: on it too, at the peak of one packing only.
    mapped: stay in the files.
    """

    resident: int = 0
    temporary: int = 0
    mapped: int = 0

    def beside(self, other: Packing) -> Packing:
        """Both, one after the other."""
        return Packing(
            self.resident + other.resident,
            max(self.temporary, other.temporary),
            self.mapped + other.mapped,
        )


Weights = Source | LinearSource | Sequence[ExpertSource]
"""What one of the packing operators takes."""


def stored_bytes(weights: Weights) -> int:
    """Bytes of the weights in the files, scales included."""
    if isinstance(weights, Source | LinearSource):
        return weights.nbytes
    return sum(expert.nbytes for expert in weights)


class PackedLinear:
    """What a backend made of a `LinearSource`; opaque to everyone else.

    `shape` is the logical (rows M, columns K), `kind` the stored kind, `nbytes` the memory that
    it holds of its own, `mapped_bytes` what stays in the mapped file.
    """

    shape: tuple[int, int]
    kind: str
    nbytes: int = 0
    mapped_bytes: int = 0


class PackedTable(PackedLinear):
    """What a backend made of an embedding or Engram table, shape (rows, width)."""


class PackedExperts:
    """What a backend made of a list of experts: numbered slots of equal size.

    `hidden` is H, `intermediate` is I, `kind` the stored kind of the matrices.
    """

    num_slots: int
    hidden: int
    intermediate: int
    kind: str
    nbytes: int = 0
    mapped_bytes: int = 0

    def export_slot(self, slot: int) -> Tensor:
        """The bytes of one slot, uint8 [slot_bytes], in this backend's own packing.

        IndexError where there is no such slot: -1 is none.
        """
        raise NotImplementedError

    def import_slot(self, slot: int, data: Tensor) -> None:
        """Overwrite one slot with bytes that `export_slot` of the same backend returned.

        No other slot changes, nor what the slot was packed from. IndexError as in `export_slot`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Activation:
    """The input of a matmul: values, their block-scaled form, or both.

    `values` is [T, ..., K] in the compute precision. `quantised` holds the codes and scales of
    `scheme` (see `deepinfer.formats`). A matmul with FP8 or FP4 weights consumes the quantised
    half where there is one; a matmul with bf16 or fp32 weights consumes the values. A backend may
    keep only the quantised half when no unquantised consumer follows.
    """

    values: Tensor
    quantised: Quantised | None = None
    scheme: Scheme | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Compute precision of the row: bf16, float32 or float64."""
        return self.values.dtype


class Mix(NamedTuple):
    """Hyper-connection weights of one site: fp32 (float64 in float64 compute).

    pre [T, S] reads the streams at the *next* site, post [T, S] and comb [T, S, S] write them here
    (comb[m, n]: from stream m to stream n).
    """

    pre: Tensor
    post: Tensor
    comb: Tensor


class Selection(NamedTuple):
    """Compressed entries that each row attends to.

    indices [T, K] int32: logical entry numbers of the row's sequence, ascending, -1 filled.
    candidates [T, B] int32: candidate blocks that later index layers are restricted to, or None.
    """

    indices: Tensor
    candidates: Tensor | None = None


class Routing(NamedTuple):
    """Experts of each row: ids [T, k] int32 and weights [T, k] float32, best first."""

    ids: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Group:
    """Processes that share a set of experts. One process is the trivial group."""

    rank: int = 0
    size: int = 1


@dataclass
class Routed:
    """Rows on their way through the experts, made by `dispatch`, filled by `expert_mlp`.

    activation: the rows [T, H] before dispatch (a backend may hold them permuted); routing: who
    goes where; outputs: [T, k, H] after `expert_mlp`. `state` is the backend's own.
    """

    activation: Activation
    routing: Routing
    group: Group
    outputs: Tensor | None = None
    state: object = None


class Compressed(NamedTuple):
    """Rows that completed a compression group: latents [T, D]; entries [T] int64, -1 for none."""

    latents: Tensor
    entries: Tensor


class Projection(NamedTuple):
    """What attention needs of one row.

    queries [T, A, D] rotated; latent [T, Q] the normed low-rank query; window [T, D] the rotated
    key-value before it is quantised by `store`.
    """

    queries: Tensor
    latent: Activation
    window: Tensor


class TopLogprobs(NamedTuple):
    """The k best tokens of a row: ids [M, k] int64 and their log-probabilities [M, k]."""

    ids: Tensor
    logprobs: Tensor
