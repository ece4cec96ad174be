"""Selection: by name, or the best; modes; what an error says; never another one instead."""

from __future__ import annotations

import pytest

from deepinfer.backend import Availability, Mode, hookimpl
from deepinfer.backend.registry import discover, select_backend
from deepinfer.errors import BackendUnavailableError, UsageError
from tests.backend.conftest import Install
from tests.backend.plugins import HARDWARE, FakeEntry, entry, spec

MISSING = Availability(
    False, 50, ("there is no device file /dev/chip0.", "libchip.so is missing."), "Install chip 9."
)
SIMULATED = Mode("simulated", "a simulator", "cpu", timing=False)


def ranked(name: str, rank: int, usable: bool = True) -> FakeEntry:
    return entry(name, availability=Availability(usable, rank))


def test_named_backend_is_chosen_whatever_its_rank(install: Install) -> None:
    install(ranked("low", -1), ranked("high", 9))
    assert select_backend("low").spec.name == "low"


def test_only_the_named_entry_point_is_loaded(install: Install) -> None:
    named, other = entry("named"), entry("other")
    install(named, other)
    select_backend("named")
    assert (named.loads, other.loads) == (1, 0)


def test_best_rank_is_chosen_when_none_is_named(install: Install) -> None:
    install(ranked("low", 1), ranked("high", 9), ranked("broken", 99, usable=False))
    assert select_backend(None).spec.name == "high"
    assert select_backend("").spec.name == "high"


def test_equal_ranks_go_by_name(install: Install) -> None:
    install(ranked("b", 3), ranked("a", 3))
    assert select_backend(None).spec.name == "a"


def test_negative_rank_is_never_chosen_by_itself(install: Install) -> None:
    install(ranked("null", -1))
    with pytest.raises(BackendUnavailableError, match=r"(?s)name one with .*null: usable"):
        select_backend(None)


def test_nothing_installed(install: Install) -> None:
    install()
    with pytest.raises(BackendUnavailableError, match=r"Installed:\n  \(none\)"):
        select_backend(None)


def test_unknown_name_lists_the_installed_ones(install: Install) -> None:
    install(entry("b"), entry("a"))
    with pytest.raises(BackendUnavailableError, match=r"'chip' is not installed. Installed: a, b"):
        select_backend("chip")


def test_unusable_named_backend_says_what_is_missing_and_what_else_there_is(
    install: Install,
) -> None:
    install(entry("chip", availability=MISSING), entry("good"), ranked("bad", 0, usable=False))
    with pytest.raises(BackendUnavailableError) as caught:
        select_backend("chip")
    assert str(caught.value).splitlines() == [
        "accelerator 'chip' is not usable on this machine:",
        "  - there is no device file /dev/chip0.",
        "  - libchip.so is missing.",
        "Install chip 9.",
        "Other backends:",
        "  bad: not usable: ",
        "  good: usable",
    ]


def test_unusable_backend_is_given_where_nothing_will_run_on_it(install: Install) -> None:
    install(entry("chip", availability=MISSING))
    assert select_backend("chip", require=False).spec.name == "chip"


def test_skipped_backends_are_not_loaded(install: Install) -> None:
    bad, good = FakeEntry("bad", ValueError("boom")), entry("good")
    install(bad, good)
    assert select_backend(None, skip=["bad"]).spec.name == "good"
    assert [backend.name for backend in discover(["bad"])] == ["good"]
    assert bad.loads == 0


def test_backend_that_is_both_named_and_skipped(install: Install) -> None:
    install(entry("chip"))
    with pytest.raises(UsageError, match="'chip' is named and, by DEEPINFER_SKIP_BACKENDS=chip"):
        select_backend("chip", skip=["chip"])


def test_first_mode_is_the_default(install: Install) -> None:
    install(entry("chip", answer=spec("chip", modes=(SIMULATED, HARDWARE))))
    assert select_backend("chip").mode is SIMULATED
    assert select_backend("chip", "hardware").mode is HARDWARE


def test_unknown_mode_names_the_allowed_ones(install: Install) -> None:
    install(entry("chip", answer=spec("chip", modes=(HARDWARE, SIMULATED))))
    with pytest.raises(UsageError, match="no mode 'fast'; its modes are: hardware, simulated"):
        select_backend("chip", "fast")


def test_unknown_mode_is_not_probed(install: Install) -> None:
    @hookimpl
    def deepinfer_probe(mode: str | None) -> Availability:
        return {"hardware": Availability(True)}[mode or "hardware"]

    install(entry("chip", hooks={"deepinfer_probe": deepinfer_probe}))
    with pytest.raises(UsageError, match="no mode 'fast'"):
        select_backend("chip", "fast")


def test_mode_is_probed_when_the_best_is_chosen(install: Install) -> None:
    @hookimpl
    def deepinfer_probe(mode: str | None) -> Availability:
        return Availability(mode == "simulated", 5)

    modes = spec("chip", modes=(HARDWARE, SIMULATED))
    install(
        entry("chip", answer=modes, hooks={"deepinfer_probe": deepinfer_probe}), ranked("good", 1)
    )
    assert select_backend(None).spec.name == "good"
    assert select_backend(None, "simulated").spec.name == "chip"


def test_mode_that_no_backend_has(install: Install) -> None:
    install(entry("a"), entry("b"))
    with pytest.raises(UsageError, match=r"(?s)no installed backend has the mode 'fast'.*'a'.*'b'"):
        select_backend(None, "fast")
