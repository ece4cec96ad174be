"""Training batches: documents packed into rows, each row a whole number of windows.

Batch `step` of a seed is a function of the two, so a continued run sees what an unbroken one would.
Documents in a row do not see each other: `segments` says which is which. They start at even
positions, so that no group of a ratio-2 layer has tokens of two. All rotations are relative, so a
document in the middle of a row is computed as at position 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from examples.nano import data, words
from examples.nano.config import TOKENIZER


class Batch(NamedTuple):
    """ids: [B, T]. segments: [B, T], 0 for padding, else the number of a document of the row.
    answers: bool [B, T], tokens that the text before determines. distances: [B, T], how far back
    (0: nothing recalled). repeated: bool [B], rows that say a random sequence again and again."""

    ids: Tensor
    segments: Tensor
    answers: Tensor
    distances: Tensor
    repeated: Tensor


@dataclass(frozen=True)
class Mixture:
    """What a batch is made of. length: tokens of a row. longest: distance of recall. repeats:
    share of rows that say a random sequence again and again; these teach to look back. periods:
    lengths of such a sequence."""

    length: int
    longest: int
    repeats: float = 0.0
    periods: tuple[int, int] = (8, 8)


class _Encoded(NamedTuple):
    ids: list[int]
    answers: list[bool]
    distances: list[int]


class Batches:
    """Maker of batches over the recipe's tokenizer."""

    def __init__(self, seed: int, tokens: int, split: data.Split = "train") -> None:
        self.seed, self.tokens, self.split = seed, tokens, split
        self.tokenizer = Tokenizer.from_file(str(TOKENIZER))
        spoken = (words.KEYS, words.VALUES, words.NAMES, words.OBJECTS, words.PLACES)
        texts = {f" {word}" for group in spoken for word in group}
        pieces = [self.tokenizer.encode(text).ids for text in sorted(texts)]
        self.word_ids = [ids[0] for ids in pieces if len(ids) == 1]
        bos, eos, pad = (
            self.tokenizer.token_to_id(x)
            for x in ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
        )
        self.bos, self.eos, self.pad = bos, eos, pad

    def batch(self, step: int, mixture: Mixture) -> Batch:
        """Batch `step`."""
        random = Random(f"{self.split} {self.seed} {step}")
        rows = self.tokens // mixture.length
        made = Batch(
            torch.full((rows, mixture.length), self.pad),
            torch.zeros(rows, mixture.length, dtype=torch.long),
            torch.zeros(rows, mixture.length, dtype=torch.bool),
            torch.zeros(rows, mixture.length, dtype=torch.long),
            torch.zeros(rows, dtype=torch.bool),
        )
        index = step * 1000
        for row in range(rows):
            if random.random() < mixture.repeats:
                self._put(made, row, 0, 1, self._repeat(random, mixture))
                made.repeated[row] = True
                continue
            position, segment, misses = 0, 0, 0
            while misses < 4 and position < mixture.length - 16:
                document = data.document(self.seed, self.split, index, longest=mixture.longest)
                index += 1
                encoded = self.encode(document)
                if len(encoded.ids) > mixture.length - position:
                    misses += 1
                    continue
                segment += 1
                self._put(made, row, position, segment, encoded)
                position += len(encoded.ids) + len(encoded.ids) % 2
        return made

    def encode(self, document: data.Document) -> _Encoded:
        """Ids of a document; a token is an answer if it overlaps an answer's characters."""
        encoding = self.tokenizer.encode(document.text)
        answers = [False] * len(encoding.ids)
        distances = [0] * len(encoding.ids)
        spans = iter(zip(document.answer_spans, document.distances, strict=True))
        span, distance = next(spans, ((1 << 30, 1 << 30), 0))
        for i, (first, last) in enumerate(encoding.offsets):
            while first >= span[1]:
                span, distance = next(spans, ((1 << 30, 1 << 30), 0))
            if last > span[0]:
                answers[i], distances[i] = True, distance
        return _Encoded(encoding.ids, answers, distances)

    def _repeat(self, random: Random, mixture: Mixture) -> _Encoded:
        """A random sequence and itself again, to the end of the row."""
        period = random.randint(*mixture.periods)
        once = [random.choice(self.word_ids) for _ in range(period)]
        ids = [self.bos, *(once * (mixture.length // period + 1))][: mixture.length]
        known = [i > period for i in range(len(ids))]
        return _Encoded(ids, known, [period * k for k in known])

    @staticmethod
    def _put(made: Batch, row: int, position: int, segment: int, encoded: _Encoded) -> None:
        end = position + len(encoded.ids)
        made.ids[row, position:end] = torch.tensor(encoded.ids)
        made.segments[row, position:end] = segment
        made.answers[row, position:end] = torch.tensor(encoded.answers)
        made.distances[row, position:end] = torch.tensor(encoded.distances)
