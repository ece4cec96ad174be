"""One small tokenizer per test session."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.text import Tokenizer
from tests.text.small_tokenizer import small_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    return small_tokenizer(directory)
