"""The safetensors header reader: valid files in, every kind of damage out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.checkpoint.header import read_header
from deepinfer.errors import (
    CheckpointError,
    CheckpointIndexError,
    MissingShardError,
    TensorMismatchError,
    TruncatedShardError,
)
from tests.checkpoint.writer import framed, shard_header

A = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
B = {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [12, 16]}


def write(tmp_path: Path, table: Any, data: bytes = bytes(16)) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(framed(table) + data)
    return path


def test_offsets_count_from_the_start_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"__metadata__": {"format": "pt"}, "b": B, "a": A})
    header = read_header(path)
    start = path.stat().st_size - 16
    assert [(t.name, t.dtype, t.shape, t.offset, t.nbytes) for t in header.tensors] == [
        ("a", "BF16", (2, 3), start, 12),
        ("b", "F8_E4M3", (4,), start + 12, 4),
    ]


def test_a_shard_without_tensors_is_valid(tmp_path: Path) -> None:
    assert read_header(write(tmp_path, {}, b"")).tensors == ()


def test_empty_tensors_are_neither_holes_nor_overlaps(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 7], "data_offsets": [12, 12]}
    assert len(read_header(write(tmp_path, {"a": A, "e": empty, "b": B})).tensors) == 3


@pytest.mark.parametrize(("change", "word"), [(-1, "short"), (1, "long")])
def test_one_byte_too_few_or_too_many(tmp_path: Path, change: int, word: str) -> None:
    path = write(tmp_path, {"a": A, "b": B}, bytes(16 + change))
    size = path.stat().st_size
    with pytest.raises(TruncatedShardError) as caught:
        read_header(path)
    message = str(caught.value)
    assert str(path) in message
    assert f"1 too {word}" in message
    assert f"expected {size - change:,} bytes" in message
    assert f"found {size:,}" in message


@pytest.mark.parametrize("size", [0, 7, 8, 40])
def test_a_file_that_ends_inside_its_header(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((framed({"a": A, "b": B}) + bytes(16))[:size])
    with pytest.raises(TruncatedShardError, match="expected at least"):
        read_header(path)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**12])
def test_a_corrupt_header_length_allocates_nothing(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + bytes(100))
    with pytest.raises(TruncatedShardError, match="by its header length"):
        read_header(path)


def test_a_header_longer_than_the_format_allows(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with open(path, "wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)
    with pytest.raises(CheckpointIndexError, match="exceeds 100,000,000"):
        read_header(path)


def raw(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (raw(b"{"), "broken safetensors header"),
        (raw(b"\xff\xfe{}"), "utf-8"),
        (raw(b"[]"), "not an object"),
        (raw(b"[" * 200_000), "nested too deeply"),
        (raw(b'{"a":' * 200_000), "nested too deeply"),
        (raw(b'{"a":NaN}'), "NaN"),
        (raw(b'{"a":' + b"9" * 10_000 + b"}"), "broken safetensors header"),
        (raw(b'{"a":1,"a":2}'), "twice"),
        (raw(b'{"__metadata__":3}'), "__metadata__"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_json(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointIndexError, match=reason):
        read_header(path)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (3, "exactly dtype, shape and data_offsets"),
        ({**B, "extra": 1}, "exactly dtype, shape and data_offsets"),
        ({"dtype": "F8_E4M3", "shape": [4]}, "exactly dtype, shape and data_offsets"),
        ({**B, "shape": 4}, "shape of b"),
        ({**B, "shape": [-4]}, "shape of b"),
        ({**B, "shape": [4.0]}, "shape of b"),
        ({**B, "shape": [True]}, "shape of b"),
        ({**B, "shape": [1] * 9}, "shape of b"),
        ({**B, "shape": [2**63]}, "shape of b"),
        ({**B, "shape": [2**62, 2**62]}, "needs"),
        ({**B, "shape": [5]}, "takes 4 bytes, but F8_E4M3"),
        ({**B, "data_offsets": [12]}, "data_offsets of b"),
        ({**B, "data_offsets": ["12", "16"]}, "data_offsets of b"),
        ({**B, "data_offsets": [16, 12]}, "takes -4 bytes"),
        ({**B, "data_offsets": [11, 15]}, "b overlaps"),
        ({**B, "data_offsets": [13, 17]}, "hole of 1 bytes"),
        ({**B, "data_offsets": [0, 4]}, "overlaps"),
    ],
)
def test_broken_entries(tmp_path: Path, entry: Any, reason: str) -> None:
    with pytest.raises(CheckpointIndexError, match=reason):
        read_header(write(tmp_path, {"a": A, "b": entry}))


@pytest.mark.parametrize("dtype", ["F7", "", 8, None, ["BF16"]])
def test_unknown_dtypes_are_named(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(TensorMismatchError, match="b has the unknown dtype"):
        read_header(write(tmp_path, {"a": A, "b": {**B, "dtype": dtype}}))


def test_a_missing_file_and_a_link_to_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "none.safetensors", link):
        with pytest.raises(MissingShardError, match=path.name):
            read_header(path)


def test_a_directory_in_place_of_a_shard(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_header(tmp_path)


def test_the_writer_agrees_with_the_safetensors_package(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "x.safetensors"
    path.write_bytes(shard_header([("w", "BF16", (2, 3)), ("s", "F8_E8M0", (4,))]) + bytes(16))
    with safe_open(str(path), "pt") as opened:
        assert set(opened.keys()) == {t.name for t in read_header(path).tensors} == {"w", "s"}
    assert json.loads(path.read_bytes()[8:].split(b"}}")[0] + b"}}")["w"]["shape"] == [2, 3]
