"""scripts/evaluation_table.py: one row of a document, with cells only for what was asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from deepinfer.evaluate import Evaluation, Question
from deepinfer.evaluate.report import Answer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "evaluation_table.py"


def test_a_row_of_the_options_page(tmp_path: Path) -> None:
    near, far = (Question("recall", distance, "p", "a", False) for distance in (64, 65))
    evaluation = Evaluation(64, [Answer(near, "a", True), Answer(far, "b", False)], [-1.0] * 2)
    document = evaluation.to_dict({"numerics": "ref", "options": {"cache_dtype": "bf16"}})
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(document))
    document["answers"][1]["text"] = "c"
    document["text_logprobs"] = [-1.0, -2.0]
    other.write_text(json.dumps(document))
    done = subprocess.run([sys.executable, SCRIPT, one, other], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, row, another = done.stdout.splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["ref", "bf16", "1 of 1", "0 of 1", *[""] * 5, "2.7183", "", "", "0"]
    assert another.rstrip("| ").endswith("| -0.5000 ± 0.5000 | 1")
