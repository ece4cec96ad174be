"""Every tensor is compared, excused, or listed; and what cannot be compared fails."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from deepinfer.conformance.golden.report import GoldenReport, Item
from tests.conformance.small_golden import GOLDEN, MODEL, SmallGolden, failures, stored

LOGITS, GREEDY = "logits.safetensors", "greedy.safetensors"
LAYERS = "intermediates.fp32.safetensors"
PROMPTS = {LOGITS: ["p2", "p7"], GREEDY: ["p2"], LAYERS: ["p7"]}


def write(golden: SmallGolden, *files: str, **changes: Tensor | None) -> None:
    """Files with their short prompts, the last one with changes."""
    for name in files:
        golden.part(name, PROMPTS[name], **(changes if name == files[-1] else {}))


def needed(file: str) -> list[str]:
    """The files that it takes to compare one of them, itself last."""
    return [LOGITS] if file == LOGITS else [LOGITS, file]


def named(report: GoldenReport, name: str) -> Item:
    """The one item of a name that is not about what no check reads."""
    (found,) = [item for item in report.items if item.name == f"{MODEL}/{name}"]
    return found


@pytest.mark.slow
def test_all_of_a_whole_directory_is_covered(with_model: SmallGolden) -> None:
    with_model.link("ops.safetensors")
    write(with_model, LOGITS, GREEDY, LAYERS)
    report = with_model.run()
    assert report.counts()[1:] == (0, 0)
    assert report.exit_code == 0


@pytest.mark.slow
def test_the_other_precision_is_not_missed(with_model: SmallGolden) -> None:
    with_model.link("ops.safetensors")
    write(with_model, LOGITS, GREEDY, LAYERS)
    report = with_model.run(computes=("bf16",))
    assert report.counts()[1:] == (0, 0)
    assert {item.compute for item in report.items if item.name.startswith(MODEL)} == {"bf16"}


def test_operators_alone_lack_the_tiny_checkpoint(golden: SmallGolden) -> None:
    golden.link("ops.safetensors")
    report = golden.run()
    wrong = {item.name: item.note for item in report.items if item.outcome != "passed"}
    with safe_open(GOLDEN / "ops.safetensors", "pt") as file:
        tiny = {key for key in file.keys() if key.startswith("engram.tiny.")}
    assert wrong.keys() == {f"ops/{key}" for key in tiny if not key.endswith(".bf16")}
    assert set(wrong.values()) == {f"needs the checkpoint of {MODEL}, which is not there"}
    assert report.exit_code == 1


def test_a_model_without_greedy_and_ties(with_model: SmallGolden) -> None:
    with_model.part(LOGITS, ["p1", "p2"])
    report = with_model.run()
    assert report.summary() == "covered 2, failed 0, not covered 0"
    assert {item.note for item in report.items} == {"no ties.json: exact ties are not known"}


@pytest.mark.parametrize(("file", "item"), [(GREEDY, "greedy/p2"), (LAYERS, "layers/p7")])
def test_numbers_without_the_ids_fail(with_model: SmallGolden, file: str, item: str) -> None:
    write(with_model, file)
    report = with_model.run()
    assert "logits.safetensors, which is not there" in named(report, item).note
    assert report.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "key"),
    [
        (LOGITS, "p9__logits__fp32"),
        (LOGITS, "p9__noise__fp32"),
        (LOGITS, "p7__logits"),
        (GREEDY, "p2__third__fp32"),
        (LAYERS, "p7__L9__streams"),
        (LAYERS, "p7__L2__unknown"),
        (LAYERS, "p7__unknown"),
    ],
)
def test_a_tensor_that_no_check_reads_is_listed(
    with_model: SmallGolden, file: str, key: str
) -> None:
    write(with_model, *needed(file), **{key: torch.ones(7)})
    report = with_model.run()
    (found,) = failures(report)
    assert found.endswith(key.split("__")[-1]) or found.endswith(key.replace("__", "."))
    assert report.counts()[2] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "key", "item"),
    [
        (LOGITS, "p7.logits.fp32", "logits/p7"),
        (GREEDY, "p2.tokens.fp32", "greedy/p2"),
        (GREEDY, "p2.margin.fp32", "greedy/p2"),
        (LAYERS, "p7.L2.streams", "layers/p7/L3"),
        (LAYERS, "p7.L2.compressed_kv", "layers/p7/L2"),
        (LAYERS, "p7.L4.candidates", "layers/p7/L5"),
        (LAYERS, "p7.final_collapsed", "layers/p7"),
        (LAYERS, "p7.L4.router_indices", "layers/p7/L4/router_weights"),
    ],
)
def test_a_missing_tensor_fails_by_name(
    with_model: SmallGolden, file: str, key: str, item: str
) -> None:
    write(with_model, *needed(file), **{key.replace(".", "__"): None})
    report = with_model.run()
    assert f"{file} has no tensor '{key}'" in named(report, item).note
    assert report.exit_code == 1


def other(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Random values of a shape, in the type of another tensor."""
    if like.dtype.is_floating_point:
        return torch.randn(shape).to(like.dtype)
    return torch.ones(shape, dtype=like.dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "key", "shape", "item"),
    [
        (LOGITS, "p7.logits.fp32", (1, 640), "logits/p7"),
        (LOGITS, "p7.logits.fp32", (7, 1), "logits/p7"),
        (LOGITS, "p7.logits.fp32", (7,), "logits/p7"),
        (LOGITS, "p7.ids", (6,), "logits/p7"),
        (LOGITS, "p7.ids", (7, 1), "logits/p7"),
        (GREEDY, "p2.tokens.fp32", (0,), "greedy/p2"),
        (GREEDY, "p2.margin.fp32", (3,), "greedy/p2"),
        (LAYERS, "p7.L3.streams", (1, 4, 128), "layers/p7/L3/streams"),
        (LAYERS, "p7.L3.attn_out", (7, 1), "layers/p7/L3/attn_out"),
        (LAYERS, "p7.L3.attn_out", (7, 0), "layers/p7/L3/attn_out"),
        (LAYERS, "p7.L2.index_scores", (7, 9), "layers/p7/L2/index_scores"),
        (LAYERS, "p7.L2.index_scores", (7, 1), "layers/p7/L2/index_scores"),
        (LAYERS, "p7.L5.topk_indices", (1, 7), "layers/p7/L5/topk_indices"),
        (LAYERS, "p7.L5.router_indices", (7, 2), "layers/p7/L5/router_indices"),
        (LAYERS, "p7.L5.router_weights", (7, 2), "layers/p7/L5/router_weights"),
        (LAYERS, "p7.engram_hash_ids", (7, 1, 12), "layers/p7/engram_hash_ids"),
    ],
)
def test_another_shape_fails(
    with_model: SmallGolden, file: str, key: str, shape: tuple[int, ...], item: str
) -> None:
    value = other(shape, stored(f"{MODEL}/{file}", key))
    write(with_model, *needed(file), **{key.replace(".", "__"): value})
    report = with_model.run()
    assert named(report, item).outcome == "failed"
    assert report.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "key", "item"),
    [
        (LOGITS, "p7.logits.fp32", "logits/p7"),
        (LAYERS, "p7.L3.streams", "layers/p7/L3/streams"),
        (LAYERS, "p7.L2.compressed_kv", "layers/p7/L2/compressed_kv"),
        (LAYERS, "p7.L2.index_scores", "layers/p7/L2/index_scores"),
        (LAYERS, "p7.L5.router_weights", "layers/p7/L5/router_weights"),
        (LAYERS, "p7.L0.attn_mix.comb", "layers/p7/L0/attn_mix.comb"),
        (LAYERS, "p7.final_hidden", "layers/p7/final_hidden"),
    ],
)
def test_one_nan_in_the_data_fails(with_model: SmallGolden, file: str, key: str, item: str) -> None:
    broken = stored(f"{MODEL}/{file}", key).clone()
    broken.view(-1)[broken.numel() // 2] = float("nan")
    write(with_model, *needed(file), **{key.replace(".", "__"): broken})
    report = with_model.run()
    assert named(report, item).outcome == "failed"
    assert report.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [640, -1, 2**40])
