"""The data generator of the nano checkpoint: repeatable, checkable, without a shared fact."""

from __future__ import annotations

import json
import re
from itertools import islice, pairwise
from typing import Any

import pytest

from examples.nano import words
from examples.nano.data import (
    ASSISTANT,
    BOS,
    EOS,
    SHARES,
    TOKEN,
    Document,
    Split,
    documents,
    is_held_out,
    token_count,
)

TASKS = tuple(SHARES)


def some(split: Split = "train", count: int = 100, seed: int = 5, **rest: Any) -> list[Document]:
    return list(islice(documents(seed, split, **rest), count))


def test_a_seed_gives_the_same_documents_from_any_start() -> None:
    assert some(start=7, count=20) == some(count=27)[7:]
    assert some(count=20) != some(count=20, seed=6)


def test_the_first_document_stays_as_it_was() -> None:
    assert some(count=1, seed=0, tasks=["recall"], longest=32)[0].text == (
        f"{BOS}Pairs: bottle bakery, drum cold. The dog walks behind the beach."
        f" Again: bottle bakery, drum cold.{EOS}"
    )


def test_every_task_comes_and_only_those_asked_for() -> None:
    assert {document.task for document in some()} == set(TASKS)
    assert {document.task for document in some(tasks=["json", "story"])} == {"json", "story"}


def answers(document: Document) -> list[str]:
    return [document.text[first:last] for first, last in document.answer_spans]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_distances_lead_from_the_answer_to_its_value_in_the_fact(split: Split) -> None:
    for document in some(split, tasks=["recall", "story", "json"]):
        tokens = TOKEN.findall(document.text)
        assert "".join(tokens) == document.text
        for (first, _), distance, answer in zip(
            document.answer_spans, document.distances, answers(document), strict=True
        ):
            position = token_count(document.text[:first])
            said = "".join(tokens[position - distance :]).strip()
            assert said.startswith(answer.strip())
            assert tokens[position].strip() == tokens[position - distance].strip()
        assert document.distance == max(document.distances)


@pytest.mark.parametrize("longest", [32, 100, 400])
def test_no_distance_is_larger_than_asked_for(longest: int) -> None:
    found = [document.distance for document in some(longest=longest, tasks=["recall", "story"])]
    assert longest * 0.6 < max(found) <= longest


def test_answers_repeat_their_facts() -> None:
    for document in some(tasks=["story"]):
        story, *turns = document.text.split(ASSISTANT)
        for turn in turns:
            assert f" {turn.partition(EOS)[0]}" in story


def test_pairs_asked_for_are_among_those_told() -> None:
    for document in some(tasks=["recall"]):
        told, asked = re.fullmatch(
            rf"{BOS}Pairs:([^.]*)\..* Again:([^.]*)\.{EOS}", document.text
        ).groups()  # type: ignore[union-attr]
        assert set(asked.split(",")) <= set(told.split(","))
        keys = [pair.split()[0] for pair in told.split(",")]
        assert len(set(keys)) == len(keys) >= 2


def test_sums_are_right() -> None:
    for document in some(tasks=["arithmetic"]):
        sums = re.findall(r"</think>(\d+) \+ (\d+) = (\d+)\.", document.text)
        assert sums
        assert all(int(a) + int(b) == int(c) for a, b, c in sums)
        assert [c for _, _, c in sums] == answers(document)
        assert len({frozenset(pair) for *pair, _ in sums}) == len(sums)


def test_records_are_json_of_the_fields_asked_for() -> None:
    for document in some(tasks=["json"]):
        asked, record = re.fullmatch(rf".*JSON: (.*)\.{ASSISTANT}(.*){EOS}", document.text).groups()  # type: ignore[union-attr]
        said = dict(
            re.fullmatch(r'"(\w+)" is "?(\w+)"?', field).groups() for field in asked.split(", ")
        )  # type: ignore[union-attr]
        assert {name: str(value) for name, value in json.loads(record).items()} == said
        assert answers(document) == [word for field in said.items() for word in field]


def pairs(document: Document) -> set[frozenset[str]]:
    """Key and value of every fact, as the text has them."""
    text = document.text
    found = re.findall(r"[:,] ([a-z]+) ([a-z]+)(?=[,.])", text) if document.task == "recall" else []
    for told in (
        r"The (\w+) is in the (\w+)\.",
        r"The (\w+) belongs to (\w+)\.",
        r"Today (\w+) has the (\w+)\.",
        r"The (\w+) holds (\w+) ",
        r"What is (\d+) \+ (\d+)\?",
    ):
        found += re.findall(told, text)
    if document.task == "json":
        values = re.findall(r'" is "?(\w+)', text)
        found += pairwise(values)
    return {frozenset(pair) for pair in found}


@pytest.mark.slow
def test_the_splits_share_no_fact() -> None:
    train = set().union(*map(pairs, some("train", 1000)))
    heldout = set().union(*map(pairs, some("heldout", 500)))
    assert len(train) > 1000
    assert len(heldout) > 300
    assert not train & heldout
    for pair in heldout:
        first, second = sorted(pair) if len(pair) == 2 else [*pair, *pair]
        assert is_held_out(first, second)


def test_no_training_document_is_held_out() -> None:
    held_out = {document.text for document in some("heldout", 500)}
    assert not held_out & {document.text for document in some("train", 1000)}


def test_no_word_is_in_two_pools() -> None:
    pools = (
        *(words.NAMES, words.OBJECTS, words.PLACES, words.CONTAINERS, words.COUNTED),
        *(words.NUMBERS, words.QUALITIES, words.ANIMALS, words.MOVES, words.SPOTS),
    )
    every = [word for pool in pools for word in pool]
    assert len(set(every)) == len(every)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="split is 'test'; allowed: train, heldout"):
        next(documents(0, "test"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="longest is 31; allowed: 32 and more"):
        next(documents(0, "train", longest=31))
