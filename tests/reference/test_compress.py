"""The compressor: any chunking and any rollback equal one pass over the whole sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.reference.compare import assert_same_bits
from tests.reference.pools import Sizes, SmallCache

LENGTH, WIDTH, RING = 23, 64, 7


def cache_of(ratio: int = 2, dtype: torch.dtype = torch.float32) -> SmallCache:
    sizes = Sizes(sequences=3, length=LENGTH, width=WIDTH, ratio=ratio, ring=RING)
    return SmallCache(sizes, state_dtype=dtype)


def members(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(2, LENGTH, WIDTH, generator=generator, dtype=torch.float64) * 3
    return both[0].to(dtype), both[1].to(dtype)


def entries(reference, cache, rows, start: int, stop: int, sequence: int = 1) -> dict[int, Tensor]:
    """Run positions start..stop-1: latents by entry number."""
    values, gates = rows
    batch = cache.batch([(sequence, start, stop)])
    ratio, dtype = cache.sizes.ratio, values.dtype
    done = reference.compress(
        values[start:stop], gates[start:stop], cache.state, batch, ratio, dtype
    )
    return {
        int(entry): latent
        for entry, latent in zip(done.entries, done.latents, strict=True)
        if entry >= 0
    }


def whole(reference, rows, ratio: int = 2) -> dict[int, Tensor]:
    return entries(reference, cache_of(ratio, rows[0].dtype), rows, 0, LENGTH)


def assert_same_entries(actual: dict[int, Tensor], expected: dict[int, Tensor]) -> None:
    assert sorted(actual) == sorted(expected)
    for entry, latent in expected.items():
        assert_same_bits(actual[entry], latent)


@pytest.mark.parametrize("ratio", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_entry_is_the_softmax_of_gates_over_its_members(reference, ratio, dtype):
    values, gates = members(dtype=dtype)
    found = whole(reference, (values, gates), ratio)
    assert sorted(found) == list(range(LENGTH // ratio))
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    for entry, latent in found.items():
        group = slice(entry * ratio, entry * ratio + ratio)
        shares = gates[group].double().softmax(0)
        expected = (values[group].double() * shares).sum(0)
        assert (latent - expected).abs().max() <= tolerance * 10


@pytest.mark.parametrize("ratio", [2, 3])
@pytest.mark.parametrize(
    "cuts", [[1], [2], [3], [8], [9, 10], [1, 2, 3, 4, 5], list(range(1, LENGTH)), [7, 21]]
)
def test_any_chunking_gives_the_same_bits(reference, cuts, ratio):
    rows = members()
    cache = cache_of(ratio)
    found: dict[int, Tensor] = {}
    for start, stop in zip([0, *cuts], [*cuts, LENGTH], strict=True):
        found |= entries(reference, cache, rows, start, stop)
    assert_same_entries(found, whole(reference, rows, ratio))


@pytest.mark.parametrize("start", [8, 9])
@pytest.mark.parametrize("rows_run", range(1, 6))
def test_any_number_of_rows_may_be_taken_back(reference, start, rows_run):
    """Run k draft rows, take back j of them, run other tokens instead: as if never drafted."""
    drafted, accepted = members(), members(seed=1)
    for back in range(rows_run + 1):
        stay = start + rows_run - back
        mixed = tuple(
            torch.cat((draft[:stay], other[stay:]))
            for draft, other in zip(drafted, accepted, strict=True)
        )
        cache = cache_of()
        found = entries(reference, cache, drafted, 0, start)
        drafts = entries(reference, cache, drafted, start, start + rows_run)
        found |= {entry: latent for entry, latent in drafts.items() if entry < stay // 2}
        found |= entries(reference, cache, mixed, stay, LENGTH)
        assert_same_entries(found, whole(reference, mixed))


def test_sequences_do_not_see_each_other(reference):
    first, second = members(), members(seed=1)
    cache = cache_of()
    batches = [[(0, 0, 5), (2, 0, 4)], [(2, 4, 9), (0, 5, 6)], [(0, 6, LENGTH), (2, 9, LENGTH)]]
    found: dict[int, dict[int, Tensor]] = {0: {}, 2: {}}
    for chunks in batches:
        parts = [
            [rows[start:stop] for rows in (first if number == 0 else second)]
            for number, start, stop in chunks
        ]
        values, gates = (torch.cat(part) for part in zip(*parts, strict=True))
        batch = cache.batch(chunks, padding=2)
        padded = [torch.cat((part, torch.full((2, WIDTH), torch.nan))) for part in (values, gates)]
        done = reference.compress(*padded, cache.state, batch, 2, torch.float32)
        assert (done.entries[-2:] == -1).all()
        for place, entry, latent in zip(batch.sequence, done.entries, done.latents, strict=True):
            if entry >= 0:
                found[chunks[int(place)][0]][int(entry)] = latent
    assert_same_entries(found[0], whole(reference, first))
    assert_same_entries(found[2], whole(reference, second))


def test_only_the_slots_of_the_batch_change(reference):
    cache = cache_of()
    before = cache.state.members.clone()
    entries(reference, cache, members(), 0, 20, sequence=1)
    kept = torch.tensor([1, 3])
    assert_same_bits(cache.state.members[kept], before[kept])
    assert not torch.equal(cache.state.members[2], before[2])


def test_rows_that_complete_nothing_give_zeros(reference):
    cache = cache_of()
    cache.state.members.fill_(torch.nan)
    values, gates = members()
    batch = cache.batch([(0, 0, 3)])
    done = reference.compress(values[:3], gates[:3], cache.state, batch, 2, torch.bfloat16)
    assert done.entries.tolist() == [-1, 0, -1]
    assert torch.equal(done.latents[[0, 2]], torch.zeros(2, WIDTH).bfloat16())
    assert not done.latents[1].isnan().any()


def test_ratio_1_passes_values_through(reference):
    cache = cache_of(ratio=1)
    values, _ = members()
    batch = cache.batch([(0, 4, 7)], padding=1)
    done = reference.compress(values[:4], None, None, batch, 1, torch.bfloat16)
    assert done.entries.tolist() == [4, 5, 6, -1]
    assert_same_bits(done.latents, values[:4].bfloat16())


def test_large_gates_choose_one_member(reference):
    values, gates = members()
    gates = gates.clone()
    gates[0], gates[1] = 1e30, -1e30
    found = whole(reference, (values, gates))
    assert_same_bits(found[0], values[0])