def test_ids_of_no_token_fail(with_model: SmallGolden, wrong: int) -> None:
    write(with_model, LOGITS, p7__ids=torch.full((7,), wrong))
    report = with_model.run()
    assert named(report, "logits/p2").outcome == "passed"
    assert named(report, "logits/p7").outcome == "failed"
    assert "RequestError: prompt token id" in named(report, "logits/p7").note


def test_a_file_of_no_tensors_fails(with_model: SmallGolden) -> None:
    with_model.part(LOGITS, ["p1"])
    with_model.write(f"{MODEL}/{GREEDY}", {})
    report = with_model.run()
    assert failures(report) == [f"{MODEL}/greedy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ties", [{"fp32": {"p2": 0}}, {"fp32": {"p2": 0, "p7": 0}}, {"fp32": {"greedy.p2": 0, "p2": 0}}]
)
def test_a_tie_that_leaves_nothing_to_compare_fails(
    with_model: SmallGolden, ties: dict[str, dict[str, int]]
) -> None:
    write(with_model, LOGITS, GREEDY)
    with_model.ties(ties)
    report = with_model.run()
    assert "nothing to compare" in named(report, "logits/p2").note
    assert named(report, "greedy/p2").outcome == "failed"
    assert report.exit_code == 1


@pytest.mark.slow
def test_positions_from_the_tie_on_are_not_compared(with_model: SmallGolden) -> None:
    logits = stored(f"{MODEL}/{LOGITS}", "p33.logits.fp32").clone()
    logits[12:] += 1
    with_model.part(LOGITS, ["p2", "p33"], p33__logits__fp32=logits)
    with_model.ties({"fp32": {"p33": 12}})
    item = named(with_model.run(), "logits/p33")
    assert (item.outcome, item.note) == ("passed", "positions before the exact tie at 12")
    with_model.ties({"fp32": {"p33": 18}})
    assert named(with_model.run(), "logits/p33").outcome == "allowed"


