"""Compare two reports: which cases changed, and which use more of their limits."""

from __future__ import annotations

from typing import Any

GROWTH = 2.0
"""A share of a limit is reported if it grew by this factor and is above a tenth."""
SAME = ("accelerator", "mode", "device", "profile", "tier")
"""Fields whose difference is reported, because the outcomes are then not comparable."""


def compare_reports(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, bool]:
    """The comparison as text, and whether every case that passed before and was run again passes.

    False where no case is in both reports. The text first says where the two runs differ in what
    they tested.
    """
    old = {case["id"]: case for case in before["cases"]}
    new = {case["id"]: case for case in after["cases"]}
    lines = [f"A: {before['title']}, {before['tier']} tier, {before['started']}"]
    lines.append(f"B: {after['title']}, {after['tier']} tier, {after['started']}")
    for name in SAME:
        if before[name] != after[name]:
            lines.append(f"not the same {name}: {before[name]} and {after[name]}")
    if not old.keys() & new.keys():
        lines.append("no case is in both: they cannot be compared")
        return "\n".join(lines), False
    worse = 0
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if a is None or b is None:
            lines.append(f"only in {'A' if b is None else 'B'}: {name}")
        elif a["outcome"] != b["outcome"]:
            worse += a["outcome"] == "passed"
            lines.append(f"{a['outcome']} -> {b['outcome']}: {name} {b['message']}".rstrip())
        else:
            lines += _grown(name, a["used"], b["used"])
    lines.append(
        f"{worse} cases that passed in A do not in B"
        if worse
        else "every case that passed in A and is in B passes there"
    )
    return "\n".join(lines), not worse


def _grown(name: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    lines = []
    for key in sorted(before.keys() & after.keys()):
        a, b = float(before[key]), float(after[key])
        if b > 0.1 and b >= GROWTH * a:
            lines.append(f"{name}: {key} uses {b:.0%} of its limit, before {a:.0%}")
    return lines
