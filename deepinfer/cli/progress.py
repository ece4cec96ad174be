"""A progress line with counts on stderr, for terminals only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deepinfer.cli.notes import in_json

Show = Callable[[str], None]


@contextmanager
def counting(description: str, *, enabled: bool = True) -> Iterator[Show]:
    """Yields a function `show(counts)` that sets the text beside a moving bar.

    Nothing is drawn where stderr is no terminal or its lines are JSON. stdout is not redirected.
    """
    if not (enabled and sys.stderr is not None and sys.stderr.isatty()) or in_json():
        yield lambda counts: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=20),
        progress.TextColumn("{task.fields[counts]}"),
        progress.TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(description, total=None, counts="")
        yield lambda counts: bar.update(task, counts=counts)


class Rate:
    """A mean rate: counts per second since the first one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self.count = 0

    def add(self, count: int) -> None:
        """Add to the count."""
        self.count += count

    @property
    def per_second(self) -> float:
        """The mean rate so far; 0 at the beginning."""
        elapsed = self._clock() - self._start
        return self.count / elapsed if elapsed > 0 else 0.0
