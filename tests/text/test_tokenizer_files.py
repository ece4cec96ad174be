"""Broken tokenizer files, each with its error; code of a checkpoint is never run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from deepinfer.errors import RequestError, TokenizerError
from deepinfer.text import Tokenizer
from deepinfer.text.tokenizer import TokenizerWarning
from tests.text.small_tokenizer import (
    BASE_SIZE,
    BOS,
    EOS,
    IMAGE,
    SPECIAL,
    edit,
    small_config,
    small_tokenizer,
    write_tokenizer,
)

Change = Callable[[Path], None]


def message_of(directory: Path, **changes: object) -> str:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_directory(directory, small_config(**changes))
    return str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "not found"),
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
    ],
    ids=["missing", "empty", "cut", "list", "latin", "deep"],
)
def test_unreadable_file(tmp_path: Path, name: str, content: bytes | None, expected: str) -> None:
    file = write_tokenizer(tmp_path) / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    message = message_of(tmp_path)
    assert message.startswith(f"{file}: ")
    assert expected in message
    assert "copy the file from the published checkpoint" in message


def model_of(directory: Path) -> dict[str, object]:
    model: dict[str, object] = json.loads((directory / "tokenizer.json").read_text())["model"]
    return model


def replace(**changes: object) -> Change:
    return lambda directory: edit(directory, **changes)


def replace_model(**changes: object) -> Change:
    return lambda directory: edit(directory, model=model_of(directory) | changes)


def extend_vocabulary(**tokens: int) -> Change:
    def change(directory: Path) -> None:
        model = model_of(directory)
        edit(directory, model=model | {"vocab": model["vocab"] | tokens})  # type: ignore[operator]

    return change


def added(content: str, number: int) -> list[dict[str, object]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [{"id": number, "content": content, **flags}]


def repeat_key(directory: Path) -> None:
    file = directory / "tokenizer.json"
    file.write_text(file.read_text().replace("{", '{"version": "1.0", ', 1))


A_ID = 3 + sorted(pre_tokenizers.ByteLevel.alphabet()).index("A")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (replace(model=None), "must be a BPE model"),
        (replace(model={"type": "WordLevel", "vocab": {"a": 0}}), "'WordLevel'"),
        (replace_model(vocab=[]), "must be a BPE model"),
        (replace_model(vocab={"a": "x"}), "cannot be built"),
        (replace_model(merges=[["no", "pe"]]), "cannot be built"),
        (replace(decoder=None), "must be 'ByteLevel'"),
        (replace(decoder={"type": "Metaspace"}), "'Metaspace'"),
        (replace(added_tokens="x"), "added_tokens must be a list"),
        (replace(added_tokens=[{"content": "x"}]), "needs a content and an id"),
        (replace(added_tokens=[{"id": 7, "content": 3}]), "needs a content and an id"),
        (replace(added_tokens=["x"]), "needs a content and an id"),
        (replace(added_tokens=added("<x>", 300)), f"gives {BASE_SIZE}"),
        (replace(added_tokens=added("q", 50)), "'q' says id 50"),
        (replace(added_tokens=added("A", A_ID)), "character of the byte alphabet"),
        (replace(version="9.9"), "cannot be built"),
        (extend_vocabulary(zz=5), "two tokens share an id"),
        (extend_vocabulary(zz=-1), "cannot be built"),
        (replace_model(continuing_subword_prefix="##"), "continuing_subword_prefix is '##'"),
        (replace_model(end_of_word_suffix="</w>"), "end_of_word_suffix is '</w>'"),
        (replace(pre_tokenizer={"type": "Whitespace"}), "pre_tokenizer loses characters"),
        (replace(pre_tokenizer=None), "pre_tokenizer loses characters"),
        (repeat_key, "the key 'version' appears twice"),
    ],
)
def test_malformed_tokenizer(tmp_path: Path, change: Change, expected: str) -> None:
    change(write_tokenizer(tmp_path))
    message = message_of(tmp_path)
    assert str(tmp_path / "tokenizer.json") in message
    assert expected in message


def test_a_panic_of_the_library_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicError(BaseException):
        """What the library's panics derive from."""

    class Panicking:
        @staticmethod
        def from_str(text: str) -> None:
            raise PanicError("slice index starts at 2 but ends at 1")

    write_tokenizer(tmp_path)
    monkeypatch.setattr(tokenizers, "Tokenizer", Panicking)
    assert "cannot be built: slice index starts at 2" in message_of(tmp_path)


