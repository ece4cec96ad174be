"""Probes of the NVIDIA and Ascend distributions, on folders that play /dev."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from deepinfer.settings.settings import known_variables

BACKENDS = Path(__file__).resolve().parents[2] / "backends"


def load(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BACKENDS / name))
    return importlib.import_module(f"deepinfer_{name}.{module}")


@pytest.mark.parametrize("name", ["nvidia", "ascend"])
def test_nothing_here(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load(name, "probe", monkeypatch)
    answer = probe.availability(devices=tmp_path)
    assert not answer.usable
    assert f"there is no device file {tmp_path}/" in answer.reasons[0]
    assert all(reason.endswith(".") for reason in answer.reasons)
    assert answer.remedy.startswith("Install the ")


@pytest.mark.parametrize("name", ["nvidia", "ascend"])
def test_hooks_satisfy_the_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import pluggy

    from deepinfer.backend import hooks

    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks.HookSpecification)
    manager.register(load(name, "plugin", monkeypatch))
    manager.check_pending()
    spec = manager.hook.deepinfer_backend()
    assert (spec.name, spec.distribution) == (name, f"deepinfer-{name}")
    assert spec.contract_version == hooks.CONTRACT_VERSION
    assert isinstance(manager.hook.deepinfer_probe(mode=None), hooks.Availability)


def test_nvidia_backend_claims_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load("nvidia", "plugin", monkeypatch)
    backend = plugin.deepinfer_create(mode="hardware", device="cpu")
    assert backend.native_operators() == frozenset()


def test_nvidia_torch_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load("nvidia", "probe", monkeypatch)
    (tmp_path / "nvidia0").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(probe, "_library", lambda name: object())
    answer = probe.availability(devices=tmp_path, torch_folder=tmp_path)
    assert answer.reasons == (f"The installed torch ({tmp_path}) was built without CUDA.",)


def test_nvidia_hidden_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load("nvidia", "probe", monkeypatch)
    (tmp_path / "nvidia0").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides" in probe.availability(devices=tmp_path).reasons[0]


@pytest.mark.parametrize(
    ("capabilities", "usable"),
    [([(10, 0)], True), ([(6, 1), (9, 0)], True), ([], True), ([(6, 1), (7, 0)], False)],
)
def test_nvidia_compute_capability(
    capabilities: list[tuple[int, int]],
    usable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = load("nvidia", "probe", monkeypatch)
    (tmp_path / "nvidia0").touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(probe, "_library", lambda name: object())
    monkeypatch.setattr(probe, "_capabilities", lambda: capabilities)
    answer = probe.availability(devices=tmp_path, torch_folder=tmp_path)
    assert (answer.usable, len(answer.reasons)) == (usable, 1)


def test_ascend_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load("ascend", "probe", monkeypatch)
    (tmp_path / "davinci0").touch()
    (tmp_path / "davinci_manager").touch()
    (tmp_path / "libascendcl.so").touch()
    (tmp_path / "torch_npu.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = probe.availability(
        devices=tmp_path, environment={"LD_LIBRARY_PATH": f"/nowhere::{tmp_path}"}
    )
    assert (answer.usable, answer.reasons) == (True, ("1 Ascend NPU(s).",))


def test_ascend_without_its_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load("ascend", "probe", monkeypatch)
    (tmp_path / "davinci0").touch()
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").touch()
    answer = probe.availability(devices=tmp_path, environment={"ASCEND_HOME_PATH": str(tmp_path)})
    assert answer.reasons == ("The Python package torch_npu is not installed.",)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("nvidia", ["CUDA_VISIBLE_DEVICES"]),
        ("ascend", ["ASCEND_RT_VISIBLE_DEVICES", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"]),
    ],
)
def test_settings_are_registered_and_read_by_the_probe(
    name: str, settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load(name, "plugin", monkeypatch).deepinfer_backend()
    assert [setting.name for setting in spec.settings] == settings
    source = (BACKENDS / name / f"deepinfer_{name}" / "probe.py").read_text()
    assert all(f'"{setting}"' in source for setting in settings)
    for setting in known_variables([spec]).values():
        assert setting.effect.endswith(".")
        assert setting.name not in settings or setting.owner == name


def test_ascend_hidden_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load("ascend", "probe", monkeypatch)
    (tmp_path / "davinci0").touch()
    environment = {"ASCEND_RT_VISIBLE_DEVICES": ""}
    reasons = probe.availability(devices=tmp_path, environment=environment).reasons
    assert "ASCEND_RT_VISIBLE_DEVICES hides every NPU" in reasons[0]


def test_ascend_toolkit_home_is_read_where_the_home_is_unset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = load("ascend", "probe", monkeypatch)
    (tmp_path / "davinci0").touch()
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").touch()
    for homes, found in [
        ({"ASCEND_TOOLKIT_HOME": str(tmp_path)}, True),
        ({"ASCEND_TOOLKIT_HOME": str(tmp_path), "ASCEND_HOME_PATH": "/nowhere"}, False),
    ]:
        reasons = probe.availability(devices=tmp_path, environment=homes).reasons
        assert any("No CANN runtime" in reason for reason in reasons) != found
