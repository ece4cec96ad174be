"""Sampling primitives in plain torch: mask, process, sample, top_logprobs.

A row's bits do not depend on its place, on other rows or on the number of threads: rows are
computed in padded tiles of 16, floats are summed by a fixed tree of elementwise additions, and
everything else is elementwise, integer, or a stable sort of the row.
Source: engine specification, section 6, and the design's rules for drawing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.backend.sampling import Sampling, SamplingParameters
from deepinfer.backend.values import TopLogprobs, accumulation_dtype
from deepinfer_reference.philox import integer_below, random_words
from deepinfer_reference.tiling import row_tiles

MASS_BITS = 31
MASS_ONE = 1 << MASS_BITS
MASK_BITS = 32


def _check_rows(operator: str, **tensors: Tensor) -> int:
    """The row count that all tensors share; ValueError naming the first that differs."""
    rows = next(iter(tensors.values())).shape[0]
    for name, tensor in tensors.items():
        if tensor.shape[0] != rows:
            raise ValueError(f"{operator}: {name} has {tensor.shape[0]} rows, expected {rows}")
    return rows


def tree_sum(values: Tensor) -> Tensor:
    """Sum of each row, [..., V] -> [..., 1]: halves are added elementwise until one is left.

    The row is padded with zeros to a power of two, so the order of additions depends on V alone.
    """
    width = 1 << max(values.shape[-1] - 1, 0).bit_length()
    total = torch.nn.functional.pad(values, (0, width - values.shape[-1]))
    while width > 1:
        width //= 2
        total = total[..., :width] + total[..., width:]
    return total


def masses(logprobs: Tensor) -> Tensor:
    """floor(exp(float64(logprob)) * 2^31) as int64: the probability mass of each token."""
    return torch.floor(torch.exp(logprobs.double()) * MASS_ONE).to(torch.int64)


class ReferenceSampling(Sampling):
    """The definition of the sampling operators. Their rows repeat bit for bit in any batch."""

    def mask(self, logits: Tensor, bits: Tensor) -> Tensor:
        """See `Sampling.mask`. Token t is bit t % 32 of word t // 32; spare bits are ignored."""
        rows = _check_rows("mask", logits=logits, bits=bits)
        words = -(-logits.shape[1] // MASK_BITS)
        if bits.shape[1] != words or bits.dtype != torch.int32:
            raise ValueError(
                f"mask: bits are {bits.dtype} [{rows}, {bits.shape[1]}]; {logits.shape[1]} tokens "
                f"need torch.int32 [{rows}, {words}]"
            )
        return row_tiles(_mask_tile, logits, bits)

    def process(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """See `Sampling.process`. float64 logits are processed and returned in float64.

        Exact rules. z = logits * (1 / temperature), both operations rounded in the compute
        precision (float32 or float64). A temperature so small that the highest z is not finite
        acts as 0. Normalisation runs in float64 and is rounded once, to the compute precision.
        top-p: with m the masses (as in `sample`) of the row's log-softmax before any filter and
        M their sum, a token stays when the masses before it sum to at most
        (floor(top_p * 2^31) * M) >> 31; so 1 keeps every token, and the first token always stays.
        min-p: a token stays when float64(z) - float64(highest z) >= log(float64(min_p)).
        Parameters outside their documented ranges leave their own row unspecified, no other.
        """
        _check_rows(
            "process",
            logits=logits,
            temperature=parameters.temperature,
            top_p=parameters.top_p,
            top_k=parameters.top_k,
            min_p=parameters.min_p,
        )
        return row_tiles(
            _process_tile,
            logits,
            parameters.temperature,
            parameters.top_p,
            parameters.top_k,
            parameters.min_p,
        )

    def sample(self, logprobs: Tensor, seeds: Tensor, positions: Tensor, purpose: int) -> Tensor:
        """See `Sampling.sample`; the counter's draw number is 0.

        -1 where a row has any NaN, or where every mass is 0 (which `process` never returns). A
        token of mass 0 is never drawn.
        """
        _check_rows("sample", logprobs=logprobs, seeds=seeds, positions=positions)
        return row_tiles(_draw_tile, logprobs, random_words(seeds, positions, purpose))

    def top_logprobs(self, logprobs: Tensor, k: int) -> TopLogprobs:
        """See `Sampling.top_logprobs`. -inf entries count; NaN sorts before every number.

        ValueError when k is not in 0..V.
        """
        vocabulary = logprobs.shape[1]
        if not 0 <= k <= vocabulary:
            raise ValueError(
                f"top_logprobs: k = {k} of a vocabulary of {vocabulary}; k must be in "
                f"0..{vocabulary}"
            )
        # In tiles to bound the memory of the sort, of which no more than k columns are kept.
        ids = row_tiles(lambda tile: _descending_order(tile)[:, :k].clone(), logprobs)
        return TopLogprobs(ids, logprobs.gather(1, ids))


def _descending_order(values: Tensor) -> Tensor:
    """Token ids of each row by descending value, ties by lower id: [M, V] -> [M, V] int64."""
    return torch.sort(values, dim=-1, descending=True, stable=True).indices


def _mask_tile(logits: Tensor, bits: Tensor) -> Tensor:
    shifts = torch.arange(MASK_BITS, device=bits.device, dtype=torch.int32)
    allowed = ((bits[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]]
    return logits.masked_fill(allowed == 0, -math.inf)


def _process_tile(
    logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor
) -> Tensor:
    dtype = accumulation_dtype(logits.dtype)
    logits = logits.to(dtype).contiguous()
    highest = logits.amax(-1, keepdim=True)  # NaN where the row has one
    valid = torch.isfinite(highest)
    logits = torch.where(valid, logits, 0.0)
    highest = torch.where(valid, highest, 0.0)

    temperature = temperature.to(dtype)[:, None]
    inverse = torch.ones_like(temperature) / temperature
    greedy = (temperature == 0) | ~torch.isfinite(highest * inverse)
    scaled = logits * torch.where(greedy, 1.0, inverse)

    shifted = scaled.double() - scaled.amax(-1, keepdim=True).double()
    weights = torch.exp(shifted)
    order = _descending_order(scaled)
    first = order[:, :1]
    plain = (shifted - _log_normaliser(weights, first)).to(dtype)
    keep = _kept(masses(plain), order, top_p, top_k)
    keep &= shifted >= torch.log(min_p.double())[:, None]

    # The first token always stays, so `shifted` remains relative to the survivors' maximum.
    normaliser = _log_normaliser(torch.where(keep, weights, 0.0), first)
    logprobs = torch.where(keep, (shifted - normaliser).to(dtype), -math.inf)
    chosen = torch.full_like(logprobs, -math.inf).scatter(1, first, 0.0)
    return torch.where(valid, torch.where(greedy, chosen, logprobs), math.nan)


def _log_normaliser(weights: Tensor, first: Tensor) -> Tensor:
    """log of each row's sum, where token `first` [M, 1] has weight 1: [M, V] -> [M, 1]."""
    # log1p of the others: a log-probability close to 0 keeps its digits.
    return torch.log1p(tree_sum(weights.scatter(1, first, 0.0)))


def _kept(mass: Tensor, order: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Which tokens top-p, then top-k, leave: mass and order [M, V] int64 -> [M, V] bool."""
    ordered = mass.gather(1, order)
    inclusive = ordered.cumsum(-1)
    share = torch.floor(top_p.double() * MASS_ONE).to(torch.int64)[:, None]
    limit = (share * inclusive[:, -1:]) >> MASS_BITS  # a softmax sums to less than 2^32
    rank = torch.arange(mass.shape[1], device=mass.device)
    most = torch.where(top_k == 0, mass.shape[1], top_k)[:, None]
    kept = (inclusive - ordered <= limit) & (rank < most)
    return torch.zeros_like(kept).scatter(1, order, kept)


def _draw_tile(logprobs: Tensor, words: Tensor) -> Tensor:
    logprobs = logprobs.contiguous()
    valid = ~torch.isnan(logprobs).any(-1)
    inclusive = masses(torch.where(valid[:, None], logprobs, -math.inf)).cumsum(-1)
    total = inclusive[:, -1]
    passed = (inclusive <= integer_below(words, total)[:, None]).sum(-1)
    return torch.where(total > 0, passed, -1)