@pytest.mark.slow
def test_a_tie_does_not_make_a_long_prompt_a_short_one(with_model: SmallGolden) -> None:
    logits = stored(f"{MODEL}/{LOGITS}", "p33.logits.fp32") * (1 + 1e-3)
    with_model.part(LOGITS, ["p33"], p33__logits__fp32=logits)
    with_model.ties({"fp32": {"p33": 5}})
    item = named(with_model.run(), "logits/p33")
    assert [measure.metric for measure in item.measures] == [
        "median rel",
        "90% rel",
        "argmax equal",
    ]
    assert item.outcome == "passed"


@pytest.mark.slow
def test_one_prompt_may_exceed_two_may_not(with_model: SmallGolden) -> None:
    wrong = {
        f"{prompt}__logits__fp32": stored(f"{MODEL}/{LOGITS}", f"{prompt}.logits.fp32") * 1.1
        for prompt in ("p2", "p7")
    }
    path = with_model.part(LOGITS, ["p1", "p2", "p7"], p7__logits__fp32=wrong["p7__logits__fp32"])
    report = with_model.run()
    assert named(report, "logits/p7").outcome == "allowed"
    assert report.summary() == "covered 3, failed 0, not covered 0"
    path.unlink()
    with_model.part(LOGITS, ["p1", "p2", "p7"], **wrong)
    report = with_model.run()
    assert failures(report) == [f"{MODEL}/logits/p2", f"{MODEL}/logits/p7"]


@pytest.mark.slow
def test_components_to_come_are_listed_and_may_be_required(with_model: SmallGolden) -> None:
    with_model.part(LOGITS, ["p1"])
    with_model.write(
        f"{MODEL}/dspark.safetensors", {"p7.ids": torch.ones(1), "p7.x": torch.ones(1)}
    )
    with_model.write(f"{MODEL}/vision.safetensors", {"one.ids": torch.ones(1)})
    report = with_model.run()
    assert (report.summary(), report.exit_code) == ("covered 1, failed 0, not covered 2", 0)
    notes = {item.name: item.note for item in report.items if item.outcome == "not covered"}
    assert notes == {
        f"{MODEL}/draft/p7": "draft is not built yet: 2 tensors",
        f"{MODEL}/vision/one": "vision is not built yet: 1 tensors",
    }
    report = with_model.run(require_all=True)
    assert (report.summary(), report.exit_code) == ("covered 1, failed 2, not covered 2", 1)


@pytest.mark.slow
def test_a_batch_is_compared_row_by_row(with_model: SmallGolden) -> None:
    def of(*keys: str) -> list[Tensor]:
        return [stored(f"{MODEL}/{LOGITS}", key) for key in keys]

    lengths = (2, 7)
    ids = torch.zeros(2, 7, dtype=torch.int64)
    for row, prompt in enumerate(of("p2.ids", "p7.ids")):
        ids[row, : len(prompt)] = prompt
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    wanted = torch.cat(of("p2.logits.fp32", "p7.logits.fp32"))
    tensors = {"batch.ids": ids, "batch.mask": mask.long(), "batch.logits.fp32": wanted}
    with_model.write(f"{MODEL}/{LOGITS}", tensors)
    report = with_model.run()
    assert [item.name for item in report.items] == [f"{MODEL}/logits/batch.{row}" for row in (0, 1)]
    assert report.exit_code == 0
    with_model.write(f"{MODEL}/{LOGITS}", tensors | {"batch.logits.fp32": wanted[:-1].clone()})
    report = with_model.run()
    assert named(report, "logits/batch").outcome == "failed"
    assert report.exit_code == 1
