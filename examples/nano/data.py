"""Training and held-out documents of the nano checkpoint, made from a seed.

Every document asks about what it said before, so its answers can be checked. A document is one of

* recall: a list of pairs, other sentences, and some of the pairs again;
* story: facts among other sentences, then questions in the chat format;
* arithmetic: sums of numbers below 30, in the chat format;
* json: a list of fields, and the JSON object that has them, in the chat format.

The two splits share no fact: which of the two a pair such as (lamp, kitchen) belongs to follows
from a hash of the pair. Document i of a seed does not depend on those before it.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final, Literal

from examples.nano import words

Split = Literal["train", "heldout"]

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜></think>"
"""What opens an answer without reasoning."""

SHORTEST: Final = 8
LONGEST: Final = 400
"""Distances that a recall document aims at, in tokens."""
HELD_OUT_SHARE: Final = 8
"""One pair of that many is held out."""

TOKEN: Final = re.compile(r"<｜[^｜]*｜>|</think>|\d| ?[A-Za-z]+| ?[^\sA-Za-z0-9<]+|\s")
"""One token of the tokenizer: a control token, a digit, a word or punctuation with its space."""


@dataclass(frozen=True)
class Document:
    """text: with the spellings of special tokens, from BOS to EOS.

    answer_spans: characters first..last-1 of each answer that the text before it determines; a
    word's space belongs to it. distances: for each of them, tokens from the value in the fact to
    the value in the answer (0 where no fact is recalled): an attention window of that many tokens
    just sees the fact when it predicts the answer. distance: the largest of them.
    """

    text: str
    task: str
    distance: int
    answer_spans: list[tuple[int, int]]
    distances: list[int]


def documents(
    seed: int,
    split: Split,
    *,
    start: int = 0,
    longest: int = LONGEST,
    tasks: Sequence[str] | None = None,
) -> Iterator[Document]:
    """Documents start, start + 1, ... of a seed, without an end.

    longest: no answer has a larger distance, for training that begins with short ones; at least
    32. tasks: only these, as often as each other; None: all, by `SHARES`.
    """
    return (document(seed, split, i, longest=longest, tasks=tasks) for i in count(start))


def document(
    seed: int,
    split: Split,
    index: int,
    *,
    longest: int = LONGEST,
    tasks: Sequence[str] | None = None,
) -> Document:
    """Document `index` of a seed; arguments as in `documents`. Errors: ValueError."""
    if split not in ("train", "heldout"):
        raise ValueError(f"split is {split!r}; allowed: train, heldout")
    if longest < 4 * SHORTEST:
        raise ValueError(f"longest is {longest}; allowed: {4 * SHORTEST} and more")
    random = Random(f"{split} {seed} {index}")
    shares = SHARES if tasks is None else dict.fromkeys(tasks, 1)
    (task,) = random.choices(list(shares), list(shares.values()))
    return _MAKERS[task](_Facts(random, split == "heldout"), longest)


def token_count(text: str) -> int:
    """Tokens of a text of this data, by `TOKEN`; the tokenizer gives as many."""
    return len(TOKEN.findall(text))


def is_held_out(key: str, value: str) -> bool:
    """Whether a pair belongs to the held-out split; the order of the two does not matter."""
    return zlib.crc32(" ".join(sorted((key, value))).encode()) % HELD_OUT_SHARE == 0


@dataclass
class _Facts:
    """Random choices for one document of one split."""

    random: Random
    held_out: bool

    def pair(
        self, keys: Sequence[str], values: Sequence[str], taken: Container[str] = ()
    ) -> tuple[str, str]:
        """Two words that make a pair of this split, neither of them among those taken."""
        while True:
            key, value = self.random.choice(keys), self.random.choice(values)
            free = key not in taken and value not in taken
            if free and is_held_out(key, value) == self.held_out:
                return key, value

    def chain(self, pools: Sequence[Sequence[str]]) -> list[str]:
        """A word of each pool, each of which makes a pair of this split with the one before it."""
        chosen: list[str] = []
        while len(chosen) < len(pools):
            pool = pools[len(chosen)]
            if chosen:
                pool = [word for word in pool if is_held_out(chosen[-1], word) == self.held_out]
            chosen = [*chosen, self.random.choice(pool)] if pool else []
        return chosen

    def length(self, shortest: int, longest: int) -> int:
        """A length; half as many are twice as long."""
        return round(math.exp(self.random.uniform(math.log(shortest), math.log(longest))))

    def aside(self) -> str:
        """A sentence that no question is about, with a space before it."""
        choose = self.random.choice
        opening = f" The {choose(words.ANIMALS)} {choose(words.MOVES)} {choose(words.WAYS)} the"
        time = f" {choose(words.TIMES)}" if self.random.random() < 0.5 else ""
        return f"{opening} {choose(words.SPOTS)}{time}."

    def asides(self, tokens: int) -> str:
        """Sentences of about that many tokens, never more."""
        text = ""
        while True:
            added = self.aside()
            tokens -= token_count(added)
            if tokens < 0:
                return text
            text += added


@dataclass
class _Writer:
    """A document as it grows, and the position of each value by its key."""

    task: str
    text: str
    spans: list[tuple[int, int]] = field(default_factory=list)
    distances: list[int] = field(default_factory=list)
    _said: dict[str, int] = field(default_factory=dict)
    _counted: tuple[int, int] = (0, 0)  # characters, and the tokens that they are

    def tokens(self) -> int:
        """Tokens so far."""
        characters, tokens = self._counted
        tokens += token_count(self.text[characters:])
        self._counted = (len(self.text), tokens)
        return tokens

    def tell(self, before: str, key: str, value: str, after: str) -> None:
        """Write a fact: `value` is what `key` will be answered by."""
        self.text += before
        self._said[key] = self.tokens()
        self.text += value + after

    def distance_after(self, before: str, key: str) -> int:
        """The distance that `answer` would note."""
        return self.tokens() + token_count(before) - self._said[key]

    def answer(self, before: str, key: str | None, value: str, after: str) -> None:
        """Write an answer: what leads to it, its value, what ends it."""
        self.distances.append(0 if key is None else self.distance_after(before, key))
        self.text += before
        self.spans.append((len(self.text), len(self.text) + len(value)))
        self.text += value + after

    def finished(self) -> Document:
        """The document, ended."""
        return Document(self.text + EOS, self.task, max(self.distances), self.spans, self.distances)


def _recall(facts: _Facts, longest: int) -> Document:
    """`Pairs: lamp red, rope two. The dog runs to the lake. Again: rope two.`"""
    aim = facts.length(SHORTEST, longest)
    most = max(2, min(16, (aim - 2) // 3))
    pairs: dict[str, str] = {}
    for _ in range(facts.random.randint(2, most)):
        key, value = facts.pair(words.KEYS, words.VALUES, {*pairs, *pairs.values()})
        pairs[key] = value
    writer = _Writer("recall", BOS + "Pairs:")
    for number, (key, value) in enumerate(pairs.items(), 1):
        writer.tell(f" {key}", key, f" {value}", "," if number < len(pairs) else ".")
    writer.text += facts.asides(aim - 3 * len(pairs) - 3)
    asked = facts.random.sample(list(pairs), min(len(pairs), 6))
    writer.text += " Again:"
    near = [key for key in asked if writer.distance_after(f" {key}", key) <= longest - 3 * 5]
    for number, key in enumerate(near or asked[:1], 1):
        end = "," if number < len(near) else "."
        writer.answer(f" {key}", key, f" {pairs[key]}", end)
    return writer.finished()


@dataclass(frozen=True)
class _Sentence:
    """A kind of fact: where its key and value come from, how it is told and asked for.

    told: up to the value, with a space before it; also the answer. ended: after the value.
    """

    keys: Sequence[str]
    values: Sequence[str]
    told: str
    ended: str
    question: str


_SENTENCES: Final = (
    _Sentence(words.OBJECTS, words.PLACES, " The {key} is in the", ".", "Where is the {key}?"),
    _Sentence(words.OBJECTS, words.NAMES, " The {key} belongs to", ".", "Who owns the {key}?"),
    _Sentence(words.NAMES, words.OBJECTS, " Today {key} has the", ".", "What does {key} have?"),
    _Sentence(
        words.CONTAINERS,
        words.NUMBERS,
        " The {key} holds",
        " {thing}.",
        "How many {thing} are in the {key}?",
    ),
)


def _story(facts: _Facts, longest: int) -> Document:
    """Facts among other sentences, then questions: each answer is the sentence of its fact."""
    aim = facts.length(2 * SHORTEST, longest - 16)
    random = facts.random
    writer = _Writer("story", BOS + USER + "Here is a story.")
    asked: dict[str, tuple[str, str, str, str]] = {}
    used: set[str] = set()
    while len(asked) < 8:
        sentence = random.choice(_SENTENCES)
        key, value = facts.pair(sentence.keys, sentence.values, used)
        used |= {key, value}
        thing = random.choice(words.COUNTED)
        told, ended, question = (
            part.format(key=key, thing=thing)
            for part in (sentence.told, sentence.ended, sentence.question)
        )
        if asked and writer.tokens() + token_count(told) + 2 > aim:
            break
        writer.tell(told, key, f" {value}", ended)
        asked[key] = (question, told.strip(), f" {value}", ended)
        if random.random() < 0.5:
            writer.text += facts.asides(min(aim - writer.tokens(), 32))
    writer.text += facts.asides(aim - writer.tokens())
    opening = " "
    for key in random.sample(list(asked), min(len(asked), 5)):
        question, told, value, ended = asked[key]
        before = opening + question + ASSISTANT + told
        if writer.spans and writer.distance_after(before, key) > longest:
            continue
        writer.answer(before, key, value, ended)
        opening = EOS + USER
    return writer.finished()


def _arithmetic(facts: _Facts, longest: int) -> Document:
    """`What is 12 + 7?` and `12 + 7 = 19.`, up to six times, every sum once."""
    writer = _Writer("arithmetic", BOS)
    asked: set[tuple[str, ...]] = set()
    count = facts.random.randint(1, 6)
    while len(asked) < count:
        top = facts.random.choice((9, 29))
        numbers = [str(i) for i in range(top + 1)]
        first, second = facts.pair(numbers, numbers)
        if (pair := tuple(sorted((first, second)))) in asked:
            continue
        opening = (EOS if asked else "") + USER
        before = f"{opening}What is {first} + {second}?{ASSISTANT}{first} + {second} = "
        asked.add(pair)
        writer.answer(before, None, str(int(first) + int(second)), ".")
    return writer.finished()


_FIELDS: Final = {
    "name": words.NAMES,
    "age": tuple(str(age) for age in range(1, 100)),
    "home": words.PLACES,
    "tool": words.OBJECTS,
    "quality": words.QUALITIES,
}


def _json(facts: _Facts, longest: int) -> Document:
    """`Write JSON: "name" is "Anna", "age" is 7.` and `{"name": "Anna", "age": 7}`."""
    random = facts.random
    names = random.sample(list(_FIELDS), random.randint(2, len(_FIELDS)))
    record = dict(zip(names, facts.chain([_FIELDS[name] for name in names]), strict=True))
    writer = _Writer("json", BOS + USER + "Write JSON:")
    for number, (name, value) in enumerate(record.items(), 1):
        quote = "" if value.isdigit() else '"'
        writer.tell(' "', f"field {name}", name, '" is ')
        end = "," if number < len(record) else "."
        writer.tell(quote, name, value, quote + end)
    opening = ASSISTANT + '{"'
    for number, (name, value) in enumerate(record.items(), 1):
        writer.answer(opening, f"field {name}", name, '":')
        quote = "" if value.isdigit() else '"'
        end = "," if number < len(record) else "}"
        writer.answer(f" {quote}", name, value, quote + end)
        opening = ' "'
    return writer.finished()


SHARES: Final = {"recall": 4, "story": 5, "arithmetic": 2, "json": 4}
"""How often each task comes."""
_MAKERS: Final[dict[str, Callable[[_Facts, int], Document]]] = {
    "recall": _recall,
    "story": _story,
    "arithmetic": _arithmetic,
    "json": _json,
}
