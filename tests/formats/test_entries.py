"""Cache entries: sizes, byte order within an entry, addresses within a block."""

from __future__ import annotations

import pytest
import torch

from deepinfer.errors import UsageError
from deepinfer.formats import INDEX, INDEX_BF16, MAIN, MAIN_BF16, WINDOW, Scheme, e2m1, quantise

FORMATS = [WINDOW, MAIN, INDEX]
PUBLISHED = [(WINDOW, 512, 512, 16), (MAIN, 512, 256, 32), (INDEX, 128, 64, 4)]


@pytest.mark.parametrize(("entry", "width", "data", "scale"), PUBLISHED)
def test_sizes_of_the_published_widths(entry, width, data, scale):
    assert (entry.data_bytes(width), entry.scale_bytes(width)) == (data, scale)
    assert entry.entry_bytes(width) == data + scale


def test_entry_bytes_of_the_published_widths():
    assert [entry.entry_bytes(width) for entry, width, *_ in PUBLISHED] == [528, 288, 68]


@pytest.mark.parametrize(
    ("entry", "entries", "width", "total"),
    [
        (MAIN, 64, 512, 64 * 288),
        (MAIN, 128, 512, 128 * 288),
        (INDEX, 64, 128, 64 * 68),
        (INDEX, 128, 128, 128 * 68),
        (WINDOW, 134, 512, 70_752),
        (WINDOW, 16, 64, 16 * 66),
        (INDEX, 3, 32, 3 * 17),
    ],
)
def test_region_bytes(entry, entries, width, total):
    assert entry.region_bytes(entries, width) == total


def test_a_page_of_128_tokens_holds_890_bytes_per_token():
    ratio_2 = MAIN.region_bytes(64, 512) + INDEX.region_bytes(64, 128)
    ratio_1 = MAIN.region_bytes(128, 512) + INDEX.region_bytes(128, 128)
    assert 3 * ratio_2 + ratio_1 == 890 * 128


def test_schemes_and_layouts():
    assert [entry.scheme for entry in FORMATS] == [Scheme.FP8_BLOCK32, Scheme.NVFP4, Scheme.MXFP4]
    assert [entry.layout for entry in FORMATS] == ["interleaved", "interleaved", "sectioned"]
    assert [entry.name for entry in FORMATS] == ["window", "main", "index"]


@pytest.mark.parametrize(("entry", "size"), [(WINDOW, 528), (MAIN, 288)])
def test_interleaved_entries_follow_one_another_scales_behind_data(entry, size):
    data, scale = entry.offsets(torch.tensor([0, 1, 63], dtype=torch.int32), 64, 512)
    assert data.dtype == scale.dtype == torch.int64
    assert data.tolist() == [0, size, 63 * size]
    assert scale.tolist() == [start + entry.data_bytes(512) for start in data.tolist()]


def test_sectioned_scales_follow_the_data_of_all_entries():
    data, scale = INDEX.offsets(torch.tensor([0, 1, 63]), 64, 128)
    assert data.tolist() == [0, 64, 63 * 64]
    assert scale.tolist() == [64 * 64, 64 * 64 + 4, 64 * 64 + 63 * 4]


@pytest.mark.parametrize("entry", FORMATS)
@pytest.mark.parametrize(("entries", "width"), [(1, 32), (5, 64), (64, 512)])
def test_entries_fill_their_region_without_gap_or_overlap(entry, entries, width):
    hits = torch.zeros(entry.region_bytes(entries, width), dtype=torch.int64)
    offsets = entry.offsets(torch.arange(entries), entries, width)
    sizes = (entry.data_bytes(width), entry.scale_bytes(width))
    for start, size in zip(offsets, sizes, strict=True):
        covered = (start[:, None] + torch.arange(size)).flatten()
        hits.index_add_(0, covered, torch.ones_like(covered))
    assert hits.tolist() == [1] * hits.numel()


@pytest.mark.parametrize("entry", FORMATS)
def test_entries_written_to_a_region_read_back(entry):
    width, entries = 64, 6
    values = torch.randn(entries, width, generator=torch.Generator().manual_seed(3)).bfloat16()
    data, scales = entry.encode(values)
    assert data.shape == (entries, entry.data_bytes(width))
    assert scales.shape == (entries, entry.scale_bytes(width))
    region = torch.zeros(entry.region_bytes(entries, width), dtype=torch.uint8)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    offsets = entry.offsets(order, entries, width)
    data_at = offsets.data[:, None] + torch.arange(entry.data_bytes(width))
    scale_at = offsets.scale[:, None] + torch.arange(entry.scale_bytes(width))
    region[data_at], region[scale_at] = data, scales
    read = entry.decode(region[data_at], region[scale_at], torch.bfloat16)
    assert torch.equal(read, entry.decode(*quantise(values, entry.scheme), torch.bfloat16))


def test_window_entry_bytes():
    values = torch.zeros(1, 64)
    values[0, 33] = 5.0
    data, scales = WINDOW.encode(values)
    assert scales.tolist() == [[105, 121]]
    assert data[0, 33] == 0x7A  # 320 = 5 * 2^6
    assert data.count_nonzero() == 1


def test_main_entry_bytes():
    values = torch.zeros(1, 32)
    values[0, 19] = -6.0
    data, scales = MAIN.encode(values)
    assert scales.tolist() == [[0x01, 0x38]]
    assert e2m1.unpack(data)[0, 19] == 0xF
    assert (data[0, 9], data.count_nonzero()) == (0xF0, 1)


def test_index_entry_bytes():
    values = torch.zeros(1, 64)
    values[0, 2] = 12.0
    data, scales = INDEX.encode(values)
    assert scales.tolist() == [[128, 1]]
    assert (data[0, 1], data.count_nonzero()) == (0x07, 1)


@pytest.mark.parametrize("entry", FORMATS)
@pytest.mark.parametrize("width", [0, 24, -32])
def test_a_width_with_a_partial_group_is_an_error(entry, width):
    with pytest.raises(UsageError, match=f"{entry.name} entry of {width} channels"):
        entry.entry_bytes(width)


@pytest.mark.parametrize(("entry", "size"), [(MAIN_BF16, 1024), (INDEX_BF16, 256)])
def test_plain_entries_are_bf16_without_scales(entry, size):
    width = size // 2
    values = torch.randn(5, width, generator=torch.Generator().manual_seed(4))
    data, scales = entry.encode(values)
    assert data.shape == (5, size)
    assert scales.shape == (5, 0)
    assert data.dtype == scales.dtype == torch.uint8
    assert entry.entry_bytes(width) == size
    decoded = entry.decode(data, scales, torch.float32)
    assert torch.equal(decoded, values.bfloat16().float())
    assert not torch.equal(decoded, values)
    with pytest.raises(UsageError, match="entry of 33 channels"):
        entry.entry_bytes(33)
