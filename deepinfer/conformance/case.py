"""`Case`, one check of one operator, which its id alone repeats; `Verdict`, its result.

An id reads `operator[fact=value,...,dtype=bf16,values=ties,seed=3]`. It is the key in reports, the
value of `--case`, and all that is needed to build the inputs again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from deepinfer.backend import Fact
from deepinfer.errors import UsageError


class Tier(StrEnum):
    """How much is run: quick takes minutes on two cores, full is for claims, soak takes hours."""

    QUICK = "quick"
    FULL = "full"
    SOAK = "soak"

    def includes(self, other: Tier) -> bool:
        """Whether a run of this tier contains the cases of the other one."""
        order = list(Tier)
        return order.index(other) <= order.index(self)


class Outcome(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped: hardware"


class Failure(StrEnum):
    """Which check a failed case broke."""

    NONE = ""
    SHAPE = "shape"
    DTYPE = "dtype"
    NUMBERS = "numbers"
    WRITE = "write"
    REPEAT = "repeat"
    BATCH = "batch"
    NAN = "nan"
    RAISES = "raises"
    COUNT = "count"


_RESERVED = ("dtype", "numerics", "values", "edge", "seed")
_ID = re.compile(r"(?P<operator>[a-z_.0-9]+)\[(?P<parts>[^\]]*)\]")
_WORDS = {"None": None, "True": True, "False": False}


@dataclass(frozen=True)
class Case:
    """One check. facts: shapes and static facts, sorted by name; `of` sorts them.

    dtype: compute precision, "bf16", "fp32" or "fp64". numerics: "ref" or "infer" where the
    operator takes it. values: class of the inputs (`values.py`). edge: which boundary it is at.
    tier: the lowest tier that runs it; it is not part of the id.
    """

    operator: str
    facts: tuple[tuple[str, Fact], ...] = ()
    dtype: str = "bf16"
    numerics: str | None = None
    values: str = "normal"
    edge: str = ""
    seed: int = 0
    tier: Tier = field(default=Tier.QUICK, compare=False)

    @classmethod
    def of(
        cls,
        operator: str,
        facts: Mapping[str, Fact],
        *,
        dtype: str = "bf16",
        numerics: str | None = None,
        values: str = "normal",
        edge: str = "",
        seed: int = 0,
        tier: Tier = Tier.QUICK,
    ) -> Case:
        """A case from a mapping of facts."""
        for name in facts:
            if name in _RESERVED:
                raise ValueError(f"{name!r} is a field of a case and no fact")
        return cls(
            operator, tuple(sorted(facts.items())), dtype, numerics, values, edge, seed, tier
        )

    def fact(self, name: str) -> Fact:
        """One fact; KeyError where the case does not state it."""
        return dict(self.facts)[name]

    def size(self, name: str) -> int:
        """The value of a fact that is a number; TypeError where it is something else."""
        value = self.fact(name)
        if not isinstance(value, int):
            raise TypeError(f"{self.id}: {name} is {value!r}, not a number of things")
        return value

    @property
    def id(self) -> str:
        parts = [f"{name}={value}" for name, value in self.facts]
        parts.append(f"dtype={self.dtype}")
        if self.numerics is not None:
            parts.append(f"numerics={self.numerics}")
        parts.append(f"values={self.values}")
        if self.edge:
            parts.append(f"edge={self.edge}")
        parts.append(f"seed={self.seed}")
        return f"{self.operator}[{','.join(parts)}]"

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case with this id; UsageError where the text is no id."""
        match = _ID.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"{text!r} is no case id; one reads operator[name=value,...,dtype=bf16,"
                "values=normal,seed=0], as reports print it"
            )
        facts: dict[str, Fact] = {}
        own: dict[str, str] = {}
        for part in filter(None, match["parts"].split(",")):
            name, separator, value = part.partition("=")
            if not separator or name in facts or name in own:
                raise UsageError(f"{text!r} is no case id: {part!r} is not one name=value")
            if name in _RESERVED:
                own[name] = value
            else:
                facts[name] = _fact(value)
        try:
            seed = int(own.get("seed", "0"))
        except ValueError:
            raise UsageError(f"{text!r} is no case id: seed is {own['seed']!r}") from None
        return cls.of(
            match["operator"],
            facts,
            dtype=own.get("dtype", "bf16"),
            numerics=own.get("numerics"),
            values=own.get("values", "normal"),
            edge=own.get("edge", ""),
            seed=seed,
        )

    def __str__(self) -> str:
        return self.id


def _fact(text: str) -> Fact:
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Timing:
    """How long a call takes (`--perf`): median, 10 % and 90 % of the rounds in seconds.

    bytes: that the call must move. flops: its floating-point operations.
    """

    median: float
    low: float
    high: float
    rounds: int
    bytes: int
    flops: int


@dataclass(frozen=True)
class Verdict:
    """The result of one case.

    provider: who ran the operator (native, composed, fallback, host). used: the share of each limit
    that was used, by "output:metric"; above 1 the limit was exceeded. message: what differs.
    """

    case: Case
    outcome: Outcome
    provider: str = ""
    failure: Failure = Failure.NONE
    message: str = ""
    used: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    timing: Timing | None = None

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    def __str__(self) -> str:
        kind = f" ({self.failure})" if self.failure else ""
        text = f": {self.message}" if self.message else ""
        return f"{self.outcome}{kind} {self.case.id}{text}"
