"""What a golden directory may be: linked, incomplete, and never quietly broken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepinfer.conformance.golden.data import GoldenData
from deepinfer.errors import UsageError
from tests.conformance.small_golden import GOLDEN, MODEL, SmallGolden, failures, stored

LOGITS = f"{MODEL}/logits.safetensors"


def test_a_directory_of_links_to_folders(golden: SmallGolden) -> None:
    golden.link(MODEL)
    data = GoldenData.open(golden.root)
    assert [model.name for model in data.models] == [MODEL]
    assert "logits.safetensors" in data.models[0].files


def test_a_link_to_the_directory(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(GOLDEN)
    data = GoldenData.open(link)
    assert data.vectors is not None
    assert [model.name for model in data.models] == [MODEL]


def test_a_model_folder_alone_is_a_directory(with_model: SmallGolden) -> None:
    with_model.part("logits.safetensors", ["p1"])
    data = GoldenData.open(with_model.model)
    assert [model.name for model in data.models] == [MODEL]
    assert data.strays == ()


def test_the_current_directory_has_a_name(
    with_model: SmallGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(with_model.model)
    assert [model.name for model in GoldenData.open(".").models] == [MODEL]


@pytest.mark.parametrize(
    "name", ["ops.safetensors", MODEL, LOGITS, f"{MODEL}/checkpoint", f"{MODEL}/ties.json"]
)
def test_a_link_to_nothing_is_an_error_not_an_absence(golden: SmallGolden, name: str) -> None:
    for other in ("ops.safetensors", f"{MODEL}/checkpoint"):
        if not other.startswith(name) and not (name == MODEL and other.startswith(MODEL)):
            golden.link(other)
    path = golden.root / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(golden.root / "nowhere")
    with pytest.raises(UsageError, match=f"{path} is a symbolic link to nothing"):
        golden.run()


def test_a_link_to_itself_is_an_error(golden: SmallGolden) -> None:
    path = golden.root / "ops.safetensors"
    path.symlink_to(path)
    with pytest.raises(UsageError, match="symbolic link to nothing"):
        golden.run()


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory of golden data"):
        GoldenData.open(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["README.md", "tiny-a/notes.txt"])
def test_a_directory_of_something_else(golden: SmallGolden, name: str) -> None:
    path = golden.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("text")
    with pytest.raises(UsageError, match=r"holds neither ops.safetensors nor a folder"):
        golden.run()


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
@pytest.mark.parametrize("name", ["ops.safetensors", LOGITS])
def test_a_truncated_file_is_an_error_before_anything_runs(
    with_model: SmallGolden, name: str, keep: int
) -> None:
    content = (GOLDEN / name).read_bytes()
    path = with_model.root / name
    path.write_bytes(content[:keep])
    with pytest.raises(UsageError, match=f"{path} cannot be read as a safetensors file"):
        with_model.run()


def test_a_folder_named_like_a_file_is_an_error(with_model: SmallGolden) -> None:
    (with_model.model / "greedy.safetensors").mkdir()
    with pytest.raises(UsageError, match=r"greedy.safetensors cannot be read"):
        with_model.run()


def test_a_folder_that_may_not_be_read(
    golden: SmallGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UsageError, match=r"cannot be listed: .*Permission denied"):
        GoldenData.open(golden.root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "expected an object of fp32, bf16"),
        ('{"fp32": 3}', "expected an object of fp32, bf16"),
        ('{"fp64": {}}', "expected an object of fp32, bf16"),
        ('{"fp32": {"p300": "82"}}', "the tie of fp32 'p300' is '82'"),
        ('{"fp32": {"p300": -1}}', "the tie of fp32 'p300' is -1"),
        ('{"fp32": {"p300": true}}', "the tie of fp32 'p300' is True"),
        ('{"fp32": {"p300": 8.5}}', "the tie of fp32 'p300' is 8.5"),
    ],
)
def test_broken_ties(with_model: SmallGolden, text: str, message: str) -> None:
    (with_model.model / "ties.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        with_model.run()


def test_unknown_compute(golden: SmallGolden) -> None:
    with pytest.raises(UsageError, match="compute is 'fp16'; allowed: fp32, bf16"):
        golden.run(computes=("fp16",))


def test_a_checkpoint_without_numbers_covers_nothing(with_model: SmallGolden) -> None:
    report = with_model.run()
    assert (report.summary(), report.exit_code) == ("covered 0, failed 0, not covered 0", 1)


def test_a_broken_checkpoint_fails_and_others_are_still_compared(golden: SmallGolden) -> None:
    golden.link("ops.safetensors")
    for name in ("config.json", "tokenizer.json"):
        golden.link(f"{MODEL}/checkpoint/{name}")
    golden.part("logits.safetensors", ["p1"])
    report = golden.run()
    broken = [item for item in report.items if item.name == MODEL]
    assert [item.outcome for item in broken] == ["failed"]
    assert "model.safetensors.index.json" in broken[0].note
    assert "ops/rmsnorm" in {item.name for item in report.items if item.outcome == "passed"}
    assert report.exit_code == 1


@pytest.mark.slow
def test_numbers_without_a_checkpoint_are_not_covered(golden: SmallGolden) -> None:
    golden.link(f"{MODEL}/checkpoint")
    golden.part("logits.safetensors", ["p1", "p2"])
    golden.write("tiny-x/logits.safetensors", {"p1.ids": torch.zeros(1)})
    golden.write("extra.safetensors", {"x": torch.zeros(1)})
    golden.write(f"{MODEL}/intermediates.fp16.safetensors", {"x": torch.zeros(1)})
    report = golden.run()
    assert failures(report) == [
        "extra.safetensors",
        f"{MODEL}/intermediates.fp16.safetensors",
        "tiny-x/logits.safetensors",
    ]
    assert report.exit_code == 1


@pytest.mark.slow
def test_prompts_of_any_length_fit(with_model: SmallGolden) -> None:
    ids = stored(LOGITS, "p140.ids").repeat(4)
    logits = stored(LOGITS, "p140.logits.fp32").repeat(4, 1)
    with_model.write(LOGITS, {"p560.ids": ids, "p560.logits.fp32": logits})
    report = with_model.run()
    assert [item.note for item in report.items if not item.measures] == []
