"""The registry over distributions that lie on sys.path, as pip would leave them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.backend.registry import REFERENCE, discover, installed_entry_points, select_backend
from tests.backend.plugins import forgotten_afterwards, write_distribution, write_plugin


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in front of sys.path; modules imported from it are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with forgotten_afterwards():
        yield tmp_path


def test_installed_distribution_is_found_and_selected(site: Path) -> None:
    write_plugin(site, "alpha")
    selected = select_backend("alpha")
    assert (selected.spec.name, selected.mode.name) == ("alpha", "hardware")
    (entry,) = installed_entry_points()["alpha"]
    assert entry.dist is not None
    assert entry.dist.name == "dist-alpha"


def test_only_the_named_module_is_imported(site: Path) -> None:
    write_plugin(site, "beta")
    write_plugin(site, "gamma")
    select_backend("beta")
    assert "chip_beta" in sys.modules
    assert "chip_gamma" not in sys.modules


def test_distribution_whose_module_is_missing(site: Path) -> None:
    write_distribution(site, "dist-delta", {"delta": "chip_delta"})
    (delta,) = [backend for backend in discover() if backend.name == "delta"]
    assert delta.distribution == "dist-delta"
    assert delta.reasons() == "ModuleNotFoundError: No module named 'chip_delta'"


def test_two_distributions_with_one_backend(site: Path) -> None:
    write_plugin(site, "epsilon")
    write_distribution(site, "dist-zeta", {"epsilon": "chip_epsilon"})
    (epsilon,) = [backend for backend in discover() if backend.name == "epsilon"]
    assert "dist-epsilon, dist-zeta" in epsilon.error
    assert "chip_epsilon" not in sys.modules


def test_higher_rank_wins_over_the_reference(site: Path) -> None:
    write_plugin(site, "eta", rank=10**6)
    assert select_backend(None).spec.name == "eta"


def test_the_reference_is_installed_with_the_core() -> None:
    (entry,) = installed_entry_points()[REFERENCE]
    assert entry.dist is not None
    assert entry.dist.name == "deepinfer-core"
    assert select_backend(REFERENCE).create().device.type == "cpu"
