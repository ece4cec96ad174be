"""cache_dtype: unquantised main and index entries, to compare with; the reference has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.backend import Backend
from deepinfer.backend.registry import REFERENCE, Selected, select_backend
from deepinfer.cache import CacheLayout, layout
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import Engine, EngineOptions, ModelRunner, SamplingParams
from deepinfer.engine.sizing import plan_sizes
from deepinfer.errors import UnsupportedOperatorError, UsageError
from deepinfer.formats import PlainFormat, Quantised, Scheme
from tests.backend.plugins import HARDWARE, spec
from tests.cache.layouts import released_text
from tests.conftest import BLOCK_TOKENS, PAGE_TOKENS
from tests.engine.runs import extend

PROMPT = np.arange(60) * 7 % 97 + 3
Load = Callable[..., ModelRunner]


@pytest.fixture(scope="module")
def load(small_directory: Path) -> Iterator[Load]:
    """`load("bf16", compute="fp32")`: an engine of the small checkpoint."""
    with Checkpoint.open(small_directory, progress=False) as checkpoint:
        geometry = CacheLayout(
            checkpoint.config.text, block_tokens=BLOCK_TOKENS, page_tokens=PAGE_TOKENS
        )

        def loaded(
            cache_dtype: str, selected: Selected | None = None, **options: Any
        ) -> ModelRunner:
            given = EngineOptions(
                cache_dtype=cache_dtype, max_model_len=64, max_num_seqs=2, **options
            )
            chosen = selected or select_backend(REFERENCE)
            return ModelRunner.load(checkpoint, chosen, given, layout=geometry)

        yield loaded


def logits(runner: ModelRunner) -> Tensor:
    """Of every row of the prompt, in pieces, so that later ones read what earlier ones stored."""
    cache = runner.cache.open()
    found = extend(runner, cache, PROMPT, all_rows=True, chunk_rows=13)
    runner.cache.close(cache)
    return found


@dataclass(frozen=True)
class Exact(PlainFormat):
    """Entries as they come, in float64."""

    def data_bytes(self, width: int) -> int:
        return 8 * width

    def encode(self, values: Tensor) -> Quantised:
        codes = values.double().contiguous().view(torch.uint8)
        return Quantised(codes, codes.new_empty((*codes.shape[:-1], 0)))

    def decode(self, data: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        return data.contiguous().view(torch.float64).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["ref", "infer"])
def test_bf16_entries_give_what_no_quantisation_gives(
    load: Load, monkeypatch: pytest.MonkeyPatch, numerics: str
) -> None:
    plain = logits(load("bf16", numerics=numerics))
    assert not torch.equal(plain, logits(load("fp4", numerics=numerics)))
    exact = (
        Exact("main-bf16", Scheme.NVFP4, "interleaved"),
        Exact("index-bf16", Scheme.MXFP4, "interleaved"),
    )
    monkeypatch.setitem(layout.CONTEXT_FORMATS, "bf16", exact)
    assert torch.equal(plain, logits(load("bf16", numerics=numerics)))


def test_sizes_count_the_bytes() -> None:
    text = released_text()
    fp4, bf16 = CacheLayout(text), CacheLayout(text, cache_dtype="bf16")
    entries = 128 * len([p for p in text.layers if p.role == "full" and p.ratio == 1])
    entries += 64 * len([p for p in text.layers if p.role == "full" and p.ratio == 2])
    assert bf16.block_bytes == entries * (2 * text.head_dim + 2 * text.index_head_dim)
    assert fp4.block_bytes == 113_920
    assert bf16.page_bytes == fp4.page_bytes
    config: Any = SimpleNamespace(text=text)
    options = EngineOptions(num_blocks=10, max_model_len=128, max_num_seqs=1)
    sizes = [plan_sizes(options, config, one, None) for one in (fp4, bf16)]
    assert sizes[1].cache_bytes - sizes[0].cache_bytes == 11 * (bf16.block_bytes - fp4.block_bytes)


def test_an_engine_holds_as_many_bytes_as_it_says(load: Load) -> None:
    fp4, bf16 = load("fp4"), load("bf16")
    assert bf16.pools.nbytes == bf16.sizes.cache_bytes > fp4.sizes.cache_bytes
    assert bf16.layout.bytes_per_token() > 3 * fp4.layout.bytes_per_token()


def test_requests_run_and_share_blocks(load: Load) -> None:
    """Samples of one prompt copy blocks before they write to them."""
    engine = Engine(load("bf16"))
    request = engine.add(PROMPT[:30], SamplingParams(n=2, seed=3, max_tokens=4, ignore_eos=True))
    while not all(sequence.finished for sequence in request.sequences):
        engine.step()
    assert [sequence.output_length for sequence in request.sequences] == [4, 4]


def test_another_backend_refuses(load: Load) -> None:
    hooks: Any = SimpleNamespace(deepinfer_create=lambda mode, device: Backend("cpu"))
    chip = Selected(spec("chip"), HARDWARE, "test", hooks)
    with pytest.raises(UnsupportedOperatorError, match="cache_dtype is 'bf16' and the backend 'ch"):
        load("bf16", chip)


def test_it_is_never_exported(load: Load) -> None:
    for name, refused in (("bf16", True), ("fp4", False)):
        runner = load(name)
        pool, blocks = runner.pools.context, torch.tensor([1])
        images = torch.zeros(1, pool.image_bytes, dtype=torch.uint8)
        for call in (
            lambda e=runner, p=pool, b=blocks: e.operators.export(p, b),
            lambda e=runner, p=pool, b=blocks, i=images: e.operators.import_(p, b, i),
        ):
            if refused:
                with pytest.raises(UnsupportedOperatorError, match="bf16 entries, which no image"):
                    call()
            else:
                call()
        runner.operators.export(runner.pools.window, blocks)  # window entries are the same


@pytest.mark.parametrize("value", ["fp8", "FP4", None, 4])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=f"cache_dtype is {value!r}; allowed: fp4, bf16"):
        EngineOptions(cache_dtype=value)
