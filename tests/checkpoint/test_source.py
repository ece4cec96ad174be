"""Sources: private copies, mapped views, row slices; and what happens when files change."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from deepinfer.checkpoint import Checkpoint, FileSource
from deepinfer.checkpoint.header import read_header
from deepinfer.checkpoint.shard import Shard
from deepinfer.errors import CheckpointError, TruncatedShardError
from tests.checkpoint.writer import framed


def open_source(path: Path, name: str) -> FileSource:
    header = read_header(path)
    stored = next(tensor for tensor in header.tensors if tensor.name == name)
    shard = Shard(path, header.file_bytes)
    return FileSource(stored.name, stored.dtype, stored.shape, stored.offset, shard)


def write_values(path: Path, pad: int = 0) -> None:
    """`pad` bytes of codes, then bf16 [3, 2] = 0..5 and fp32 [2] = 1.5, -2."""
    bf16 = torch.arange(6, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    fp32 = torch.tensor([1.5, -2.0]).view(torch.uint8).numpy().tobytes()
    table = {
        "pad": {"dtype": "I8", "shape": [pad], "data_offsets": [0, pad]},
        "bf16": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [pad, pad + 12]},
        "fp32": {"dtype": "F32", "shape": [2], "data_offsets": [pad + 12, pad + 20]},
    }
    path.write_bytes(framed(table) + bytes(range(250, 250 + pad)) + bf16 + fp32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "x.safetensors"
    write_values(file, pad=4)
    return file


@pytest.mark.parametrize("way", ["read", "map"])
def test_values_dtypes_and_shapes(path: Path, way: str) -> None:
    values = [getattr(open_source(path, name), way)() for name in ("pad", "bf16", "fp32")]
    assert (values[0].tolist(), values[0].dtype) == ([250, 251, 252, 253], torch.uint8)
    assert (values[1].tolist(), values[1].dtype) == ([[0, 1], [2, 3], [4, 5]], torch.bfloat16)
    assert (values[2].tolist(), values[2].dtype) == ([1.5, -2.0], torch.float32)


@pytest.mark.parametrize("way", ["read", "map"])
def test_rows_are_a_slice_of_the_first_dimension(path: Path, way: str) -> None:
    rows = open_source(path, "bf16").rows(1, 3).rows(1, 2)
    assert rows.shape == (1, 2)
    assert rows.nbytes == 4
    assert getattr(rows, way)().tolist() == [[4, 5]]


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 4)])
def test_rows_outside_the_tensor(path: Path, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="bf16: rows"):
        open_source(path, "bf16").rows(start, stop)


def test_a_view_shares_the_mapping_and_a_copy_does_not(path: Path) -> None:
    source = open_source(path, "bf16")
    assert source.map().data_ptr() == source.map().data_ptr()
    assert source.read().data_ptr() != source.map().data_ptr()
    source.read().zero_()
    assert source.map().tolist()[2] == [4, 5]


@pytest.mark.parametrize("pad", [1, 2, 3])
def test_unaligned_values_are_copied(tmp_path: Path, pad: int) -> None:
    file = tmp_path / "x.safetensors"
    write_values(file, pad)
    source = open_source(file, "fp32")
    assert not source.aligned
    assert source.map().tolist() == [1.5, -2.0]
    first, second = source.map(), source.map()
    assert first.data_ptr() != second.data_ptr()


def test_mapping_warns_of_nothing_and_leaves_the_filters_alone(path: Path) -> None:
    before = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_source(path, "bf16").map()
    assert list(warnings.filters) == before


def test_a_view_outlives_the_shard(path: Path) -> None:
    source = open_source(path, "bf16")
    view = source.map()
    source.shard.close()
    assert view.tolist()[1] == [2, 3]
    with pytest.raises(CheckpointError, match="closed"):
        source.read()


def test_a_file_that_shrank_after_its_check(path: Path) -> None:
    source = open_source(path, "bf16")
    os.truncate(path, path.stat().st_size - 1)
    for way in (source.read, source.map):
        with pytest.raises(TruncatedShardError, match="changed after its header was checked"):
            way()


def test_a_file_that_shrank_while_it_was_open(path: Path) -> None:
    source = open_source(path, "fp32")
    source.read()
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(TruncatedShardError, match="changed while it was open"):
        source.read()


@pytest.mark.slow
def test_the_mapping_is_read_only(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.checkpoint.test_source import open_source\n"
        "open_source(Path(sys.argv[1]), 'bf16').map()[0, 0] = 1\n"
    )
    before = path.read_bytes()
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=root, capture_output=True, check=False
    )
    assert done.returncode != 0
    assert path.read_bytes() == before


def test_every_tensor_of_a_checkpoint_reads_as_it_maps(tiny_checkpoint: Path) -> None:
    with Checkpoint.open(tiny_checkpoint, None) as checkpoint:
        for name in checkpoint.names():
            source = checkpoint.source(name)
            copy, view = source.read(), source.map()
            assert copy.shape == view.shape == source.shape, name
            assert torch.equal(copy.view(torch.uint8), view.view(torch.uint8)), name