def test_more_ids_than_the_model_has(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    message = message_of(tmp_path, vocab_size=tokenizer.vocab_size - 1)
    assert f"ids up to {tokenizer.vocab_size - 1}" in message
    assert f"vocab_size in config.json is {tokenizer.vocab_size - 1}" in message


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "pad_token_id"])
def test_config_id_outside_the_file(tmp_path: Path, key: str) -> None:
    write_tokenizer(tmp_path)
    message = message_of(tmp_path, **{key: 319})
    assert f"no token of id 319, which is {key} in config.json" in message


def test_image_id_of_another_token(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_directory(tmp_path, small_config(image_token_id=5))
    with pytest.raises(TokenizerError, match=r"image_token_id in config\.json is 5"):
        tokenizer.token_id("<｜image｜>")


def test_spelling_whose_id_the_config_names_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, special=(*SPECIAL, "<｜image｜>"))
    config = small_config(image_token_id=BASE_SIZE + len(SPECIAL))
    tokenizer = Tokenizer.from_directory(tmp_path, config)
    assert tokenizer.token_id(IMAGE) == BASE_SIZE + len(SPECIAL)


def test_no_image_placeholder_is_fine_until_one_is_needed(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, special=())
    tokenizer = Tokenizer.from_directory(tmp_path, small_config())
    assert not tokenizer.has_token("<｜image｜>")
    assert len(tokenizer.encode_with_control("<｜image｜>")) > 1
    with pytest.raises(TokenizerError, match="has no token '<｜image｜>'"):
        tokenizer.token_id("<｜image｜>")


def test_config_ids_win_over_names(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, names={"bos_token": {"content": "<fim>"}, "eos_token": None})
    with pytest.warns(TokenizerWarning, match="bos_token is '<fim>', but bos_token_id 0"):
        tokenizer = Tokenizer.from_directory(tmp_path, small_config())
    assert tokenizer.bos_id == 0


def test_names_may_be_objects(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, names={"bos_token": {"content": BOS, "__type": "AddedToken"}})
    assert Tokenizer.from_directory(tmp_path, small_config()).bos_id == 0


def test_code_of_the_checkpoint_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    auto_map = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
    write_tokenizer(tmp_path, names={"auto_map": auto_map, "tokenizer_class": "Evil"})
    Tokenizer.from_directory(tmp_path, small_config())
    assert not (tmp_path / "ran").exists()


TRUNCATION = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 64},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 2,
    "pad_type_id": 0,
    "pad_token": "x",
}


@pytest.mark.parametrize(
    "change",
    [
        replace_model(dropout=1.0),
        replace(truncation=TRUNCATION),
        replace(padding=PADDING),
        replace_model(ignore_merges=True),
        replace_model(unk_token=EOS),
    ],
    ids=["dropout", "truncation", "padding", "ignore_merges", "unk_token"],
)
def test_settings_that_would_change_ids_are_off(tmp_path: Path, change: Change) -> None:
    plain = small_tokenizer(tmp_path).encode("the <think> the")
    change(tmp_path)
    tokenizer = Tokenizer.from_directory(tmp_path, small_config())
    assert tokenizer.encode("the <think> the") == plain
    control = [tokenizer.token_id("<think>"), tokenizer.eos_id]
    assert tokenizer.encode_with_control(f"<think>{EOS}") == control


@pytest.mark.parametrize("unknown", [None, EOS, "the"])
def test_text_that_the_vocabulary_cannot_spell(tmp_path: Path, unknown: str | None) -> None:
    write_tokenizer(tmp_path)
    model = model_of(tmp_path)
    vocabulary = json.loads(json.dumps(model["vocab"]))
    vocabulary["qqq"] = vocabulary.pop("z")
    edit(tmp_path, model=model | {"vocab": vocabulary, "unk_token": unknown})
    tokenizer = Tokenizer.from_directory(tmp_path, small_config())
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    with pytest.raises(RequestError, match="no tokens for"):
        tokenizer.encode("zoo")
