"""Selection and whole attention layers against golden vectors, through the contract's steps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    AttentionWeights,
    Batch,
    CompressorWeights,
    IndexerWeights,
    Numerics,
    OutputWeights,
    Region,
    Selection,
    WindowSpan,
)
from deepinfer.backend.resolution import Operators, resolve
from deepinfer.config import YarnConfig
from deepinfer.model.rotary import inverse_frequencies
from tests.reference.compare import assert_close, assert_same_sets
from tests.reference.pools import Sizes, SmallCache
from tests.reference.sources import plain

TOKENS, WINDOW, TOP_K, BLOCK, BLOCKS, EPS = 61, 8, 8, 4, 4, 1e-20
YARN = YarnConfig(factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=128)
FREQUENCIES = inverse_frequencies(160000, 16, YARN)
REF = Numerics.REF


@pytest.mark.parametrize("size, k", [(4, 1), (8, 3)])
def test_candidate_blocks(reference, golden, size, k):
    scores, visible = golden["candidates.scores"], golden["candidates.visible"]
    blocks = reference.best_blocks(scores, visible, size, k)
    expected = golden[f"candidates.block{size}_top{k}"]
    marked = torch.zeros(expected.shape[0], -(-expected.shape[1] // size) + 1, dtype=torch.bool)
    marked.scatter_(1, torch.where(blocks < 0, marked.shape[1] - 1, blocks).long(), True)
    whole = marked[:, :-1].repeat_interleave(size, 1)[:, : expected.shape[1]]
    assert torch.equal(whole, expected)


@dataclass
class Layer:
    """A golden layer: its vectors, its caches, and its packed parameters."""

    operators: Operators
    vectors: dict[str, Tensor]
    batch: Batch
    cache: SmallCache

    def linear(self, name: str):
        return self.operators.pack_linear(plain(self.vectors[f"param.{name}.weight"]))

    def project(self):
        weights = AttentionWeights(
            self.linear("wq_a"),
            self.vectors["param.q_norm.weight"],
            self.linear("wq_b"),
            self.linear("wkv"),
            self.vectors["param.kv_norm.weight"],
            FREQUENCIES,
            num_heads=2,
            head_dim=64,
            eps=EPS,
        )
        return self.operators.project(self.input, weights, self.batch.positions, REF)

    @property
    def input(self) -> Activation:
        return Activation(self.vectors["in"])

    def update_context(self) -> None:
        ratio = self.cache.sizes.ratio
        weights = CompressorWeights(
            self.linear("compressor.wkv"),
            self.linear("compressor.wgate") if ratio > 1 else None,
            self.vectors["param.compressor.norm.weight"],
            self.linear("indexer.wk"),
            self.vectors["param.indexer.k_norm.weight"],
            FREQUENCIES,
            ratio,
            EPS,
        )
        cache = self.cache
        self.operators.update_context(
            self.input, weights, cache.state, cache.main, cache.index, self.batch, REF
        )

    def select(self, latent: Activation, candidates: Tensor | None) -> Selection:
        weights = IndexerWeights(
            self.linear("indexer.wq_b"),
            self.linear("indexer.weights_proj"),
            FREQUENCIES,
            num_heads=4,
            head_dim=32,
            top_k=TOP_K,
            ratio=self.cache.sizes.ratio,
            candidate_block=BLOCK,
            candidate_blocks=BLOCKS if candidates is None else 0,
        )
        return self.operators.select(
            latent, self.input, weights, self.cache.index, candidates, self.batch, REF
        )

    def attend_output(self, queries: Tensor, selection: Selection) -> Tensor:
        weights = OutputWeights(self.linear("wo_a"), self.linear("wo_b"), FREQUENCIES, groups=2)
        return self.operators.attend_output(
            *self._attend(queries, selection), self.batch, weights, REF
        )

    def attend(self, queries: Tensor, selection: Selection) -> Tensor:
        return self.operators.attend(*self._attend(queries, selection), self.batch)

    def _attend(self, queries: Tensor, selection: Selection):
        positions = self.batch.positions
        span = WindowSpan((positions - WINDOW + 1).clamp(min=0), positions, WINDOW)
        sink = self.vectors["param.attn_sink"]
        return queries, self.cache.window, span, self.cache.main, selection, sink, 64**-0.5


@dataclass
class Result:
    """What a layer made, beside the golden vectors to compare with."""

    expected: dict[str, Tensor]
    cache: SmallCache
    batch: Batch
    queries: Tensor
    window: Tensor
    selection: Selection
    attended: Tensor
    out: Tensor

    def entries(self, operators: Operators, region: Region, count: int) -> Tensor:
        number = torch.arange(count)
        dtype = self.queries.dtype
        return operators.load(region, torch.zeros_like(number), number, self.batch, dtype)


@pytest.fixture(scope="session")
def operators(reference) -> Operators:
    return resolve("reference", reference, reference, [])


@pytest.fixture(scope="session", params=["fp32", "bf16"])
def precision(request) -> str:
    return request.param


@pytest.fixture(scope="session", params=[1, 2])
def ratio(request) -> int:
    return request.param


@pytest.fixture(scope="session")
def chain(operators, golden, ratio, precision) -> dict[str, Result]:
    """The full, reindex and reuse layer of one ratio and precision, run one after the other.

    Queries, candidates and selection that attention reads are the golden ones, so that an exact
    tie, which may be broken either way, stays in the test of the selection.
    """
    results: dict[str, Result] = {}
    cache = SmallCache(Sizes(length=TOKENS, ratio=ratio))
    batch = cache.batch([(0, 0, TOKENS)])
    selection = Selection(torch.empty(0))
    chosen = golden_blocks = torch.empty(0)
    for role in ("full", "reindex", "reuse"):
        prefix = f"attn.r{ratio}.{role}.{precision}."
        vectors = {
            name.removeprefix(prefix): value
            for name, value in golden.items()
            if name.startswith(prefix)
        }
        layer = Layer(operators, vectors, batch, cache)
        projection = layer.project()
        operators.store(projection.window, cache.window, batch.positions, batch)
        window = operators.load(
            cache.window, batch.sequence, batch.positions, batch, projection.window.dtype
        )
        if role == "full":
            layer.update_context()
            selection = layer.select(projection.latent, None)
            golden_blocks = _blocks(vectors["candidates"])
        elif role == "reindex":
            selection = layer.select(projection.latent, golden_blocks)
        chosen = vectors.get("topk_indices", chosen)
        given = Selection(chosen.to(torch.int32))
        attended = layer.attend(vectors["query"], given)
        out = layer.attend_output(vectors["query"], given)
        results[role] = Result(
            vectors, cache, batch, projection.queries, window, selection, attended, out
        )
    return results


def _blocks(entries: Tensor) -> Tensor:
    """Candidate blocks [T, BLOCKS] of a mask of entries [T, n], -1 filled."""
    rows = [sorted({e // BLOCK for e in row.nonzero()[:, 0].tolist()}) for row in entries]
    return torch.tensor([row + [-1] * (BLOCKS - len(row)) for row in rows], dtype=torch.int32)


ROLES = ["full", "reindex", "reuse"]


@pytest.mark.parametrize("role", ROLES)
def test_queries_and_window(chain, role):
    result = chain[role]
    assert_close(result.queries, result.expected["query"])
    assert_close(result.window, result.expected["window_kv"])


def test_context_entries(chain, operators, ratio):
    result = chain["full"]
    count = TOKENS // ratio
    index = result.entries(operators, result.cache.index, count)
    assert_close(index, result.expected["index_keys"])
    main = result.entries(operators, result.cache.main, count)
    assert_close(main, result.expected["compressed_kv"])


@pytest.mark.parametrize("role", ["full", "reindex"])
def test_selected_entries(chain, role):
    result = chain[role]
    scores = result.expected["index_scores"]
    assert_same_sets(result.selection.indices, result.expected["topk_indices"], scores)


def test_candidates(chain):
    result = chain["full"]
    scores = result.expected["index_scores"]
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[1] % BLOCK), value=-torch.inf)
    of_blocks = padded.view(TOKENS, -1, BLOCK).amax(-1)
    expected = _blocks(result.expected["candidates"])
    assert_same_sets(result.selection.candidates, expected, of_blocks)


@pytest.mark.parametrize("role", ROLES)
def test_attended_and_output(chain, role):
    result = chain[role]
    assert_close(result.attended, result.expected["attended"])
    assert_close(result.out, result.expected["out"], steps=2)
