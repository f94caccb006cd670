"""Time spent in the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ORIGIN = time.perf_counter()  # a common origin, so that spans of different steps can be shown on one time line


class Stopwatch:
    """Seconds of each phase, measured from the stopwatch's creation on.

    Args:
        on_phase: called with the name of each phase when it begins.

    >>> watch = Stopwatch()
    >>> with watch.phase("update"):
    ...     pass
    >>> "time/update_s" in watch.metrics(tokens=0)
    True
    """

    def __init__(self, on_phase: Callable[[str], None] = lambda name: None) -> None:
        self.seconds: dict[str, float] = {}
        self.spans: dict[str, tuple[float, float]] = {}
        self.on_phase = on_phase
        self._start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the duration of the body to the phase."""
        start = time.perf_counter()
        self.on_phase(name)
        try:
            yield
        finally:
            self.add(name, start, time.perf_counter())

    def add(self, name: str, begin: float, end: float) -> None:
        """Adds a time, measured by ``time.perf_counter()``, to the phase."""
        self.seconds[name] = self.seconds.get(name, 0.0) + end - begin
        self.span(name, begin, end)

    def span(self, name: str, begin: float, end: float) -> None:
        """Records when something began and ended, by ``time.perf_counter()``. Several spans become one that covers
        all."""
        first, last = self.spans.get(name, (begin, end))
        self.spans[name] = min(first, begin), max(last, end)

    def metrics(self, tokens: int) -> dict[str, float]:
        """Return ``time/<phase>_s`` in seconds, ``time/step_s``, tokens per second of the step and of its rollout, the
        share of the step that waited only for verdicts, and ``time/from/<phase>`` and ``time/until/<phase>``, in
        seconds after this module was imported.
        """
        total = time.perf_counter() - self._start
        rollout = self.seconds.get("rollout", 0.0)
        for_verdicts = self.seconds.get("judge", 0.0) + self.seconds.get("wait_verdicts", 0.0)
        return {
            **{f"time/{name}_s": seconds for name, seconds in self.seconds.items()},
            **{f"time/from/{name}": begin - _ORIGIN for name, (begin, _) in self.spans.items()},
            **{f"time/until/{name}": end - _ORIGIN for name, (_, end) in self.spans.items()},
            "time/step_s": total,
            "time/verdict_wait_share": for_verdicts / total if total > 0 else 0.0,
            "time/tokens_per_second": tokens / total if total > 0 else 0.0,
            "time/rollout_tokens_per_second": tokens / rollout if rollout > 0 else 0.0,
        }
