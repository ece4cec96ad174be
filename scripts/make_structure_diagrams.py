"""Draws the diagrams of docs/structure.md from the imports of the source.

    python scripts/make_structure_diagrams.py [--check]

An arrow means "imports". An arrow that follows from others is left out, so that A -> B -> C stands
for A -> C too. --check writes nothing and ends with status 1 where a diagram is stale.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "deepinfer"
PAGE = ROOT / "docs" / "structure.md"
COMMAND = "python scripts/make_structure_diagrams.py"

Arrows = dict[str, set[str]]


def imported(file: Path) -> Iterator[str]:
    """Dotted names of the core that a file imports, those inside functions too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_arrows() -> Arrows:
    """Imports between the packages and single modules of the core."""
    nodes = {path.stem for path in CORE.iterdir() if path.suffix == ".py" or _is_package(path)}

    def node_of(parts: list[str]) -> str:
        return parts[1] if parts[0] == "deepinfer" and parts[1:] and parts[1] in nodes else ""

    return _arrows(CORE, node_of)


def engine_arrows() -> Arrows:
    """Imports between the modules of the engine; what watches it is one node."""
    folder = CORE / "engine"

    def node_of(parts: list[str]) -> str:
        inside = len(parts) > 2 and parts[:2] == ["deepinfer", "engine"]
        known = inside and ((folder / f"{parts[2]}.py").exists() or (folder / parts[2]).is_dir())
        return parts[2] if known else ""

    return _arrows(folder, node_of)


def _is_package(path: Path) -> bool:
    return (path / "__init__.py").exists()


def _arrows(folder: Path, node_of: Callable[[list[str]], str]) -> Arrows:
    """Arrows between the files and folders of a folder; node_of: the one that a name lies in."""
    arrows: Arrows = {}
    for file in sorted(folder.rglob("*.py")):
        source = file.relative_to(folder).parts[0].removesuffix(".py")
        if source == "__init__":
            continue
        targets = {node_of(name.split(".")) for name in imported(file)} - {"", source}
        arrows.setdefault(source, set()).update(targets)
    return arrows


def reduced(arrows: Arrows) -> Arrows:
    """The arrows without those that follow from others. ValueError for a circle."""
    below: Arrows = {}

    def reach(node: str, path: tuple[str, ...]) -> set[str]:
        if node in path:
            raise ValueError(f"a circle: {' -> '.join([*path, node])}")
        if node not in below:
            targets = arrows.get(node, set())
            below[node] = targets.union(*(reach(target, (*path, node)) for target in targets))
        return below[node]

    for node in arrows:
        reach(node, ())
    return {
        node: {t for t in targets if not any(t in below[other] for other in targets - {t})}
        for node, targets in arrows.items()
    }


def diagram(arrows: Arrows) -> str:
    """A Mermaid flowchart, in a code block."""
    few = reduced(arrows)
    lines = [f"    {node} --> {target}" for node in sorted(few) for target in sorted(few[node])]
    alone = sorted(set(few) - {n for node in few for n in (node, *few[node]) if few[node]})
    return "\n".join(["```mermaid", "flowchart TD", *lines, *(f"    {n}" for n in alone), "```"])


DIAGRAMS: dict[str, Callable[[], Arrows]] = {"packages": package_arrows, "engine": engine_arrows}


def page() -> str:
    """The page with both diagrams, drawn anew between their marks."""
    text = PAGE.read_text(encoding="utf-8")
    for name, arrows in DIAGRAMS.items():
        begin, end = f"<!-- {name}: drawn by {COMMAND} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            raise ValueError(f"{PAGE} has no marks of the diagram {name!r}")
        text = f"{before}{begin}{diagram(arrows())}{mark}{after}"
    return text


def main() -> int:
    """Write the page, or check it."""
    if sys.argv[1:] == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
