"""plugins/compiled: installed beside the core, its operators are native and right."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.backend.registry import select
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.subject import Subject
from deepinfer.errors import BackendUnavailableError
from tests.backend.plugins import write_distribution

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "compiled"
CASES = (
    "rms_norm[eps=1e-06,rows={rows},width=64,dtype=bf16,values=normal,seed=0]",
    "collapse[rows={rows},streams=4,width=32,dtype=bf16,values=normal,seed=0]",
    "expand[rows={rows},streams=4,width=32,dtype=bf16,values=normal,seed=0]",
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin lies in a site folder, as pip would leave it."""
    shutil.copytree(PLUGIN / "deepinfer_compiled", tmp_path / "deepinfer_compiled")
    write_distribution(tmp_path, "deepinfer-compiled", {"compiled": "deepinfer_compiled.plugin"})
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("deepinfer_compiled")]:
        del sys.modules[name]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own
def test_cases_pass_natively(installed: None) -> None:
    subject = Subject.load(select("compiled"))
    assert subject.native == {"rms_norm", "collapse", "expand"}
    for pattern in CASES:
        for rows in (17, 1, 0):
            verdict = by_id(pattern.format(rows=rows)).run(subject)
            assert verdict.passed and verdict.provider == "native", str(verdict)


def test_without_a_compiler_it_says_so(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendUnavailableError, match="no: no C.. compiler: 'no-such-compiler'"):
        select("compiled")
