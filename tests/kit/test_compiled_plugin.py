"""plugins/compiled: it has the kit's files, installs offline, and its operators are right.

The whole of its profile runs in `build.sh test`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.backend import CallSpec
from deepinfer.backend.registry import select_backend
from deepinfer.conformance.case import Tier
from deepinfer.conformance.registry import selected
from deepinfer.errors import BackendUnavailableError
from deepinfer.kit import new_backend
from tests.backend.plugins import write_distribution
from tests.kit.conftest import Shell, new_shell

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "compiled"
NATIVE = ["collapse", "expand", "rms_norm"]
MADE = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".pytest_cache", "report")

VARIED_CALLS = """
import functools, torch
import torch._dynamo
torch._dynamo.config.error_on_recompile = True
torch.compile = functools.partial(torch.compile, backend="eager")
from deepinfer.backend import Mix
from deepinfer.backend.registry import select_backend
backend = select_backend("compiled").create()
def tensor(*shape, offset):
    count = torch.Size(shape).numel()
    return torch.rand(count + offset)[offset:].view(shape)

shapes = (4, 4, 4), (17, 4, 64), (1, 2, 96), (0, 3, 3), (64, 64, 64), (5, 1, 8)
for number, (rows, streams, width) in enumerate(shapes):
    x = tensor(rows, width, offset=5 - number)
    many = tensor(rows, streams, width, offset=9 - number)
    pre, comb = torch.rand(rows, streams), torch.rand(rows, streams, streams)
    weight = tensor(width, offset=5 - number).to((torch.float32, torch.bfloat16)[number % 2])
    with torch.set_grad_enabled(number % 2 == 0):
        backend.rms_norm(x, weight, 1e-6)
        backend.collapse(many, pre)
        backend.expand(x, many, Mix(pre, pre, comb))
    assert not vars(x)
print("compiled once")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """An environment with the plugin, installed from a copy of its folder."""
    shell = new_shell(tmp_path_factory.mktemp("compiled"))
    shutil.copytree(PLUGIN, shell.folder / "compiled", ignore=MADE)
    shell.output("pip install --quiet --no-deps --no-build-isolation ./compiled")
    return shell


def test_it_has_the_files_that_the_kit_writes(tmp_path: Path) -> None:
    new_backend("other", tmp_path / "kit")
    shutil.copytree(PLUGIN, tmp_path / "plugin", ignore=MADE)

    def files(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    written = {name.replace("_other", "_compiled") for name in files(tmp_path / "kit")}
    assert files(tmp_path / "plugin") == written | {"deepinfer_compiled/kernels.py"}

    def dependencies(folder: str) -> object:
        text = (tmp_path / folder / "pyproject.toml").read_text()
        return tomllib.loads(text)["project"]["dependencies"]

    assert dependencies("plugin") == dependencies("kit")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_its_operators_pass_natively(installed: Shell) -> None:
    """Every bf16 case of the quick tier; each precision more is three more kernels to compile."""
    chosen = [check.case for check in selected(Tier.QUICK, NATIVE) if check.case.dtype == "bf16"]
    options = " ".join(f"--case {shlex.quote(case.id)}" for case in chosen)
    installed.output(
        "deepinfer conformance --accelerator compiled --profile full --workers 0 --report report "
        + options
    )
    report = json.loads((installed.folder / "report" / "report.json").read_text())
    assert report["native_operators"] == NATIVE
    assert [case["id"] for case in report["cases"]] == [case.id for case in chosen]
    assert {case["provider"] for case in report["cases"]} == {"native"}


@pytest.mark.slow
def test_calls_that_vary_do_not_compile_again(installed: Shell) -> None:
    assert "compiled once" in installed.output(f"python -c {shlex.quote(VARIED_CALLS)}")


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin in a folder in front of sys.path; its compiler is not called."""
    shutil.copytree(PLUGIN / "deepinfer_compiled", tmp_path / "deepinfer_compiled", ignore=MADE)
    write_distribution(tmp_path, "deepinfer-compiled", {"compiled": "deepinfer_compiled.plugin"})
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.startswith("deepinfer_compiled")]:
        del sys.modules[name]


def test_without_a_compiler_it_says_so(beside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendUnavailableError) as caught:
        select_backend("compiled")
    message = str(caught.value)
    assert "no: no C++ compiler: 'no-such-compiler' is not in PATH" in message
    assert "apt-get install g++" in message


def test_without_headers_of_python_it_says_so(
    beside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", sys.executable)  # any program that is there
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / name))
    with pytest.raises(BackendUnavailableError, match=r"no: no headers of Python: .*Python.h"):
        select_backend("compiled")


@pytest.mark.parametrize(
    ("operator", "dtype", "supported"),
    [("rms_norm", "fp64", True), ("expand", "fp16", False), ("linear", "fp16", True)],
)
def test_it_refuses_a_precision_that_was_not_tried(
    beside: None, operator: str, dtype: str, supported: bool
) -> None:
    call = CallSpec.of(operator, {"dtype": dtype})
    answer = select_backend("compiled", require=False).create().supports(call)
    assert answer.supported is supported
    assert supported or answer.reason == "dtype=fp16: tried with bf16, fp32, fp64"
