"""`bandwidth`: the bandwidth of the machine's memory, as a bound for other numbers.

read: GB/s of reading an array once. triad: GB/s of a[i] = b[i] + s * c[i], which is two reads and a
write; the read of a line before it is written is not counted. The arrays should be much larger than
the last cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deepinfer.bench.environment import describe, finish
from deepinfer.bench.measurements import Measurements
from deepinfer.bench.rounds import check_least, check_rounds
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.machine import ROOT

SOURCE = ROOT / "bench" / "bandwidth.c"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-pthread")
MIB = 2**20


class Sample(NamedTuple):
    """GB/s of one round with one number of threads."""

    threads: int
    read: float
    triad: float


@dataclass(frozen=True)
class Bandwidth:
    """Options. mib: size of each of three arrays. threads: numbers of threads to compare; None:
    one, and all cpus. probe: "auto", "c", or "numpy", an estimate with one thread."""

    mib: int = 256
    threads: tuple[int, ...] | None = None
    rounds: int = 8
    probe: str = "auto"

    def __post_init__(self) -> None:
        check_least("--mib", self.mib, 1)
        check_rounds(self.rounds)
        if self.threads is not None:
            check_least("--threads", self.threads, 1)
        if self.probe not in ("auto", "c", "numpy"):
            raise UsageError(f"--probe is {self.probe!r}; allowed: auto, c or numpy")
        if self.probe == "numpy" and self.threads not in (None, (1,)):
            raise UsageError(
                f"--threads is {self.threads} and --probe numpy runs one thread; leave one out"
            )

    def run(self) -> Measurements:
        """Measure with the C probe, or estimate where there is no compiler or no source of it."""
        report = Measurements("bandwidth", asdict(self), describe(None))
        missing = self._missing()
        if missing and self.probe == "c":
            raise UsageError(f"--probe c cannot be used: {missing}; use --probe numpy")
        if missing or self.probe == "numpy":
            method = "estimate (numpy, 1 thread)"
            reason = missing or "as asked for by --probe"
            report.notes.append(f"an estimate by numpy, below what the machine can do: {reason}")
            samples = numpy_samples(self.mib, self.rounds)
        else:
            method = "C probe"
            threads = self.threads or tuple(sorted({1, len(os.sched_getaffinity(0))}))
            samples = probe_samples(self.mib, self.rounds, threads)
        for threads_ in sorted({sample.threads for sample in samples}):
            own = [sample for sample in samples if sample.threads == threads_]
            where = {"threads": threads_, "method": method}
            report.add("read", "GB/s", [sample.read for sample in own], **where)
            report.add("triad", "GB/s", [sample.triad for sample in own], **where)
        finish(report.environment)
        return report

    def _missing(self) -> str:
        """Why the C probe cannot be built; "" when it can."""
        if not SOURCE.is_file():
            return "its source is in bench/ of the source tree, and this is an installed package"
        if compiler() is None:
            return f"no compiler; looked for {', '.join(COMPILERS)}"
        return ""


def compiler() -> str | None:
    """The system's C compiler."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def probe_samples(mib: int, rounds: int, threads: tuple[int, ...]) -> list[Sample]:
    """Compile and run the C probe, which takes the numbers of threads in turns."""
    found = compiler()
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "bandwidth")
        _run([found, *FLAGS, str(SOURCE), "-o", str(program)])
        output = _run([str(program), str(mib), str(rounds), *map(str, threads)])
    rows = (line.split() for line in output.splitlines())
    return [Sample(int(count), float(read), float(triad)) for count, read, triad in rows]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise DeepInferError(
            f"{' '.join(command)} ended with status {done.returncode}: {done.stderr.strip()}; "
            "use --probe numpy, or fewer --mib"
        )
    return done.stdout


def numpy_samples(mib: int, rounds: int) -> list[Sample]:
    """An estimate: numpy's sum, and a triad in two passes whose extra traffic is counted."""
    count = mib * MIB // 8
    a, b, c = np.zeros(count), np.full(count, 2.0), np.full(count, 3.0)
    samples = []
    for _ in range(rounds):
        started = time.perf_counter()
        b.sum()
        read = time.perf_counter()
        np.multiply(c, 3.0, out=a)
        np.add(a, b, out=a)
        triad = time.perf_counter()
        nbytes = b.nbytes / 1e9
        samples.append(Sample(1, nbytes / (read - started), 5 * nbytes / (triad - read)))
    return samples
