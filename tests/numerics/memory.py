"""Anonymous memory of this process, watched while something runs."""

from __future__ import annotations

import threading
from types import TracebackType

PERIOD = 0.005  # seconds between samples


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


class AnonymousPeak:
    """`with AnonymousPeak() as peak: ...`; then `peak.growth` is the largest growth seen."""

    def __enter__(self) -> AnonymousPeak:
        self._before = self._highest = anonymous_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self._highest = max(self._highest, anonymous_bytes())

    @property
    def growth(self) -> int:
        """Bytes above the start."""
        return self._highest - self._before

    def _sample(self) -> None:
        while not self._done.wait(PERIOD):
            self._highest = max(self._highest, anonymous_bytes())
