"""Ids that somebody types: variations of cases run, what nothing can make is refused at once."""

from __future__ import annotations

import pytest

from deepinfer.conformance.case import Case, Outcome, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.check import check_case
from deepinfer.conformance.properties.checking import SPACES
from deepinfer.conformance.properties.draws import smallest
from deepinfer.conformance.registry import asked, checks, selected
from deepinfer.conformance.subject import Subject
from deepinfer.errors import UsageError
from deepinfer_reference.backend import ReferenceBackend

NORM = "rms_norm[eps=1e-06,rows=1,width=64,dtype=bf16,values=normal,edge=one,seed=0]"
STORE = next(
    case.id for case in SUITES["store"].grid(Tier.QUICK) if case.fact("layout") == "prompt"
)


@pytest.mark.slow
def test_every_case_of_the_suite_may_be_asked() -> None:
    for check in checks(Tier.FULL)[::9]:
        assert asked(check.id).case == check.case


@pytest.mark.slow
@pytest.mark.parametrize("operator", SPACES)
def test_every_drawn_case_may_be_asked(operator: str) -> None:
    def wrong(case: Case) -> bool:
        assert asked(case.id).case == case
        return False

    assert smallest(SPACES[operator], wrong, 10, 20, 1) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"), [("rows=1", "rows=3"), ("eps=1e-06", "eps=1"), ("seed=0", "seed=7")]
)
def test_numbers_may_be_varied(old: str, new: str) -> None:
    assert asked(NORM.replace(old, new)).id == NORM.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("eps=1e-06,", "", "its facts are rows, width; allowed: eps, rows, width"),
        ("rows=1", "rows=1,foo=2", "its facts are eps, foo, rows, width; allowed"),
        ("rows=1", "rows=-1", "rows is -1; allowed: a number of at least 0"),
        ("rows=1", "rows=x", "rows is 'x'; the suite's cases have"),
        ("rows=1", "rows=1.5", "rows is 1.5; the suite's cases have"),
        ("rows=1", "rows=True", "rows is True; the suite's cases have"),
        ("rows=1", "rows=None", "rows is None; the suite's cases have"),
        ("eps=1e-06", "eps=nan", "eps is nan; allowed: a number of at least 0"),
        ("eps=1e-06", "eps=inf", "eps is inf; allowed"),
        ("dtype=bf16", "dtype=fp16", "dtype is 'fp16'; allowed: bf16, fp32, fp64"),
        ("values=normal", "values=zzz", "values is 'zzz'; allowed: extreme, infinite"),
        ("edge=one", "edge=zzz", "edge is 'zzz'; allowed: call, claimed"),
        ("values", "numerics=ref,values", "numerics is ref; allowed: none"),
    ],
)
def test_words_that_are_none_of_the_suite(old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(NORM.replace(old, new))


@pytest.mark.parametrize(
    "text",
    [
        "model.bundled[]",
        "model.bundled[length=7,dtype=bf16,numerics=zzz]",
        "model.golden[dtype=bf16,numerics=infer]",
        "stateful.pair[]",
        "stateful.chunks[]",
        "device[]",
        "rms_norm[property=random]",
        "rms_norm[examples=1,most_rows=2,property=zzz,dtype=any,values=any]",
        "rms_norm[examples=-1,most_rows=2,property=random,dtype=any,values=any]",
        "rms_norm[examples=1,property=random,dtype=any,values=any]",
    ],
)
def test_models_histories_and_properties_that_cannot_be_made(text: str) -> None:
    with pytest.raises(UsageError, match=r"property|facts are|numerics is"):
        asked(text)
    with pytest.raises(UsageError):
        selected(Tier.QUICK, ids=[text])


def test_a_case_that_is_asked_twice_runs_once() -> None:
    assert [check.id for check in selected(Tier.QUICK, ids=[NORM, NORM])] == [NORM]


@pytest.mark.parametrize(
    ("text", "outcome", "said"),
    [
        (NORM.replace("width=64", f"width={10**15}"), Outcome.SKIPPED, "host memory: the inputs"),
        (NORM.replace("width=64", f"width={10**30}"), Outcome.SKIPPED, "host memory: the inputs"),
        (STORE.replace("layout=prompt", "layout=zzz"), Outcome.ERROR, "cannot make this case"),
    ],
)
def test_what_does_not_fit_is_no_fault_of_the_backend(
    text: str, outcome: Outcome, said: str
) -> None:
    case, subject = asked(text).case, Subject.of("reference", ReferenceBackend("cpu"))
    found = check_case(case, SUITES[case.operator], subject)
    assert found.outcome is outcome, str(found)
    assert said in found.message, str(found)
