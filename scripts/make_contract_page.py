"""Writes docs/contract.md: the operators of the contract, from their signatures and docstrings.

    python scripts/make_contract_page.py [--check]

--check writes nothing and ends with status 1 where the page is stale.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from deepinfer.backend import CONTRACT_VERSION, OPERATORS
from deepinfer.backend.base import FAMILIES
from deepinfer.backend.device import Device

PAGE = Path(__file__).resolve().parents[1] / "docs" / "contract.md"
COMMAND = "python scripts/make_contract_page.py"
WIDTH = 100


def page() -> str:
    """The whole page."""
    version = ".".join(map(str, CONTRACT_VERSION))
    parts = [
        "# The operator contract\n",
        f"Version {version}: {len(OPERATORS)} operators in {len(FAMILIES)} families. This page is "
        "generated from the\n"
        f"docstrings of `deepinfer/backend` (`{COMMAND}`); do not edit it.\n",
        "A *primitive* has no body in the contract: the reference implements it. A *step* has a "
        "default\nbody in smaller operators and may be overridden as a whole. "
        "[writing-a-backend.md](writing-a-backend.md)\nsays how.\n",
        _contents(),
    ]
    for family, cls in FAMILIES.items():
        parts.append(_family(family, cls, [name for name in vars(cls) if name in OPERATORS]))
    services = [name for name, value in vars(Device).items() if callable(value) and name[0] != "_"]
    parts.append(_family("device", Device, services))
    return "\n".join(parts)


def _contents() -> str:
    rows = ["| family | operators |", "|---|---|"]
    for family, cls in FAMILIES.items():
        names = ", ".join(f"`{name}`" for name in vars(cls) if name in OPERATORS)
        rows.append(f"| [{family}](#{family}) | {names} |")
    rows.append("| [device](#device) | services of the device; no operators, never a fallback |")
    return "\n".join([*rows, ""])


def _family(family: str, cls: type, names: list[str]) -> str:
    module = inspect.getmodule(cls)
    assert module is not None, f"{cls} is in no module"
    assert module.__doc__, f"{cls} is in a module without a docstring"
    parts = [f"## {family}\n", f"{inspect.cleandoc(module.__doc__)}\n"]
    parts += [_operator(name, getattr(cls, name)) for name in names]
    return "\n".join(parts)


def _operator(name: str, function: object) -> str:
    assert callable(function), f"{name} is no function"
    assert function.__doc__, f"{name} has no docstring"
    kind = OPERATORS.get(name, "service")
    return (
        f"### `{name}` ({kind})\n\n"
        f"```python\n{_signature(name, function)}\n```\n\n"
        f"{inspect.cleandoc(function.__doc__)}\n"
    )


def _signature(name: str, function: object) -> str:
    assert callable(function)
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    text = ", ".join(map(_parameter, parameters))
    result = _annotation(signature.return_annotation)
    line = f"{name}({text}) -> {result}"
    if len(line) <= WIDTH:
        return line
    lines = [f"    {_parameter(parameter)}," for parameter in parameters]
    return "\n".join([f"{name}(", *lines, f") -> {result}"])


def _parameter(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {_annotation(parameter.annotation)}"
    default = parameter.default
    return text if default is inspect.Parameter.empty else f"{text} = {default!r}"


def _annotation(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def main() -> int:
    """Write or check the page; returns the exit status."""
    if sys.argv[1:] not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    text = page()
    if sys.argv[1:]:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
        print(f"{PAGE.name} is {'stale: run ' + COMMAND if stale else 'up to date'}")
        return int(stale)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
