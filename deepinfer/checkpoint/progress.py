"""A progress bar on stderr, drawn only where a person is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    description: str, total: int | None, *, enabled: bool = True
) -> Iterator[Callable[[int], None]]:
    """A bar that yields `advance(count)`; it draws nothing where stderr is not a terminal.

    total: None where nobody knows how much there is.
    """
    if not (enabled and sys.stderr is not None and sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)
