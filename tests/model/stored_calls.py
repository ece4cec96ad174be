"""Calls as they were stored: those of one model in full, of others and of the suite as digests.

`python tests/model/stored_calls.py` stores them anew, after a change of what is asked of backends
that is meant; the diff of `calls/bundled.txt` then shows it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from deepinfer.backend import CallSpec, Numerics
from deepinfer.config import ModelConfig
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.config_cases import FOLDER
from deepinfer.conformance.properties import is_property
from deepinfer.conformance.registry import checks
from deepinfer.data import bundled_checkpoint
from deepinfer.model import model_calls
from deepinfer.model.calls import CallLimits

STORED = Path(__file__).parent / "calls"
LIMITS = CallLimits(8192, 256, 1 << 20)

Digests = dict[str, str]


def lines_of(calls: Iterable[CallSpec]) -> list[str]:
    """One line for each distinct call, sorted, with the step that makes it."""
    return sorted({f"{call.step or 'model'}: {call}" for call in calls})


def digest(lines: Iterable[str]) -> str:
    """How many lines there are, and what they hash to."""
    lines = list(lines)
    hashed = hashlib.blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()
    return f"{len(lines)} {hashed}"


def configs() -> Iterator[tuple[str, ModelConfig]]:
    """Known models: the published ones that the suite has, and the two that come with the package.

    One more is the released model without quantization_config.
    """
    for path in sorted(FOLDER.glob("*.json")):
        yield path.stem, ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    released = json.loads((FOLDER / "released.json").read_text(encoding="utf-8"))
    del released["quantization_config"]
    yield "released-unquantised", ModelConfig.from_dict(released)
    bundled = bundled_checkpoint()
    for folder in (bundled, bundled.parent / "nano"):
        yield folder.name, ModelConfig.from_file(folder)


def model_digests(config: ModelConfig) -> Digests:
    """Digests of a model's calls by numeric mode, precision and cache."""
    found = {}
    for numerics, dtype, cache in itertools.product(
        Numerics, ("bf16", "fp32", "fp64"), ("fp4", "bf16")
    ):
        calls = model_calls(config, numerics, dtype, LIMITS, cache)
        found[f"{numerics} {dtype} cache {cache}"] = digest(lines_of(calls))
    return found


def bundled_lines() -> list[str]:
    """The calls of the bundled random model, as released: INFER in bf16."""
    config = ModelConfig.from_file(bundled_checkpoint())
    return lines_of(model_calls(config, Numerics.INFER, "bf16", LIMITS))


def suite_digests() -> Digests:
    """Digests of the calls of every case of a suite's full grid, by operator.

    The call that stands first is told from the others.
    """
    lines: dict[str, list[str]] = {}
    for case in _cases():
        first, *others = SUITES[case.operator].calls(case) or [None]
        listed = [str(first), *lines_of(call for call in others if call is not None)]
        lines.setdefault(case.operator, []).append(f"{case.id}: {'; '.join(listed)}")
    return {operator: digest(sorted(own)) for operator, own in sorted(lines.items())}


def _cases() -> Iterator[Case]:
    for check in checks(Tier.FULL):
        if check.case.operator in SUITES and not is_property(check.case):
            yield check.case


def store() -> None:
    """Write all of them."""
    STORED.mkdir(exist_ok=True)
    models = {name: model_digests(config) for name, config in configs()}
    for name, digests in (("models", models), ("suite", suite_digests())):
        text = json.dumps(digests, indent=1, sort_keys=True)
        (STORED / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    text = "\n".join(bundled_lines())
    (STORED / "bundled.txt").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    store()
