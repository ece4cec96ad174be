"""Write docs/report.schema.json: the schema of `report.json` of the conformance suite.

python scripts/make_report_schema.py [FILE]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deepinfer.conformance.schema import json_schema

PAGE = Path(__file__).resolve().parents[1] / "docs" / "report.schema.json"


def main(path: Path) -> None:
    """Write the schema to a file."""
    path.write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
