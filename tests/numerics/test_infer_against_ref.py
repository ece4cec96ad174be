"""INFER against REF from end to end, in bf16.

INFER has no golden data. Its distance from REF must stay within what quantising activations
explains: about twice the room that bf16 rounding alone has on the golden checkpoints.

`pytest -s` shows the numbers.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.torch import load_file
from torch import Tensor

from deepinfer.data import bundled_checkpoint
from tests.numerics.engines import logits_of, random_prompt, runner_of

LONG = 33
MEDIAN, PERCENTILE_95, AGREEMENT = 0.24, 0.80, 0.56
SHORT_MEDIAN = 0.4

Ids = npt.NDArray[np.int64]


class Distance(NamedTuple):
    """Of two sets of logits over the positions of a prompt: RMS of the difference / RMS."""

    length: int
    median: float
    percentile_95: float
    agreement: float

    def __str__(self) -> str:
        return (
            f"{self.length:5}  median {self.median:.3f}  95 % {self.percentile_95:.3f}  "
            f"argmax equal {self.agreement:.2f}"
        )

    @property
    def broken(self) -> list[str]:
        """The limits that do not hold."""
        if self.length < LONG:
            limits = {"median <= 0.4": self.median <= SHORT_MEDIAN}
        else:
            limits = {
                "median <= 0.24": self.median <= MEDIAN,
                "95th percentile <= 0.80": self.percentile_95 <= PERCENTILE_95,
                "argmax equal >= 56 %": self.agreement >= AGREEMENT,
            }
        return [limit for limit, holds in limits.items() if not holds]


def distance(got: Tensor, want: Tensor) -> Distance:
    difference = (got.double() - want.double()).square().mean(1).sqrt()
    relative = (difference / want.double().square().mean(1).sqrt()).numpy()
    same = (got.argmax(1) == want.argmax(1)).double().mean()
    return Distance(
        len(got), float(np.median(relative)), float(np.quantile(relative, 0.95)), float(same)
    )


def golden_prompts(directory: Path) -> dict[str, Ids]:
    """Every prompt and every row of the batch by name, shortest first."""
    data = load_file(directory / "logits.safetensors")
    prompts = {
        name.removesuffix(".ids"): ids.numpy()
        for name, ids in data.items()
        if name.endswith(".ids") and name != "batch.ids"
    }
    batch = zip(data.get("batch.ids", ()), data.get("batch.mask", ()), strict=True)
    for row, (ids, mask) in enumerate(batch):
        prompts[f"batch.{row}"] = ids[mask.bool()].numpy()
    return dict(sorted(prompts.items(), key=lambda item: len(item[1])))


def golden_models() -> list[object]:
    directory = os.environ.get("DEEPINFER_GOLDEN_DIR")
    if not directory:
        reason = "DEEPINFER_GOLDEN_DIR is not set: no golden prompts to compare on"
        return [pytest.param(Path(), marks=pytest.mark.skip(reason), id="golden")]
    folders = sorted(path.parent for path in Path(directory).glob("*/checkpoint"))
    return [pytest.param(folder, id=folder.name) for folder in folders]


@pytest.mark.slow
@pytest.mark.parametrize("directory", golden_models())
def test_golden_checkpoint(directory: Path) -> None:
    lines, broken = [], []
    with ExitStack() as stack:
        path = directory / "checkpoint"
        infer = stack.enter_context(runner_of(path, "infer"))
        ref = stack.enter_context(runner_of(path, "ref"))
        for name, ids in golden_prompts(directory).items():
            found = distance(logits_of(infer, ids), logits_of(ref, ids))
            lines.append(f"{directory.name:8} {name:9}{found}")
            broken += [f"{lines[-1]}: not {limit}" for limit in found.broken]
    print("\n" + "\n".join(lines))
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((1, 2, 7, 33, 140), id="short"),
        pytest.param((60, 200, 300), id="long", marks=pytest.mark.soak),
    ],
)
def test_bundled_checkpoint(lengths: tuple[int, ...]) -> None:
    with ExitStack() as stack:
        infer, ref = (
            stack.enter_context(runner_of(bundled_checkpoint(), numerics))
            for numerics in ("infer", "ref")
        )
        for length in lengths:
            ids = random_prompt(infer, length, seed=length)
            found = distance(logits_of(infer, ids), logits_of(ref, ids))
            print(f"\nbundled  {found}", end="")
            assert not found.broken
