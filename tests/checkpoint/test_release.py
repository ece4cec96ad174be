"""The whole release, as header-true sparse files: inspected within a minute, exact to the byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deepinfer.checkpoint import Checkpoint
from deepinfer.cli.inspection import Inspection, inspect_checkpoint, render
from tests.checkpoint.release import SHARDS, STORED_BYTES, TENSORS, write_release

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 60


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release")
    write_release(directory)
    return directory


class Inspected(NamedTuple):
    """One inspection of the release and how long it took, opening included."""

    checkpoint: Checkpoint
    inspection: Inspection
    seconds: float


@pytest.fixture(scope="module")
def inspected(release: Path) -> Iterator[Inspected]:
    start = time.monotonic()
    with Checkpoint.open(release, None) as checkpoint:
        inspection = inspect_checkpoint(checkpoint, batch=1, length=2**20)
        yield Inspected(checkpoint, inspection, time.monotonic() - start)


def test_inspect_answers_within_a_minute(inspected: Inspected) -> None:
    assert inspected.seconds < LIMIT_SECONDS


def test_totals_are_the_published_ones(inspected: Inspected) -> None:
    report = inspected.inspection.as_dict()
    assert (report["tensors"], report["stored_bytes"]) == (TENSORS, STORED_BYTES)
    assert (report["shards"], report["bytes_per_token"]) == (SHARDS, 890)
    assert report["active"]["prefill"] == 7_892_776_248
    assert report["active"]["decode"] == 16_130_468_464
    assert report["parameters"]["total"] == 763_205_315_794
    assert report["cache"]["context_bytes"] == 890 * 2**20
    assert report["cache"]["page_bytes"] == 363_264
    assert report["release_limits"] == ()


@pytest.mark.parametrize(
    "number", ["96,085", "510,286,023,000", "890", "7.89B", "16.13B", "763.21B", "3,128,928"]
)
def test_the_text_names_the_published_numbers(inspected: Inspected, number: str) -> None:
    assert number in render(inspected.inspection)


def test_no_byte_of_weights_is_mapped_by_inspect(inspected: Inspected) -> None:
    directory = str(inspected.checkpoint.directory)
    assert directory not in Path("/proc/self/maps").read_text()


def test_sparse_files_take_little_disk(release: Path) -> None:
    used = sum(path.stat().st_blocks * 512 for path in release.iterdir())
    assert used < 40e6


def test_a_row_of_an_engram_table_is_read_without_the_table(inspected: Inspected) -> None:
    table = inspected.checkpoint.linear("layers.14.engram.embed")
    row = table.weight.rows(384_016_681, 384_016_682).map()
    assert row.tolist() == [[0] * 256]
    assert inspected.checkpoint.plan.anonymous_bytes < 300e6
