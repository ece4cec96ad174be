"""Make the tokenizer of the nano checkpoint: `python -m examples.nano.tokenizer [--check]`.

Byte-level BPE in the form of the published file, with all its special tokens; run it from the root
of the source tree. It is trained on documents of the training split, on every word of `words`, and
on the corpus of the bundled checkpoint, so every word of the data is one token and other English
takes few. Digits are never joined: a number is as many tokens as it has digits. The same sources
give the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import re
import sys
from itertools import islice
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))  # the writer of the bundled tokenizer

from bundled_checkpoint.vocabulary import CORPUS, Vocabulary, build_vocabulary  # noqa: E402

from examples.nano import words  # noqa: E402
from examples.nano.data import documents  # noqa: E402

VOCABULARY_SIZE = 2048
DOCUMENTS = 2000
WEIGHT = 20
"""How often every word is repeated, so that it is one token before other texts are looked at."""

POOLS = (
    *(words.NAMES, words.OBJECTS, words.PLACES, words.CONTAINERS, words.COUNTED, words.NUMBERS),
    *(words.QUALITIES, words.ANIMALS, words.MOVES, words.SPOTS),
)


def corpus() -> str:
    """What the merges are counted on, without digits."""
    texts = "".join(document.text for document in islice(documents(0, "train"), DOCUMENTS))
    made = re.sub("<｜[^｜]*｜>|</think>", "\t", texts)  # which joins no piece, unlike a line end
    single = "".join(f" {word}\t{word}\t" for pool in POOLS for word in pool)
    other = re.sub("[^\n -~]", "", CORPUS.read_text(encoding="utf-8"))
    return re.sub("[0-9]", " ", made + single * WEIGHT + other)


def build() -> Vocabulary:
    """The vocabulary; its `files()` are tokenizer.json and tokenizer_config.json."""
    return build_vocabulary(VOCABULARY_SIZE, corpus())


def main(arguments: list[str] | None = None) -> int:
    """Write or check the two files; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", type=Path, default=HERE, help="directory to write to")
    parser.add_argument("--check", action="store_true", help="compare with the files there")
    options = parser.parse_args(arguments)
    files = build().files()
    if options.check:
        wrong = [name for name in files if (options.out / name).read_bytes() != files[name]]
        print("\n".join(f"{name}: differs" for name in wrong) or "every byte is as made")
        return 1 if wrong else 0
    for name, data in files.items():
        (options.out / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
