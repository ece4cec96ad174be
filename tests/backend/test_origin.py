"""Errors of an installed plugin name it, its distribution, the version and the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.backend.origin import file_of
from deepinfer.backend.registry import select_backend
from deepinfer.errors import BackendContractError
from tests.backend.plugins import forgotten_afterwards, write_distribution, write_plugin


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in front of sys.path, as pip would fill it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with forgotten_afterwards():
        yield tmp_path


def error_of(name: str) -> str:
    with pytest.raises(BackendContractError) as caught:
        select_backend(name).create()
    return str(caught.value)


def test_module_that_raises(site: Path) -> None:
    write_plugin(site, "omega")
    (site / "chip_omega.py").write_text("import libomega\n")
    message = error_of("omega")
    file = site / "chip_omega.py"
    assert f"backend 'omega' (distribution dist-omega 1.0, file {file})" in message
    assert "No module named 'libomega'" in message
    assert "Expected: a module with the hooks deepinfer_backend, deepinfer_probe and" in message


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("CONTRACT_VERSION, ", "(99, 0), ", "built for operator contract 99.0, this DeepInfer has"),
        (
            "return BackendSpec(",
            "return dict(a=1) or (",
            "deepinfer_backend returned dict, expected",
        ),
        ("return Availability(", "return bool(1) or (", "deepinfer_probe returned bool, expected"),
        ("return Availability(", "1 / 0 or (", "and probed on any machine"),
        ("return Backend(device)", "return device", "deepinfer_create returned str, expected a"),
        ("return Backend(device)", "1 / 0", "Expected: a deepinfer.backend.Backend for every mode"),
        (
            "return Backend(device)",
            "return type('C', (Backend,), {'nondeterministic': frozenset({'rms_nrom'})})(device)",
            "nondeterministic names an unknown operator 'rms_nrom'; did you mean 'rms_norm'?",
        ),
    ],
    ids=["version", "backend", "probe", "probe raises", "create", "create raises", "operator"],
)
def test_fault_of_a_hook(site: Path, before: str, after: str, expected: str) -> None:
    write_plugin(site, "sigma")
    file = site / "chip_sigma.py"
    head, found, tail = file.read_text().rpartition(before)
    assert found
    file.write_text(f"{head}{after}{tail}")
    message = error_of("sigma")
    assert f"backend 'sigma' (distribution dist-sigma 1.0, file {file})" in message
    assert expected in message


def test_two_plugins_of_one_name_are_both_placed(site: Path) -> None:
    write_plugin(site, "tau")
    write_plugin(site, "upsilon")
    write_distribution(site / "more", "other-tau", {"tau": "chip_upsilon"})
    (site / "more" / "other_tau-1.0.dist-info").rename(site / "other_tau-1.0.dist-info")
    message = error_of("tau")
    for name, module in (("dist-tau", "chip_tau"), ("other-tau", "chip_upsilon")):
        assert f"distribution {name} 1.0, file {site / module}.py" in message
    assert "expected one: uninstall all but one" in message


def test_file_of_a_module_is_found_without_importing_it(site: Path) -> None:
    package = site / "chip_phi"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "plugin.py").write_text("raise SystemExit")
    assert file_of("chip_phi.plugin") == str(package / "plugin.py")
    assert file_of("chip_phi") == str(package / "__init__.py")
    assert file_of("chip_phi.other").startswith("missing: ")
    assert file_of("chip_psi.plugin").startswith("missing: ")
